"""Scheduled Events: what Azure says, on the machine itself, that it is about to do to machines of the set.

Read only, from the metadata service: `GET http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01`. Its
first answer may take two minutes, because asking switches the service on. Approving an event early would be an action,
and is not done here. Format: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from gpuwatch.errors import ProbeError

IMDS = "http://169.254.169.254"
API_VERSION = "2020-07-01"
HARD = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})


class MaintenanceNotice(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `machines`: names as Azure lists them, `gpu_3`; others of the same set may be among them."""

    event: str
    kind: str  # Freeze | Reboot | Redeploy | Preempt | Terminate
    started: bool  # it happens now; else it is announced
    machines: tuple[str, ...]
    not_before_unix_ns: int | None  # None: it has begun, or no time is given
    duration_s: float | None  # None: not known
    by_user: bool = False  # ordered by somebody, not by the platform
    description: str = ""

    @property
    def ends_work(self) -> bool:
        """A training process does not live through it. A freeze of some seconds it does, and NCCL may not."""
        return self.kind in HARD


def scheduled_events(*, base_url: str = IMDS, timeout_s: float = 130.0) -> tuple[MaintenanceNotice, ...]:
    """Everything that is announced or happening now. Raises `ProbeError`; never answers empty for "could not ask"."""
    url = f"{base_url}/metadata/scheduledevents?api-version={API_VERSION}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the address is link-local: no proxy
    try:
        with opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=timeout_s) as answer:
            text = answer.read(1 << 20)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ProbeError(
            "the metadata service gives no scheduled events",
            why=str(error),
            next_step="on Azure: let the host reach 169.254.169.254 without a proxy; elsewhere there is none",
        ) from error
    return parse(text)


def parse(text: bytes | str) -> tuple[MaintenanceNotice, ...]:
    """The document. Events that are over are left out. Raises `ProbeError` for anything else."""
    try:
        events = json.loads(text)["Events"]
        return tuple(_notice(event) for event in events if event.get("EventStatus") in ("Scheduled", "Started"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(
            "the metadata service's answer is no list of scheduled events",
            why=f"{type(error).__name__}: {error}",
            next_step="report it with the document",
        ) from error


def _notice(event: dict[str, Any]) -> MaintenanceNotice:
    seconds = event.get("DurationInSeconds")
    return MaintenanceNotice(
        event=str(event["EventId"]),
        kind=str(event["EventType"]),
        started=event["EventStatus"] == "Started",
        machines=tuple(str(name) for name in event.get("Resources") or ()),
        not_before_unix_ns=_when(event.get("NotBefore") or ""),
        duration_s=float(seconds) if seconds is not None and float(seconds) >= 0 else None,  # -1: not known
        by_user=event.get("EventSource") == "User",
        description=str(event.get("Description") or ""),
    )


def _when(text: str) -> int | None:
    """`Mon, 19 Sep 2016 18:29:47 GMT`; empty once the event has started."""
    return int(parsedate_to_datetime(text).timestamp()) * 10**9 if text else None
