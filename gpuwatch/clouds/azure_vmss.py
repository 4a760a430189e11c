"""Azure virtual machine scale sets (Uniform). See `docs/azure.md` for rights, settings and what was proven how.

A replacement is grow and delete (`sdk/azure_grow.py`, `sdk/azure_delete.py`), a repair `sdk/azure_reimage.py`. Nothing
is kept on our disk: after a crash the next call reads the set and goes on. A machine is named by its VM id, the UUID
that its firmware bears.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.clouds import CloudGroup, CloudLeaf, CloudMachine, CloudSnapshot, Receipt
from gpuwatch.errors import CloudError
from gpuwatch.model.money import BillRow
from gpuwatch.sdk import azure_words as words
from gpuwatch.sdk.azure_arm import Arm, open_client
from gpuwatch.sdk.azure_delete import Deletions
from gpuwatch.sdk.azure_grow import Growth
from gpuwatch.sdk.azure_marks import all_of, places
from gpuwatch.sdk.azure_pace import Outcome, Pace
from gpuwatch.sdk.azure_reimage import Reimages

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachineScaleSet, VirtualMachineScaleSetVM

LOG = logging.getLogger("gpuwatch.azure")
AUTOSCALE_EVERY_S = 300.0
GONE_SHOWN_S = 86_400.0
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
_Found = tuple["VirtualMachineScaleSet", list["VirtualMachineScaleSetVM"], "VirtualMachineScaleSetVM | None"]
Accept = Literal[
    "overprovision",
    "automatic_repairs",
    "upgrade_policy",
    "automatic_os_upgrade",
    "autoscale",
    "spot_restore",
    "resilient_create",
    "zone_rebalancing",
]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cloud.azure_vmss]`."""

    subscription_id: str
    resource_group: str
    groups: tuple[str, ...]  # names of scale sets
    credential: Literal["default", "managed_identity"] = "default"  # environment, workload, managed identity, az login
    client_id: str = ""  # of a user-assigned managed identity
    slot_from: Literal["computer_name", "instance_name", "tag"] = "computer_name"
    slot_tag: str = "slot"  # the machine's own tag, for `slot_from = "tag"`
    slot_pattern: str = ""  # regular expression; its first group, or all of it, is the slot; no match: no slot of ours
    accept: tuple[Accept, ...] = ()  # settings of the sets under which we shall act all the same
    owner_tags: dict[str, str] = {}  # beginning of a tag's name -> the controller that owns sets with such a tag
    operation_deadline_s: Positive = 1800.0  # a change that Azure has not ended by then has failed
    settle_s: Positive = 60.0  # Azure's lists may lag behind its answers for so long
    look_every_s: Positive = 5.0  # how often we look at a change under way, unless Azure asks for more patience
    timeout_s: Positive = 30.0
    endpoint: str = "https://management.azure.com"
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("at least one scale set in groups")
        try:
            re.compile(self.slot_pattern)
        except re.error as error:
            raise ValueError(f"a regular expression in slot_pattern ({error})") from error


