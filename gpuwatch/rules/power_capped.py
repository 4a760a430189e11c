"""A GPU may draw less power than it starts with: somebody set a limit, and it may be forgotten. A note.

The limit in force against the board's default (not its maximum). Set by an administrator on purpose, or left by one who
is gone; a node that is slower than its peers by it slows down a whole gang. Below `share` of the default.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which share of the default on a limit is worth a note."""

    share: float = 0.95


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """One note a node; silent where limits are not told."""
    facts = view.facts.get(NvmlFacts)
    capped = [gpu for gpu in (facts.gpus if facts is not None else ()) if _capped(gpu, settings.share)]
    if capped:
        first = capped[0]
        yield Evidence(
            rule="power_capped",
            subject=Subject("machine", view.machine),
            argues_for=Health.SUSPECT,
            because=f"GPU {', '.join(str(gpu.index) for gpu in capped)} may draw {_limit(first):.0f} W, "
            f"by default {first.power_limit_default_watts:.0f} W",
            note=True,
        )


def _limit(gpu: Gpu) -> float | None:
    return gpu.power_limit_watts if gpu.power_limit_enforced_watts is None else gpu.power_limit_enforced_watts


def _capped(gpu: Gpu, share: float) -> bool:
    limit, usual = _limit(gpu), gpu.power_limit_default_watts
    return limit is not None and usual is not None and limit < share * usual


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="this node is slower than its peers, and the slowest sets the pace of the whole job",
    source="nvml.h, nvmlDeviceGetPowerManagementDefaultLimit",
)
