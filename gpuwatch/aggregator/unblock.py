"""The command with which a person lets a thing go on that waits for them. Pure."""

from __future__ import annotations

import shlex

from gpuwatch.aggregator.needs import Need
from gpuwatch.model.policy import Policy

HOME = "http://127.0.0.1:9190"
MOST_SLOTS = 20  # in one command


def unblock(need: Need, *, policy: Policy, scheduler: str, url: str) -> str:
    """What to type. `scheduler`: its kind. `url`: where the aggregator answers. After `#` stands what else there is."""
    slurm = scheduler == "slurm"
    match need.reason:
        case "approval":
            return _ours("approve", need.action_id, url)
        case "job" if need.jobs:
            return _job(need.jobs, may_wait=policy.job_action != "requeue", slurm=slurm)
        case "budget" | "domain":
            return _budget(need, policy, slurm=slurm)
        case "group_owner":
            return (
                "# switch that setting of the group off, or name it in the cloud's `accept` and start the aggregator "
                "anew; a group of another controller: replace it there"
            )
        case "expired":
            return "; ".join(_ours("clear", slot, url) for slot in need.slots[:MOST_SLOTS])
        case "unused":
            return f"# release {shlex.quote(need.machine)} in the cloud, or let the scheduler have it as {_node(need)}"
        case "job_action":
            return _run(need, slurm=slurm)
        case "person" | "attempts" | "quarantined" | "drained" | "drain_unknown" | "repair_unproven" if _node(need):
            return _resume(need.slots, slurm=slurm)
    slot = _node(need)
    return _ours("explain", slot, url) if slot else f"curl -sS {shlex.quote(url + '/api/v1/plan')}"


def _job(jobs: tuple[str, ...], *, may_wait: bool, slurm: bool) -> str:
    if not slurm:
        return f"# end job {', '.join(jobs)} in the scheduler, or wait for its end"
    numbers = _numbers(jobs)
    end = f"scancel {' '.join(numbers)}"
    if may_wait:
        return f"{end}  # or wait for the end"
    allow = "; ".join(f"scontrol update jobid={number} requeue=1" for number in numbers)
    return f"{allow}  # then gpuwatch requeues it; or end it: {end}"


def _budget(need: Need, policy: Policy, *, slurm: bool) -> str:
    key, now = "max_nodes_out or max_out_ratio", f"{policy.max_nodes_out}, {policy.max_out_ratio:g}"
    if need.reason == "domain":
        key, now = "max_out_per_domain", str(policy.max_out_per_domain)
    more = f"# or raise {key} (now {now}) in pools.{need.pool}.policy and start the aggregator anew"
    return f"{_resume(need.out, slurm=slurm)}; {more}" if need.out else more


def _run(need: Need, *, slurm: bool) -> str:
    if slurm and need.jobs:
        numbers = " ".join(_numbers(need.jobs))
        return f"scontrol requeue {numbers}  # or end it: scancel {numbers}"
    return f"# start {need.slots[0].removeprefix('run:')} again, or end it"


def _resume(slots: tuple[str, ...], *, slurm: bool) -> str:
    named = ",".join(slots[:MOST_SLOTS])
    if not slurm:
        return f"# mend {named}, and give it back to the scheduler"
    return f"scontrol update nodename={shlex.quote(named)} state=resume  # once it is mended"


def _ours(order: str, name: str, url: str) -> str:
    where = "" if url == HOME else f" --url {shlex.quote(url)}"
    return f"gpuwatch {order} {shlex.quote(name)}{where}"


def _node(need: Need) -> str:
    """The first node that waits; empty where only runs do."""
    return next((slot for slot in need.slots if not slot.startswith("run:")), "")


def _numbers(jobs: tuple[str, ...]) -> list[str]:
    """Slurm's own: `12.1` is the second try of job 12."""
    return [shlex.quote(job.partition(".")[0]) for job in jobs]
