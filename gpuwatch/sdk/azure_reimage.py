"""A fresh system disk for one machine of a scale set, by its explicit id, once per action as far as can be known.

A tag of the set says, before the call, which action reimages which machine and how the machine looked then: the time of
its last change and the name of its disk, both in Azure's words. So whoever comes next sees whether the call has had its
effect: the machine is being changed, or it looks otherwise than before. Only where neither is so it is asked again: a
second reimage of a drained machine costs minutes and no work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.errors import CloudError
from gpuwatch.sdk import azure_words as words
from gpuwatch.sdk.azure_arm import Arm
from gpuwatch.sdk.azure_errors import GroupChanged
from gpuwatch.sdk.azure_marks import MAX_TAGS
from gpuwatch.sdk.azure_pace import Outcome, Pace

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachineScaleSet, VirtualMachineScaleSetVM

PREFIX = "gpuwatch-reimage-"  # and the instance id
KEPT = 11  # orders of other machines, far more than are under way at a time
MOST_CALLS = 3  # that show no effect, then it is given up


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One tag's value."""

    by: str  # the action, hashed
    looked: str  # the machine's looks before, hashed
    at_unix_s: int = 0  # to tell old ones from new
    end: str = ""  # done, or Azure's word for how it failed

    def text(self) -> str:
        """`by=… looked=… at=1796062721 end=done`."""
        return f"by={self.by} looked={self.looked} at={self.at_unix_s}" + (f" end={self.end}" if self.end else "")


def read(value: str) -> Order | None:
    """None for what is not ours, or was changed by hand."""
    found = dict(part.split("=", 1) for part in value.split(" ") if "=" in part)
    if not found.get("by") or "looked" not in found:
        return None
    at = found.get("at", "")
    at_unix_s = int(at) if at.isascii() and at.isdecimal() else 0
    return Order(by=found["by"], looked=found["looked"], at_unix_s=at_unix_s, end=found.get("end", ""))


def kept(tags: Mapping[str, str], here: Collection[str]) -> dict[str, str]:
    """All tags but those of orders that nobody asks after: of machines that are gone, and all but the newest."""
    orders = {name: read(value) for name, value in tags.items() if name.startswith(PREFIX)}
    newest = sorted((-order.at_unix_s, name) for name, order in orders.items() if order is not None and name in here)
    stay = {name for _, name in newest[:KEPT]}
    return {name: value for name, value in tags.items() if name not in orders or name in stay}


