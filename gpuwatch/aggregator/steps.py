"""What each step of an action does. Each function may be called again and again: waiting is to be called later.

A step that calls scheduler or cloud asks `hands.allow()` right before it does. Whether a step should still begin is
asked in `BEFORE`, until it is written down as intended: from then on its effect may have happened, and it is carried
through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwatch.aggregator import local_repair, repair
from gpuwatch.aggregator import saga as s
from gpuwatch.aggregator.groups import group_refusal
from gpuwatch.aggregator.reach import Cancelled, Done, Failed, Hands, Result, Waiting
from gpuwatch.aggregator.stepping import moves, still_steps
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.schedulers import JobAction, SchedulerJob, SchedulerNode, SchedulerSnapshot

_NEW = Lifecycle.PROVISIONING  # of a machine that nothing has been done with


def drain(hands: Hands) -> Result:
    """Take no new work on the slot."""
    action = hands.saga.action
    hands.allow(harmful=True)
    hands.hands().drain(action.slot, reason=f"{action.because} ({action.fault})", action_id=hands.saga.key())
    return Done({"drained": True}, ((action.machine, Lifecycle.DRAINING),))


def end_job(hands: Hands) -> Result:
    """Do with the job what the pool's policy says, at the drain deadline, or at once where the work cannot go on."""
    saga, action = hands.saga, hands.saga.action
    snapshot = hands.snapshot()
    if snapshot is None:
        return Waiting(_unasked(hands))
    if action.kind == "restart_job":
        jobs = [job for job in snapshot.jobs if job.state == "running" and job.attempt == action.attempt]
        if not jobs:
            return Done(because="the attempt has ended by itself")
        if not any(verdict.attempt == action.attempt for verdict in hands.scene.run_verdicts):
            return Cancelled("the run moves again")
    else:
        turned = _taken_over(hands, snapshot)
        if turned is not None:
            return turned
        if hands.recovered():
            return Cancelled("the node is healthy again")
        jobs = _jobs_on(action.slot, snapshot)
        if not jobs:
            return Done(because="no job is on it")
        if saga.soft or hands.policy.job_action == "wait":
            return Done(because=f"job {_names(jobs)} may end by itself")
        if not saga.urgent and hands.elapsed_s() < hands.policy.drain_deadline_s:
            left_s = hands.policy.drain_deadline_s - hands.elapsed_s()
            return Waiting(f"job {_names(jobs)} may go on for {left_s:.0f} s more")
        if saga.urgent and hands.elapsed_s() < hands.policy.drain_deadline_s and moves(hands):
            return Waiting("its job still makes progress")
    wanted = hands.policy.job_action
    if wanted == "wait":
        return Failed("the pool's job_action is `wait`: no job is touched")
    refusing = [job for job in jobs if not _may(job, wanted)]
    if refusing:
        return Waiting(f"job {_names(refusing)} does not allow {wanted}", person=True)
    for job in jobs:
        hands.allow(harmful=True)
        hands.hands().act_on_job(job.job, wanted, action_id=f"{saga.key()}/{job.job}")
    acted = tuple(job.attempt for job in jobs)
    done = {"signal": "was signalled", "requeue": "was requeued", "cancel": "was cancelled"}[wanted]
    return Done({"acted": (*saga.acted, *acted)}, because=f"job {_names(jobs)} {done}")


def empty(hands: Hands) -> Result:
    """Confirm from the scheduler that nothing runs there any more."""
    saga, action = hands.saga, hands.saga.action
    snapshot = hands.snapshot()
    if snapshot is None:
        return Waiting(_unasked(hands))
    turned = _taken_over(hands, snapshot)
    if turned is not None:
        return turned
    node = _node(action.slot, snapshot)
    jobs = _jobs_on(action.slot, snapshot)
    if not jobs and node is not None and not node.jobs:
        alive = still_steps(hands)
        if alive:
            return Waiting(f"the scheduler says that it is empty, but {alive}")
        return repair.emptied(hands)
    waited = f"job {_names(jobs)} is still there" if jobs else "a job is still ending there"
    if saga.acted and hands.elapsed_s() > hands.policy.empty_deadline_s:
        if action.kind == "drain":
            return Failed(f"{waited} after {hands.elapsed_s():.0f} s")
        # It will not come back to service in this state: what is stuck there goes down with the machine.
        return repair.emptied(hands, f"{waited}; the machine goes with it")
    if hands.recovered() and not saga.acted:
        return Cancelled("the node is healthy again")
    left_alone = not (saga.acted or saga.soft) and hands.elapsed_s() > hands.policy.drain_deadline_s
    return Waiting(f"{waited}, and gpuwatch may not end it" if left_alone else waited, person=left_alone)


