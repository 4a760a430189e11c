"""An aggregator for a soak: reports go through the real way in and the real rules; everything said is kept or judged.

Whatever a rule finds must belong to a fault that is in force now; else it is written down as a false one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.admission import Refusal
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.ingest import Ingest
from gpuwatch.clock import SystemClock
from gpuwatch.decide.assess import assess
from gpuwatch.model.evidence import Evidence, Finding
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.token import machine_token
from gpuwatch.model.view import NodeView
from gpuwatch.model.wire import Report
from gpuwatch.store.records import EventKey, LastSeen, StoredEvent

SECRET = b"a secret of the soak, long enough"
TOML = """
[server]
secret_file = "secret"
state_dir = "state"
[pools.p]
gpus = 8
usd_per_hour = 27.197
"""
MOST_LOOKS = 5_000
OF_THE_MACHINE = frozenset(
    {
        "disk_full",
        "file_system_read_only",
        "mount_hung",
        "processes_stuck",
        "clock_unsynchronised",
        "file_system_shared",
    }
)
"""Rules about the machine that tests itself, unless they speak of the soak's own folder."""


@dataclass(frozen=True)
class Look:
    """One report, as it was judged. `view` is None where its facts were of the past."""

    arrived_s: float
    report: Report
    view: NodeView | None
    findings: tuple[Finding, ...]
    events: tuple[KernelEvent, ...]
    quiet: bool = False  # no rule speaks of the node

    def evidence(self, rules: Iterable[str], words: str = "") -> list[Evidence]:
        """What these rules found, of which these words tell."""
        return [
            found
            for found in self.findings
            if isinstance(found, Evidence) and found.rule in rules and words in f"{found.subject.id} {found.because}"
        ]

    def facts(self, kind: type) -> Any:
        """The node's latest facts of this type, or None."""
        return None if self.view is None else self.view.facts.get(kind)

    def status(self, collector: str) -> str:
        source = None if self.view is None else self.view.sources.get(collector)
        return "" if source is None else source.status

    def reason(self, collector: str) -> str:
        source = None if self.view is None else self.view.sources.get(collector)
        return "" if source is None else source.reason or ""


class _Keeper:
    """Events of which each is new once."""

    def __init__(self) -> None:
        self.known: set[EventKey] = set()

    def keep(self, events: Sequence[StoredEvent], seen: Sequence[LastSeen] = ()) -> Future[set[EventKey]]:
        done: Future[set[EventKey]] = Future()
        fresh = {(row.machine, row.event.id) for row in events} - self.known
        self.known |= fresh
        done.set_result(fresh)
        return done


