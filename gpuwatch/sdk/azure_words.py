"""What Azure's words about scale sets and their machines mean. Pure: records of the SDK in, our words out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachineScaleSet, VirtualMachineScaleSetVM

REFUSABLE = (
    "overprovision",
    "automatic_repairs",
    "upgrade_policy",
    "automatic_os_upgrade",
    "autoscale",
    "spot_restore",
    "resilient_create",
    "zone_rebalancing",
)
"""Settings of a set under which a second hand makes or takes machines. `accept` may name any of them."""

OWNER_TAGS = {
    "aks-managed-": "AKS",
    "cyclecloud": "CycleCloud",
    "cycleowner": "CycleCloud",
    "batchaccountname": "Azure Batch",
}
"""Beginnings of tag names, lower case, by which other controllers mark what is theirs."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's instance view in four words; an empty one was not in the answer."""

    power: str = ""  # running | starting | stopping | stopped | deallocating | deallocated
    provisioning: str = ""  # creating | updating | succeeded | failed | deleting | …
    health: str = ""  # healthy | unhealthy | unknown, where the application health extension is installed
    why: str = ""  # code and message of what failed


def seen(vm: VirtualMachineScaleSetVM) -> Seen:
    """From `statuses` (`PowerState/…`, `ProvisioningState/failed/CODE`) and `vmHealth`, whatever of them is there."""
    properties = vm.properties
    view = properties.instance_view if properties is not None else None
    statuses = list(view.statuses or ()) if view is not None else []
    health = view.vm_health.status if view is not None and view.vm_health is not None else None
    provisioning = (properties.provisioning_state or "") if properties is not None else ""
    return Seen(
        power=_after(statuses, "PowerState/"),
        provisioning=provisioning.lower() or _after(statuses, "ProvisioningState/").partition("/")[0],
        health=_after([health], "HealthState/") if health is not None else "",
        why=failure(statuses),
    )


def failure(statuses: Iterable[Any]) -> str:
    """`AllocationFailed: there is no room`, from the first status that says so; empty if none does."""
    for status in statuses:
        head, _, code = (status.code or "").partition("/")
        state, _, code = code.partition("/")
        if head == "ProvisioningState" and state.lower() == "failed":
            return ": ".join(word for word in (code or "Failed", status.message or "") if word)
    return ""


def _after(statuses: Iterable[Any], prefix: str) -> str:
    for status in statuses:
        code = status.code or ""
        if code.startswith(prefix):
            return code[len(prefix) :].lower()
    return ""


def owner(group: VirtualMachineScaleSet, resource_group: str, more: Mapping[str, str]) -> str:
    """Who changes this set's size: `gpuwatch`, or the controller whose tags it bears."""
    marks = {key.lower(): name for key, name in more.items()} | OWNER_TAGS
    for tag in group.tags or {}:
        for beginning, name in marks.items():
            if tag.lower().startswith(beginning):
                return name
    return "Azure Batch" if resource_group.lower().startswith("azurebatch-") else "gpuwatch"


def refuses(group: VirtualMachineScaleSet, autoscaled: str, accept: Iterable[str]) -> tuple[str, ...]:
    """The set's settings under which we must not act. `autoscaled`: the autoscaler that has it; or empty."""
    found = [words for name, words in _second_hands(group, autoscaled) if name not in set(accept)]
    properties = group.properties
    if properties is not None and _word(properties.orchestration_mode) == "flexible":
        found.append("orchestration mode Flexible: only Uniform sets are understood")
    return tuple(found)


def _second_hands(group: VirtualMachineScaleSet, autoscaled: str) -> Iterable[tuple[str, str]]:
    properties = group.properties
    if properties is None:
        yield "upgrade_policy", "its properties are not in Azure's answer"
        return
    if properties.overprovision is not False:  # Azure's own default is true
        yield "overprovision", "overprovision"
    if properties.automatic_repairs_policy is not None and properties.automatic_repairs_policy.enabled:
        yield "automatic_repairs", "automatic_repairs"
    policy = properties.upgrade_policy
    mode = _word(policy.mode) if policy is not None else ""
    if mode != "manual":
        yield "upgrade_policy", f"upgrade_policy {mode or 'not stated'}"
    system = policy.automatic_os_upgrade_policy if policy is not None else None
    if system is not None and system.enable_automatic_os_upgrade:
        yield "automatic_os_upgrade", "automatic_os_upgrade"
    if autoscaled:
        yield "autoscale", f"autoscale ({autoscaled})"
    if properties.spot_restore_policy is not None and properties.spot_restore_policy.enabled:
        yield "spot_restore", "spot_restore"
    resilience = properties.resiliency_policy
    if resilience is not None:
        making = resilience.resilient_vm_creation_policy
        if making is not None and making.enabled:
            yield "resilient_create", "resilient_create"
        moving = resilience.automatic_zone_rebalancing_policy
        if moving is not None and moving.enabled:
            yield "zone_rebalancing", "zone_rebalancing"


