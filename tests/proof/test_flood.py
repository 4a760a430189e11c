"""20 s of everything that should not come, on many connections, while real agents report."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from gpuwatch.model.wire import MAX_REPORT_BYTES, Report
from tests.gate import Gate
from tests.living_cluster import Living

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

FLOOD_S = 20.0
MOST_GROWTH_BYTES = 40 << 20
PACK = msgspec.msgpack.Encoder().encode


class Flood:
    """What each kind of stranger does over and over, and what was answered."""

    def __init__(self, living: Living, report: bytes, old: bytes, victim: str, other: str, seed: int) -> None:
        self.port = living.cluster.port
        self.report = msgspec.msgpack.decode(report, type=Report)
        self.body = report
        self.old = old  # more reports ago than bodies are remembered
        machines = living.cluster.directory / "machines"
        self.token = (machines / victim / "token").read_text()
        self.other = other
        self.chance = random.Random(seed)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.until_s = time.monotonic() + FLOOD_S

    def kinds(self) -> list[Callable[[], None]]:
        return [
            self.no_http, self.half_a_request, self.random_bodies, self.oversized, self.endless, self.wrong_node,
            self.replays, self.other_body, self.strangers, self.versions, self.random_bodies, self.old_replays,
        ]  # fmt: skip

    def post(self, kind: str, make: Callable[[], tuple[bytes, str]]) -> None:
        http_client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while time.monotonic() < self.until_s:
            body, token = make()
            try:
                http_client.request("POST", "/v1/reports", body, {"Authorization": f"Bearer {token}"})
                answer = http_client.getresponse()
                answer.read()
                self.answers[kind, answer.status] += 1
            except (OSError, http.client.HTTPException):
                self.answers[kind, 0] += 1
                http_client.close()
        http_client.close()

    def random_bodies(self) -> None:
        self.post("garbage", lambda: (self.chance.randbytes(self.chance.randrange(0, 4000)), self.token))

    def oversized(self) -> None:
        self.post("too_large", lambda: (bytes(MAX_REPORT_BYTES + self.chance.randrange(1, 100_000)), self.token))

    def wrong_node(self) -> None:
        body = PACK(msgspec.structs.replace(self.report, machine=self.other))
        self.post("other_machine", lambda: (body, self.token))

    def replays(self) -> None:
        self.post("replay", lambda: (self.body, self.token))

    def old_replays(self) -> None:
        self.post("replay", lambda: (self.old, self.token))

    def other_body(self) -> None:
        def make() -> tuple[bytes, str]:
            changed = msgspec.structs.replace(self.report, agent_version=f"{self.chance.random()}")
            return PACK(changed), self.token

        self.post("conflict", make)

    def strangers(self) -> None:
        def make() -> tuple[bytes, str]:
            name = self.chance.randbytes(60).hex()
            return PACK(msgspec.structs.replace(self.report, machine=name)), self.chance.randbytes(32).hex()

        self.post("token", make)

    def versions(self) -> None:
        self.post("version", lambda: (PACK([self.chance.randrange(4, 1000), "another shape"]), self.token))

    def no_http(self) -> None:
        while time.monotonic() < self.until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as sock:
                sock.sendall(self.chance.randbytes(5000))
                sock.settimeout(1.0)
                sock.recv(1000)
                self.answers["no_http", 0] += 1

    def half_a_request(self) -> None:
        """Two hundred connections that begin to say something and never end it."""
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 5))
                sock.sendall(b"POST /v1/reports HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nAuthoriz")
            while time.monotonic() < self.until_s:
                time.sleep(0.1)

    def endless(self) -> None:
        """A body in pieces that has no end."""
        head = f"POST /v1/reports HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token}\r\n"
        while time.monotonic() < self.until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as sock:
                sock.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
                while time.monotonic() < self.until_s:
                    sock.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


@pytest.fixture
def living(tmp_path: Path, gate: Gate) -> Iterator[Living]:
    made = Living(tmp_path / "cluster", node_count=4, agents_port=gate.port)
    gate.to_port = made.cluster.port
    yield made
    made.cluster.stop()


def one_real_report(living: Living, gate: Gate, slot: str) -> bytes:
    """What an agent had to spool while it was cut off, and delivered later."""
    folder = living.cluster.machine_directory(slot) / "agent" / "spool"
    gate.set("refuse")
    living.until("a report is spooled", 20, lambda: bool(list(folder.glob("*.report"))))
    body = sorted(folder.glob("*.report"))[0].read_bytes()
    gate.set("open")
    living.until("the spool is delivered", 30, lambda: not list(folder.glob("*.report")))
    return body


def test_a_flood_of_garbage_costs_nobody_its_health(living: Living, gate: Gate) -> None:
    living.start()
    cluster = living.cluster
    living.cluster.log_line(living.slots[0], "NVRM: Xid (PCI:0000:1a:00): 43, pid=77, name=python, Ch 00000008")
    living.until("the event came", 20, lambda: living.metric("gpuwatch_kernel_events_total") == 1)
    victim, other = (cluster.machine_directory(slot).name for slot in living.slots[:2])
    old = one_real_report(living, gate, living.slots[0])
    living.watch(40.0, lambda: time.sleep(1.0))
    body = one_real_report(living, gate, living.slots[0])
    living.until("all nodes are well", 60, living.well)
    seed = random.SystemRandom().randrange(1 << 31)
    mark, machines = living.mark(), {slot: node["machine"] for slot, node in living.nodes().items()}
    reasons = ("garbage", "version", "too_large", "other_machine", "conflict", "token")
    before = {reason: living.metric(f'gpuwatch_reports_refused_total{{reason="{reason}"}}') for reason in reasons}
    late = living.metric('gpuwatch_reports_taken_total{how="late"}')
    process = psutil.Process(cluster.aggregator_pid)
    rss_before = process.memory_info().rss
    flood = Flood(living, body, old, victim, other, seed)
    threads = [threading.Thread(target=kind, daemon=True) for kind in flood.kinds()]
    for thread in threads:
        thread.start()
    healths: Counter[str] = Counter()
    most = rss_before
    while time.monotonic() < flood.until_s + 5.0:
        healths.update(str(node["health"]) for node in living.nodes().values())
        most = max(most, process.memory_info().rss)
        time.sleep(0.5)
    for thread in threads:
        thread.join(15)
    told = {f"{kind} {status}": count for (kind, status), count in sorted(flood.answers.items())}
    print(f"\nseed {seed}: {sum(flood.answers.values())} answers in {FLOOD_S:.0f} s: {told}")
    print(f"healths seen {dict(healths)}; memory {rss_before >> 20} MB, at most {most >> 20} MB")

    assert set(healths) == {"healthy"}, healths
    assert living.condemned(mark) == []
    assert most - rss_before < MOST_GROWTH_BYTES
    assert {slot: node["machine"] for slot, node in living.nodes().items()} == machines
    assert living.metric("gpuwatch_kernel_events_total") == 1
    assert living.metric('gpuwatch_reports_taken_total{how="late"}') == late  # a replay is no report that came late
    counted = {r: living.metric(f'gpuwatch_reports_refused_total{{reason="{r}"}}') - before[r] for r in reasons}
    codes = {"garbage": 400, "version": 400, "other_machine": 403, "conflict": 409, "token": 401}
    for reason, code in codes.items():
        assert counted[reason] >= flood.answers[reason, code] > 0, (reason, counted)
    assert counted["too_large"] > 0
    assert {status for kind, status in flood.answers if kind == "replay"} == {200}
    assert [kind for kind in flood.answers if kind[1] >= 500] == []
    for kind, code in codes.items():
        assert {status for name, status in flood.answers if name == kind} <= {code, 0}, told