class Judge:
    """The server, and what it has heard."""

    def __init__(self, folder: Path, machine: str, allowed: Callable[[Evidence], bool]) -> None:
        folder.mkdir(parents=True)
        (folder / "secret").write_bytes(SECRET)
        (folder / "secret").chmod(0o600)
        (folder / "aggregator.toml").write_text(TOML)
        settings = settings_file.load(folder / "aggregator.toml")
        self._rules = settings.rules
        self._fleet = Fleet(settings)
        self._machine = machine
        self._own = str(folder.parent)
        self._allowed = allowed
        self._clock = SystemClock()
        self._ingest = Ingest(
            fleet=self._fleet,
            secret=SECRET,
            keeper=_Keeper(),
            examine=self._examine,
            clock=self._clock,
            wake=lambda: None,
        )
        self.token = machine_token(SECRET, machine)
        self.mode = "ok"  # | away | garbage | slow | stuck | busy
        self.looks: deque[tuple[int, Look]] = deque(maxlen=MOST_LOOKS)
        self.count = 0
        self.judged_count = 0
        self.false: Counter[str] = Counter()
        self.first_false: dict[str, str] = {}
        self.foreign: Counter[str] = Counter()
        self.broken_rules: Counter[str] = Counter()
        self.sequences: dict[str, set[int]] = {}
        self.events: list[KernelEvent] = []
        self.most_abandoned = 0
        self.told = threading.Condition()
        self._judged: tuple[NodeView, tuple[Finding, ...]] | None = None
        self._one = threading.Lock()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._fleet.join(machine, "gpu-001", self._clock.monotonic_ns())
        self._fleet.set_lifecycle(machine, Lifecycle.IN_SERVICE, self._clock.monotonic_ns())
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.mode = "away"
        self._http.shutdown()
        self._http.server_close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def repaired(self) -> None:
        """What the kernel said so far is history."""
        self._fleet.repaired(self._machine, self._clock.monotonic_ns())

    def mark(self) -> int:
        """Reports so far."""
        with self.told:
            return self.count

    def since(self, mark: int) -> list[Look]:
        """Those that came after it."""
        with self.told:
            return [look for number, look in self.looks if number > mark]

    def last_view(self) -> NodeView | None:
        """The node at the last live report."""
        with self.told:
            return next((look.view for _, look in reversed(self.looks) if look.view is not None), None)

    def _examine(
        self,
        view: NodeView,
        now: Moment,
        told: Iterable[str],
        before: tuple[Finding, ...] | None,
    ) -> tuple[Finding, ...]:
        findings = assess(view, now, self._rules)
        self._judged = view, findings
        return findings

    def take(self, token: bytes, body: bytes, arrived_s: float) -> bytes:
        """One report. Raises `Refusal`."""
        with self._one:
            self._judged = None
            answer = asyncio.run_coroutine_threadsafe(self._ingest.take(token, body), self._loop).result(30)
            report = msgspec.msgpack.decode(body, type=Report)
            nothing: tuple[NodeView | None, tuple[Finding, ...]] = (None, ())
            view, findings = self._judged or nothing
            ours = [one for one in findings if isinstance(one, Evidence) and not self._is_of_machine(one)]
            look = Look(arrived_s, report, view, findings, _events(report), quiet=view is not None and not ours)
            self._check(look)
        with self.told:
            self.count += 1
            self.judged_count += view is not None
            self.looks.append((self.count, look))
            self.events += look.events
            self.sequences.setdefault(report.agent_id, set()).add(report.sequence)
            self.told.notify_all()
        return answer

    def _check(self, look: Look) -> None:
        abandoned = sum(source.abandoned_count for source in look.view.sources.values()) if look.view else 0
        self.most_abandoned = max(self.most_abandoned, abandoned)
        for found in look.findings:
            if not isinstance(found, Evidence):
                if "failed by itself" in found.because:
                    self.broken_rules[found.because] += 1
            elif self._is_of_machine(found):
                self.foreign[f"{found.rule}: {found.because[:100]}"] += 1
            elif not self._allowed(found):
                self.false[found.rule] += 1
                key = f"{found.rule} {found.subject.id}"
                if key not in self.first_false:
                    self.first_false[key] = found.because[:200]
                    print(f"a false one at report {self.count}: {key}: {found.because[:200]}", flush=True)

    def _is_of_machine(self, found: Evidence) -> bool:
        return found.rule in OF_THE_MACHINE and self._own not in f"{found.subject.id} {found.because}"

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        judge = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                mode = judge.mode
                if mode == "away":
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                arrived_s = time.monotonic()
                if mode == "garbage":
                    self._answer(200, b"\xff\xfe<html>sign in, please</html>")
                    return
                if mode == "busy":
                    self._answer(503, b"{}")
                    return
                end_s = time.monotonic() + {"slow": 2.0, "stuck": 60.0}.get(mode, 0.0)
                while time.monotonic() < end_s and judge.mode == mode:
                    time.sleep(0.05)
                try:
                    token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").encode()
                    self._answer(200, judge.take(token, body, arrived_s))
                except Refusal as error:
                    judge.broken_rules[f"refused: {error.what}: {error.why}"] += 1
                    self._answer(error.code, b"{}")

            def _answer(self, code: int, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(code)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _events(report: Report) -> tuple[KernelEvent, ...]:
    for envelope in report.envelopes:
        if envelope.collector == "kernel_log" and envelope.status == "ok":
            facts: KernelLogFacts = msgspec.msgpack.decode(envelope.facts, type=KernelLogFacts)
            return facts.events
    return ()
