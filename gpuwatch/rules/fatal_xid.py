"""The kernel log says that a GPU must not be used before a repair.

How bad each Xid is, what it asks for and whether it drains stands in the fault catalogue (NVIDIA's published list, with
the places where other sources disagree); an event brings it along. Counted are events of this boot, after the last
repair, not expired and not cleared by later good news of the same GPU (154 back to none; 162 takes back a 163 only).

- `drain = yes`: at once. Severity fatal means that the GPU is unusable, else degraded.
- 109 is seen on healthy GPUs under heavy shared load too (koordinator-sh/koordinator#2834): only where the driver's
  recovery action or another fatal event of that GPU confirms it, Unknown where neither can be read.
- `drain = after_count`: `count` occurrences on one GPU within `window_s`. One crash prints many lines: lines of one
  process are one occurrence, and so are lines without a process less than `burst_s` apart (NVSentinel folds bursts of
  15 s to 3 min). Hardware is suspected when it returns with different processes (NVSentinel#345).
- 48 and 95 make results since then suspect: no waiting for the next checkpoint, which may hold them.

Where the kernel log cannot be read, a recovery action of 0 on every GPU stands in for it; else Unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import get_args

import msgspec

from gpuwatch.faults.repeats import occurrences, standing
from gpuwatch.model.evidence import Evidence, Finding, Rung, Subject, Unknown
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

FELL_OFF_THE_BUS = 79
TO_CONFIRM = 109
DATA_SUSPECT = frozenset({48, 95})
RUNGS: dict[str, Rung] = {rung: rung for rung in get_args(Rung)}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be set, with its usual value. The counts are choices: published lists only say "repeated"."""

    count: int = 3
    window_s: float = 3600.0
    burst_s: float = 180.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterable[Finding] | Finding | None:  # noqa: ARG001
    """Looks at the view's events; at the NVML facts only where there are some."""
    blind = None if view.expected_gpu_count == 0 else _blind(view)
    if view.events:
        return chain(_findings(view, settings), () if blind is None else (blind,))
    return blind


def _blind(view: NodeView) -> Unknown | None:
    log = view.facts.get(KernelLogFacts)
    if log is not None and log.readable:
        return None
    nvml = view.facts.get(NvmlFacts)
    if nvml is not None and nvml.gpus and all(gpu.recovery_action == 0 for gpu in nvml.gpus):
        return None
    source = view.sources.get("kernel_log")
    why = (source.reason if source is not None else None) or "no kernel log from this node"
    subject = Subject("machine", view.machine)
    return Unknown(rule="fatal_xid", subject=subject, because=f"the kernel log cannot be read: {why}")


def _findings(view: NodeView, settings: Settings) -> Iterator[Finding]:
    groups: dict[tuple[str | None, int], list[KernelEvent]] = {}
    for event in standing(view.events, view.boot):
        if event.xid is not None and event.drain != "no":
            groups.setdefault((event.pci, event.xid), []).append(event)
    gpus: dict[str, Gpu] = {}
    if groups:
        nvml: NvmlFacts | None = view.facts.get(NvmlFacts)
        gpus = {gpu.pci: gpu for gpu in nvml.gpus if gpu.pci is not None} if nvml is not None else {}
    fatal = {pci for (pci, xid), found in groups.items() if xid != TO_CONFIRM and any(_condemns(e) for e in found)}
    for (pci, xid), found in sorted(groups.items(), key=lambda group: (group[0][0] or "", group[0][1])):
        gpu = gpus.get(pci or "")
        subject = _subject(view, pci, gpu)
        certain = [event for event in found if event.drain == "yes"]
        if xid == TO_CONFIRM and certain and pci not in fatal:
            wanted = gpu.recovery_action if gpu is not None else None
            if wanted is None:
                why = f"Xid 109 on {_where(pci)}, and the driver's recovery action cannot be read to confirm it"
                yield Unknown(rule="fatal_xid", subject=subject, because=why)
            if not wanted:
                continue
        if certain:
            worst = next((event for event in certain if event.severity == "fatal"), certain[0])
            because = f"Xid {xid} on {_where(pci)}: {worst.text[:120]}"
            yield _evidence(subject, xid, certain, worst, because, fatal=worst.severity == "fatal")
            continue
        times = occurrences(found, window_s=settings.window_s, burst_s=settings.burst_s)
        if times >= settings.count:
            because = (
                f"Xid {xid} on {_where(pci)} {times} times, in different processes or apart, "
                f"within {settings.window_s / 60:.0f} min (limit {settings.count})"
            )
            yield _evidence(subject, xid, found, found[0], because, fatal=False)


def _evidence(
    subject: Subject, xid: int, found: list[KernelEvent], worst: KernelEvent, because: str, *, fatal: bool
) -> Evidence:
    first = min(found, key=lambda event: event.at_unix_ns)
    return Evidence(
        rule="fatal_xid",
        subject=subject,
        argues_for=Health.DRIVER_FAILED if fatal else Health.DEGRADED,
        because=because,
        conclusive=True,
        onset_unix_ns=first.at_unix_ns,
        event_id=first.id,
        action=RUNGS.get(worst.action, "contact_support"),
        data_suspect=xid in DATA_SUSPECT,
        cause=f"xid_{xid}",
        kind="gpu_lost" if xid == FELL_OFF_THE_BUS else "xid",
    )


def _condemns(event: KernelEvent) -> bool:
    return event.drain == "yes" and event.severity == "fatal"


def _subject(view: NodeView, pci: str | None, gpu: Gpu | None) -> Subject:
    if gpu is not None and gpu.uuid is not None:
        return Subject("gpu", gpu.uuid)
    return Subject("gpu", f"{view.machine}/{pci}") if pci is not None else Subject("machine", view.machine)


def _where(pci: str | None) -> str:
    return f"GPU {pci}" if pci is not None else "an unnamed GPU"


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the driver says that work on this GPU has failed or its results may be wrong",
    source="NVIDIA Xid catalogue, docs.nvidia.com/deploy/xid-errors",
)
