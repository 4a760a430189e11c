"""A process waits in the kernel for long and cannot be woken, not even by SIGKILL.

State D for minutes is a driver or a file server that does not answer; the wait channel names which. A job with such a
process cannot end, and its node cannot be given to the next one (nvidia-docker#1553: pods that cannot be killed). Told
and never judged: which part is at fault, other rules see (`probe_hung`, `mount_hung`, `ib_device_hung`). Kernel threads
are left out: some wait so by design. The kernel itself complains after 120 s (hung_task_timeout_secs).
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which length of the wait on it is told."""

    after_s: float = 300.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """Silent where the agent does not look at processes."""
    facts = view.facts.get(HostFacts)
    stuck = [one for one in (facts.stuck_processes if facts is not None else ()) if one.stuck_s >= settings.after_s]
    if not stuck:
        return None
    named = ", ".join(f"{one.name} ({one.pid}) in {one.waits or 'a wait that is not told'}" for one in stuck)
    longest_s = max(one.stuck_s for one in stuck)
    return Evidence(
        rule="processes_stuck",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because=f"processes that cannot be woken, for {longest_s / 60:.0f} minutes and more: {named}",
        note=True,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(HostFacts,),
    matters="a job with such a process cannot end, and keeps its GPUs",
    source="nvidia-docker#1553, Linux kernel.hung_task_timeout_secs",
)
