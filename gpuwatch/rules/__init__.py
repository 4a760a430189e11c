"""FACTS -> EVIDENCE. Pure; one fault per file.

In: a `NodeView` (or the `FleetView`), the moment, the leaf's own settings. Out: evidence, unknowns, or nothing.
A leaf ends in one typed line, `RULE = Rule(...)` or `RULE = FleetRule(...)`. Its docstring names source and thresholds.
`view.fact(SomeFacts)` raises `MissingFact` where the fact is not known; the caller turns that into `Unknown`.
"The check could not run" is Unknown, never unhealthy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from gpuwatch.model.evidence import Finding, SharedCause
from gpuwatch.model.moment import Moment
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, NodeView

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[S]):
    """One fault of one node. `on`: examined when a report arrives, or on every tick because time alone can fire it."""

    examine: Callable[[NodeView, Moment, S], Iterable[Finding] | Finding | None]
    settings: type[S]
    on: Literal["report", "tick"] = "report"
    needs: tuple[type, ...] = ()  # fact types without which it can only be Unknown
    watches: tuple[type, ...] = ()  # it reads these facts alone: a report without them does not ask it; (): all
    matters: str = ""  # why this fault matters, one sentence for people; no full stop
    source: str = ""  # where that is known from, in public

    def title(self) -> str:
        """What the fault is: the first sentence of the leaf's own docstring."""
        words = (sys.modules[self.examine.__module__].__doc__ or "").partition("\n")[0]
        return words.strip().rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRule(Generic[S]):
    """One fault that only shows over many nodes."""

    examine: Callable[[FleetView, tuple[Verdict, ...], Moment, S], Iterable[SharedCause]]
    settings: type[S]
