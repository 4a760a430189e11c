"""The same fault on node after node, though the first of them were taken out already: one fault of something shared.

The rule `shared_cause` sees who is sick now. Where each is replaced before the third falls ill (a leaf switch that
flaps, an upgrade that goes from node to node), there are never three, and the cure empties the cluster. So those count
too that an action took out for the same cause not long ago. Who is sick of it now is held, until it has been quiet.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.decide.limits import TAKES_OUT, age_s
from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Done, PlanMemory
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView


def spreading(
    fleet: FleetView, judgement: Judgement, policies: Mapping[str, Policy], memory: PlanMemory, now: Moment
) -> tuple[SharedCause, ...]:
    """One for each pool and cause that go on so."""
    causes = {d.cause for d in memory.actions if d.kind in TAKES_OUT and d.cause and d.outcome != "cancelled"}
    sick = {v.machine: v for v in judgement.nodes if v.cause in causes and _is_or_will_be(v)} if causes else {}
    if not sick:
        return ()
    pool_of = {view.slot: view.pool for view in fleet.nodes}
    now_sick: dict[tuple[str, str], set[str]] = {}
    for view in fleet.nodes:
        if view.machine in sick:
            now_sick.setdefault((view.pool, sick[view.machine].cause), set()).add(view.slot)
    taken: dict[tuple[str, str], set[str]] = {}
    for done in memory.actions:
        key = (pool_of.get(done.slot, ""), done.cause)
        if key in now_sick and done.kind in TAKES_OUT and done.outcome != "cancelled":
            policy = policies.get(key[0], Policy())
            if _age_s(done, fleet, now) <= policy.spreading_window_s:
                taken.setdefault(key, set()).add(done.slot)
    found = []
    for (pool, cause), out in sorted(taken.items()):
        policy, slots = policies.get(pool, Policy()), now_sick[pool, cause]
        if len(slots | out) >= policy.shared_cause_nodes and slots - out:
            words = f"{len(slots | out)} nodes of pool {pool} show {cause} or were taken out for it"
            words += f" within {policy.spreading_window_s / 60:.0f} min"
            found.append(
                SharedCause(
                    rule="shared_cause",
                    subject=Subject("pool", pool),
                    slots=tuple(sorted(slots)),
                    because=f"{words}: one fault of something they share",
                    cause=cause,
                )
            )
    return tuple(found)


def _is_or_will_be(verdict: Verdict) -> bool:
    return verdict.health in SICK or (verdict.health is Health.SUSPECT and bool(verdict.pending))


def _age_s(done: Done, fleet: FleetView, now: Moment) -> float:
    """Of an action of before our own start only the wall clock tells more than that."""
    seconds = age_s(done, fleet, now)
    return (
        seconds if done.started_monotonic_ns is not None else max(seconds, (now.unix_ns - done.started_unix_ns) / 1e9)
    )