def create(hands: Hands) -> Result:
    """Start the one machine that takes the place."""
    saga, action = hands.saga, hands.saga.action
    hands.allow(harmful=True)
    receipt = hands.provider().create(slot=action.slot, group=saga.group, action_id=saga.key())
    if receipt.state == "pending" or not receipt.machine:
        return Waiting(receipt.because or "the cloud is starting it")
    fleet, new = hands.reach.fleet, receipt.machine
    other = fleet.get(new)
    strange = other is not None and (other.lifecycle is not _NEW or other.slot != action.slot)
    if new == action.machine or fleet.is_retired(new) or strange:
        return Failed(f"the cloud gave {new}, which is no new machine: it is left as it is")
    hands.look_at_cloud()
    old = () if s.RELEASE in saga.passed else ((action.machine, Lifecycle.REPLACING),)
    return Done({"new_machine": receipt.machine}, old)


def join(hands: Hands) -> Result:
    """The new machine speaks, and its driver answers."""
    saga = hands.saga
    if saga.action.kind == "reimage":
        return repair.back(hands)
    if saga.action.kind == "repair":
        return local_repair.back(hands)
    record = hands.reach.fleet.get(saga.new_machine)
    if record is not None and record.cloud is not None and record.cloud.state in ("failed", "gone"):
        return Failed(f"the cloud says that {saga.new_machine} is {record.cloud.state}: {record.cloud.because}")
    if record is None or record.heard is None:
        return Waiting(f"{saga.new_machine} has not reported yet")
    if record.slot != saga.action.slot:
        return Waiting(f"{saga.new_machine} says that it is in {record.slot}")
    nvml = record.heard.sources.get("nvml")
    if record.expected_gpu_count and (nvml is None or nvml.envelope.status != "ok"):
        said = "says nothing" if nvml is None else f"says {nvml.envelope.status} {nvml.envelope.reason or ''}".strip()
        return Waiting(f"its driver {said}")
    return Done({}, ((saga.new_machine, Lifecycle.VALIDATING),))


def validate(hands: Hands) -> Result:
    """Judged like any other node, it is found healthy before any work comes to it."""
    saga = hands.saga
    if saga.action.kind in ("reimage", "repair"):
        return repair.proven(hands)
    health = hands.scene.health(saga.new_machine)
    verdict = hands.scene.verdicts.get(saga.new_machine)
    if health == Health.HEALTHY:
        return Done()
    if verdict is not None and verdict.health in SICK:
        return Failed(f"{saga.new_machine} is {health} itself: {verdict.because}")
    return Waiting(f"it is judged {health or 'not yet'}")


def adopt(hands: Hands) -> Result:
    """The slot is the new machine's from now on."""
    saga, action = hands.saga, hands.saga.action
    hands.allow(harmful=False)
    hands.hands().adopt(action.slot, saga.new_machine, action_id=saga.key())
    hands.reach.fleet.adopt(action.slot, saga.new_machine)
    return Done()


def resume(hands: Hands) -> Result:
    """Give the slot back to the scheduler."""
    saga, action = hands.saga, hands.saga.action
    hands.allow(harmful=False)
    hands.hands().resume(action.slot, action_id=saga.key())
    return Done({"drained": False}, ((saga.new_machine or action.machine, Lifecycle.IN_SERVICE),))


def release(hands: Hands) -> Result:
    """End the old machine and its billing: over when the provider has looked that it is gone, and it alone."""
    action = hands.saga.action
    record = hands.reach.fleet.get(action.machine)
    says = None if record is None else record.cloud
    if says is not None and says.state == "gone" and says.absent_because != "surplus":  # not by a release of ours
        return Done({}, ((action.machine, Lifecycle.RETIRED),), "the cloud says that it is gone already")
    hands.allow(harmful=True)
    receipt = hands.provider().release(action.machine, action_id=hands.saga.key())
    if receipt.state == "pending":
        return Waiting(receipt.because or "the cloud is ending it")
    hands.look_at_cloud()
    return Done({}, ((action.machine, Lifecycle.RETIRED),), receipt.because)


def ended(hands: Hands) -> Result:
    """The stopped attempt is over, says the scheduler."""
    snapshot = hands.snapshot()
    if snapshot is None:
        return Waiting(_unasked(hands))
    attempt = hands.saga.action.attempt
    if any(job.state == "running" and job.attempt == attempt for job in snapshot.jobs):
        return Waiting(f"{attempt} is still running")
    return Done()


def undo_resume(hands: Hands) -> Result:
    """The drain was ours and is not needed: give the slot back."""
    return resume(hands)


