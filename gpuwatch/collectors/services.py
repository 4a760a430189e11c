"""The services that a GPU node needs, by what systemd says of their units.

Fabric manager, persistence daemon, IMEX, DCGM, the scheduler's daemon, the agent itself. One `systemctl show` for all
of them a minute, with a deadline: it asks systemd, which may itself hang. Only units that are installed here are told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from gpuwatch.collectors import Collector, Hung, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.services import ServicesFacts, Unit
from gpuwatch.sdk.errand import Errands, program
from gpuwatch.sdk.kernel_lines import this_boot_id
from gpuwatch.sdk.remembered import Remembered, floored
from gpuwatch.sdk.systemd_units import Shown, arguments, shown

NS = 10**9
MOST_UNITS = 64
MOST_KEPT = 1_000  # changes of one unit's count
STATES = ("active", "activating", "reloading", "deactivating", "inactive", "failed")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and which units. `more`: beside the usual ones."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=8)] = 5.0
    units: tuple[str, ...] = (
        "nvidia-fabricmanager.service",
        "nvidia-persistenced.service",
        "nvidia-imex.service",
        "nvidia-dcgm.service",
        "dcgm.service",
        "slurmd.service",
        "munge.service",
        "kubelet.service",
        "pbs.service",
        "gpuwatch-agent.service",  # one that is restarted all the time is a symptom of its node
    )
    more: tuple[str, ...] = ()
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 3_600.0
    run_root: str = "/run"
    systemctl: str = "systemctl"  # a name in the system's folders, or a path


Looks = list[tuple[float, int]]
"""Of one unit: when since boot its count was last seen, and the count; both grow."""


class Restarts(msgspec.Struct, kw_only=True):
    """How often systemd had restarted each unit; of this boot, kept over restarts of the agent. The last look at each
    was a little later than it says here."""

    boot_id: str = ""
    units: dict[str, Looks] = {}


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._units = tuple(
            unit for unit in dict.fromkeys((*settings.units, *settings.more)) if unit and unit.isprintable()
        )[:MOST_UNITS]
        self._errands = Errands("services")
        self._hung_since_unix_ns: int | None = None
        self._restarts = Remembered("services", Restarts)
        self._looks: dict[str, Looks] = {}
        self._begin()

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        self._errands.keep(folder, ours=ours)
        self._restarts.keep(folder, ours)
        self._begin()

    def _begin(self) -> None:
        learned, boot_id, now_s = self._restarts.value, this_boot_id(), time.monotonic()
        of_this_boot = boot_id and learned.boot_id == boot_id
        self._looks = {name: looks for name, looks in learned.units.items() if of_this_boot and _is_sound(looks, now_s)}
        learned.boot_id = boot_id

    def read(self) -> Reading:
        """One look at all units."""
        settings = self._settings
        if not Path(f"{settings.run_root}/systemd/system").exists():
            raise Unsupported("this node does not run systemd")
        if not settings.systemctl.startswith("/") and program(settings.systemctl) is None:
            raise Unsupported(f"this node has no {settings.systemctl}")
        asked = {"systemctl": [settings.systemctl, *arguments(self._units)]}
        outcome = self._errands.ask(asked, deadline_s=settings.deadline_s)["systemctl"]
        abandoned_count = self._errands.abandoned_count
        if not outcome.answered:
            if outcome.status == "absent":
                raise ProbeError("systemctl could not be asked", why=outcome.reason)
            self._hung_since_unix_ns = self._hung_since_unix_ns or outcome.since_unix_ns
            raise Hung(
                f"systemd does not answer: {outcome.reason}",
                since_unix_ns=self._hung_since_unix_ns,
                abandoned_count=abandoned_count,
            )
        self._hung_since_unix_ns = None
        units = shown(outcome.out.decode("utf-8", "replace"))
        if not units and outcome.status == "failed":
            raise ProbeError("systemctl failed", why=outcome.reason)
        told = tuple(self._unit(unit) for unit in units if not unit.condition_failed and unit.active_state in STATES)
        self._save()
        return Reading(ServicesFacts(told, settings.restart_window_s), abandoned_count=abandoned_count)

    def close(self) -> None:
        pass

    def _save(self) -> None:
        kept = self._restarts.value.units = {}
        for name, (*before, (at_s, count)) in self._looks.items():
            since_s = floored(at_s, self._settings.restart_window_s)
            kept[name] = [*before, (max(since_s, before[-1][0]) if before else since_s, count)]
        self._restarts.save()

    def _unit(self, unit: Shown) -> Unit:
        since_unix_ns: int | None = None
        if unit.state_change_us:
            ago_us = time.monotonic_ns() // 1_000 - unit.state_change_us
            since_unix_ns = time.time_ns() - ago_us * 1_000 if ago_us >= 0 else None
        return Unit(
            name=unit.name,
            active_state=unit.active_state,
            sub_state=unit.sub_state,
            result=unit.result,
            enabled=unit.enabled,
            was_active=unit.active_enter_us > 0,
            since_unix_ns=since_unix_ns,
            restart_count=unit.restart_count,
            recent_restart_count=self._recent(unit),
        )

    def _recent(self, unit: Shown) -> int:
        """How often systemd restarted it within the window at least: since the first look that lies in it, so that what
        was before, or came while nobody looked for longer, is never told as fresh. The count begins anew when somebody
        starts the unit."""
        if unit.restart_count is None:
            return 0
        now_s, window_s = time.monotonic(), self._settings.restart_window_s
        looks = self._looks.setdefault(unit.name, [])
        if looks and unit.restart_count < looks[-1][1]:
            looks.clear()
        if looks and unit.restart_count == looks[-1][1]:
            looks.pop()
        looks.append((now_s, unit.restart_count))
        while len(looks) > MOST_KEPT or now_s - looks[0][0] > window_s:
            looks.pop(0)
        return looks[-1][1] - looks[0][1]


def _is_sound(looks: Looks, now_s: float) -> bool:
    return bool(looks) and looks[-1][0] <= now_s and all(a[0] <= b[0] and a[1] < b[1] for a, b in pairwise(looks))


def metrics(facts: ServicesFacts) -> Iterable[Sample]:
    """Whether each unit runs, whether it must, and its restarts."""
    for unit in facts.units:
        labels = {"unit": unit.name}
        name = "gpuwatch_service"
        running = float(unit.active_state in ("active", "reloading"))
        yield Sample(name=f"{name}_active", help="Whether the unit is active.", value=running, labels=labels)
        text = "Whether the unit is enabled, or ran in this boot."
        yield Sample(name=f"{name}_expected", help=text, value=float(unit.must_run()), labels=labels)
        if unit.restart_count is not None:
            text = "Restarts by systemd since the unit was last started by hand or at boot."
            value = float(unit.restart_count)
            yield Sample(name=f"{name}_restarts_total", help=text, value=value, labels=labels, counter=True)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=ServicesFacts, settings=Settings, open=open_reader, metrics=metrics)
