"""What EC2 says, on the machine itself, that it is about to do to it. Never run against EC2 itself.

`events/maintenance/scheduled` lists scheduled events, `spot/instance-action` an interruption two minutes before; both
answer 404 where there is nothing. A session token is asked for first (IMDSv2). Format:
docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html and
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html.
"""

from __future__ import annotations

import json
from typing import Any

from gpuwatch.clock import Clock
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.maintenance import Notice
from gpuwatch.sdk.metadata import IMDS, Answer, ask, iso_unix_ns, unix_ns

TOKEN = "/latest/api/token"
TOKEN_S = 21_600
EVENTS = "/latest/meta-data/events/maintenance/scheduled"
SPOT = "/latest/meta-data/spot/instance-action"
HARD = frozenset({"instance-reboot", "system-reboot", "instance-retirement", "instance-stop"})
TEXT_CHARACTERS = 200
MOST = 64


class Source:
    """The service of this machine."""

    def __init__(self, clock: Clock, *, base_url: str = IMDS, timeout_s: float = 10.0) -> None:
        self._clock = clock
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._token = ""
        self._token_until_ns = 0

    def read(self) -> tuple[Notice, ...]:
        """Everything that stands now. Raises `ProbeError`; never answers empty for "could not ask"."""
        events, spot = self._ask(EVENTS), self._ask(SPOT)
        found: tuple[Notice, ...] = ()
        if events is not None:
            found += scheduled(events.text, events.at_unix_ns or self._clock.unix_ns())
        if spot is not None:
            found += interrupted(spot.text, spot.at_unix_ns or self._clock.unix_ns())
        return found

    def _ask(self, path: str) -> Answer | None:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._token_until_ns:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            answer = ask(f"{self._base_url}{TOKEN}", headers, timeout_s=self._timeout_s, method="PUT", nothing=())
            assert answer is not None
            self._token, self._token_until_ns = answer.text.strip(), now_ns + TOKEN_S // 2 * 10**9
        headers = {"X-aws-ec2-metadata-token": self._token}
        try:
            return ask(f"{self._base_url}{path}", headers, timeout_s=self._timeout_s)
        except ProbeError:
            self._token_until_ns = 0  # it may not be taken any more
            raise


def scheduled(text: str, now_unix_ns: int) -> tuple[Notice, ...]:
    """The list of events; those that are over are left out. Raises `ProbeError` for anything else."""
    try:
        standing = [event for event in json.loads(text) if event.get("State") == "active"]
        return tuple(_event(event, now_unix_ns) for event in standing[:MOST])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _nonsense(error) from error


def interrupted(text: str, now_unix_ns: int) -> tuple[Notice, ...]:
    """The spot market takes it. Raises `ProbeError` for what is no answer."""
    try:
        told = json.loads(text)
        kind, at_ns = str(told["action"]), iso_unix_ns(str(told["time"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _nonsense(error) from error
    in_s = 0.0 if at_ns is None else max(0.0, (at_ns - now_unix_ns) / 1e9)
    return (Notice("spot", kind, True, in_s == 0.0, True, at_ns, in_s, text="spot interruption"),)


def _event(event: dict[str, Any], now_unix_ns: int) -> Notice:
    kind = str(event["Code"])
    start_ns, end_ns = unix_ns(str(event.get("NotBefore") or "")), unix_ns(str(event.get("NotAfter") or ""))
    in_s = None if start_ns is None else max(0.0, (start_ns - now_unix_ns) / 1e9)
    return Notice(
        id=str(event["EventId"]),
        kind=kind,
        ends_work=kind in HARD,
        started=in_s == 0.0,
        mine=True,
        not_before_unix_ns=start_ns,
        in_s=in_s,
        duration_s=None if start_ns is None or end_ns is None else max(0.0, (end_ns - start_ns) / 1e9),
        text=" ".join(str(event.get("Description") or "").split())[:TEXT_CHARACTERS],
    )


def _nonsense(error: Exception) -> ProbeError:
    return ProbeError(
        "the metadata service's answer is no list of events",
        why=f"{type(error).__name__}: {error}"[:300],
        next_step="report it with the document",
    )


def open_source(clock: Clock, *, base_url: str, timeout_s: float) -> Source:
    """For the collector."""
    return Source(clock, base_url=base_url or IMDS, timeout_s=min(timeout_s, 10.0))
