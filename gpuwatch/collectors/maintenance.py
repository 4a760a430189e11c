"""What the cloud announces that it will do to this machine: reboots, redeployments, evictions, freezes.

Asked of the cloud's metadata service, which only the machine itself can reach, and only where the firmware says that
this is a machine of that cloud: elsewhere nothing is asked. The first answer may take two minutes (Azure), so the
source has a long deadline, in a thread of its own like every source. One provider a file: `sdk/azure_notices.py`;
Google's and EC2's were never run there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.model.facts.maintenance import MaintenanceFacts

DEADLINE_S = 130.0
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis asset tag of every Azure machine, by which cloud-init knows it; Hyper-V elsewhere has another."""
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and of whom."""

    enabled: bool = True
    interval_s: Positive = 10.0  # an eviction is announced 30 s before
    provider: Literal["auto", "azure", "gcp", "aws"] = "auto"  # auto: as the firmware says
    base_url: str = ""  # of the metadata service; empty: its usual link-local address
    timeout_s: Positive = 125.0  # for one answer
    dmi: Path = Path("/sys/class/dmi/id")


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._provider = provider(settings.dmi) if settings.provider == "auto" else settings.provider
        self._source: Any = None
        if self._provider:
            make = importlib.import_module(f"gpuwatch.sdk.{self._provider}_notices").open_source
            self._source = make(SystemClock(), base_url=settings.base_url, timeout_s=settings.timeout_s)
        self._known: frozenset[tuple[str, bool]] = frozenset()

    def read(self) -> Reading:
        """Everything that stands now. Urgent when something new stands there, or has begun."""
        if self._source is None:
            raise Unsupported("this is no machine of Azure, Google Cloud or EC2, whose maintenance is announced")
        notices = self._source.read()
        known = frozenset((notice.id, notice.started) for notice in notices)
        fresh, self._known = known - self._known, known
        return Reading(facts=MaintenanceFacts(self._provider, notices), urgent=bool(fresh))

    def close(self) -> None:
        pass


def provider(dmi: Path) -> str:
    """`azure`, `gcp`, `aws`, or empty, from the firmware's words: no question goes over the network."""
    if _word(dmi / "chassis_asset_tag") == AZURE_TAG:
        return "azure"
    if _word(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    return "aws" if _word(dmi / "sys_vendor") == "Amazon EC2" else ""


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def metrics(facts: MaintenanceFacts) -> Iterable[Sample]:
    """How long until each kind of thing that is announced; none where nothing is."""
    soonest: dict[tuple[str, str], float] = {}
    for notice in facts.notices:
        key = (notice.kind, "yes" if notice.ends_work else "no")
        if notice.in_s is not None:
            soonest[key] = min(soonest.get(key, notice.in_s), notice.in_s)
    for (kind, ends_work), seconds in sorted(soonest.items()):
        text = "Seconds until the cloud does what it has announced for this machine; 0 once it has begun."
        labels = {"kind": kind, "ends_work": ends_work}
        yield Sample(name="gpuwatch_maintenance_due_seconds", help=text, value=seconds, labels=labels)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(
    facts=MaintenanceFacts, settings=Settings, open=open_reader, deadline_s=DEADLINE_S, metrics=metrics
)
