"""A Grafana for tests: the part of its HTTP API that a push uses, with its checks and its words for a refusal.

Shapes as Grafana's API reference gives them: 401 for a token that it does not know, 404 for what is not there, 412 with
`status` version-mismatch, name-exists or plugin-dashboard, versions that count up with each save.
"""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from typing import Any

TOKEN = "glsa_token-of-the-tests"
PANELS = ("stat", "timeseries", "table", "bargauge", "state-timeline", "text")
Json = dict[str, Any]


class GrafanaServer:
    """`answers` maps "METHOD /path" to a (status, body) that is given instead; a bytes body is sent as HTML."""

    def __init__(self, prefix: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.prefix = prefix
        self.version = "12.1.0"
        self.panels = list(PANELS)
        self.sources: Json = {"Prometheus": {"type": "prometheus", "uid": "p1"}}
        self.folders: dict[str, str] = {}  # uid -> title
        self.boards: dict[str, Json] = {}  # uid -> {"dashboard", "folderUid"}
        self.messages: list[str] = []
        self.plugin_boards: set[str] = set()
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("GET", None)

            def do_POST(self) -> None:
                self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, method: str, body: Any) -> None:
                path = self.path.partition("?")[0]
                server.asked.append(f"{method} {path}")
                status, said = server.answer(method, path, body, self.headers.get("Authorization", ""))
                whole = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if isinstance(said, bytes) else "application/json")
                self.send_header("Content-Length", str(len(whole)))
                if status in (301, 302, 307):
                    self.send_header("Location", f"{server.url}/elsewhere")
                self.end_headers()
                self.wfile.write(whole)

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_address[1]}{prefix}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def changes(self) -> list[str]:
        """Requests that change something."""
        return [line for line in self.asked if not line.startswith("GET ")]

    def answer(self, method: str, path: str, body: Any, authorization: str) -> tuple[int, Any]:
        """Status and body."""
        api, path = path.startswith(f"{self.prefix}/api/"), path.removeprefix(f"{self.prefix}/api")
        if not api:
            return 404, {"message": "Not found"}
        if (line := f"{method} {path}") in self.answers:
            return self.answers[line]
        if path == "/frontend/settings":
            build = {"version": self.version, "edition": "Open Source"}
            return 200, {"buildInfo": build, "panels": {p: {} for p in self.panels}, "datasources": self.sources}
        if authorization != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid", "statusCode": 401}
        if path == "/folders":
            return self._make_folder(body) if method == "POST" else (200, self._folders())
        if path.startswith("/dashboards/uid/"):
            return self._get(path.removeprefix("/dashboards/uid/"))
        if line == "POST /dashboards/db":
            return self._save(body)
        return 404, {"message": "Not found"}

    def _folders(self) -> list[Json]:
        return [{"id": n, "uid": uid, "title": title} for n, (uid, title) in enumerate(self.folders.items())]

    def _make_folder(self, body: Json) -> tuple[int, Any]:
        if not body.get("title"):
            return 400, {"message": "folder title cannot be empty"}
        uid = body.get("uid") or f"f{len(self.folders) + 1}"
        self.folders[uid] = body["title"]
        return 200, {"uid": uid, "title": body["title"]}

    def _get(self, uid: str) -> tuple[int, Any]:
        if uid not in self.boards:
            return 404, {"message": "Dashboard not found"}
        return 200, {"dashboard": self.boards[uid]["dashboard"], "meta": {"folderUid": self.boards[uid]["folderUid"]}}

    def _save(self, body: Json) -> tuple[int, Any]:
        board, folder = body["dashboard"], body.get("folderUid", "")
        if not board.get("title"):
            return 400, {"message": "Dashboard title cannot be empty"}
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        uid = board.get("uid") or f"d{len(self.boards) + 1}"
        if uid in self.plugin_boards:
            return 412, {"status": "plugin-dashboard", "message": "The dashboard belongs to plugin x."}
        old = self.boards.get(uid)
        if old and not body.get("overwrite") and board.get("version") != old["dashboard"]["version"]:
            return 412, {"status": "version-mismatch", "message": "The dashboard has been changed by someone else"}
        twins = [
            key
            for key, other in self.boards.items()
            if key != uid and other["dashboard"]["title"] == board["title"] and other["folderUid"] == folder
        ]
        if twins and not body.get("overwrite"):
            return 412, {
                "status": "name-exists",
                "message": "A dashboard with the same name in the folder already exists",
            }
        version = old["dashboard"]["version"] + 1 if old else 1
        self.boards[uid] = {"dashboard": board | {"id": len(self.boards) + 1, "version": version}, "folderUid": folder}
        self.messages.append(body.get("message", ""))
        url = f"{self.prefix}/d/{uid}/slug"
        return 200, {"id": 1, "uid": uid, "url": url, "status": "success", "version": version}
