"""A load of agents: N keep-alive connections, one report each per interval. Prints one JSON line with what it saw.

Runs as its own process, so that the server's CPU is the server's alone. How many answers have come is kept as 8 bytes
in PROGRESS_FILE, so that whoever measures counts what was answered in the window, not what should have been.
`python -m tests.benchmarks.load PORT SECRET_FILE PROGRESS_FILE NODES INTERVAL_S SECONDS [CA_FILE]`
"""

from __future__ import annotations

import heapq
import json
import os
import resource
import selectors
import socket
import ssl
import struct
import sys
import time
from pathlib import Path

from gpuwatch.model.token import machine_token
from tests.benchmarks.reports import machine, report


class Agent:
    """One connection and what is on its way."""

    __slots__ = ("head", "node", "pending", "sent_s", "sequence", "sock")

    def __init__(self, node: int, sock: socket.socket, secret: bytes) -> None:
        self.node = node
        self.sock = sock
        self.sequence = 0
        self.sent_s = 0.0
        self.pending = False
        token = machine_token(secret, machine(node))
        self.head = (
            f"POST /v1/reports HTTP/1.1\r\nHost: a\r\nContent-Type: application/msgpack\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: "
        ).encode()

    def send(self) -> None:
        """One report, in one write."""
        self.sequence += 1
        body = report(self.node, self.sequence)
        self.sent_s = time.monotonic()
        self.pending = True
        self.sock.sendall(self.head + str(len(body)).encode() + b"\r\n\r\n" + body)


def _connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1")


class Score:
    """What was seen."""

    def __init__(self, progress: Path) -> None:
        self._file = os.open(progress, os.O_RDWR | os.O_CREAT, 0o600)
        self.waits_ms: list[float] = []
        self.refused: dict[str, int] = {}  # first line of the answer -> how often
        self.late = 0

    def take(self, agent: Agent) -> bool:
        """One readable connection. False: it is closed."""
        try:
            answer = agent.sock.recv(65536)
        except (ssl.SSLWantReadError, BlockingIOError):  # TLS 1.3 sends its session tickets unasked
            return True
        except OSError as error:
            answer = type(error).__name__.encode()
        if answer.startswith(b"HTTP/1.1 200"):
            self.waits_ms.append((time.monotonic() - agent.sent_s) * 1e3)
        else:
            words = answer.split(b"\r\n", 1)[0].decode(errors="replace") or "closed"
            self.refused[words] = self.refused.get(words, 0) + 1
        agent.pending = False
        return answer.startswith(b"HTTP/")

    def keep(self) -> None:
        """For whoever measures."""
        os.pwrite(self._file, struct.pack("<q", len(self.waits_ms)), 0)

    def told(self) -> str:
        """One JSON line."""
        waits_ms = sorted(self.waits_ms)
        found = {
            "answered": len(waits_ms),
            "refused": sum(self.refused.values()),
            "refusals": self.refused,
            "late": self.late,
            "p50_ms": waits_ms[len(waits_ms) // 2] if waits_ms else None,
            "p99_ms": waits_ms[int(len(waits_ms) * 0.99)] if waits_ms else None,
        }
        return json.dumps(found)


def main() -> None:
    """Connect, warm up one interval, measure."""
    port, secret_file, progress = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    nodes, interval_s, seconds = int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6])
    context = ssl.create_default_context(cafile=sys.argv[7]) if len(sys.argv) > 7 else None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    secret = secret_file.read_bytes().strip()
    agents = [Agent(node, _connect(port, context), secret) for node in range(nodes)]
    chooser = selectors.EpollSelector()
    for each in agents:
        each.sock.setblocking(False)
        chooser.register(each.sock, selectors.EVENT_READ, each)
    begun_s = time.monotonic()
    queue = [(begun_s + interval_s * node / nodes, node) for node in range(nodes)]
    heapq.heapify(queue)
    score = Score(progress)
    score.keep()
    print("ready", flush=True)
    while (now_s := time.monotonic()) < begun_s + seconds:
        while queue and queue[0][0] <= now_s:
            due_s, node = heapq.heappop(queue)
            if agents[node].pending:
                score.late += 1  # the last one is not answered yet
            else:
                agents[node].send()
            heapq.heappush(queue, (due_s + interval_s, node))
        for key, _ in chooser.select(max(0.0, min(0.05, queue[0][0] - time.monotonic()))):
            if not score.take(key.data):
                chooser.unregister(key.fileobj)
                queue = [entry for entry in queue if entry[1] != key.data.node]
                heapq.heapify(queue)
        score.keep()
    print(score.told(), flush=True)


if __name__ == "__main__":
    main()
