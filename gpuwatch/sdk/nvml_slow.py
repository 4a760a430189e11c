"""Counters, links, limits, modes and names: what one GPU is asked now and then, most of it in one call.

Field numbers are NVML_FI_DEV_* of nvml.h. NVLink has a field for each link, its number the scope.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gpuwatch.model.identity import pci_address
from gpuwatch.sdk.nvml_answers import HARMLESS, NOT_AVAILABLE_32, SUCCESS, Refused, positive, within
from gpuwatch.sdk.nvml_fields import Question
from gpuwatch.sdk.nvml_gpu import CLOCK_SM, Answers, Asking, watts
from gpuwatch.sdk.nvml_growth import Growth, Share
from gpuwatch.sdk.nvml_library import LINKS

CLOCK_MEMORY = 2
SLOWDOWN_THRESHOLD = 1
COUNTERS = {
    # NVML_FI_DEV_* number -> fact
    3: "ecc_corrected_volatile_count",
    4: "ecc_uncorrected_volatile_count",
    5: "ecc_corrected_total_count",
    6: "ecc_uncorrected_total_count",
    94: "pcie_replay_count",
    142: "rows_remapped_corrected_count",
    143: "rows_remapped_uncorrected_count",
    74: "power_capped_ns",
    269: "software_thermal_ns",
    270: "thermal_slowdown_ns",
    271: "power_brake_ns",
}
FLAGS = {31: "retired_page_pending", 144: "row_remap_pending", 145: "row_remap_failed"}
NUMBERS = (*((*one, False) for one in COUNTERS.items()), *((*one, True) for one in FLAGS.items()))
RETIRED_SINGLE, RETIRED_DOUBLE = (29, 0), (30, 0)
LIMITS = {189: "power_limit_default_watts", 190: "power_limit_enforced_watts", 192: "power_limit_watts"}
LIMIT_CALLS = {
    "power_limit_watts": "nvmlDeviceGetPowerManagementLimit",
    "power_limit_enforced_watts": "nvmlDeviceGetEnforcedPowerLimit",
    "power_limit_default_watts": "nvmlDeviceGetPowerManagementDefaultLimit",
}
LINK_COUNT = (91, 0)
DOWN = (0, 3)  # of LINK_STATE
LINK_STATE = 165  # 0 inactive, 1 active, 2 asleep, 3 active but not for traffic
LINK_COUNTERS = {
    # fact -> field by link, of Hopper and older; of Blackwell and newer
    "nvlink_replay_count": (161, None),
    "nvlink_recovery_count": (162, 215),
    "nvlink_crc_count": (163, None),
}
GROWS = {
    # counter -> its growth within the last hour
    "ecc_corrected_volatile_count": "ecc_corrected_hour_count",
    "ecc_uncorrected_volatile_count": "ecc_uncorrected_hour_count",
    "rows_remapped_uncorrected_count": "rows_remapped_hour_count",
    "pcie_replay_count": "pcie_replay_hour_count",
    "nvlink_replay_count": "nvlink_replay_hour_count",
    "nvlink_recovery_count": "nvlink_recovery_hour_count",
}
SHARES = {"thermal_slowdown_ns": "thermal_slowdown_ratio", "power_brake_ns": "power_brake_ratio"}
ONCE: tuple[Question, ...] = tuple(
    (number, 0) for number in (*COUNTERS, *FLAGS, *LIMITS, RETIRED_SINGLE[0], RETIRED_DOUBLE[0])
)
MOST = (1 << 63) - 1
MOST_BANKS = 1 << 16  # an H100 tells 640
NAMED = ("uuid", "name", "pci", "serial", "vbios_version", "inforom_version")


def slow(asking: Asking, now_ns: int) -> Answers:
    """Counters and what grew, limits, links, fabric."""
    answers, slot = asking.begin(), asking.slot
    if slot.links is None and not asking.lost:
        answers.keep("nvlink_count", _count_links(asking))
    found = asking.fields(_questions(len(slot.links or ())))
    remaps = "GeForce" not in slot.named.get("name", "")
    for number, name, is_flag in NUMBERS:
        answer = within(found[number, 0], 0, MOST, "")
        if not remaps and name.startswith("row") and not isinstance(answer, Refused):
            answer = Refused(None, "answered by a model that has no row remapping")  # leptonai/gpud#351
        answers.keep(name, answer != 0 if is_flag and not isinstance(answer, Refused) else answer)
    answers.keep("retired_page_count", _sum([found[RETIRED_SINGLE], found[RETIRED_DOUBLE]]))
    for number, name in LIMITS.items():
        answer = found[number, 0]
        answers.keep(name, watts(asking.number(LIMIT_CALLS[name]) if isinstance(answer, Refused) else answer))
    _links(asking, answers, found)
    handle = slot.handle
    answers.keep("pcie_generation", within(asking.number("nvmlDeviceGetCurrPcieLinkGeneration"), 1, 9, ""))
    width = asking.number("nvmlDeviceGetCurrPcieLinkWidth")
    answers.keep("pcie_width", within(width, 1, 32, "lanes"))  # 63: off the bus
    clock = asking.ask("memory clock", asking.calls.number, "nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY)
    answers.keep("memory_clock_mhz", positive(clock, 20_000, "MHz"))
    margin = asking.ask("nvmlDeviceGetMarginTemperature", asking.calls.margin, handle)
    answers.keep("temperature_margin_celsius", within(margin, -100, 150, "°C"))
    _fabric(asking, answers)
    _grown(asking, answers, now_ns)
    return answers


def seldom(asking: Asking) -> Answers:
    """Names, limits and modes. Another name at the same index is another board."""
    slot, calls = asking.slot, asking.calls
    slot.absent.clear()
    slot.questions.clear()
    slot.links = None
    answers, handle = asking.begin(), slot.handle
    uuid = asking.ask("nvmlDeviceGetUUID", calls.text, "nvmlDeviceGetUUID", handle)
    if not isinstance(uuid, Refused) and slot.named.get("uuid") not in (None, uuid):
        slot.named.clear()
        slot.growth.clear()
        slot.calm = slot.slow = None
    answers.keep("uuid", uuid)
    for name, function in (
        ("name", "nvmlDeviceGetName"),
        ("serial", "nvmlDeviceGetSerial"),
        ("vbios_version", "nvmlDeviceGetVbiosVersion"),
        ("inforom_version", "nvmlDeviceGetInforomImageVersion"),
    ):
        answers.keep(name, asking.ask(function, calls.text, function, handle))
    told = asking.ask("nvmlDeviceGetPciInfo", calls.pci, handle)
    if not isinstance(told, Refused):
        told = pci_address(told) or Refused(None, f"{told!r} is no PCI address")
    answers.keep("pci", told)
    answers.keep("pcie_width_max", within(asking.number("nvmlDeviceGetMaxPcieLinkWidth"), 1, 32, "lanes"))
    answers.keep("pcie_generation_max", within(asking.number("nvmlDeviceGetMaxPcieLinkGeneration"), 1, 9, ""))
    fastest = asking.number("nvmlDeviceGetMaxClockInfo", CLOCK_SM)
    answers.keep("sm_clock_max_mhz", positive(fastest, 10_000, "MHz"))
    limit = asking.number("nvmlDeviceGetTemperatureThreshold", SLOWDOWN_THRESHOLD)
    answers.keep("slowdown_celsius", positive(limit, 150, "°C"))
    answers.keep("persistence_mode", _flag(asking.number("nvmlDeviceGetPersistenceMode")))
    banks = asking.ask("nvmlDeviceGetRowRemapperHistogram", calls.banks, handle)
    absurd = not isinstance(banks, Refused) and max(banks) > MOST_BANKS
    answers.keep("row_remap_banks", Refused(None, f"{max(banks)} banks") if absurd else banks)
    ecc = asking.ask("nvmlDeviceGetEccMode", calls.pair, "nvmlDeviceGetEccMode", handle)
    answers.keep("ecc_enabled", ecc if isinstance(ecc, Refused) else _flag(ecc[0]))
    _mig(asking, answers)
    _count_links(asking)  # here, so that every slow round makes the same calls
    slot.named |= {name: answers.values.pop(name) for name in NAMED if name in answers.values}
    for name in NAMED:
        if name in slot.named:
            answers.gaps.pop(name, None)
    return answers


def _count_links(asking: Asking) -> Any:
    count = within(asking.fields((LINK_COUNT,))[LINK_COUNT], 0, LINKS, "links")
    if not isinstance(count, Refused):
        asking.slot.links = tuple(range(int(count)))
    return count


@cache
def _questions(links: int) -> tuple[Question, ...]:
    """Everything that one call asks of a chip with so many links."""
    of_link = (LINK_STATE, *(field for pair in LINK_COUNTERS.values() for field in pair if field is not None))
    return (*ONCE, *((number, link) for link in range(links) for number in of_link))


def _links(asking: Asking, answers: Answers, found: dict[Question, Any]) -> None:
    links = asking.slot.links
    if links is not None:
        answers.keep("nvlink_count", len(links))
    if not links:
        return
    states = [found[LINK_STATE, link] for link in links]
    told = [state for state in states if state.__class__ is not Refused]
    down = tuple(link for link, state in zip(links, states, strict=True) if state in DOWN)
    answers.keep("nvlink_inactive", down if told else states[0])
    for name, fields in LINK_COUNTERS.items():
        sums = [_sum([found[field, link] for link in links]) for field in fields if field is not None]
        answers.keep(name, next((total for total in sums if not isinstance(total, Refused)), sums[0]))


def _fabric(asking: Asking, answers: Answers) -> None:
    info = asking.ask("nvmlDeviceGetGpuFabricInfo", asking.calls.fabric, asking.slot.handle)
    answers.keep("fabric_state", info if isinstance(info, Refused) else within(info.state, 0, 3, ""))
    if "fabric_state" not in answers.values or info.state == 0:
        return
    answers.keep("fabric_status", within(int(info.status), 0, 9999, ""))
    answers.values["fabric_clique"] = int(info.cliqueId)
    answers.values["fabric_cluster"] = bytes(info.clusterUuid).hex()
    mask = getattr(info, "healthMask", None)
    answers.keep("fabric_health_mask", Refused(None, "this driver tells none") if mask is None else int(mask))
    if getattr(info, "version", 0) >> 24 >= 3:
        answers.values["fabric_health_summary"] = int(info.healthSummary)


def _mig(asking: Asking, answers: Answers) -> None:
    calls, handle = asking.calls, asking.slot.handle
    modes = asking.ask("nvmlDeviceGetMigMode", calls.pair, "nvmlDeviceGetMigMode", handle)
    now, then = (modes, modes) if isinstance(modes, Refused) else modes
    answers.keep("mig_mode", _flag(now))
    answers.keep("mig_mode_pending", _flag(then))
    if answers.values.get("mig_mode"):
        most = within(asking.number("nvmlDeviceGetMaxMigDeviceCount"), 0, 64, "")
        answers.keep("mig_instance_count", most if isinstance(most, Refused) else _instances(asking, int(most)))


def _instances(asking: Asking, most: int) -> Any:
    count = 0
    for place in range(most):
        code = asking.calls.instance(asking.slot.handle, place)
        if code == SUCCESS:
            count += 1
        elif code not in HARMLESS:
            return asking.calls.refused(code, "nvmlDeviceGetMigDeviceHandleByIndex")
    return count


def _grown(asking: Asking, answers: Answers, now_ns: int) -> None:
    growth = asking.slot.growth
    for counter, name in GROWS.items():
        value = answers.values.get(counter)
        if value is not None:
            grown = growth.setdefault(name, Growth()).add(value, now_ns)
            if grown is not None:
                answers.values[name] = grown
    for counter, name in SHARES.items():
        value = answers.values.get(counter)
        if value is not None:
            share = growth.setdefault(name, Share()).add(value, now_ns)
            if share is not None:
                answers.values[name] = share


def _flag(value: Any) -> Any:
    value = within(value, 0, 1, "")
    return value if isinstance(value, Refused) else value == 1


def _sum(answers: list[Any]) -> Any:
    """The sum of what is told; refused where nothing is."""
    if all(answer.__class__ is int and 0 <= answer < NOT_AVAILABLE_32 for answer in answers):
        return sum(answers)
    answers = [within(answer, 0, MOST, "") for answer in answers]
    told = [answer for answer in answers if not isinstance(answer, Refused)]
    return sum(told) if told else answers[0]
