"""What the absence of reports means: dead, absent, stopped, joining, or only silent.

Dead needs two witnesses over different paths, or one conclusive one; our own not hearing is one witness, and only while
we have no reason to doubt ourselves. A gang member is not dead that took part in a synchronous step after the silence
began. Gone is not dead. Everything is measured on the aggregator's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.maintenance import MaintenanceFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.view import FleetView, NodeView

ANNOUNCED_SOON_S = 60.0
"""A machine that falls silent so soon before what the cloud announced fell to that: clocks and clouds are not exact."""


class Doubt(msgspec.Struct, frozen=True):
    """Why the silence of agents may be our own fault. Empty words: no doubt of that kind."""

    blind: str
    silent: frozenset[str]  # machines that ought to speak and do not, or were never heard
    silent_count: int
    ought_count: int
    started_monotonic_ns: int

    def of(self, policy: Policy, now: Moment) -> str:
        """Why nobody is condemned for silence now, nor by a word that may come over the same wire."""
        if self.blind:
            return f"the aggregator doubts itself: {self.blind}"
        age_s = now.age_s(self.started_monotonic_ns)
        if age_s < policy.hold_off_s:
            return f"the aggregator started {age_s:.0f} s ago (hold-off {policy.hold_off_s:.0f} s)"
        return ""

    def many(self, policy: Policy) -> str:
        """Why silence, and the word of the scheduler that may sit on our own wire, does not count now."""
        if policy.many_silent(self.silent_count, self.ought_count):
            return f"{self.silent_count} of {self.ought_count} agents are silent at once: first suspected to be us"
        return ""


class Absence(msgspec.Struct, frozen=True):
    """What not hearing a node comes to."""

    health: Health
    because: str
    evidence: tuple[Evidence, ...] = ()  # the witnesses, our own silence among them where it counts
    cause: str = ""
    last_alive_monotonic_ns: int | None = None


def doubt(fleet: FleetView, policies: Mapping[str, Policy], now: Moment) -> Doubt:
    """Counts who ought to speak and does not."""
    ought = 0
    silent: list[str] = []
    never: list[str] = []
    default = Policy()
    after = {pool: policy.silent_after_intervals for pool, policy in policies.items()}
    for view in fleet.nodes:
        if view.last_report_monotonic_ns is None:
            never.append(view.machine)
        elif view.ought_to_speak():
            ought += 1
            if view.is_silent(now.monotonic_ns, after.get(view.pool, default.silent_after_intervals)):
                silent.append(view.machine)
    return Doubt(fleet.blind_because, frozenset(silent + never), len(silent), ought, fleet.started_monotonic_ns)


def steps_of_others(runs: Sequence[RunView], silent: frozenset[str]) -> dict[str, tuple[int, str]]:
    """Machine -> (when a rank elsewhere in its gang was last seen to have finished a further step, the run).

    Only steps beyond the machine's own last known one count: synchronous training finishes none without it.
    """
    alive: dict[str, tuple[int, str]] = {}
    for run in runs if silent else ():
        if silent.isdisjoint(run.machines):
            continue
        moved: dict[str, int] = {}
        own: dict[str, int] = {}
        for rank in run.ranks:
            step = -1 if rank.step is None else rank.step
            if rank.step is not None:
                moved[rank.machine] = max(moved.get(rank.machine, 0), rank.moved_monotonic_ns)
            own[rank.machine] = max(own.get(rank.machine, -1), step)
        if len(moved) < 2 and len(run.machines) < 2:
            continue
        latest = sorted(moved.items(), key=lambda item: -item[1])[:2]
        top_step = max(own.values(), default=-1)
        for machine in run.machines:
            other = next((when for name, when in latest if name != machine), None)
            if other is not None and top_step > own.get(machine, -1):
                known = alive.get(machine)
                if known is None or known[0] < other:
                    alive[machine] = (other, run.run)
    return alive


def fresh_words(view: NodeView, evidence: Sequence[Evidence], policy: Policy, now: Moment) -> list[Evidence]:
    """What other witnesses say, without what they said too long ago."""
    words = []
    for e in evidence:
        if e.path == "agent":
            continue
        says = view.cloud if e.path == "cloud" else view.scheduler if e.path == "scheduler" else None
        if says is None or now.age_s(says.received_monotonic_ns) <= policy.witness_fresh_s:
            words.append(e)
    return words


def absence(
    view: NodeView,
    words: Sequence[Evidence],
    policy: Policy,
    doubts: Doubt,
    gang: tuple[int, str] | None,
    now: Moment,
) -> Absence:
    """What it means that this node does not speak. `words`: fresh evidence of other witnesses."""
    if view.lifecycle is Lifecycle.RETIRED:
        return Absence(Health.ABSENT, "retired by us", cause="absent_retired")
    for e in words:
        if e.argues_for is Health.ABSENT:
            return Absence(Health.ABSENT, e.because, (e,), e.cause)
    silence = _silence(view, doubts, gang, now)
    doubted = doubts.of(policy, now)
    many = doubts.many(policy)
    if not doubted:
        against = [e for e in words if e.argues_for is Health.DEAD and not (many and e.path == "scheduler")]
        # the cloud's word does not come over the agents' wire, so with it the silence is not only ours
        counts = silence.counts and (not many or any(e.path == "cloud" for e in against))
        own = _own_witness(view, silence.since_monotonic_ns, policy, now) if counts else None
        witnesses = (*([own] if own is not None else []), *against)
        patient = now.age_s(silence.since_monotonic_ns) >= policy.dead_after_s  # also with two others against it
        enough = len({e.path for e in witnesses}) >= 2 or any(e.conclusive for e in against)
        if enough and patient:
            said = "; ".join(e.because for e in witnesses)
            return Absence(Health.DEAD, said, witnesses, "node_dead", silence.since_monotonic_ns)
    return _undecided(view, words, policy, doubted or many, gang, now)


class _Silence(msgspec.Struct, frozen=True):
    since_monotonic_ns: int
    counts: bool  # our not hearing it is a witness at all


def _silence(view: NodeView, doubts: Doubt, gang: tuple[int, str] | None, now: Moment) -> _Silence:
    last = view.last_report_monotonic_ns
    since = last if last is not None else max(doubts.started_monotonic_ns, view.first_seen_monotonic_ns or 0)
    if gang is not None:
        since = max(since, gang[0])
    return _Silence(min(since, now.monotonic_ns), not view.said_goodbye())


def _own_witness(view: NodeView, since_monotonic_ns: int, policy: Policy, now: Moment) -> Evidence | None:
    silent_s = now.age_s(since_monotonic_ns)
    if silent_s < policy.dead_after_s:
        return None
    if silent_s < _reboot_takes_s(view, policy):
        return None
    never = "" if view.last_report_monotonic_ns is not None else ", never since the aggregator's start"
    return Evidence(
        rule="agent_silent",
        subject=Subject("machine", view.machine),
        argues_for=Health.DEAD,
        because=f"its agent has been silent for {silent_s:.0f} s{never}",
        onset_unix_ns=view.last_report_unix_ns,
    )


def _reboot_takes_s(view: NodeView, policy: Policy) -> float:
    """For how long its silence is a reboot that we ordered, or that the scheduler knows of."""
    if view.lifecycle is Lifecycle.REPAIRING:
        return max(policy.reboot_grace_s, policy.join_deadline_s)  # the action has deadlines of its own
    told = view.scheduler is not None and "reboot" in view.scheduler.reason.lower()
    return policy.reboot_grace_s if told or _announced(view) else 0.0


def _announced(view: NodeView) -> bool:
    """The cloud told the machine itself, before it fell silent, that it would reboot or move it about now."""
    facts, source = view.facts.get(MaintenanceFacts), view.sources.get("maintenance")
    last = view.last_report_monotonic_ns
    if facts is None or source is None or last is None:
        return False
    heard_s = (last - source.received_monotonic_ns) / 1e9
    soon_s = 2 * view.interval_s + ANNOUNCED_SOON_S
    due = [n.in_s - heard_s for n in facts.notices if n.ends_work and n.mine and n.in_s is not None]
    return any(seconds <= soon_s for seconds in due)


def _undecided(
    view: NodeView,
    words: Sequence[Evidence],
    policy: Policy,
    doubted: str,
    gang: tuple[int, str] | None,
    now: Moment,
) -> Absence:
    if view.said_goodbye():
        return Absence(Health.UNKNOWN, _goodbye_words(view, now))
    said = "; ".join(e.because for e in words)
    last = view.last_report_monotonic_ns
    if last is None:
        return _never_heard(view, policy, said, now)
    silent_s = now.age_s(last)
    if gang is not None and gang[0] > last and now.age_s(gang[0]) < max(policy.dead_after_s, 3 * view.interval_s):
        because = f"its agent has been silent for {silent_s:.0f} s, but run {gang[1]} finished a step with it since"
        return Absence(Health.UNKNOWN, because)
    if doubted:
        return Absence(Health.UNKNOWN, f"silent for {silent_s:.0f} s; {doubted}")
    because = f"its agent has been silent for {silent_s:.0f} s, and no second witness says that it is dead"
    return Absence(Health.SUSPECT, because + (f"; {said}" if said else ""), tuple(words))


def _never_heard(view: NodeView, policy: Policy, said: str, now: Moment) -> Absence:
    known_s = now.age_s(view.first_seen_monotonic_ns) if view.first_seen_monotonic_ns is not None else 0.0
    if view.lifecycle in (Lifecycle.PROVISIONING, Lifecycle.VALIDATING):
        if known_s <= policy.join_deadline_s:
            return Absence(Health.JOINING, f"new; its first report is due within {policy.join_deadline_s:.0f} s")
        because = f"it has not reported within {policy.join_deadline_s:.0f} s of its start"
        return Absence(Health.UNKNOWN, because + (f"; {said}" if said else ""))
    because = "not heard of since the aggregator's start"
    return Absence(Health.UNKNOWN, because + (f"; {said}" if said else ""))


def _goodbye_words(view: NodeView, now: Moment) -> str:
    assert view.goodbye is not None
    words = f"agent stopped ({view.goodbye.reason})" if view.goodbye.reason else "agent stopped"
    back_ns = view.goodbye.expected_back_unix_ns
    if back_ns is None:
        return words
    left_s = (back_ns - now.unix_ns) / 1e9
    if left_s < 0:
        return f"{words}, expected back {-left_s:.0f} s ago"
    return f"{words}, expected back in {left_s:.0f} s"
