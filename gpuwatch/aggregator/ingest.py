"""`POST /v1/reports`: bytes in, an acknowledgement out. A raw ASGI function, because HTTP is most of a report's cost.

An acknowledged report's events are on the disk. A repeated report is acknowledged again and counted once. A refused one
(see `admission`) changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import msgspec

from gpuwatch.aggregator import admission
from gpuwatch.aggregator.admission import Refusal, Tokens
from gpuwatch.aggregator.facts import KINDS, decoded
from gpuwatch.aggregator.fleet import Fleet, Heartbeats
from gpuwatch.aggregator.heard import Heard, absorb, is_late, lag_s, our_unix_ns, repeats
from gpuwatch.aggregator.machine import MAX_EVENTS, AgedEvent, Machine
from gpuwatch.aggregator.plausible import MAX_EVENT_TEXT, beat_can_be, event_can_be
from gpuwatch.clock import Clock
from gpuwatch.errors import StoreError
from gpuwatch.model.evidence import Finding
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.training import TrainingFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.view import NodeView
from gpuwatch.model.wire import MAX_REPORT_BYTES, Ack, Envelope, Report
from gpuwatch.store.records import EventKey, LastSeen, StoredEvent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REMEMBERED_REPORTS = 32  # bodies of one machine: one that comes again after more is known by its number alone
KERNEL_LOG, TRAINING = "kernel_log", "training"
MAX_NAMES = 64  # of unknown collectors that get a counter of their own
_ACK = msgspec.json.Encoder()
_USUAL = (_ACK.encode(Ack(ok=True)), _ACK.encode(Ack(ok=True, repeated=True)))  # new, and seen before
_HEADERS = [(b"content-type", b"application/json")]


class _Admitted(NamedTuple):
    report: Report
    received: Moment
    key: int  # of the report's id
    digest: int  # of its body


class Keeper(Protocol):
    """Makes events durable: see `committer`."""

    def keep(self, events: Sequence[StoredEvent], seen: Sequence[LastSeen] = ...) -> Future[set[EventKey]]:
        """Those that were new, once on the disk."""


class Ingest:
    """The ASGI application of one path. Runs on the server's thread only."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        secret: bytes,
        keeper: Keeper,
        examine: Callable[[NodeView, Moment, Iterable[str], tuple[Finding, ...] | None], tuple[Finding, ...]],
        clock: Clock,
        wake: Callable[[], None],
        replies: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        """`replies`: machine -> how its reports are answered, new ones and repeated ones, where not as usual."""
        self._replies = {} if replies is None else replies
        self._fleet = fleet
        self._keeper = keeper
        self._examine = examine  # the rules that run when a report arrives: see `examiner`
        self._clock = clock
        self._wake = wake  # asks for a tick now: something was seen that should not wait for the next one
        self._tokens = Tokens(secret, fleet)
        self._recent: dict[str, dict[int, int]] = {}  # machine -> report id -> hash of its body
        self.counts: dict[str, int] = dict.fromkeys(("accepted", "repeated", "late"), 0)
        self.refused: dict[str, int] = {}
        self.undecodable: dict[str, int] = {}
        self.unknown_collectors: dict[str, int] = {}
        self.event_count = 0
        self.last_heard_monotonic_ns: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            given, body = await self._read(scope, receive)
            answer = await self.take(given, body)
        except Refusal as error:
            await self._refuse(error, send)
            return
        length = b"%d" % len(answer)
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, (b"content-length", length)]})
        await send({"type": "http.response.body", "body": answer})

    def take_at_once(self, given: bytes, body: bytes) -> bytes | None:
        """The acknowledgement of a report that is accepted and holds nothing to store; None: `take` must answer it."""
        try:
            admitted = self._admit(given, body)
        except Refusal:
            return None
        return None if _must_be_stored(admitted.report) else self._accept(admitted, self._join(admitted))

    async def take(self, given: bytes, body: bytes) -> bytes:
        """One report's body with the token it came with. Returns the acknowledgement; raises `Refusal`."""
        admitted = self._admit(given, body)
        record = self._join(admitted)
        events = self._events_of(admitted.report, record.heard, admitted.received)
        if events or admitted.report.goodbye is not None:
            await self._store(record, admitted.report, admitted.received, events)
        return self._accept(admitted, record)

    def _admit(self, given: bytes, body: bytes) -> _Admitted:
        """It may speak, and does not contradict itself. Changes nothing."""
        report = admission.decode(body)
        self._tokens.check(given, report.machine)
        if self._fleet.is_retired(report.machine):
            raise admission.released(report.machine)
        received = Moment(self._clock.unix_ns(), self._clock.monotonic_ns())
        admitted = _Admitted(report, received, hash((report.boot_id, report.agent_id, report.sequence)), hash(body))
        recent = self._recent.get(report.machine)
        if recent is not None and recent.get(admitted.key, admitted.digest) != admitted.digest:
            raise admission.conflict(report)
        return admitted

    def _join(self, admitted: _Admitted) -> Machine:
        report = admitted.report
        return self._fleet.join(report.machine, report.slot, admitted.received.monotonic_ns)

    def _accept(self, admitted: _Admitted, record: Machine) -> bytes:
        report, received, key, digest = admitted
        recent = self._recent.setdefault(report.machine, {})
        known = key in recent  # also where the same came again while this one waited for the disk
        recent[key] = digest
        if len(recent) > REMEMBERED_REPORTS:
            del recent[next(iter(recent))]
        self.last_heard_monotonic_ns = received.monotonic_ns
        ok, again = self._replies.get(report.machine, _USUAL)
        if known or (record.heard is not None and repeats(record.heard, report)):
            self.counts["repeated"] += 1
            record.heard = absorb(record.heard or record.prior, report, received)
            return again
        self._apply(record, _on_our_clock(report, record.heard, received), received)
        return ok

    # the request

    async def _read(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value[7:].strip() if value[:7].lower() == b"bearer " else b""
            elif name == b"content-length" and (not value.isdigit() or int(value) > MAX_REPORT_BYTES):
                raise admission.too_large()
        if not given:
            raise admission.no_token()
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts = [body]
            size = len(body)
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise admission.broken_off()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_REPORT_BYTES:
                    raise admission.too_large()
            body = b"".join(parts)
        if len(body) > MAX_REPORT_BYTES:
            raise admission.too_large()
        return given, body

    async def _refuse(self, error: Refusal, send: Send) -> None:
        self.refused[error.reason] = self.refused.get(error.reason, 0) + 1
        said = f"{error.what}: {error.why}" if error.why else error.what
        body = _ACK.encode(Ack(ok=False, error=said, next_step=error.next_step))
        headers = [*_HEADERS, (b"content-length", b"%d" % len(body))]
        if error.code == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        if error.code == 503:
            headers.append((b"retry-after", b"5"))
        await send({"type": "http.response.start", "status": error.code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # what was said

    def _events_of(self, report: Report, heard: Heard | None, received: Moment) -> list[AgedEvent]:
        """The kernel events of this report, each with its boot and the moment it happened by our clock."""
        envelope = next((item for item in report.envelopes if item.collector == KERNEL_LOG), None)
        facts = None if envelope is None else self._facts(envelope)
        if not isinstance(facts, KernelLogFacts) or not facts.events:
            return []
        waited_ns = 0
        if heard is not None:  # it cannot have waited longer than since this agent last got through
            lag_ns = int(lag_s(heard, report, received) * 1e9)
            waited_ns = max(0, min(lag_ns, received.monotonic_ns - heard.sent_monotonic_ns))
        aged = []
        for event in facts.events:
            if not event_can_be(event):
                self._misfit(KERNEL_LOG)
                continue
            own = msgspec.structs.replace(
                event,
                at_unix_ns=our_unix_ns(event.at_unix_ns, heard, received),
                text=event.text[:MAX_EVENT_TEXT],
                boot_id=event.boot_id or report.boot_id,
            )
            age_ns = max(0, report.sent_unix_ns - event.at_unix_ns) + waited_ns
            aged.append(AgedEvent(own, received.monotonic_ns - age_ns))
        return aged

    def _facts(self, envelope: Envelope) -> Any:
        try:
            return decoded(envelope)
        except (msgspec.MsgspecError, RecursionError):
            self._misfit(envelope.collector)
            return None

    def _misfit(self, collector: str) -> None:
        self.undecodable[collector] = self.undecodable.get(collector, 0) + 1

    async def _store(self, record: Machine, report: Report, received: Moment, events: list[AgedEvent]) -> None:
        rows = [
            StoredEvent(
                machine=report.machine,
                slot=record.slot,
                boot_id=aged.event.boot_id,
                happened_unix_ns=received.unix_ns - (received.monotonic_ns - aged.monotonic_ns),
                event=aged.event,
            )
            for aged in events
        ]
        seen = [] if report.goodbye is None else [_goodbye_seen(record, report, received)]
        try:
            fresh = await asyncio.wrap_future(self._keeper.keep(rows, seen))
        except StoreError as error:
            raise admission.not_stored(error) from error
        new = tuple({a.event.id: a for a in events if (report.machine, a.event.id) in fresh}.values())
        if new:
            self.event_count += len(new)
            record.events = (*record.events, *new)[-MAX_EVENTS:]
            self._wake()

    def _apply(self, record: Machine, report: Report, received: Moment) -> None:
        before = record.heard if record.heard is not None else record.prior
        late = is_late(before, report, received)
        self.counts["late" if late else "accepted"] += 1
        record.heard = absorb(before, report, received)
        if report.slot != record.slot:
            self._fleet.move(record, report.slot)
        for envelope in report.envelopes:
            if envelope.collector == TRAINING:
                self._sight(record, envelope, received)
            elif envelope.collector not in KINDS:
                self._unknown(envelope.collector)
        if late:
            return
        same_boot = isinstance(before, Heard) and before.boot == report.boot_id
        told = [envelope.collector for envelope in report.envelopes]
        if same_boot and isinstance(before, Heard):
            told += [name for name in before.sources if name not in record.heard.sources]  # switched off meanwhile
        view = self._fleet.fresh_view(record, received.monotonic_ns)
        findings = self._examine(view, received, told, record.findings if same_boot else None)
        news = [finding.rule for finding in findings] != [finding.rule for finding in record.findings]
        record.findings = findings
        if news:
            self._wake()

    def _sight(self, record: Machine, envelope: Envelope, received: Moment) -> None:
        facts = self._facts(envelope)
        if isinstance(facts, TrainingFacts):
            beats = tuple([beat for beat in facts.beats if beat_can_be(beat, received.unix_ns)])
            for _ in range(len(facts.beats) - len(beats)):
                self._misfit(TRAINING)
            if beats:
                self._fleet.heartbeats.append(Heartbeats(record.machine, record.slot, beats, received))

    def _unknown(self, name: str) -> None:
        if name not in self.unknown_collectors and len(self.unknown_collectors) >= MAX_NAMES:
            name = "(more)"
        self.unknown_collectors[name] = self.unknown_collectors.get(name, 0) + 1


def _must_be_stored(report: Report) -> bool:
    """Whether anything of it must be on the disk before it is acknowledged, or is not as it should be."""
    if report.goodbye is not None:
        return True
    for envelope in report.envelopes:
        if envelope.collector == KERNEL_LOG:
            try:
                facts = decoded(envelope)
            except (msgspec.MsgspecError, RecursionError):
                return True
            if facts is not None and facts.events:
                return True
    return False


def _on_our_clock(report: Report, heard: Heard | None, received: Moment) -> Report:
    """The same with the moments that are judged, since when a source hangs, on our clock."""
    if all(item.since_unix_ns is None for item in report.envelopes):
        return report
    return msgspec.structs.replace(
        report,
        envelopes=tuple(
            item
            if item.since_unix_ns is None
            else msgspec.structs.replace(item, since_unix_ns=our_unix_ns(item.since_unix_ns, heard, received))
            for item in report.envelopes
        ),
    )


def _goodbye_seen(record: Machine, report: Report, received: Moment) -> LastSeen:
    return msgspec.structs.replace(
        record.last_seen(),
        boot_id=report.boot_id,
        agent_id=report.agent_id,
        sequence=report.sequence,
        last_report_unix_ns=received.unix_ns,
        goodbye=report.goodbye,
    )
