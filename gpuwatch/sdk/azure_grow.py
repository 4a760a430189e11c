"""One machine more in a scale set, once per action, whoever dies in between.

First request: capacity plus one and the action's mark, together, if the set is still as it was read. Then looks,
until a machine is there that was not there before and that no other mark has. Second request: the mark names it, again
only if nobody changed the set. A growth whose mark says how it ended is over; the same action is told so again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.errors import CloudError
from gpuwatch.sdk import azure_words as words
from gpuwatch.sdk.azure_arm import Arm
from gpuwatch.sdk.azure_errors import GroupChanged, capacity_step
from gpuwatch.sdk.azure_marks import MAX_TAGS, Mark, all_of, name_of, with_mark
from gpuwatch.sdk.azure_pace import Outcome, Pace

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachineScaleSet

LOG = logging.getLogger("gpuwatch.azure")


class Growth:
    """Growing the sets of one resource group."""

    def __init__(self, arm: Arm, pace: Pace, clock: Clock, *, operation_deadline_s: float, settle_s: float) -> None:
        self._arm = arm
        self._pace = pace
        self._clock = clock
        self._deadline_s = operation_deadline_s
        self._settle_s = settle_s
        self.count: dict[str, int] = {}  # set -> growths that this process asked for

    def known(self, group: VirtualMachineScaleSet, action_id: str) -> Outcome | None:
        """What became of this action's growth; None: it never grew. Raises `CloudError` if no machine came of it."""
        tag = name_of(action_id)
        mark = all_of(group.tags or {}).get(tag)
        if mark is None:
            if tag not in (group.tags or {}):
                return None
            raise CloudError(
                f"the tag {tag} of {group.name} cannot be read",
                why="it was changed by hand, and it says whether a machine was made already",
                next_step="delete the tag once you know that no machine was made for this action",
            )
        if mark.machine:
            return self._done(action_id, mark.machine)
        if mark.failed:
            raise self._no_machine(group, mark)
        return self._look(group, tag, mark, action_id)

    def begin(self, group: VirtualMachineScaleSet, slot: str, action_id: str) -> Outcome:
        """Ask for one more."""
        vms = self._arm.machines_of(group)
        leaving = [vm.instance_id or "" for vm in vms if words.is_leaving(vm)]
        if leaving:  # whether the capacity counts them still is not known: one more of what?
            return self._pace.pending(action_id, f"machine {', '.join(leaving)} of {group.name} is still being deleted")
        marks = all_of(group.tags or {}).values()
        capacity = words.capacity(group)
        if capacity is None:
            raise CloudError(
                f"Azure does not say how many machines {group.name} wants",
                retry=True,
                next_step="nothing, unless it lasts",
            )
        if capacity < len(vms):  # to ask for one more than that would be to ask for fewer than there are
            return self._pace.pending(action_id, f"{group.name} wants {capacity} machines and still lists {len(vms)}")
        numbers = [words.number(vm) for vm in vms]
        numbers += [number for mark in marks for number in (mark.after, int(mark.instance or -1))]
        missing_count = capacity - len(vms) - sum(1 for mark in marks if mark.open)
        if missing_count > 0 and words.is_busy(group) and any(mark.failed == "Deadline" for mark in marks):
            return self._pace.pending(action_id, f"{group.name} is still busy with an earlier growth that never ended")
        # An earlier growth that brought no machine left its place: fill that, instead of asking for two.
        place_left = any(mark.failed for mark in marks) and missing_count > 0 and not words.is_busy(group)
        after = max(numbers, default=-1)
        mark = Mark(slot=slot, after=after, at_unix_s=self._clock.unix_ns() // 10**9, action_id=action_id)
        tags = with_mark(group.tags or {}, name_of(action_id), mark, [vm.instance_id or "" for vm in vms])
        if len(tags) > MAX_TAGS:
            raise CloudError(
                f"the scale set {group.name} has no room for one more tag",
                why=f"Azure allows {MAX_TAGS}, and gpuwatch marks there which action made which machine",
                next_step="delete tags that nobody needs",
            )
        try:
            wait_s = self._arm.change(group, tags, capacity if place_left else capacity + 1)
        except GroupChanged as error:
            return self._pace.pending(action_id, error.what)
        name = group.name or ""
        self.count[name] = self.count.get(name, 0) + 1
        self._pace.age_s(action_id)
        return self._pace.pending(action_id, "Azure is making the machine", wait_s)

    def _look(self, group: VirtualMachineScaleSet, tag: str, mark: Mark, action_id: str) -> Outcome:
        """The set grew for this action: which machine is it?"""
        others = [other for name, other in all_of(group.tags or {}).items() if name != tag]
        taken = {other.instance for other in others}
        open_count = 1 + sum(1 for other in others if other.open)
        vms = self._arm.machines_of(group)
        here = [vm.instance_id or "" for vm in vms]
        came = [
            vm
            for vm in vms
            if words.number(vm) > mark.after and vm.instance_id not in taken and not words.is_leaving(vm)
        ]
        age_s = self._pace.age_s(action_id)
        surplus_count = len(came) - open_count
        ready = sorted(  # sound ones first, then in order of age; a failed one is taken to be given back
            (words.seen(vm).provisioning == "failed", words.number(vm), words.machine_id(vm))
            for vm in came
            if words.machine_id(vm)
        )
        if ready and not (surplus_count > 0 and words.is_busy(group)):
            if surplus_count > 0:
                LOG.error(
                    "%s grew by more than was asked for: %d of its machines are nobody's", group.name, surplus_count
                )
            _, number, machine = ready[0]
            settled = msgspec.structs.replace(mark, instance=str(number), machine=machine)
            return self._write(group, tag, settled, here, action_id) or self._done(action_id, machine)
        failed = self._failed(group, bool(came), age_s)
        if not failed:
            more = "more machines came than were asked for; " if surplus_count > 0 else ""
            return self._pace.pending(action_id, f"{more}Azure is making the machine")
        over = msgspec.structs.replace(mark, failed=failed)
        later = self._write(group, tag, over, here, action_id)
        if later is not None:
            return later
        raise self._no_machine(group, over)

    def _failed(self, group: VirtualMachineScaleSet, came: bool, age_s: float) -> str:
        """Azure's word for how the growth ended without a machine; empty: it has not ended."""
        if words.is_busy(group):
            return "Deadline" if age_s > self._deadline_s else ""
        if came or age_s <= self._settle_s:
            return ""
        return words.failure(self._arm.failure(group.name or "")).partition(":")[0] or "NoMachineCame"

    def _write(
        self, group: VirtualMachineScaleSet, tag: str, mark: Mark, here: list[str], action_id: str
    ) -> Outcome | None:
        """None: it is written. Else somebody changed the set since it was read."""
        try:
            self._arm.change(group, with_mark(group.tags or {}, tag, mark, here))
        except GroupChanged as error:
            return self._pace.pending(action_id, error.what)
        return None

    def _done(self, action_id: str, machine: str) -> Outcome:
        self._pace.forget(action_id)
        return Outcome(done=True, machine=machine)

    def _no_machine(self, group: VirtualMachineScaleSet, mark: Mark) -> CloudError:
        slow = f"Azure did not end it within {self._deadline_s:.0f} s"
        return CloudError(
            f"no machine came of growing {group.name} for {mark.slot}",
            why=slow if mark.failed == "Deadline" else mark.failed,
            next_step=f"{capacity_step(mark.failed)}; its capacity stays {words.capacity(group)}: the next growth "
            "fills that place, or lower it by hand while nothing is being made",
        )