def is_spot(group: VirtualMachineScaleSet) -> bool:
    """Azure may take its machines away at any time."""
    profile = group.properties.virtual_machine_profile if group.properties is not None else None
    priority = profile.priority if profile is not None else None
    return _word(priority) in ("spot", "low")


def _word(value: Any) -> str:
    """The SDK gives an enumeration's member, or the text where it does not know it; None where there is none."""
    return str(getattr(value, "value", value) or "").lower()


State = Literal["starting", "running", "stopped", "failed", "releasing", "unknown"]


def state(seen: Seen, *, spot: bool, ours: bool) -> tuple[State, str, str]:
    """State, because, absent_because. `ours`: we asked for its deletion.

    Shut down is not given back: a stopped machine is billed on, a deallocated one is not, and a spot machine that is
    deallocated was taken from us. What has power runs, though its provisioning failed: that is told, not judged.
    """
    if seen.provisioning == "deleting":
        if ours:
            return "releasing", "Azure is deleting it, as we asked", "surplus"
        return "releasing", "Azure is deleting it", "scaled_in"
    if seen.power in ("deallocated", "deallocating"):
        if spot:
            return "stopped", "deallocated, and it is a spot machine: Azure took it back", "evicted"
        return "stopped", "deallocated: given back, its disks are kept", "stopped"
    if seen.power in ("stopped", "stopping"):
        return "stopped", "shut down; Azure bills it on", "powered_down"
    told = [f"its provisioning failed: {seen.why or 'without a reason'}"] if seen.provisioning == "failed" else []
    told += ["its health extension says unhealthy"] if seen.health == "unhealthy" else []
    because = "; ".join(told)
    if seen.power in ("running", "starting"):
        return ("running" if seen.power == "running" else "starting"), because, ""
    if seen.provisioning == "failed":
        return "failed", because, ""
    if seen.provisioning == "creating":
        return "starting", "Azure is making it", ""
    return "unknown", "; ".join([*told, "no power state in Azure's answer"]), ""


def absences(
    vanished: Collection[str], released: Collection[str], capacity_fell_by: int, *, spot: bool
) -> dict[str, tuple[str, str]]:
    """Machine -> (absent_because, because), for machines that were listed before and are not now.

    What we released is surplus. As many of the others as the capacity fell by were scaled in: nobody wants them back.
    """
    found: dict[str, tuple[str, str]] = {}
    scaled_in = capacity_fell_by - sum(1 for machine in vanished if machine in released)
    for machine in vanished:
        if machine in released:
            found[machine] = ("surplus", "released by gpuwatch")
        elif scaled_in > 0:
            scaled_in -= 1
            found[machine] = ("scaled_in", "Azure lists it no more, and the set's capacity went down")
        elif spot:
            found[machine] = ("evicted", "Azure lists it no more, and it was a spot machine")
        else:
            found[machine] = ("unexplained", "Azure lists it no more, and the set's capacity still counts it")
    return found


def machine_id(vm: VirtualMachineScaleSetVM) -> str:
    """The VM's unique id, lower case; empty while Azure has only just begun with it."""
    return ((vm.properties.vm_id if vm.properties is not None else None) or "").lower()


def capacity(group: VirtualMachineScaleSet) -> int | None:
    """How many machines the set wants."""
    found = group.sku.capacity if group.sku is not None else None
    return None if found is None else int(found)


def is_busy(group: VirtualMachineScaleSet) -> bool:
    """An operation on the set is under way."""
    state = (group.properties.provisioning_state if group.properties is not None else None) or ""
    return state.lower() not in ("succeeded", "failed", "canceled")


def is_leaving(vm: VirtualMachineScaleSetVM) -> bool:
    """It is being deleted."""
    return seen(vm).provisioning == "deleting"


def number(vm: VirtualMachineScaleSetVM) -> int:
    """Its instance id; Azure counts upwards within a set and gives none twice."""
    text = vm.instance_id or ""
    return int(text) if text.isdecimal() else -1
