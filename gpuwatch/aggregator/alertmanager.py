"""One POST to one Alertmanager, on the standard library's client: no proxy from the environment, no redirects."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.errors import GpuwatchError
from gpuwatch.sdk.trust import NoTrust, trusted

TIMEOUT_S = 10.0  # for one connect, one write, one read …
DEADLINE_S = 30.0  # … and for all of them: an answer may also come a byte at a time
MOST_ANSWER_BYTES = 1 << 16
WHY_CHARACTERS = 300
REFUSED = frozenset({400, 413, 422})  # what was sent is wrong, or too much


class AlertError(GpuwatchError):
    """The alerts were not taken. `refused`: for what they are; the same again will be refused again."""

    def __init__(self, what: str, *, refused: bool = False, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.refused = refused

    def about(self, labels: Mapping[str, str]) -> AlertError:
        """The same, naming the alert."""
        named = ", ".join(f"{name}={text!r}" for name, text in labels.items())
        return AlertError(f"{self.what} with {named}", refused=True, why=self.why, next_step=self.next_step)


class Alertmanager:
    """`url`: the address with the path prefix, if it has one. One thread uses it."""

    def __init__(self, url: str, settings: AlertmanagerSettings) -> None:
        parts = urlsplit(url)
        self.name = parts.netloc + parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + "/api/v2/alerts"
        self._settings = settings

    def post(self, body: bytes) -> int | None:
        """Have these alerts taken. What its clock says (unix ns), if it does. Raises `AlertError` with the reason."""
        headers = {"Content-Type": "application/json", **self._proof()}
        connection = self._connect()
        timer = threading.Timer(DEADLINE_S, _hang_up, [connection])
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            text = answer.read(MOST_ANSWER_BYTES).decode(errors="replace").strip()
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._error(f"{type(error).__name__}: {error}", "is it up, and may we reach it?") from error
        finally:
            timer.cancel()
            connection.close()
        if not 200 <= answer.status < 300:
            hints = {401: "check alertmanager.token_file or password_file", 403: "check what this user may do"}
            refused = answer.status in REFUSED
            raise self._error(
                f"HTTP {answer.status} {text}", hints.get(answer.status, "look into its log"), refused=refused
            )
        return _date(answer.getheader("Date", ""))

    def _proof(self) -> dict[str, str]:
        settings = self._settings
        if settings.token_file is not None:
            return {"Authorization": f"Bearer {self._read(settings.token_file)}"}
        if settings.password_file is not None:
            pair = f"{settings.username}:{self._read(settings.password_file)}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(f"{path} cannot be read: {error}", f"let gpuwatch's user read {path}") from error

    def _connect(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            context = trusted(self._settings.ca_file, "alertmanager.ca_file")
        except NoTrust as error:
            raise self._error(str(error), "put certificates in PEM there, or name another file") from error
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)

    def _error(self, why: str, next_step: str, *, refused: bool = False) -> AlertError:
        what = f"Alertmanager {self.name} took no alerts"
        return AlertError(what, refused=refused, why=why[:WHY_CHARACTERS], next_step=next_step)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """From another thread: whoever waits for it gets an error."""
    found = connection.sock
    if found is not None:
        with contextlib.suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _date(header: str) -> int | None:
    try:
        return int(parsedate_to_datetime(header).timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError):
        return None
