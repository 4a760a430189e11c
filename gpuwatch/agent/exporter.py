"""Serves `/metrics` in threads of its own. Sleeps in `accept`: a server that polls costs more than all the rest."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector as PrometheusCollector

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # with a client that connects and says nothing
REST_S = 0.1
MOST_CLIENTS = 8  # at once; the oldest makes room, so that slow ones keep nobody out and cost no memory


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # of five, a scrape in a crowd was lost, and tried again by its kernel a second later

    def __init__(self, *arguments: Any) -> None:
        self._clients: list[socket.socket] = []  # oldest first
        self._change = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptor is left: the client still waits, and would be selected on without end
            time.sleep(REST_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._change:
            self._clients.append(request)
            if len(self._clients) > MOST_CLIENTS:
                with contextlib.suppress(OSError):
                    self._clients.pop(0).shutdown(socket.SHUT_RDWR)  # its thread sees the end and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._change, contextlib.suppress(ValueError):
            self._clients.remove(request)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        # Not the inherited one: it looks the host's name up, which can take a minute where DNS is away.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, _request: Any, client_address: Any) -> None:
        log.debug("a client of /metrics went away: %s", client_address)


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, *_: Any) -> None:
        pass  # a scrape is no news


class Exporter:
    """One page on one port."""

    def __init__(self, host: str, port: int, page: PrometheusCollector) -> None:
        """Raises `OSError` where the address is taken or not ours."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(page)
        ProcessCollector(registry=registry)
        kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if ":" in host else _Server
        self._server = kind((host, port), _Handler)
        self._server.set_app(make_wsgi_app(registry))
        self._ending = False
        self._thread = threading.Thread(target=self._serve, name="exporter", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on; the one that was found where 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at once: shutting the listening socket down ends the `accept` that the thread sleeps in."""
        self._ending = True
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._server.server_close()

    def _serve(self) -> None:
        while not self._ending:
            self._server.handle_request()