class AzureVmss:
    """See the module. Thread-safe: what must happen once is decided by Azure (ETag), not by a lock of ours."""

    def __init__(self, settings: Settings, arm: Arm, clock: Clock) -> None:
        self._settings = settings
        self._arm = arm
        self._clock = clock
        self._pattern = re.compile(settings.slot_pattern) if settings.slot_pattern else None
        times = {"operation_deadline_s": settings.operation_deadline_s, "settle_s": settings.settle_s}
        self._pace = Pace(clock, look_every_s=settings.look_every_s, most_s=settings.operation_deadline_s)
        self._growth = Growth(arm, self._pace, clock, **times)
        self._deletions = Deletions(arm, self._pace, clock, grown=self._growth.count, **times)
        self._reimages = Reimages(arm, self._pace, clock, **times)
        self._seen: dict[str, dict[str, CloudMachine]] = {}  # set -> what it listed last
        self._capacity: dict[str, int] = {}
        self._gone: dict[str, tuple[int, CloudMachine]] = {}
        self._autoscaled: dict[str, str] | None = None
        self._autoscale_again_ns = 0

    # the witness

    def snapshot(self) -> CloudSnapshot:
        machines: list[CloudMachine] = []
        groups: list[CloudGroup] = []
        for name in self._settings.groups:
            vms = self._arm.machines(name)
            group = self._arm.group(name)  # after the list: a machine that is on it has its mark in these tags
            self._arm.believe(group, vms)
            listed = list(self._told(name, group, vms))
            self._remember(name, group, listed)
            machines += listed
            groups.append(
                CloudGroup(
                    name=name,
                    owner=self._owner(group),
                    target_count=words.capacity(group),
                    refuses=self._refuses(group),
                    reimages=True,
                )
            )
        now_ns = self._clock.monotonic_ns()
        here = {machine.machine for machine in machines}
        self._gone = {
            machine: (since_ns, record)
            for machine, (since_ns, record) in self._gone.items()
            if machine not in here and now_ns - since_ns < GONE_SHOWN_S * 1e9
        }
        machines += [record for _, record in self._gone.values()]
        return CloudSnapshot(machines=tuple(machines), groups=tuple(groups))

    def bill(self) -> tuple[BillRow, ...]:
        return ()

    def _told(
        self, name: str, group: VirtualMachineScaleSet, vms: Iterable[VirtualMachineScaleSetVM]
    ) -> Iterator[CloudMachine]:
        every = all_of(group.tags or {}).values()
        made_for = places(group.tags or {})
        marks = {mark.machine: mark for mark in every if mark.machine}
        unsettled = min((mark.after for mark in every if mark.open), default=None)
        spot = words.is_spot(group)
        for vm in vms:
            machine = words.machine_id(vm)
            if not machine:
                continue
            state, because, absent = words.state(words.seen(vm), spot=spot, ours=machine in self._deletions.released)
            mark = marks.get(machine)
            slot = made_for.get(vm.instance_id or "") or self._slot(vm)
            if mark is None and unsettled is not None and words.number(vm) > unsettled:
                slot = None  # it comes of a growth under way, and it is not settled yet of which
            made = vm.properties.time_created if vm.properties is not None else None
            yield CloudMachine(
                machine=machine,
                slot=slot,
                group=name,  # as our settings write it: Azure's own word may differ in case
                state=state,
                because=because,
                provider="azure",
                region=(vm.location or group.location or "").replace(" ", "").lower(),
                sku=(vm.sku.name if vm.sku is not None else None) or (group.sku.name if group.sku else None) or "",
                price_kind="spot" if spot else "ondemand",
                started_unix_ns=None if made is None else int(made.timestamp()) * 10**9,
                action_id=mark.action_id if mark is not None else "",
                absent_because=absent,
            )

    def _remember(self, name: str, group: VirtualMachineScaleSet, listed: list[CloudMachine]) -> None:
        """Who was listed last time and is not now is gone, and why as far as can be told."""
        now = {machine.machine: machine for machine in listed}
        before = self._seen.get(name, {})
        capacity = words.capacity(group) or 0
        vanished = [machine for machine in before if machine not in now]
        fell_by = self._capacity.get(name, capacity) - capacity
        reasons = words.absences(vanished, self._deletions.released, fell_by, spot=words.is_spot(group))
        for machine, (absent, because) in reasons.items():
            record = msgspec.structs.replace(
                before[machine],
                state="gone",
                because=because,
                absent_because=absent,
                ended_unix_ns=self._clock.unix_ns(),
            )
            self._gone[machine] = (self._clock.monotonic_ns(), record)
        self._seen[name] = now
        self._capacity[name] = capacity

    def _slot(self, vm: VirtualMachineScaleSetVM) -> str | None:
        how = self._settings.slot_from
        properties = vm.properties
        if how == "tag":
            name = (vm.tags or {}).get(self._settings.slot_tag)
        elif how == "instance_name":
            name = vm.name
        else:
            view = properties.instance_view if properties is not None else None
            profile = properties.os_profile if properties is not None else None
            name = (profile.computer_name if profile is not None else None) or (view.computer_name if view else None)
        if not name or self._pattern is None:
            return name or None
        found = self._pattern.search(name)
        return None if found is None else found[1] if self._pattern.groups else found[0]

    # one more, one less

    def create(self, *, slot: str, group: str, action_id: str) -> Receipt:
        if group.lower() not in {name.lower() for name in self._settings.groups}:
            raise CloudError(
                f"[cloud.azure_vmss] has no scale set {group!r}",
                why=f"its groups are {', '.join(self._settings.groups)}",
                next_step="name one of them as the pool's group, or add it to cloud.azure_vmss.groups",
            )
        outcome = self._pace.early(action_id)
        if outcome is None:
            model = self._arm.group(group)
            outcome = self._growth.known(model, action_id)  # what is made is made, whoever owns the set by now
            if outcome is None:
                self._may_act(model)
                outcome = self._growth.begin(model, slot, action_id)
        return _receipt(outcome, action_id)

    def release(self, machine: str, *, action_id: str) -> Receipt:
        outcome = self._pace.early(action_id)
        return _receipt(outcome or self._release(machine, action_id), action_id)

    def _release(self, machine: str, action_id: str) -> Outcome:
        found = self._find(machine, action_id)
        if found is None:
            because = f"none of {', '.join(self._settings.groups)} lists it"
            return self._deletions.over(machine, action_id, because)
        group, vms, vm = found
        if vm is None:
            return self._deletions.check(group, vms, machine, action_id)
        if not self._deletions.under_way(action_id, group.name or ""):
            self._may_act(group)
        return self._deletions.ask(group, vm, vms, action_id)

    def _find(self, machine: str, action_id: str = "") -> _Found | None:
        """The set that lists this machine, or, without it, the one that this action deletes it from.

        A set that cannot be read hides only its own machines: one that is found elsewhere is found.
        """
        trouble: CloudError | None = None
        leaving: _Found | None = None
        for name in self._settings.groups:
            try:
                group = self._arm.group(name)
                vms = self._arm.machines_of(group)
            except CloudError as error:
                trouble = trouble or error
                continue
            vm = next((vm for vm in vms if words.machine_id(vm) == machine), None)
            if vm is not None:
                return group, vms, vm
            if self._deletions.under_way(action_id, group.name or ""):
                leaving = (group, vms, None)
        if leaving is None and trouble is not None:
            raise trouble
        return leaving

    def reimage(self, machine: str, *, action_id: str) -> Receipt:
        outcome = self._pace.early(action_id)
        return _receipt(outcome or self._reimage(machine, action_id), action_id)

    def _reimage(self, machine: str, action_id: str) -> Outcome:
        group, vms, vm = self._find(machine) or (None, [], None)
        if group is None or vm is None:
            raise CloudError(
                f"no machine {machine} to be reimaged",
                why=f"none of {', '.join(self._settings.groups)} lists it",
                next_step="nothing: it is judged as gone",
            )
        if self._reimages.known(group, vm, action_id):
            return self._reimages.look(group, vm, action_id)
        self._may_act(group)
        return self._reimages.begin(group, vm, vms, action_id)

    # may we?

    def _may_act(self, group: VirtualMachineScaleSet) -> None:
        """The second look, right before the call: the planner's may be old."""
        owner = self._owner(group)
        if owner != "gpuwatch":
            raise CloudError(
                f"the scale set {group.name} belongs to {owner}",
                why="two controllers of one set make two machines of one",
                next_step=f"replace through {owner}, or give gpuwatch a set of its own",
            )
        refuses = self._refuses(group)
        if refuses:
            raise CloudError(
                f"the scale set {group.name} refuses: {', '.join(refuses)}",
                why="under these settings Azure makes, takes or changes machines by itself",
                next_step="switch them off, or name them in cloud.azure_vmss.accept",
            )

    def _owner(self, group: VirtualMachineScaleSet) -> str:
        return words.owner(group, self._settings.resource_group, self._settings.owner_tags)

    def _refuses(self, group: VirtualMachineScaleSet) -> tuple[str, ...]:
        autoscaled = "" if "autoscale" in self._settings.accept else self._autoscale_of(group)
        return words.refuses(group, autoscaled, self._settings.accept)

    def _autoscale_of(self, group: VirtualMachineScaleSet) -> str:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._autoscale_again_ns:
            try:
                self._autoscaled = self._arm.autoscaled()
                self._autoscale_again_ns = now_ns + int(AUTOSCALE_EVERY_S * 1e9)
            except CloudError as error:
                if self._autoscaled is None:
                    return f"not known: {error.what}"
                LOG.warning("%s", error)
        return (self._autoscaled or {}).get((group.id or "").lower(), "")


def _receipt(outcome: Outcome, action_id: str) -> Receipt:
    state: Literal["done", "pending"] = "done" if outcome.done else "pending"
    return Receipt(action_id=action_id, state=state, machine=outcome.machine, because=outcome.because)


def _open(settings: Settings) -> AzureVmss:
    client = open_client(
        subscription_id=settings.subscription_id,
        endpoint=settings.endpoint,
        credential=settings.credential,
        client_id=settings.client_id,
        ca_file=settings.ca_file,
        timeout_s=settings.timeout_s,
    )
    clock = SystemClock()
    arm = Arm(
        client,
        endpoint=settings.endpoint,
        subscription_id=settings.subscription_id,
        resource_group=settings.resource_group,
        credential=f"{settings.credential}{f' ({settings.client_id})' if settings.client_id else ''}",
        clock=clock,
    )
    return AzureVmss(settings, arm, clock)


CLOUD = CloudLeaf(settings=Settings, open=_open)
