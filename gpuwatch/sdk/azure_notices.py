"""Scheduled Events: what Azure says, on the machine itself, that it is about to do to machines of the set.

Read only, from the metadata service: `GET http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01`. Its
first answer may take two minutes, because asking switches the service on. Approving an event early would be an action,
and is not done here. Format: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

from __future__ import annotations

import json
from typing import Any

from gpuwatch.clock import Clock
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.maintenance import Notice
from gpuwatch.sdk.metadata import IMDS, ask, unix_ns

API_VERSION = "2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
HARD = frozenset({"reboot", "redeploy", "preempt", "terminate"})  # a freeze of some seconds a process lives through
TEXT_CHARACTERS = 200
MOST = 64  # events of one machine; there is seldom more than one


class Source:
    """The service of this machine."""

    def __init__(self, clock: Clock, *, base_url: str = IMDS, timeout_s: float = 125.0) -> None:
        self._clock = clock
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._name = ""

    def read(self) -> tuple[Notice, ...]:
        """Everything that stands now. Raises `ProbeError`; never answers empty for "could not ask"."""
        url = f"{self._base_url}/metadata/scheduledevents?api-version={API_VERSION}"
        answer = ask(url, HEADERS, timeout_s=self._timeout_s)
        if answer is None:
            raise ProbeError("this metadata service has no scheduled events", why=url)
        notices = parse(answer.text, self._own_name, answer.at_unix_ns or self._clock.unix_ns())
        return tuple(notice for notice in notices if notice.mine is not False)

    def _own_name(self) -> str:
        """As events name it, `gpu_3`; asked when it is needed first."""
        if not self._name:
            answer = ask(f"{self._base_url}{NAME}", HEADERS, timeout_s=min(5.0, self._timeout_s))
            self._name = "" if answer is None else answer.text.strip()
        return self._name


def parse(text: str, own_name: Any, now_unix_ns: int) -> tuple[Notice, ...]:
    """The document. Events that are over are left out. Raises `ProbeError` for anything else.

    `own_name` is called where an event has to be told apart. `now_unix_ns`: the service's clock when it answered.
    """
    try:
        events = json.loads(text)["Events"]
        standing = [event for event in events if event.get("EventStatus") in ("Scheduled", "Started")]
        return tuple(_notice(event, own_name, now_unix_ns) for event in standing[:MOST])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(
            "the metadata service's answer is no list of scheduled events",
            why=f"{type(error).__name__}: {error}"[:300],
            next_step="report it with the document",
        ) from error


def _notice(event: dict[str, Any], own_name: Any, now_unix_ns: int) -> Notice:
    kind, started = str(event["EventType"]).lower(), event["EventStatus"] == "Started"
    at_ns = unix_ns(event.get("NotBefore") or "")
    in_s = 0.0 if started else None if at_ns is None else max(0.0, (at_ns - now_unix_ns) / 1e9)
    seconds = event.get("DurationInSeconds")
    return Notice(
        id=str(event["EventId"]),
        kind=kind,
        ends_work=kind in HARD,
        started=started,
        mine=_mine([str(name).lower() for name in event.get("Resources") or ()], own_name),
        not_before_unix_ns=at_ns,
        in_s=in_s,
        duration_s=float(seconds) if seconds is not None and float(seconds) >= 0 else None,  # -1: not known
        by_user=event.get("EventSource") == "User",
        text=" ".join(str(event.get("Description") or "").split())[:TEXT_CHARACTERS],
    )


def _mine(names: list[str], own_name: Any) -> bool | None:
    """Events of the whole set come to each of its machines."""
    try:
        own = own_name().lower()
    except ProbeError:
        own = ""
    return own in names if own and names else None


def open_source(clock: Clock, *, base_url: str, timeout_s: float) -> Source:
    """For the collector."""
    return Source(clock, base_url=base_url or IMDS, timeout_s=timeout_s)
