"""What every source of the agent offers to the loop, whether it is read in a child or in a thread."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import NO_FACTS, Envelope, Status


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer of a source, for the report and for `/metrics`."""

    collector: str
    status: Status
    at_unix_ns: int
    took_s: float = 0.0
    reason: str | None = None
    since_unix_ns: int | None = None
    facts: Any = None  # decoded, or a `msgspec.Raw` that whoever wants to look decodes
    gaps: dict[str, str] = {}
    abandoned_count: int = 0

    def envelope(self, facts: msgspec.Raw) -> Envelope:
        """As it travels."""
        return Envelope(
            self.collector,
            self.at_unix_ns,
            self.took_s,
            self.status,
            self.reason,
            self.since_unix_ns,
            facts if self.status == "ok" else NO_FACTS,
            self.gaps,
            self.abandoned_count,
        )


class Source(Protocol):
    """One source, as the loop drives it. No method may block."""

    name: str
    own_clock: bool  # its answers come by themselves, not only when it is asked

    def tick(self, now: Moment) -> None:
        """Look whether something is due, late, ended or stuck."""

    def fileno(self) -> int:
        """What to select on besides time; -1: nothing at present."""

    def readable(self, now: Moment) -> None:
        """The descriptor has something."""

    def ask(self, now: Moment) -> None:
        """Begin a reading, if one is due; sources on their own clock do nothing."""

    def busy(self) -> bool:
        """A reading that was asked for has not come back and is not late yet."""

    def fresh_ns(self) -> int | None:
        """When an answer came by itself that no report has carried yet; None: there is none."""

    def expected_ns(self, after_ns: int, /) -> int | None:
        """When the first answer from then on is due on its own clock; None where it does not come by itself."""

    def wake_ns(self) -> int:
        """When `tick` has something to do at the latest."""

    def latest(self) -> Latest | None:
        """The last answer; None before the first."""

    def take(self) -> tuple[Envelope, bool] | None:
        """The last answer for a report, and whether it carries events. Events are taken once."""

    def has_more(self) -> bool:
        """Events wait for another report."""

    def urgent(self) -> bool:
        """Something happened that a report should carry now; forgotten by asking."""

    def readings(self) -> dict[str, int]:
        """How many answers there were, by status."""

    def change(self, settings: Any) -> None:
        """Go on with other settings of the same leaf."""

    def close(self) -> None:
        """Let go, without waiting for anything."""
