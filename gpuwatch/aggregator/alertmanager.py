"""One POST to one Alertmanager, on the standard library's client: no proxy from the environment, no redirects."""

from __future__ import annotations

import base64
import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.errors import GpuwatchError

TIMEOUT_S = 10.0  # for one connect, one write, one read
MOST_ANSWER_BYTES = 1 << 16
WHY_CHARACTERS = 300


class AlertError(GpuwatchError):
    """The alerts were not taken."""


class Alertmanager:
    """`url`: the address with the path prefix, if it has one. One thread uses it."""

    def __init__(self, url: str, settings: AlertmanagerSettings) -> None:
        parts = urlsplit(url)
        self.name = parts.netloc + parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + "/api/v2/alerts"
        self._settings = settings

    def post(self, body: bytes) -> None:
        """Have these alerts taken. Raises `AlertError` with the reason."""
        headers = {"Content-Type": "application/json", **self._proof()}
        connection = self._connect()
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            text = answer.read(MOST_ANSWER_BYTES).decode(errors="replace").strip()
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._error(f"{type(error).__name__}: {error}", "is it up, and may we reach it?") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            hints = {401: "check alertmanager.token_file or password_file", 403: "check what this user may do"}
            raise self._error(f"HTTP {answer.status} {text}", hints.get(answer.status, "look into its log"))

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
        ca_file = self._settings.ca_file
        try:
            context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        except (OSError, ssl.SSLError) as error:
            raise self._error(f"{ca_file} cannot be used: {error}", "set alertmanager.ca_file") from error
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)

    def _error(self, why: str, next_step: str) -> AlertError:
        return AlertError(f"Alertmanager {self.name} took no alerts", why=why[:WHY_CHARACTERS], next_step=next_step)
