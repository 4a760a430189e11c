"""From all evidence about one node to the one sentence that stands for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health
from gpuwatch.model.verdict import Verdict

RANK: dict[Health, int] = {Health.DEAD: 4, Health.DRIVER_FAILED: 3, Health.DEGRADED: 2, Health.SUSPECT: 1}
RUNG_RANK: dict[str, int] = {
    "none": 0,
    "check_app": 1,
    "restart_app": 2,
    "restart_job": 3,
    "reset_gpu": 4,
    "reboot": 5,
    "contact_support": 6,
    "drain_replace": 7,
}


class Strongest(msgspec.Struct, frozen=True):
    """What a node's own evidence comes to."""

    health: Health
    evidence: Evidence
    soft: bool  # all that condemns is soft
    data_suspect: bool
    onset_unix_ns: int | None
    software: bool  # nothing that may condemn it, proven or suspected, is of a board


def key_of(evidence: Evidence) -> str:
    """The same evidence, tick after tick."""
    return f"{evidence.rule}/{evidence.subject.id}/{evidence.cause}"


def pending(evidence: Sequence[Evidence], before: Verdict | None, now: Moment) -> dict[str, int]:
    """Evidence that must last: when each was first seen without a break (monotonic ns)."""
    if all(not e.must_last for e in evidence):
        return {}
    known = before.pending if before is not None else {}
    return {key_of(e): known.get(key_of(e), now.monotonic_ns) for e in evidence if e.must_last}


def argued(e: Evidence, first_seen: dict[str, int], until_monotonic_ns: int, policy: Policy, paths: int) -> Health:
    """What this evidence comes to now: until it has lasted, and where it does not suffice alone, a suspicion.

    `until_monotonic_ns`: the last report. What nobody has told again since has not lasted any longer.
    """
    if e.must_last:
        need_s = policy.driver_grace_s if e.must_last == "driver_grace_s" else float(e.must_last)
        if (until_monotonic_ns - first_seen.get(key_of(e), until_monotonic_ns)) / 1e9 < need_s:
            return Health.SUSPECT
    if e.argues_for is Health.DRIVER_FAILED and not e.conclusive and paths < 2:
        return Health.SUSPECT
    return e.argues_for


def strongest(
    evidence: Sequence[Evidence],
    first_seen: dict[str, int],
    last_report_monotonic_ns: int | None,
    before: Verdict | None,
    policy: Policy,
    now: Moment,
) -> Strongest | None:
    """The worst health that the evidence proves, and the evidence that speaks for it. None: nothing argues.

    The speaker stays the same while its evidence stands and nothing is worse: an incident must not change its name.
    """
    if not evidence:
        return None
    paths: dict[str, set[str]] = {}
    for e in evidence:
        paths.setdefault(e.cause_key(), set()).add(e.path)
    until_ns = last_report_monotonic_ns if last_report_monotonic_ns is not None else 0
    healths = [argued(e, first_seen, until_ns, policy, len(paths[e.cause_key()])) for e in evidence]
    worst = max(healths, key=lambda health: RANK.get(health, 0))
    speakers = [e for e, health in zip(evidence, healths, strict=True) if health is worst]
    last_cause = before.cause if before is not None and before.health is worst else ""

    def weight(e: Evidence) -> tuple[bool, int, int, str, str]:
        return (
            e.cause_key() != last_cause,
            -RUNG_RANK[e.action],
            e.onset_unix_ns if e.onset_unix_ns is not None else 1 << 63,
            e.rule,
            e.subject.id,
        )

    speaker = min(speakers, key=weight)
    onsets = [e.onset_unix_ns for e in speakers if e.onset_unix_ns is not None]
    lasted = [first_seen[key_of(e)] for e in speakers if key_of(e) in first_seen]
    if lasted:  # it began to be seen before it was believed
        onsets.append(now.unix_ns - (now.monotonic_ns - min(lasted)))
    return Strongest(
        health=worst,
        evidence=speaker,
        soft=all(e.soft for e in speakers),
        data_suspect=any(e.data_suspect for e in speakers),
        onset_unix_ns=min(onsets) if onsets else None,
        software=all(e.software for e in evidence if e.argues_for in SICK),
    )
