"""What the cloud announces, on the machine itself, that it is about to do to it."""

from __future__ import annotations

import msgspec


class Notice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One announced event that concerns this machine, or, with `mine` None, perhaps does."""

    id: str
    kind: str  # the provider's own word, lower case: freeze | reboot | redeploy | preempt | terminate | migrate | …
    ends_work: bool  # a training process does not live through it
    started: bool  # it happens now; else it is announced
    mine: bool | None = None  # None: the machine's own name is not known
    not_before_unix_ns: int | None = None  # by the provider's clock; None: it has begun, or no time is given
    in_s: float | None = None  # seconds from the reading until then, by one clock; 0 once it has begun
    duration_s: float | None = None  # None: not known
    by_user: bool = False  # ordered by somebody, not by the platform
    text: str = ""


class MaintenanceFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every announcement that stands now; none is an answer too."""

    provider: str = ""
    notices: tuple[Notice, ...] = ()


FACTS = MaintenanceFacts
