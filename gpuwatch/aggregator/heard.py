"""What one machine's agent has said so far, as one immutable value: a report in, the next value out. Pure.

Two things need care. A report that waited in the agent's spool is *late*: it proves that the agent speaks, its events
and heartbeats count, but its facts are of the past and must not be judged as if they were of now. And a machine may
reboot: reports of an earlier boot that arrive afterwards change nothing but history.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import Envelope, Goodbye, Report

LATE_S = 15.0  # a report this much slower than usual waited somewhere; three usual intervals
EARLIER_BOOTS = 4
MAX_SOURCES = 64  # of one machine; names that come and go must not fill our memory
FORGOTTEN_S = 300.0  # an agent tells each source each minute: one that is not told by so many is not read any more


class Received(msgspec.Struct, frozen=True, gc=False):
    """One source's latest envelope, and when it came."""

    envelope: Envelope
    monotonic_ns: int


class Heard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything the agent of one machine said that still matters."""

    boot: str
    agent_id: str
    sequence: int
    interval_s: float
    last: Moment  # the last report of any kind: proof that the agent speaks
    sent_unix_ns: int  # stamp of the last report in order, by the node's clock
    sent_monotonic_ns: int  # and when that one came
    skew_ns: int  # our monotonic clock less the node's wall clock, at its usual delay
    sources: Mapping[str, Received] = {}
    goodbye: Goodbye | None = None
    goodbye_monotonic_ns: int | None = None
    earlier_boots: tuple[str, ...] = ()  # newest last
    boot_changed_monotonic_ns: int | None = None
    previous_goodbye: bool = False
    agent_version: str = ""
    report_count: int = 1
    steady_since_ns: int = 0  # from then on this agent's reports came live and without a break; our monotonic clock


def lag_s(heard: Heard | None, report: Report, received: Moment) -> float:
    """Seconds that this report took more than this node's reports usually take. May be negative.

    Before the first report the two wall clocks are taken to agree.
    """
    usual_ns = received.monotonic_ns - received.unix_ns if heard is None else heard.skew_ns
    return (received.monotonic_ns - report.sent_unix_ns - usual_ns) / 1e9


def our_unix_ns(stamp_unix_ns: int, heard: Heard | None, received: Moment) -> int:
    """A moment of the node's wall clock on ours, never after the report that told of it.

    Before the first report the two are taken to agree.
    """
    ahead_ns = 0 if heard is None else received.unix_ns - received.monotonic_ns + heard.skew_ns
    return max(0, min(stamp_unix_ns + ahead_ns, received.unix_ns))


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier aggregator process knew of the machine."""

    boot: str
    agent_id: str
    sequence: int
    earlier_boots: tuple[str, ...] = ()
    goodbye: Goodbye | None = None


def is_late(heard: Heard | Prior | None, report: Report, received: Moment) -> bool:
    """Whether the facts are of the past: spooled, of an earlier boot, or overtaken.

    A spooled report lags, and so does every report of a node whose clock stepped back. They are told apart by their
    pace: reports that come as fast as they were sent are live, whatever their stamps say.
    """
    if heard is not None and _overtaken(heard, report):
        return True
    spoken = heard if isinstance(heard, Heard) else None
    if lag_s(spoken, report, received) <= _patience_s(report):
        return False
    return spoken is None or not _live_pace(spoken, report, received)


def repeats(heard: Heard | Prior, report: Report) -> bool:
    """Whether it came before: an agent sends its reports in the order of their numbers, each until it is taken."""
    same_agent = report.boot_id == heard.boot and report.agent_id == heard.agent_id
    return same_agent and report.sequence <= heard.sequence