def undo_create(hands: Hands) -> Result:
    """A new machine that cannot be used must not be billed for ever."""
    saga = hands.saga
    hands.allow(harmful=False)
    receipt = hands.provider().release(saga.new_machine, action_id=saga.key())
    if receipt.state == "pending":
        return Waiting(receipt.because or "the cloud is ending it")
    old = () if s.RELEASE in saga.passed else ((saga.action.machine, Lifecycle.DRAINED),)
    return Done({}, ((saga.new_machine, Lifecycle.RETIRED), *old))


def before_drain(hands: Hands) -> Result | None:
    """Is it still needed?"""
    hands.allow(harmful=True)
    holder = hands.reach.fleet.current(hands.saga.action.slot)
    if holder is not None and holder.machine != hands.saga.action.machine:
        return Cancelled(f"{holder.machine} fills {holder.slot} now")
    return Cancelled("the node is healthy again") if hands.recovered() else None


def before_harm(hands: Hands) -> Result | None:
    """The last look before a machine is made or given up: is it still sick, and is the drain still ours?"""
    hands.allow(harmful=True)
    if s.RELEASE in hands.saga.passed or s.ADOPT in hands.saga.passed:
        return None  # its place is taken or gone: the way back leads forward
    if hands.recovered():
        return Cancelled("the node is healthy again")
    doubt = repair.refusal(hands) if hands.saga.step == s.REIMAGE else None
    if hands.saga.step in (s.SIGN, s.ORDER):
        doubt = local_repair.refusal(hands)
    if doubt is not None:
        return doubt
    refusal = group_refusal(hands) if hands.saga.step in (s.CREATE, s.REIMAGE) else ""
    if refusal:
        return Failed(refusal)  # not cancelled: a sick node is not given back
    snapshot = hands.snapshot()
    return Waiting(_unasked(hands)) if snapshot is None else _taken_over(hands, snapshot)


BEFORE: Mapping[str, Callable[[Hands], Result | None]] = {
    s.DRAIN: before_drain,
    s.CREATE: before_harm,
    s.RELEASE: before_harm,
    s.REIMAGE: before_harm,
    s.SIGN: before_harm,
    s.ORDER: before_harm,
}

STEPS: Mapping[str, Callable[[Hands], Result]] = {
    s.DRAIN: drain,
    s.END_JOB: end_job,
    s.EMPTY: empty,
    s.CREATE: create,
    s.JOIN: join,
    s.VALIDATE: validate,
    s.ADOPT: adopt,
    s.RESUME: resume,
    s.RELEASE: release,
    s.REIMAGE: repair.reimage,
    s.SIGN: local_repair.sign,
    s.ORDER: local_repair.give,
    s.ENDED: ended,
    s.UNDO_RESUME: undo_resume,
    s.UNDO_CREATE: undo_create,
    s.UNDO_REPAIR: repair.undo_repair,
}


def deadline_s(step: str, policy: Policy) -> float | None:
    """How long a step may take before it has failed; None: it waits for a job that nobody may end."""
    if step in (s.END_JOB, s.EMPTY):
        return None  # they have their own deadlines, after which they act
    if step in (s.CREATE, s.JOIN, s.VALIDATE, s.REIMAGE):
        return policy.join_deadline_s
    if step == s.ORDER:
        return policy.order_deadline_s
    return max(policy.empty_deadline_s, 60.0)


def _unasked(hands: Hands) -> str:
    witness = hands.reach.scheduler_witness
    trouble = "there is none" if witness is None else witness.trouble()
    return f"asking the scheduler{': ' + trouble if trouble else ''}"


def _node(slot: str, snapshot: SchedulerSnapshot) -> SchedulerNode | None:
    return next((node for node in snapshot.nodes if node.slot == slot), None)


def _jobs_on(slot: str, snapshot: SchedulerSnapshot) -> list[SchedulerJob]:
    return [job for job in snapshot.jobs if job.state == "running" and slot in job.slots]


def _taken_over(hands: Hands, snapshot: SchedulerSnapshot) -> Cancelled | None:
    """Somebody lifted our drain or put theirs in its place: a person's act wins."""
    if not hands.saga.drained:
        return None
    node = _node(hands.saga.action.slot, snapshot)
    if node is None or node.drain_owner == "gpuwatch":
        return None
    what = "resumed the node" if not node.drain_owner else f"drained it for their own reason ({node.reason})"
    return Cancelled(f"somebody {what} during our drain", hands_off=True)


def _may(job: SchedulerJob, wanted: JobAction) -> bool:
    return {"signal": job.may_signal, "requeue": job.may_requeue, "cancel": job.may_cancel}[wanted]


def _names(jobs: list[SchedulerJob]) -> str:
    return ", ".join(job.job for job in jobs)
