"""HOST -> FACTS. One source per file, run on the node.

In: the leaf's own settings. Out: a fact record, or a `ProbeError` with the reason.
A leaf ends in one typed line, `COLLECTOR = Collector(...)`; its name is the file's. Import heavy or hanging libraries
inside `open`, never at the top: the registry imports every leaf, and a source that can hang runs in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

S = TypeVar("S")


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """One answer of a source. `gaps` says why a field is None; `urgent` asks to be sent at once; `more`: there are
    events left that can be read at once. `abandoned_count`: small programs that the source started and that cannot be
    ended, see `sdk/errand.py`. `ask`: other sources that should be read now, because this one was blind."""

    facts: Any
    gaps: dict[str, str] = {}
    urgent: bool = False
    more: bool = False
    abandoned_count: int = 0
    ask: tuple[str, ...] = ()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One number for `/metrics`. Offer none where the fact is None: a missing value is a missing series, never 0."""

    name: str  # Prometheus convention: base unit as suffix; a counter ends in `_total`
    help: str
    value: float
    labels: dict[str, str] = {}  # few values each: a GPU's index, not its processes
    counter: bool = False


class Reader(Protocol):
    """An opened source.

    Five optional members, looked up by name. `fileno() -> int`: a descriptor that selects as readable when there is
    something new, so that the agent need not poll. `watch(note)`: called once by the child process of a source that
    can hang; `note("nvmlInit")` says what is about to be called, and is what a hung report names. `spent: bool`: that
    child ends and is started anew, because what it has loaded is of no more use. `keep(folder, ours=True)`: called once
    where it is read in a thread; what must outlive the agent is written into that folder, unless that is not `ours`.
    `meet(latest)`: called once by an agent; `latest("nvml")` gives another source's last facts, or None.
    """

    def read(self) -> Reading:
        """The facts now. Raises `ProbeError`; raises `Unsupported` where this node has no such source."""

    def close(self) -> None:
        """Let go of files and libraries."""


class Unsupported(Exception):
    """This node has no such source: an answer, not a fault."""


class Hung(Exception):
    """The whole source does not answer, though the reader came back: what it asks through errands hangs."""

    def __init__(self, reason: str, *, since_unix_ns: int | None = None, abandoned_count: int = 0) -> None:
        super().__init__(reason)
        self.since_unix_ns = since_unix_ns
        self.abandoned_count = abandoned_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector(Generic[S]):
    """What the agent needs to know of a source."""

    facts: type
    settings: type[S]  # has `interval_s` and `enabled`
    open: Callable[[S], Reader]
    can_hang: bool = False  # runs in a child process with a deadline
    deadline_s: float = 10.0
    metrics: Callable[[Any], Iterable[Sample]] | None = None  # facts -> numbers; events are counted by the agent
