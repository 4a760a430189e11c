"""The listening edge: one socket, reports to `ingest`, everything else to the ordinary web application."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
import uvloop

from gpuwatch.aggregator.bounded import BoundedHttp
from gpuwatch.aggregator.ingest import Ingest, Receive, Scope, Send
from gpuwatch.aggregator.prompt import prompt_http
from gpuwatch.errors import GpuwatchError

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

KEEP_ALIVE_S = 90  # far above the reports' interval: a connection that closes just as a report is sent is a lost report
LAG_PROBE_S = 0.5
SWEEP_S = 10.0  # between two looks for connections that are too slow
BACKLOG = 4096  # a whole cluster may reconnect at once


class Server:
    """uvicorn in a thread of its own. `lag_s` says how late its event loop runs."""

    def __init__(
        self,
        listen: str,
        ingest: Ingest,
        web: Asgi,
        *,
        tls_cert_file: Path | None = None,
        tls_key_file: Path | None = None,
    ) -> None:
        self._ingest = ingest
        self._web = web
        self._socket = _bind(listen)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if tls_cert_file is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{port}/"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=prompt_http(ingest.take_at_once),
            loop="uvloop",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",  # what strangers send is no news: one line each would fill the log
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=3,
            backlog=BACKLOG,
            ssl_certfile=None if tls_cert_file is None else str(tls_cert_file),
            ssl_keyfile=None if tls_key_file is None else str(tls_key_file),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._beat_monotonic_s = 0.0
        self._failed: BaseException | None = None

    def start(self) -> None:
        """Return when it accepts requests."""
        raise_file_limit()
        self._thread.start()
        until_s = time.monotonic() + 10.0
        while not self._server.started:
            if self._failed is not None or time.monotonic() > until_s:
                tls = isinstance(self._failed, OSError) and self._server.config.ssl_certfile is not None
                raise GpuwatchError(
                    "the server did not start",
                    why=str(self._failed or "no answer in 10 s"),
                    next_step="server.tls_cert_file and tls_key_file must be PEM files that gpuwatch may read"
                    if tls
                    else "see the log",
                )
            time.sleep(0.005)

    def stop(self) -> None:
        """Finish the requests under way, then close."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=8.0)
        self._socket.close()

    def lag_s(self) -> float:
        """Seconds by which the event loop is behind its own beat; 0 while it keeps up."""
        if self._beat_monotonic_s == 0.0:
            return 0.0
        return max(0.0, time.monotonic() - self._beat_monotonic_s - LAG_PROBE_S)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/reports" and scope["method"] == "POST":
            await self._ingest(scope, receive, send)
        else:
            await self._web(scope, receive, send)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failed = error

    async def _serve(self) -> None:
        beat = asyncio.get_running_loop().create_task(self._beat())
        await self._server.serve(sockets=[self._socket])
        beat.cancel()

    async def _beat(self) -> None:
        swept_s = time.monotonic()
        while True:
            self._beat_monotonic_s = time.monotonic()
            if self._beat_monotonic_s - swept_s > SWEEP_S:
                swept_s = self._beat_monotonic_s
                for connection in list(self._server.server_state.connections):
                    if isinstance(connection, BoundedHttp):
                        connection.give_up_if_slow()
            await asyncio.sleep(LAG_PROBE_S)


def tune_interpreter() -> None:
    """For a process that serves thousands of small requests beside a thread that thinks.

    Garbage: the records of a fleet are long-lived and without cycles. Looking through all of them stops every thread, a
    second long at 12,500 nodes, so only young objects are looked at, and all once a day (`clockwork`). Switching: with
    the usual 5 ms a tick in the other thread adds 29 ms to the slowest reports, with 0.5 ms it adds 4.
    """
    gc.set_threshold(50_000, 20, 1_000_000)
    gc.freeze()
    sys.setswitchinterval(0.0005)


def raise_file_limit() -> None:
    """A connection a node: take what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return  # some systems name a hard limit that they do not grant


def _bind(listen: str) -> socket.socket:
    """`host:port` or `[v6]:port`. Bound here and not by the server, so that a taken port is a clear error."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise GpuwatchError(
            f"server.listen is {listen!r}", why="it must be address:port", next_step="write for example 127.0.0.1:9190"
        )
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise GpuwatchError(
            f"cannot listen on {listen}",
            why="another process listens there" if taken else str(error),
            next_step="stop it, or set server.listen to a free port" if taken else "check server.listen",
        ) from error
    sock.setblocking(False)
    sock.set_inheritable(False)
    return sock
