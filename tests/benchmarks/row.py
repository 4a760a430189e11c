"""One line of the table of budgets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A budget, what was measured, and what stood beside it in the same run. `met` is None: not measured."""

    what: str
    budget: str
    measured: str
    beside: str = ""
    met: bool | None = None
