"""What the brain saw and concluded in its last tick, as one immutable value for everyone who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwatch.model.evidence import SharedCause
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Objection, Plan
from gpuwatch.model.run import RunView
from gpuwatch.model.verdict import RunVerdict, Verdict
from gpuwatch.model.view import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One tick's result."""

    now: Moment
    views: Mapping[str, NodeView] = field(default_factory=dict)  # by machine
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by machine
    runs: tuple[RunView, ...] = ()
    run_verdicts: tuple[RunVerdict, ...] = ()
    shared: tuple[SharedCause, ...] = ()
    plan: Plan = field(default_factory=lambda: Plan(at_unix_ns=0))
    objections: tuple[Objection, ...] = ()
    blind_because: str = ""
    tick_s: float = 0.0  # how long it took
    tick_count: int = 0

    def health(self, machine: str) -> str:
        """The machine's health in a word; empty if it was not judged."""
        verdict = self.verdicts.get(machine)
        return "" if verdict is None else str(verdict.health)

    def run_of(self, machine: str) -> RunView | None:
        """The live attempt that this machine is a member of."""
        return next((run for run in self.runs if machine in run.machines), None)


class Stage:
    """Where the brain puts its latest scene; everyone else only reads it."""

    __slots__ = ("scene",)

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
