"""A GPU that lives in an NVLink fabric is not part of it: jobs over several GPUs fail or crawl.

nvmlDeviceGetGpuFabricInfoV. State 0 (no fabric) is an answer: one GPU alone, a slice of a GB200 (leptonai/gpud#1140,
#1108). States 1 and 2 wait for the fabric manager: normal after a boot, a fault after `starting_s` (CUDA then fails
with 802). In state 3 the status must be success: "Insufficient Resources" stayed unseen (Azure/azhpc-images#506), and a
dead fabric manager for 20 days (NVIDIA/NVSentinel#883, #891). The health mask has fields of two bits in which 1 is bad
and 2 is good (0: not told), and one of four in which 1 is good; reading "not zero is bad" takes healthy GPUs for sick.
Bandwidth that is less and a recovery under way are notes. Where the driver sums up (version 3): 2 unhealthy, 3 limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

COMPLETED = 3  # NVML_GPU_FABRIC_STATE_*
TRUE, RIGHT = 1, 1  # of a field of two bits; of the configuration's four
UNHEALTHY, LIMITED = 2, 3  # NVML_GPU_FABRIC_HEALTH_SUMMARY_*
BAD = {4: "its route is unhealthy"}  # shift of NVML_GPU_FABRIC_HEALTH_MASK_* -> words
NOTED = {0: "bandwidth is less than it should be", 2: "a route recovers", 6: "it recovers from an access time-out"}
CONFIGURATION = {
    2: "system GUID",
    3: "chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware does not fit",
    7: "wrong place",
    8: "GPU state",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a fabric may take to come up, and how long anything else must last."""

    starting_s: float = 600.0
    after_s: float = 120.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where there is no fabric."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        if not gpu.fabric_state:
            continue
        if gpu.fabric_state != COMPLETED:
            word = "has not begun to join" if gpu.fabric_state == 1 else "is still joining"
            yield _sick(view, gpu, f"{word} the NVLink fabric: is the fabric manager running?", settings.starting_s)
        elif gpu.fabric_status:
            words = f"could not join the NVLink fabric (NVML code {gpu.fabric_status}): ask the fabric manager's log"
            yield _sick(view, gpu, words, settings.after_s)
        else:
            yield from _of_health(view, gpu, settings)


def _of_health(view: NodeView, gpu: Gpu, settings: Settings) -> Iterator[Evidence]:
    bad, noted = _words(gpu.fabric_health_mask or 0)
    if gpu.fabric_health_summary == UNHEALTHY and not bad:
        bad = ("it is unhealthy, the driver says",)
    if bad:
        yield _sick(view, gpu, f"in the NVLink fabric: {', '.join(bad)}", settings.after_s)
    elif noted or gpu.fabric_health_summary == LIMITED:
        words = ", ".join(noted) or "limited capacity"
        yield Evidence(
            rule="fabric_not_ready",
            subject=Subject("gpu", gpu.key(view.machine)),
            argues_for=Health.SUSPECT,
            because=f"{gpu.place()} in the NVLink fabric: {words}",
            note=True,
        )


@lru_cache(maxsize=256)
def _words(mask: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the health mask says against it, and what it notes."""
    wrong = mask >> 8 & 0xF
    bad = tuple(words for shift, words in BAD.items() if mask >> shift & 3 == TRUE)
    if wrong > RIGHT:
        bad += (f"it is configured wrongly ({CONFIGURATION.get(wrong, f'code {wrong}')})",)
    return bad, tuple(words for shift, words in NOTED.items() if mask >> shift & 3 == TRUE)


def _sick(view: NodeView, gpu: Gpu, words: str, lasts_s: float) -> Evidence:
    return Evidence(
        rule="fabric_not_ready",
        subject=Subject("gpu", gpu.key(view.machine)),
        argues_for=Health.DEGRADED,
        because=f"{gpu.place()} {words}",
        conclusive=True,
        action="reboot",
        must_last=lasts_s,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="jobs over several GPUs fail at their start, or crawl over PCIe",
    source="nvml.h, nvmlGpuFabricInfo; NVIDIA/NVSentinel#883, Azure/azhpc-images#506",
)
