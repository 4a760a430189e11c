"""One GPU answers NVML with an error that is not "lost".

What each code means, where it was seen and what it asks for is data: `faults/nvml_codes.py`. A code that only says
"this board has no such reading" is an answer and no finding; one that says "the agent may not look" is Unknown.
A time-out must come three times in a row (nvml facts: one is a note), an interrupt fault twice, "not ready" for ten
minutes, because right after a boot or a reset it is normal. In a container the node is not judged by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.faults.nvml_codes import UNKNOWN_ERROR, code
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: the numbers of each code stand beside it in `faults/nvml_codes.py`."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Finding] | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    if all(gpu.error is None for gpu in facts.gpus):
        return None
    return _findings(view, facts)


def _findings(view: NodeView, facts: NvmlFacts) -> Iterator[Finding]:
    for gpu in facts.gpus:
        if gpu.error is None or gpu.error == UNKNOWN_ERROR:
            continue  # 999 belongs to `gpu_lost`
        known = code(gpu.error)
        if known.answer not in ("sick", "unknown"):
            continue
        subject = Subject("gpu", gpu.uuid or f"{view.machine}/{gpu.pci or gpu.index}")
        words = f"GPU {gpu.index} answers code {gpu.error} {known.name}: {known.meaning}"
        if known.answer == "unknown" or facts.in_container or facts.rights_lost:
            yield Unknown(rule="gpu_refuses", subject=subject, because=words)
            continue
        in_a_row = max(0, known.after_intervals - 1) * view.interval_s
        yield Evidence(
            rule="gpu_refuses",
            subject=subject,
            argues_for=Health.DEGRADED,
            because=words,
            conclusive=True,
            action=known.action,
            cause=f"nvml_{gpu.error}",
            must_last=max(known.after_s, in_a_row),
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the driver cannot say how this GPU is, or cannot use it",
    source="nvml.h, return codes",
)
