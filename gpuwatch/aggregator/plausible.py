"""What can be true of a report, an event, a heartbeat. Pure.

A report that cannot be is refused. An event or a heartbeat that cannot be is left out and counted, the rest of its
report counts: heartbeats are files that every user of a node may write. What passes fits into the ledger's numbers, is
of bounded length, and its names can be printed on one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.facts.training import Beat
from gpuwatch.model.wire import Envelope, Report

MAX_NAME = 255
MAX_TEXT = 10_000  # of a reason: a kernel stack fits
MAX_EVENT_TEXT = 400
MAX_ENVELOPES = 64  # of one report
MAX_INTERVAL_S = 3_600.0  # what an agent's own settings allow
MAX_NUMBER = 1 << 62  # as nanoseconds: the year 2116
MAX_AHEAD_NS = 2 * 86_400 * 10**9  # a heartbeat later than this by our clock is no clock's fault
_CUT = " … (cut)"


def impossible(report: Report) -> str:
    """What no agent would say, in words; empty if nothing."""
    names = [("machine", report.machine), ("slot", report.slot), ("boot id", report.boot_id)]
    names += [("collector", envelope.collector) for envelope in report.envelopes[: MAX_ENVELOPES + 1]]
    for word, name in names:
        if not 0 < len(name) <= MAX_NAME:
            return f"its {word} has {len(name)} characters, not 1 to {MAX_NAME}"
        if not name.isprintable():
            return f"its {word} {name!a} has characters that cannot be printed"
    if len(report.agent_id) > MAX_NAME or len(report.agent_version) > MAX_NAME:
        return f"its agent's id or version is longer than {MAX_NAME} characters"
    if len(report.envelopes) > MAX_ENVELOPES:
        return f"it has {len(report.envelopes)} envelopes, more than {MAX_ENVELOPES}"
    if not 0 < report.interval_s <= MAX_INTERVAL_S:  # false for NaN too
        return f"its interval is {report.interval_s} s"
    stamps = [stamp for item in report.envelopes for stamp in (item.at_unix_ns, item.since_unix_ns)]
    if report.goodbye is not None:
        stamps.append(report.goodbye.expected_back_unix_ns)
    if not 0 <= report.sequence < MAX_NUMBER or not 0 < report.sent_unix_ns < MAX_NUMBER or not _in_range(stamps):
        return "its sequence or time is out of range"
    return ""


def bounded(report: Report) -> Report:
    """The same with its long texts cut: they are kept, logged and shown."""
    if any(len(item.reason or "") > MAX_TEXT for item in report.envelopes):
        report = msgspec.structs.replace(report, envelopes=tuple(_cut(item) for item in report.envelopes))
    goodbye = report.goodbye
    if goodbye is not None and len(goodbye.reason) > MAX_TEXT:
        said = msgspec.structs.replace(goodbye, reason=goodbye.reason[:MAX_TEXT] + _CUT)
        report = msgspec.structs.replace(report, goodbye=said)
    return report


def event_can_be(event: KernelEvent) -> bool:
    """Whether it may be stored and judged."""
    names = (event.id, event.kind, event.boot_id, event.pci or "", event.name or "", event.severity, event.action)
    numbers = (event.at_unix_ns, event.xid, event.count)
    return bool(event.id) and all(len(name) <= MAX_NAME for name in names) and _in_range(numbers)


def beat_can_be(beat: Beat, now_unix_ns: int) -> bool:
    """Whether a run may be followed by it."""
    latest_ns = min(now_unix_ns + MAX_AHEAD_NS, MAX_NUMBER - 1)
    return (  # written out: thousands of them come every second
        0 <= beat.rank < MAX_NUMBER
        and 0 <= beat.world_size < MAX_NUMBER
        and 0 <= beat.pid < MAX_NUMBER
        and 0 <= beat.sequence < MAX_NUMBER
        and 0 <= (beat.step or 0) < MAX_NUMBER
        and 0 <= (beat.checkpoint_step or 0) < MAX_NUMBER
        and 0 <= (beat.tokens or 0) < MAX_NUMBER
        and 0 <= (beat.step_s or 0) < MAX_NUMBER
        and 0 <= (beat.step_end_unix_ns or 0) <= latest_ns
        and 0 <= (beat.phase_start_unix_ns or 0) <= latest_ns
        and 0 <= (beat.checkpoint_unix_ns or 0) <= latest_ns
        and 0 <= beat.read_unix_ns <= latest_ns
        and _can_be_named(beat.run, beat.attempt, beat.phase, beat.team, beat.user)
    )


@lru_cache(maxsize=4096)  # all ranks of a gang share them
def _can_be_named(run: str, *others: str | None) -> bool:
    return bool(run) and all(len(name) <= MAX_NAME and name.isprintable() for name in (run, *others) if name)


def _in_range(numbers: Iterable[int | None]) -> bool:
    return all(number is None or 0 <= number < MAX_NUMBER for number in numbers)


def _cut(envelope: Envelope) -> Envelope:
    reason = envelope.reason or ""
    if len(reason) <= MAX_TEXT:
        return envelope
    return msgspec.structs.replace(envelope, reason=reason[:MAX_TEXT] + _CUT)