def looks(vm: VirtualMachineScaleSetVM) -> str:
    """What a reimage changes of a machine, hashed; empty where Azure says nothing of it."""
    properties = vm.properties
    view = properties.instance_view if properties is not None else None
    statuses = (view.statuses or ()) if view is not None else ()
    times = [str(s.time) for s in statuses if s.time is not None and (s.code or "").startswith("ProvisioningState/")]
    profile = properties.storage_profile if properties is not None else None
    disk = profile.os_disk if profile is not None else None
    managed = disk.managed_disk if disk is not None else None
    parts = [*times[:1], disk.name if disk is not None else None, managed.id if managed is not None else None]
    told = "|".join(part.lower() for part in parts if part)
    return _hashed(told) if told else ""


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Reimages:
    """Reimaging machines of the sets of one resource group."""

    def __init__(self, arm: Arm, pace: Pace, clock: Clock, *, operation_deadline_s: float, settle_s: float) -> None:
        self._arm = arm
        self._pace = pace
        self._clock = clock
        self._deadline_s = operation_deadline_s
        self._settle_s = settle_s
        self._asked: dict[str, tuple[int, int]] = {}  # action -> when this process asked last, and how often
        self._busy: set[str] = set()  # actions whose machine was seen to be changed

    def known(self, group: VirtualMachineScaleSet, vm: VirtualMachineScaleSetVM, action_id: str) -> bool:
        """It was written down for this action."""
        order = read((group.tags or {}).get(_tag(vm), ""))
        return order is not None and order.by == _hashed(action_id)

    def begin(
        self,
        group: VirtualMachineScaleSet,
        vm: VirtualMachineScaleSetVM,
        vms: list[VirtualMachineScaleSetVM],
        action_id: str,
    ) -> Outcome:
        """Write it down, then ask. Raises `CloudError`."""
        if words.seen(vm).provisioning not in ("succeeded", "failed"):
            return self._pace.pending(action_id, f"machine {vm.instance_id} of {group.name} is being changed already")
        order = Order(by=_hashed(action_id), looked=looks(vm), at_unix_s=self._clock.unix_ns() // 10**9)
        tags = kept(group.tags or {}, {_tag(other) for other in vms}) | {_tag(vm): order.text()}
        if len(tags) > MAX_TAGS:
            raise CloudError(
                f"the scale set {group.name} has no room for one more tag",
                why=f"Azure allows {MAX_TAGS}, and gpuwatch marks there which action reimages which machine",
                next_step="delete tags that nobody needs",
            )
        later = self._write(group, tags, action_id)
        return later or self._ask(group, vm, action_id)

    def look(self, group: VirtualMachineScaleSet, vm: VirtualMachineScaleSetVM, action_id: str) -> Outcome:
        """It is written down: has it begun, is it over? Raises `CloudError` if it failed or takes too long."""
        tag, name = _tag(vm), f"machine {vm.instance_id} of {group.name}"
        order = read((group.tags or {}).get(tag, ""))
        if order is None or order.end == "done":
            return self._over(vm, action_id)
        seen, age_s = words.seen(vm), self._pace.age_s(action_id)
        if order.end:
            raise self._failed(name, order.end)
        if age_s > self._deadline_s:
            raise self._failed(name, f"Azure did not end it within {self._deadline_s:.0f} s")
        if seen.provisioning == "deleting":
            raise self._failed(name, "it is being deleted")
        if seen.provisioning not in ("succeeded", "failed"):
            self._busy.add(action_id)
            return self._pace.pending(action_id, f"Azure is reimaging {name}")
        if action_id not in self._busy and looks(vm) == order.looked:
            return self._again(group, vm, action_id)
        end = "done" if seen.provisioning == "succeeded" else (seen.why or "Failed").partition(":")[0]
        over = msgspec.structs.replace(order, end=end.replace(" ", "_")[:60])
        later = self._write(group, dict(group.tags or {}) | {tag: over.text()}, action_id)
        if later is not None:
            return later
        if end != "done":
            raise self._failed(name, seen.why or "Azure gives no reason")
        return self._over(vm, action_id)

    def _again(self, group: VirtualMachineScaleSet, vm: VirtualMachineScaleSetVM, action_id: str) -> Outcome:
        """No effect is to be seen: of an answer that came it may be late, of one that never came there is none."""
        asked_ns, count = self._asked.get(action_id, (0, 0))
        waited_s = (self._clock.monotonic_ns() - asked_ns) / 1e9 if count else self._pace.age_s(action_id)
        if waited_s < self._settle_s:
            return self._pace.pending(action_id, f"machine {vm.instance_id} of {group.name} is to be reimaged")
        if count >= MOST_CALLS:
            raise self._failed(f"machine {vm.instance_id} of {group.name}", f"asked {count} times, and nothing came")
        return self._ask(group, vm, action_id)

    def _ask(self, group: VirtualMachineScaleSet, vm: VirtualMachineScaleSetVM, action_id: str) -> Outcome:
        _, count = self._asked.get(action_id, (0, 0))
        self._asked[action_id] = (self._clock.monotonic_ns(), count + 1)  # before the call: its answer may be lost
        self._pace.age_s(action_id)
        wait_s = self._arm.reimage(group.name or "", vm.instance_id or "")
        return self._pace.pending(action_id, f"Azure is reimaging machine {vm.instance_id} of {group.name}", wait_s)

    def _write(self, group: VirtualMachineScaleSet, tags: Mapping[str, str], action_id: str) -> Outcome | None:
        """None: it is written. Else somebody changed the set since it was read."""
        try:
            self._arm.change(group, tags)
        except GroupChanged as error:
            return self._pace.pending(action_id, error.what)
        return None

    def _over(self, vm: VirtualMachineScaleSetVM, action_id: str) -> Outcome:
        self._pace.forget(action_id)
        self._asked.pop(action_id, None)
        self._busy.discard(action_id)
        return Outcome(done=True, machine=words.machine_id(vm))

    def _failed(self, name: str, why: str) -> CloudError:
        return CloudError(
            f"{name} was not reimaged", why=why, next_step="nothing: it is replaced where that is allowed"
        )


def _tag(vm: VirtualMachineScaleSetVM) -> str:
    return f"{PREFIX}{vm.instance_id}"
