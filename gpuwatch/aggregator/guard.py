"""The last look before each call that changes something: may it still be made?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpuwatch.aggregator.scene import Scene
from gpuwatch.model.policy import Mode, Policy

_MAY_DRAIN = frozenset({Mode.APPROVE, Mode.DRAIN, Mode.REPLACE})
_MAY_REPLACE = frozenset({Mode.APPROVE, Mode.REPLACE})


class Guard:
    """Reads what may have changed since the plan was made."""

    def __init__(
        self,
        *,
        hold_file: Path,
        policies: Mapping[str, Policy],
        human_holds: Callable[[], Mapping[str, str]],
        scene: Callable[[], Scene],
    ) -> None:
        self._hold_file = hold_file
        self._policies = policies
        self._human_holds = human_holds
        self._scene = scene

    def hold_everything(self) -> str:
        """Why nothing at all may be done now: the HOLD file, which needs no server to be put there."""
        try:
            words = self._hold_file.read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{self._hold_file} cannot be read ({error}): taken as a hold"
        return f"{self._hold_file} exists" + (f": {words[:200]}" if words else "")

    def objection(self, slot: str, pool: str, *, harmful: bool, replaces: bool) -> str:
        """Why this call must wait now; empty if it may be made.

        `harmful`: it takes something away (a drain, a job's end, a new machine, a release). What gives back is stopped
        only by a person.
        """
        everything = self.hold_everything()
        if everything:
            return everything
        human = self._human_holds().get(slot)
        if human is not None:
            return f"a person holds {slot}: {human}"
        if not harmful:
            return ""
        policy = self._policies.get(pool, Policy())
        allowed = _MAY_REPLACE if replaces else _MAY_DRAIN
        if policy.mode not in allowed:
            return f"the mode of pool {pool} is {policy.mode} now"
        scene = self._scene()
        if scene.blind_because:
            return f"we may be blind: {scene.blind_because}"
        shared = next(
            (cause for cause in scene.shared if slot in cause.slots), None
        )  # it may have shown since the plan
        return "" if shared is None else f"a shared cause explains it: {shared.because}"
