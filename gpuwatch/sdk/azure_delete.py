"""One machine less in a scale set: by its explicit id; then who is gone and how the capacity fell are read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.clock import Clock
from gpuwatch.errors import CloudError
from gpuwatch.sdk import azure_words as words
from gpuwatch.sdk.azure_arm import Arm
from gpuwatch.sdk.azure_errors import NotThere
from gpuwatch.sdk.azure_marks import all_of
from gpuwatch.sdk.azure_pace import Outcome, Pace

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachineScaleSet, VirtualMachineScaleSetVM


@dataclass(slots=True)
class _Deletion:
    """What was there when this process first asked for it."""

    group: str
    instance: str
    others: frozenset[str]  # instance ids of those that stay
    capacity: int | None
    grown_count: int  # growths of ours by then
    asked_ns: int
    missed_ns: int | None = None  # first seen to be gone


class Deletions:
    """Deleting machines of the sets of one resource group. `grown`: growths of ours so far, by set."""

    def __init__(
        self, arm: Arm, pace: Pace, clock: Clock, *, grown: dict[str, int], operation_deadline_s: float, settle_s: float
    ) -> None:
        self._arm = arm
        self._pace = pace
        self._clock = clock
        self._grown = grown
        self._deadline_s = operation_deadline_s
        self._settle_s = settle_s
        self._book: dict[str, _Deletion] = {}  # action ->
        self._ours: set[tuple[str, str]] = set()  # set and instance id of every deletion we asked for
        self.released: set[str] = set()  # the same, by machine

    def under_way(self, action_id: str, group: str) -> bool:
        """This process asked for it, in this set."""
        deletion = self._book.get(action_id)
        return deletion is not None and deletion.group == group

    def ask(
        self,
        group: VirtualMachineScaleSet,
        vm: VirtualMachineScaleSetVM,
        vms: list[VirtualMachineScaleSetVM],
        action_id: str,
    ) -> Outcome:
        """It is still there: ask for its end, unless that was done. Raises `CloudError` when it takes too long."""
        name, instance = group.name or "", vm.instance_id or ""
        now_ns = self._clock.monotonic_ns()
        leaving = words.is_leaving(vm)
        deletion = self._book.get(action_id)
        if (leaving or deletion is not None) and self._pace.age_s(action_id) > self._deadline_s:
            raise CloudError(
                f"machine {instance} of {name} is not gone",
                why=f"Azure did not end its deletion within {self._deadline_s:.0f} s",
                next_step="delete it by hand: it is billed until then",
            )
        lately = deletion is not None and now_ns - deletion.asked_ns < self._settle_s * 1e9
        wait_s = 0.0
        if deletion is None:  # written before the call: its answer may be lost
            deletion = self._book[action_id] = _Deletion(
                group=name,
                instance=instance,
                others=frozenset(o.instance_id or "" for o in vms if o is not vm and not words.is_leaving(o)),
                capacity=None if leaving else words.capacity(group),  # it may have fallen already
                grown_count=self._grown.get(name, 0),
                asked_ns=now_ns,
            )
            self._pace.age_s(action_id)
        if not leaving and not lately:
            deletion.asked_ns = now_ns
            self._ours.add((name, instance))
            self.released.add(words.machine_id(vm))
            try:
                wait_s = self._arm.delete(name, instance)
            except NotThere:
                return self._pace.pending(action_id, f"machine {instance} of {name} is gone already, says Azure")
        return self._pace.pending(action_id, f"Azure is deleting machine {instance} of {name}", wait_s)

    def check(
        self, group: VirtualMachineScaleSet, vms: list[VirtualMachineScaleSetVM], machine: str, action_id: str
    ) -> Outcome:
        """It is gone. Is it the only one, and does the set want one less? Raises `CloudError` if not."""
        deletion = self._book[action_id]
        here = {vm.instance_id for vm in vms}
        also = sorted(o for o in deletion.others - here if (deletion.group, o) not in self._ours)
        if also and not words.is_spot(group):  # of a spot set machines go at any time
            raise CloudError(
                f"with machine {deletion.instance} of {group.name} went {len(also)} more: {', '.join(also)}",
                why="we asked for one; somebody else, or Azure, took the others",
                next_step="hold the pool, and look at the set's activity log in Azure",
            )
        now_ns = self._clock.monotonic_ns()
        deletion.missed_ns = now_ns if deletion.missed_ns is None else deletion.missed_ns
        capacity = words.capacity(group)
        most, because = self._most(deletion, group, vms)
        if capacity is not None and capacity > most:
            if now_ns - deletion.missed_ns <= self._settle_s * 1e9:
                return self._pace.pending(action_id, "it is gone; the set's capacity has not gone down yet")
            raise CloudError(
                f"machine {deletion.instance} of {group.name} is gone, but the set's capacity is {capacity}",
                why=f"{because}: Azure will make another machine in its place",
                next_step="look who sets the capacity (an autoscaler, a person), then lower it by hand",
            )
        return self.over(machine, action_id)

    def _most(
        self, deletion: _Deletion, group: VirtualMachineScaleSet, vms: list[VirtualMachineScaleSetVM]
    ) -> tuple[int, str]:
        """The capacity that may be left now, and against what it is held."""
        if deletion.capacity is not None:
            grown_count = self._grown.get(deletion.group, 0) - deletion.grown_count
            return deletion.capacity - 1 + grown_count, f"it was {deletion.capacity} before"
        # Its deletion was under way when we first saw it: all that can be told is who is there, and who is to come.
        here_count = sum(1 for vm in vms if not words.is_leaving(vm))
        to_come_count = sum(1 for mark in all_of(group.tags or {}).values() if not mark.instance)
        return here_count + to_come_count, f"{here_count} are there and {to_come_count} to come"

    def over(self, machine: str, action_id: str, because: str = "") -> Outcome:
        """Nothing more to do."""
        self._pace.forget(action_id)
        self._book.pop(action_id, None)
        return Outcome(done=True, machine=machine, because=because)
