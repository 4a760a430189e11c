"""NVML tells of an Xid while the kernel log cannot be read: then, and only then, its word is taken.

The kernel log is the better witness: NVML delivers neither 79 nor 119 and 120 (NVIDIA/DCGM#162), and none of the text.
So an Xid whose meaning depends on that text (74, 144 to 150, 154), and 109, which a healthy GPU may show under shared
load (koordinator-sh/koordinator#2834), are a suspicion here; what the catalogue drains for at once is believed; the
rest is the application's or must come often, which only the log can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import msgspec

from gpuwatch.faults.catalogue import xids
from gpuwatch.model.evidence import Evidence, Rung, Subject
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

NEEDS_ITS_LINE = frozenset({74, 109, *range(144, 151), 154})
MOST = 64  # as many as an agent keeps
RUNGS: dict[str, Rung] = {rung: rung for rung in get_args(Rung)}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: what each Xid means is the catalogue's."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent while the kernel log is read."""
    facts = view.facts.get(NvmlFacts)
    if facts is None or not facts.xids:
        return
    log = view.facts.get(KernelLogFacts)
    if log is not None and log.readable:
        return
    told: set[tuple[str | None, int]] = set()
    for event in facts.xids[:MOST]:
        row = xids().get(event.xid)
        if row is None or row.drain == "no" or (event.pci, event.xid) in told:
            continue
        told.add((event.pci, event.xid))
        certain = row.drain == "yes" and event.xid not in NEEDS_ITS_LINE
        if not certain and event.xid not in NEEDS_ITS_LINE:
            continue
        sick = Health.DRIVER_FAILED if row.severity == "fatal" else Health.DEGRADED
        where = f"GPU at {event.pci}" if event.pci else "an unnamed GPU"
        yield Evidence(
            rule="xid_by_nvml",
            subject=Subject("gpu", f"{view.machine}/{event.pci}") if event.pci else Subject("machine", view.machine),
            argues_for=sick if certain else Health.SUSPECT,
            because=f"NVML tells of Xid {event.xid} ({row.name}) on {where}, and the kernel log cannot be read",
            conclusive=certain,
            onset_unix_ns=event.at_unix_ns,
            event_id=event.id,
            action=RUNGS.get(row.action, "contact_support") if certain else "none",
            cause=f"xid_{event.xid}",
            kind="xid",
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the driver says that work on this GPU has failed or its results may be wrong",
    source="nvml.h, nvmlEventTypeXidCriticalError; NVIDIA Xid catalogue",
)
