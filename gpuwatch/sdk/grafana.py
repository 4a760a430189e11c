"""Grafana's HTTP API through `grafana-client`: each call once, each failure in words that say what to do.

Redirects are not followed: on one, a POST turns into a GET and seems to have worked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuwatch import __version__
from gpuwatch.errors import DashboardError, UsageError, install_extra

RIGHTS = "give its service account the role Editor, or `dashboards:create`, `dashboards:write`, `folders:create`"
CONFLICTS = {
    # `status` of a 412 -> why
    "version-mismatch": "it is there already and differs: edited in Grafana, or from another version of gpuwatch",
    "name-exists": "another dashboard of that folder has this title",
    "plugin-dashboard": "the one that is there belongs to a plugin",
}


@dataclass(frozen=True, slots=True)
class Server:
    """What a Grafana says of itself; None where it does not say."""

    version: str
    panels: frozenset[str] | None  # kinds of panels that it can draw
    prometheus_count: int | None  # data sources of that type


class Refused(DashboardError):
    """This dashboard is not taken (412); others may be."""


class Grafana:
    """One Grafana, spoken to with a service account's token."""

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None, timeout_s: float = 15.0) -> None:
        """Asks nothing yet. `UsageError` for an unusable address, `DashboardError` where the extra is not installed."""
        try:
            from grafana_client.api import GrafanaApi
        except ImportError as error:
            raise DashboardError(
                "the Grafana client is not installed", why=str(error), next_step=install_extra("grafana")
            ) from error
        self.url = url.rstrip("/")
        parts = _checked(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        path = parts.path.strip("/")
        self._api: Any = GrafanaApi(  # most of its calls have no types
            auth=token,
            protocol=parts.scheme,
            host=host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            verify=True if ca_file is None else str(ca_file),
            timeout=timeout_s,
            user_agent=f"gpuwatch/{__version__}",
        )
        self._api.client.s.max_redirects = 0

    def server(self) -> Server:
        """Version, panels and data sources."""
        with self._words("it cannot be asked what it is"):
            said = _object(self._api.client.GET("/frontend/settings"))
            panels, sources = said.get("panels"), said.get("datasources")
            count = None
            if isinstance(sources, dict):
                count = sum(isinstance(one, dict) and one.get("type") == "prometheus" for one in sources.values())
            return Server(
                version=str((said.get("buildInfo") or {}).get("version", "")),
                panels=frozenset(panels) if isinstance(panels, dict) else None,
                prometheus_count=count,
            )

    def folder_uid(self, title: str) -> str | None:
        """Of the top folder with this title; None where there is none."""
        with self._words("its folders cannot be listed"):
            found = self._api.folder.get_all_folders()
            if not isinstance(found, list):
                raise _no_grafana(self.url, found)
            return next((str(one["uid"]) for one in found if one.get("title") == title), None)

    def make_folder(self, title: str) -> str:
        """Its uid."""
        with self._words(f"the folder {title!r} cannot be made"):
            return str(_object(self._api.folder.create_folder(title))["uid"])

    def dashboard(self, uid: str) -> tuple[dict[str, Any], str] | None:
        """What is there under this uid, and its folder's uid; None where nothing is."""
        from grafana_client.client import GrafanaClientError

        with self._words(f"the dashboard {uid} cannot be read"):
            try:
                found = _object(self._api.dashboard.get_dashboard(uid))
            except GrafanaClientError as error:
                if error.status_code == 404:
                    return None
                raise
            return dict(found["dashboard"]), str((found.get("meta") or {}).get("folderUid") or "")

    def push(self, board: Mapping[str, Any], *, folder_uid: str, overwrite: bool) -> str:
        """Store it; its address. `Refused` where another is in the way and `overwrite` is not set."""
        body: dict[str, Any] = {"dashboard": dict(board), "overwrite": overwrite, "message": f"gpuwatch {__version__}"}
        if folder_uid:
            body["folderUid"] = folder_uid
        with self._words(f"the dashboard {board.get('title')!r} was not taken"):
            answer = _object(self._api.dashboard.update_dashboard(body))
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{answer.get('url', '')}"

    @contextmanager
    def _words(self, what: str) -> Iterator[None]:
        """Turn whatever the client raises into a `DashboardError`."""
        import niquests
        from grafana_client.client import GrafanaException, GrafanaTimeoutError

        what = f"{self.url}: {what}"
        try:
            yield
        except GrafanaTimeoutError as error:
            raise DashboardError(
                what, why="no answer in time", next_step="run it again: what was stored already is left as it is"
            ) from error
        except GrafanaException as error:
            raise _refusal(what, error.status_code or 0, error.response) from error
        except niquests.exceptions.TooManyRedirects as error:
            why = "it answers with a redirect"
            raise DashboardError(what, why=why, next_step="name the address that it leads to (https?)") from error
        except niquests.exceptions.SSLError as error:
            if "WRONG_VERSION_NUMBER" in str(error):
                why = "what answers there speaks no TLS"
                raise DashboardError(
                    what, why=why, next_step="begin --url with http://, or name the port of https"
                ) from error
            why = f"its certificate is not trusted: {_cause(error)}"
            raise DashboardError(what, why=why, next_step="name its authority with --ca-file") from error
        except niquests.exceptions.JSONDecodeError as error:
            raise _no_grafana(self.url, "no JSON") from error
        except (niquests.exceptions.RequestException, OSError) as error:
            raise DashboardError(
                what, why=f"it cannot be reached: {_cause(error)}", next_step="check --url, and that Grafana runs"
            ) from error
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise _no_grafana(self.url, f"JSON of another shape: {error!r}") from error


def _refusal(what: str, code: int, response: Any) -> DashboardError:
    said = response if isinstance(response, dict) else {}
    words = str(said.get("message") or response or "")[:300]
    why = f"HTTP {code}: {words}"
    if code == 412:
        status = str(said.get("status", ""))
        more = CONFLICTS.get(status, "")
        step = "--overwrite replaces it; Grafana keeps the old one in its history"
        if status == "name-exists":
            step = "rename or delete that one, or choose another --folder"
        if status == "plugin-dashboard":
            step = "disable that plugin's dashboards, or choose another Grafana"
        return Refused(what, why=f"{why} ({more})" if more else why, next_step=step)
    steps = {
        400: "see Grafana's own words; these dashboards are for 11.6 or newer",
        401: "make a new token for the service account and put it into --token-file",
        403: f"the token may not do this: {RIGHTS}",
        404: "check --url: a Grafana under a path needs that path too",
        409: "somebody else changes it at the same time: run it again",
        429: "wait a minute and run it again",
    }
    if code == 400 and "provisioned" in words:
        step = "it reads this dashboard from files: put the new files there, or take them away and push"
        return DashboardError(what, why=why, next_step=step)
    usual = "look into Grafana's log, then run it again" if code >= 500 else "see Grafana's log"
    return DashboardError(what, why=why, next_step=steps.get(code, usual))


def _cause(error: BaseException) -> str:
    """The last of the causes that the client nests in one text, without addresses of objects."""
    words = str(error)
    if found := re.search(r"Caused by \w+\((.*)\)\)$", words):
        words = re.sub(r"<[^>]*>: ", "", found[1]).strip("\"'")
    return words


def _checked(url: str) -> Any:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a Grafana", next_step="for example --url https://grafana.my.org")
    if parts.username or parts.password:
        raise UsageError(
            "the address holds a password",
            why="every user of this machine sees it in the list of processes",
            next_step="leave it out; put a service account's token into --token-file",
        )
    return parts


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise _no_grafana("", answer)
    return answer


def _no_grafana(url: str, answer: Any) -> DashboardError:
    return DashboardError(
        f"{url or 'what answers'} does not speak as a Grafana does",
        why=f"its answer is {str(answer)[:80]!r}",
        next_step="check --url: is a proxy or a log-in page before it?",
    )
