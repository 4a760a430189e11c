"""A fault of switch, network card, disk, memory, bus or kernel in the kernel log; or that log cannot be read.

How bad each is stands in the fault catalogue, with its source, and an event brings it along; what is judged here is
what an event means for the node. Counted are events of this boot, after the last repair, not expired.

- `drain = yes`: at once. What takes the GPUs, their fabric or the kernel away is a failed node, anything else a
  degraded one. A lost disk or array lets the jobs that run go on (soft). A card or a bus that its driver has brought
  back since is soft too: the job that used it is over, the next one may do.
- `drain = after_count`: `count` occurrences of one thing within `window_s`; lines less than `burst_s` apart are one
  occurrence, whatever process they name. Soft.
- Out of memory, a program stuck in the kernel, a file server that does not answer, too many open files: mostly the
  job's doing or the storage's. Repeated, they are told (a note) and drain nobody.
- A driver that could not start a GPU counts only while NVML does not show all of them at work.
- What a rule on the state itself judges is left to it: links that flap or are too narrow, versions that do not fit.

Where the log cannot be read, this is told as a note: the GPUs' own state is `fatal_xid`'s to answer for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import get_args

import msgspec

from gpuwatch.faults.named import function_address
from gpuwatch.faults.repeats import occurrences, standing
from gpuwatch.model.evidence import Evidence, Rung, Subject, SubjectKind
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

RUNGS: dict[str, Rung] = {rung: rung for rung in get_args(Rung)}
FAILED = frozenset(
    {"sxid", "fm_nvswitch_fatal", "fm_topology_mismatch", "fm_version_mismatch", "gpu_init_failed"}
    | {"kernel_panic", "hard_lockup", "soft_lockup", "efa_admin_timeout"}
)
"""Fatal ones of these leave no node to compute on."""
SOFT = frozenset({"nvme_lost", "nvme_no_path", "raid_failed"})
SOFTWARE = frozenset({"fm_version_mismatch"})
SWITCHES = frozenset({"sxid", "fm_nvswitch_fatal", "fm_nvswitch_nonfatal"})
FILE_SYSTEMS = frozenset({"fs_read_only", "fs_shutdown", "fs_error"})
TOLD_ONLY = frozenset({"oom", "hung_task", "nfs_not_responding", "file_max"})
ELSEWHERE = frozenset({"driver_mismatch", "driver_no_device", "ib_link_down", "nic_link_down", "pcie_width"})
RECOVERED = {"nic_recovered": ("nic_fw_dead", "nic_hw_error"), "aer_recovered": ("aer_fatal", "aer_nonfatal")}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As of `fatal_xid`: the counts are choices, published lists only say "repeated"."""

    count: int = 3
    window_s: float = 3600.0
    burst_s: float = 180.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterable[Evidence] | Evidence | None:  # noqa: ARG001
    """Looks at the view's events."""
    blind = _blind(view)
    if view.events:
        return chain(_findings(view, settings), () if blind is None else (blind,))
    return blind


def _findings(view: NodeView, settings: Settings) -> Iterator[Evidence]:
    groups: dict[tuple[str, str], list[KernelEvent]] = {}
    stands = standing(view.events, view.boot)
    for event in stands:
        if event.xid is None and event.drain != "no" and event.kind not in ELSEWHERE:
            groups.setdefault((event.kind, event.subject or event.pci or ""), []).append(event)
    for (kind, thing), found in sorted(groups.items()):
        certain = [event for event in found if event.drain == "yes"]
        if kind == "gpu_init_failed" and _all_at_work(view):
            continue
        if certain:
            worst = next((event for event in certain if event.severity == "fatal"), certain[0])
            back = _brought_back(worst, stands)
            because = f"{worst.text[:160]}" + (f"; since then: {back.text[:120]}" if back is not None else "")
            failed = kind in FAILED and worst.severity == "fatal"
            soft = kind in SOFT or back is not None
            health = Health.DRIVER_FAILED if failed else Health.DEGRADED
            yield _evidence(view, thing, certain, worst, f"the kernel log: {because}", health=health, soft=soft)
            continue
        times = occurrences(found, window_s=settings.window_s, burst_s=settings.burst_s, by_process=False)
        if times >= settings.count:
            because = (
                f"{kind} {times} times within {settings.window_s / 60:.0f} min (limit {settings.count}), last: "
                f"{max(found, key=lambda event: event.at_unix_ns).text[:120]}"
            )
            note = kind in TOLD_ONLY
            health = Health.SUSPECT if note else Health.DEGRADED
            yield _evidence(view, thing, found, found[0], because, health=health, soft=True, note=note)


def _evidence(
    view: NodeView,
    thing: str,
    found: list[KernelEvent],
    worst: KernelEvent,
    because: str,
    *,
    health: Health,
    soft: bool,
    note: bool = False,
) -> Evidence:
    first = min(found, key=lambda event: event.at_unix_ns)
    action = RUNGS.get(worst.action, "contact_support")
    return Evidence(
        rule="kernel_fault",
        subject=_subject(view, worst, thing),
        argues_for=health,
        because=because,
        conclusive=not note,
        onset_unix_ns=first.at_unix_ns,
        event_id=first.id,
        action="none" if note else "contact_support" if action == "none" else action,
        soft=soft,
        cause=f"kernel_{worst.kind}",
        kind=worst.kind,
        note=note,
        software=worst.kind in SOFTWARE,
    )


def _subject(view: NodeView, event: KernelEvent, thing: str) -> Subject:
    if event.kind in SWITCHES:
        return Subject("switch", f"{view.machine}/{event.pci or thing}")
    kind: SubjectKind = "machine"
    if event.kind in FILE_SYSTEMS:
        kind = "file_system"
    elif event.kind.startswith(("nic_", "efa_", "ib_")):
        kind = "link"
    elif event.pci is not None and function_address(event.pci) is None:  # without a function: a GPU
        kind = "gpu"
    where = event.pci or thing
    return (
        Subject("machine", view.machine) if kind == "machine" or not where else Subject(kind, f"{view.machine}/{where}")
    )


def _brought_back(event: KernelEvent, stands: list[KernelEvent]) -> KernelEvent | None:
    """Later news that the driver has recovered this device."""
    for news in stands:
        of = RECOVERED.get(news.kind, ())
        same = news.subject in (event.subject, event.pci) or (news.pci is not None and news.pci == event.pci)
        if event.kind in of and same and news.at_unix_ns >= event.at_unix_ns:
            return news
    return None


def _all_at_work(view: NodeView) -> bool:
    """NVML shows every GPU that is expected, and none of them refuses: a later try of the driver worked."""
    nvml = view.facts.get(NvmlFacts)
    if nvml is None or not nvml.gpus or any(gpu.error is not None for gpu in nvml.gpus):
        return False
    return view.expected_gpu_count is not None and len(nvml.gpus) >= view.expected_gpu_count


def _blind(view: NodeView) -> Evidence | None:
    log, source = view.facts.get(KernelLogFacts), view.sources.get("kernel_log")
    if log is not None and log.readable:
        return None
    if log is None and (source is None or source.status not in ("failed", "hung")):
        return None  # it is not watched, or has said nothing yet
    why = (source.reason if source is not None else None) or "the agent may not read it"
    return Evidence(
        rule="kernel_fault",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because=f"the kernel log cannot be read ({why}): faults of disks, memory and network cards are not seen there",
        note=True,
        cause="kernel_log_unreadable",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the kernel is the first to know of a dead disk, card or switch, and often the only one to say so",
    source="gpuwatch's fault catalogue (Linux sources, leptonai/gpud, NVIDIA/NVSentinel); one source a row",
)
