"""What Google Cloud says, on the machine itself, that it is about to do to it. Never run against Google Cloud itself.

`instance/upcoming-maintenance` names a window (some machine types only; where there is none it answers 404, 503,
`NONE`, an empty object, or one with `error`). `instance/maintenance-event` turns to `TERMINATE_ON_HOST_MAINTENANCE` an
hour before a machine with GPUs is stopped, and only if it is asked regularly; `instance/preempted` to TRUE 30 s before.
Format: cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event and
cloud.google.com/compute/docs/metadata/getting-live-migration-notice.
"""

from __future__ import annotations

import json
from typing import Any

from gpuwatch.clock import Clock
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.maintenance import Notice
from gpuwatch.sdk.metadata import IMDS, Answer, ask, iso_unix_ns

ROOT = "/computeMetadata/v1/instance/"
HEADERS = {"Metadata-Flavor": "Google"}
GPU_NOTICE_S = 3600.0  # from the word to the stop of a machine with GPUs
KINDS = {"MIGRATE_ON_HOST_MAINTENANCE": "migrate", "TERMINATE_ON_HOST_MAINTENANCE": "terminate"}


class Source:
    """The service of this machine."""

    def __init__(self, clock: Clock, *, base_url: str = IMDS, timeout_s: float = 10.0) -> None:
        self._clock = clock
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._since_ns: dict[str, int] = {}  # kind -> when the word was first seen (monotonic)

    def read(self) -> tuple[Notice, ...]:
        """Everything that stands now. Raises `ProbeError`; never answers empty for "could not ask"."""
        word = self._ask("maintenance-event")
        preempted = self._ask("preempted")
        window = self._ask("upcoming-maintenance?alt=json", nothing=(404, 503))
        if word is None:
            raise ProbeError("this metadata service has no maintenance events", why=f"{self._base_url}{ROOT}")
        found = self._soon(word.text.strip())
        if preempted is not None and preempted.text.strip().upper() == "TRUE":
            found += (Notice("preempted", "preempt", True, True, True, in_s=0.0),)
        if window is not None and not found:
            found = planned(window.text, window.at_unix_ns or self._clock.unix_ns())
        return found

    def _ask(self, path: str, nothing: tuple[int, ...] = (404,)) -> Answer | None:
        return ask(f"{self._base_url}{ROOT}{path}", HEADERS, timeout_s=self._timeout_s, nothing=nothing)

    def _soon(self, word: str) -> tuple[Notice, ...]:
        if word in ("NONE", ""):
            self._since_ns.clear()
            return ()
        kind = KINDS.get(word)
        if kind is None:
            raise ProbeError("the metadata service says no word that is known", why=word[:100])
        now_ns = self._clock.monotonic_ns()
        said_s = (now_ns - self._since_ns.setdefault(kind, now_ns)) / 1e9
        ends_work = kind == "terminate"
        left_s = max(0.0, GPU_NOTICE_S - said_s) if ends_work else 0.0
        return (Notice(f"event-{kind}", kind, ends_work, left_s == 0.0, True, in_s=left_s),)


def planned(text: str, now_unix_ns: int) -> tuple[Notice, ...]:
    """The window that is announced, if any. Raises `ProbeError` for what is no answer."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        told = "NONE" if text.strip() == "NONE" else error
    if told == "NONE":
        return ()
    if not isinstance(told, dict):
        raise ProbeError("the metadata service's answer is no window of maintenance", why=f"{told}"[:300])
    start_ns = iso_unix_ns(_field(told, "window_start_time"))
    if start_ns is None:
        return ()
    end_ns = iso_unix_ns(_field(told, "window_end_time"))
    started = _field(told, "maintenance_status") == "ONGOING"
    return (
        Notice(
            id=f"window-{start_ns // 10**9}",
            kind="terminate",
            ends_work=True,  # a machine with GPUs cannot be migrated
            started=started,
            mine=True,
            not_before_unix_ns=start_ns,
            in_s=0.0 if started else max(0.0, (start_ns - now_unix_ns) / 1e9),
            duration_s=None if end_ns is None else max(0.0, (end_ns - start_ns) / 1e9),
            text=_field(told, "type").lower(),
        ),
    )


def _field(told: dict[str, Any], name: str) -> str:
    """Written `window_start_time` on the machine, `windowStartTime` elsewhere."""
    first, *rest = name.split("_")
    return str(told.get(name) or told.get(first + "".join(word.title() for word in rest)) or "")


def open_source(clock: Clock, *, base_url: str, timeout_s: float) -> Source:
    """For the collector."""
    return Source(clock, base_url=base_url or IMDS, timeout_s=min(timeout_s, 10.0))
