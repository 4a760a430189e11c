"""The driver itself says that a GPU wants a repair (NVML field 230).

The kernel prints Xid 154 only when the value changes and only if an old value was known: a GPU that was bad when the
driver started prints nothing, and all counters may be 0 (scitix/sichek#121). So the value is looked at in each report.
0 none, 1 GPU reset, 2 node reboot, 3 drain peer-to-peer, 4 drain and reset. From 5 on the numbers changed their meaning
between drivers (nvidia-ml-py 13.580: bus reset; 13.610: IMEX domain): a person is asked, nothing local is condemned.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Rung, Subject
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

WANTS: dict[int, tuple[str, Rung]] = {
    1: ("a GPU reset", "reset_gpu"),
    2: ("a reboot of the node", "reboot"),
    3: ("its peer-to-peer jobs drained", "reset_gpu"),
    4: ("a drain, then a reset", "reset_gpu"),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence] | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    if not any(gpu.recovery_action for gpu in facts.gpus):
        return None
    return _evidence(view, facts)


def _evidence(view: NodeView, facts: NvmlFacts) -> Iterator[Evidence]:
    for gpu in facts.gpus:
        value = gpu.recovery_action
        if not value:
            continue
        words, action = WANTS.get(value, ("something that only a person can read (an ambiguous number)", "none"))
        yield Evidence(
            rule="recovery_action",
            subject=Subject("gpu", gpu.uuid or f"{view.machine}/{gpu.pci or gpu.index}"),
            argues_for=Health.DEGRADED if value in WANTS else Health.SUSPECT,
            because=f"the driver wants {words} for GPU {gpu.index} (recovery action {value})",
            conclusive=True,
            action=action if value in WANTS else "contact_support",
            soft=value == 3,
            cause=f"recovery_action_{value}",
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the driver itself asks for this repair before the GPU is used again",
    source="nvml.h, field 230 (GPU recovery action); NVIDIA Xid catalogue, Xid 154",
)
