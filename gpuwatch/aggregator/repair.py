"""The steps of a reimage: the same machine, on the same hardware, boots anew from a fresh system disk.

It is over when the machine speaks from another boot than before and its driver answers; what is told of the old boot
proves nothing. What cannot be cured so is left drained, and the planner replaces it.
"""

from __future__ import annotations

from gpuwatch.aggregator.reach import Done, Failed, Hands, Result, Waiting
from gpuwatch.clouds import reimager
from gpuwatch.decide.returning import seen_by
from gpuwatch.model.states import SICK, Health, Lifecycle


def emptied(hands: Hands, because: str = "") -> Result:
    """Nothing runs there any more. From here on its silence is a reboot that we ordered, where one is."""
    action = hands.saga.action
    if action.kind not in ("reimage", "repair"):
        return Done({}, ((action.machine, Lifecycle.DRAINED),), because)
    record = hands.reach.fleet.get(action.machine)
    if record is None or record.heard is None:  # since our start: which boot is to end is not known
        if hands.elapsed_s() > hands.policy.empty_deadline_s:
            return Failed(f"{action.machine} does not speak: what ails it is not known")
        return Waiting(f"{action.machine} has not been heard of since the aggregator's start")
    return Done({"boot": record.heard.boot}, ((action.machine, Lifecycle.REPAIRING),), because)


def refusal(hands: Hands) -> Result | None:
    """The last look before the disk is thrown away: is it still a fault of what is installed, and of nothing else?"""
    verdict = hands.scene.verdicts.get(hands.saga.action.machine)
    if verdict is None:
        return Waiting("it is not judged")
    others = [e for e in verdict.evidence if e.argues_for in SICK and not e.software]
    if others or verdict.health in (Health.DEAD, Health.ABSENT):
        return Failed(f"no fresh disk cures this: {others[0].because if others else verdict.because}")
    return None if verdict.software else Waiting(f"it is judged {verdict.health}: {verdict.because}")


def reimage(hands: Hands) -> Result:
    """Give it a fresh system disk."""
    saga = hands.saga
    hands.allow(harmful=True)
    cloud = reimager(hands.provider())
    if cloud is None:
        return Failed("this cloud cannot reimage a machine")
    hands.reach.fleet.order_boot(saga.action.machine, saga.boot)
    receipt = cloud.reimage(saga.action.machine, action_id=saga.key())
    if receipt.state == "pending":
        return Waiting(receipt.because or "the cloud is reimaging it")
    hands.look_at_cloud()
    return Done({}, (), receipt.because)


def back(hands: Hands) -> Result:
    """It speaks from a new boot, and its driver answers."""
    saga = hands.saga
    hands.reach.fleet.order_boot(saga.action.machine, saga.boot)
    record = hands.reach.fleet.get(saga.action.machine)
    if record is None or (record.cloud is not None and record.cloud.state in ("failed", "releasing", "gone")):
        word = "is not known any more" if record is None or record.cloud is None else f"is {record.cloud.state}"
        return Failed(f"{saga.action.machine} {word}")
    heard = record.heard
    if heard is None or heard.boot == saga.boot:
        return Waiting(f"{saga.action.machine} has not reported from a new boot yet")
    nvml = heard.sources.get("nvml")
    if record.expected_gpu_count and (nvml is None or nvml.envelope.status != "ok"):
        said = "says nothing" if nvml is None else f"says {nvml.envelope.status}"
        return Waiting(f"its driver {said}")
    return Done({}, ((saga.action.machine, Lifecycle.VALIDATING),))


def proven(hands: Hands) -> Result:
    """Judged since it is back, it is found healthy."""
    saga = hands.saga
    verdict = hands.scene.verdicts.get(saga.action.machine)
    judged = hands.scene.now.monotonic_ns >= hands.began.monotonic_ns
    if not judged or verdict is None:
        return Waiting("it is not judged yet")
    well = verdict.health is Health.HEALTHY
    causes = {saga.action.cause} if well else {e.cause_key() for e in verdict.evidence if not e.note}
    unread = next((name for cause in sorted(causes) if (name := seen_by(cause)) and not _read_since(hands, name)), "")
    if unread and (well or verdict.health in SICK):
        return Waiting(f"{unread}, which told of it, has not been read since")
    if well:
        return Done()
    if verdict.health in SICK:
        cure = "a fresh system disk" if saga.action.kind == "reimage" else f"{saga.action.order} by its own hands"
        return Failed(f"{cure} did not cure it: {verdict.because}")
    return Waiting(f"it is judged {verdict.health}")


def _read_since(hands: Hands, name: str) -> bool:
    """Whether this source looked since the step began, by the node's own clock: a slow one's last word is of before."""
    record = hands.reach.fleet.get(hands.saga.action.machine)
    heard = None if record is None else record.heard
    told = None if heard is None else heard.sources.get(name)
    if heard is None or told is None or told.envelope.status not in ("ok", "hung"):
        return False
    age_ns = max(0, heard.sent_unix_ns - told.envelope.at_unix_ns)
    return heard.last.monotonic_ns - age_ns >= hands.began.monotonic_ns


def undo_repair(hands: Hands) -> Result:
    """It stays drained: what comes next is for the planner, or for whoever took it over."""
    hands.reach.desk.take_back(hands.saga.action.machine)
    return Done({}, ((hands.saga.action.machine, Lifecycle.DRAINED),))