def absorb(heard: Heard | Prior | None, report: Report, received: Moment) -> Heard:
    """The next value. A late report changes when we last heard, and nothing that is judged."""
    if not isinstance(heard, Heard):
        return _first(heard, report, received)
    count = heard.report_count + 1
    if _overtaken(heard, report):
        goodbye_ns = None if heard.goodbye is None else received.monotonic_ns  # what came before it does not revoke it
        newest_again = report.boot_id == heard.boot and report.sequence == heard.sequence
        # Its answer was lost and it came once more: what follows is paced from here, else a spool's next looks live.
        paced_ns = received.monotonic_ns if newest_again else heard.sent_monotonic_ns
        return msgspec.structs.replace(
            heard,
            last=received,
            goodbye_monotonic_ns=goodbye_ns,
            report_count=count,
            sent_monotonic_ns=paced_ns,
        )
    if is_late(heard, report, received):
        return msgspec.structs.replace(
            heard,
            agent_id=report.agent_id,
            sequence=report.sequence,
            last=received,
            sent_unix_ns=report.sent_unix_ns,
            sent_monotonic_ns=received.monotonic_ns,
            report_count=count,
            steady_since_ns=received.monotonic_ns,
        )
    rebooted = report.boot_id != heard.boot
    skew_ns = received.monotonic_ns - report.sent_unix_ns
    stepped = (skew_ns - heard.skew_ns) / 1e9 > _patience_s(report)
    broken = received.monotonic_ns - heard.last.monotonic_ns > _patience_s(report) * 1e9
    steady_since_ns = received.monotonic_ns if broken or report.agent_id != heard.agent_id else heard.steady_since_ns
    return Heard(
        boot=report.boot_id,
        agent_id=report.agent_id,
        sequence=report.sequence,
        interval_s=report.interval_s,
        last=received,
        sent_unix_ns=report.sent_unix_ns,
        sent_monotonic_ns=received.monotonic_ns,
        skew_ns=skew_ns if stepped else min(skew_ns, heard.skew_ns),
        sources=_merged(
            {} if rebooted else _still_read(heard.sources, steady_since_ns, report, received), report, received
        ),
        goodbye=report.goodbye,
        goodbye_monotonic_ns=None if report.goodbye is None else received.monotonic_ns,
        earlier_boots=(*heard.earlier_boots, heard.boot)[-EARLIER_BOOTS:] if rebooted else heard.earlier_boots,
        boot_changed_monotonic_ns=received.monotonic_ns if rebooted else heard.boot_changed_monotonic_ns,
        previous_goodbye=heard.goodbye is not None if rebooted else heard.previous_goodbye,
        agent_version=report.agent_version,
        report_count=count,
        steady_since_ns=steady_since_ns,
    )


def _first(prior: Prior | None, report: Report, received: Moment) -> Heard:
    late = is_late(prior, report, received)
    skew_ns = received.monotonic_ns - (received.unix_ns if late else report.sent_unix_ns)
    rebooted = prior is not None and report.boot_id != prior.boot and report.boot_id not in prior.earlier_boots
    earlier = () if prior is None else prior.earlier_boots
    if prior is not None and rebooted:
        earlier = (*earlier, prior.boot)[-EARLIER_BOOTS:]
    return Heard(
        boot=report.boot_id if prior is None or rebooted else prior.boot,
        agent_id=report.agent_id,
        sequence=report.sequence,
        interval_s=report.interval_s,
        last=received,
        sent_unix_ns=report.sent_unix_ns,
        sent_monotonic_ns=received.monotonic_ns,
        skew_ns=skew_ns,
        sources={} if late else _merged({}, report, received),
        goodbye=None if late else report.goodbye,
        goodbye_monotonic_ns=None if late or report.goodbye is None else received.monotonic_ns,
        earlier_boots=earlier,
        boot_changed_monotonic_ns=received.monotonic_ns if rebooted else None,
        previous_goodbye=prior is not None and rebooted and prior.goodbye is not None,
        agent_version=report.agent_version,
        steady_since_ns=received.monotonic_ns,
    )


def _patience_s(report: Report) -> float:
    return max(LATE_S, 3 * report.interval_s)


def _overtaken(heard: Heard | Prior, report: Report) -> bool:
    """Whether something newer of this machine is known: a later boot, or a later report of this agent."""
    if report.boot_id in heard.earlier_boots:
        return True
    return repeats(heard, report)


def _live_pace(heard: Heard, report: Report, received: Moment) -> bool:
    """Whether it came about as long after the one before as it was sent after it.

    One that an event sent early proves nothing: in a spool too it comes right behind the one before.
    """
    sent_s = (report.sent_unix_ns - heard.sent_unix_ns) / 1e9
    came_s = (received.monotonic_ns - heard.sent_monotonic_ns) / 1e9
    return sent_s >= report.interval_s / 2 and abs(sent_s - came_s) <= sent_s / 2


def _still_read(
    sources: Mapping[str, Received], steady_since_ns: int, report: Report, received: Moment
) -> Mapping[str, Received]:
    """Without those that were switched off: their last word would stand for ever. Silence, a spool that is being
    emptied and a new agent's first minutes are no such sign."""
    limit_ns = received.monotonic_ns - int(max(FORGOTTEN_S, 4 * report.interval_s) * 1e9)
    if steady_since_ns >= limit_ns or all(item.monotonic_ns >= limit_ns for item in sources.values()):
        return sources
    return {name: item for name, item in sources.items() if item.monotonic_ns >= limit_ns}


def _merged(sources: Mapping[str, Received], report: Report, received: Moment) -> Mapping[str, Received]:
    """A report need not carry every source: slow ones come less often, and their last word stands until then."""
    merged = dict(sources)
    for envelope in report.envelopes:
        merged[envelope.collector] = Received(envelope, received.monotonic_ns)
    return merged if len(merged) <= MAX_SOURCES else dict(list(merged.items())[-MAX_SOURCES:])
