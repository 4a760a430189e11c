"""The NVML collector over a real C library: what is right, refused, lost, absurd or old."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpuwatch.collectors import Reading, Unsupported, nvml
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.sdk import nvml_library
from tests.nvml_library.build import SONAME, build, header, missing
from tests.nvml_library.state import State

Open = Callable[..., Any]
EACH_ROUND = {"calm_every": 1, "slow_every": 1, "seldom_every": 1}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("GPUWATCH_TEST_NVML_STATE", str(tmp_path / "nvml.txt"))
    return State(tmp_path / "nvml.txt")


def pci_tree(folder: Path, gpus: int) -> Path:
    """A PCI bus with GPUs, an NVSwitch, a GPU's sound function, and a network card."""
    others = [("0x10de", "0x068000"), ("0x10de", "0x040300"), ("0x15b3", "0x020700")]
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200")] * gpus + others):
        device = folder / f"0000:{number:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    return folder


@pytest.fixture
def opened(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    readers: list[Any] = []
    pci = pci_tree(tmp_path / "pci", 8)
    (tmp_path / "driver").write_text("NVRM version: 580")

    def make(*, without: tuple[str, ...] = (), library: bool = True, **settings: Any) -> Any:
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(build(without) / SONAME)) if library else None)
        places = {"pci_devices": str(pci), "driver_file": str(tmp_path / "driver"), "container": "no"}
        readers.append(nvml.open_reader(nvml.Settings(**(places | EACH_ROUND | settings))))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def facts(reader: Any) -> NvmlFacts:
    found = reader.read().facts
    assert isinstance(found, NvmlFacts)
    return found


pytestmark = pytest.mark.needs("gcc")


def test_the_library_is_complete() -> None:
    assert missing(build()) == set()
    assert header().name == "nvml.h"


def test_eight_good_gpus(opened: Open, state: State) -> None:
    state.gpu(2, utilization=7, temperature=41, power_mw=98_500, pids=f"{os.getpid()}", sm_clock=345, field__4=2)
    reading: Reading = opened().read()
    found = reading.facts
    assert (found.driver_version, found.init_error, found.pci_gpu_count) == ("580.95.05", None, 8)
    assert (found.driver_loaded, found.in_container, len(found.gpus)) == (True, False, 8)
    assert found.gpus[2] == Gpu(
        index=2,
        uuid="GPU-00000000-0000-4000-8000-000000000002",
        pci="0000:3b:00",
        name="NVIDIA H100 80GB HBM3",
        utilization_ratio=0.07,
        memory_utilization_ratio=0.4,
        memory_used_bytes=70_000 << 20,
        memory_total_bytes=81_559 << 20,
        power_watts=98.5,
        power_limit_watts=700.0,
        temperature_celsius=41,
        sm_clock_mhz=345,
        memory_clock_mhz=2619,
        clock_event_mask=4,
        ecc_corrected_volatile_count=0,
        ecc_uncorrected_volatile_count=2,
        ecc_uncorrected_total_count=0,
        rows_remapped_corrected_count=0,
        rows_remapped_uncorrected_count=0,
        row_remap_pending=False,
        row_remap_failed=False,
        pcie_generation=5,
        pcie_width=16,
        pcie_width_max=16,
        recovery_action=0,
        pids=(os.getpid(),),
        serial="1650000002",
        memory_temperature_celsius=58,
        temperature_margin_celsius=32,
        slowdown_celsius=92,
        power_limit_default_watts=700.0,
        power_limit_enforced_watts=700.0,
        sm_clock_max_mhz=1980,
        ecc_enabled=True,
        ecc_corrected_total_count=0,
        retired_page_count=0,
        retired_page_pending=False,
        row_remap_banks=(640, 0, 0, 0, 0),
        pcie_generation_max=5,
        pcie_replay_count=0,
        nvlink_count=18,
        nvlink_inactive=(),
        nvlink_replay_count=0,
        nvlink_recovery_count=0,
        nvlink_crc_count=0,
        fabric_state=3,
        fabric_status=0,
        fabric_health_mask=0x1AA,
        fabric_health_summary=1,
        fabric_cluster="11" * 16,
        fabric_clique=1,
        persistence_mode=True,
        mig_mode=False,
        mig_mode_pending=False,
        vbios_version="96.00.61.00.01",
        inforom_version="G520.0200.00.05",
        thermal_slowdown_ns=0,
        power_brake_ns=0,
        software_thermal_ns=0,
        power_capped_ns=0,
    )
    assert (found.cuda_version, found.pci_gpu_most_count, found.rights_lost) == ("13.0", 8, False)
    assert reading.gaps == {}
    assert not reading.urgent


def test_a_lost_gpu_does_not_hide_the_others_and_keeps_its_names(opened: Open, state: State) -> None:
    reader = opened()
    before = facts(reader).gpus[3]
    state.gpu(3, error=15)
    reading = reader.read()
    lost = reading.facts.gpus[3]
    assert (lost.error, lost.uuid, lost.pci, lost.utilization_ratio) == (15, before.uuid, before.pci, None)
    assert reading.gaps == {"gpus[3].*": "GPU_IS_LOST (15)"}
    assert [gpu.error for gpu in reading.facts.gpus].count(None) == 7
    assert facts(reader).gpus[3].error == 15
    state.gpu(3, error=None)
    back = facts(reader).gpus[3]
    assert (back.error, back.uuid, back.utilization_ratio) == (None, before.uuid, before.utilization_ratio)
    assert back.ecc_uncorrected_hour_count == 0  # its history is its own, as long as its name is the same


def test_a_gpu_that_was_lost_before_we_began(opened: Open, state: State) -> None:
    state.gpu(0, error=15)
    found = facts(opened())
    assert (found.gpus[0].error, found.gpus[0].uuid) == (15, None)
    assert all(gpu.uuid and gpu.error is None for gpu in found.gpus[1:])


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        pytest.param({"error": 16}, 16, id="reset-required"),
        pytest.param({"refuse:nvmlDeviceGetMemoryInfo_v2": 16}, 16, id="reset-required-by-one-call"),
        pytest.param({"error": 999}, 999, id="unknown-to-everything"),
        pytest.param({"refuse:nvmlDeviceGetClockInfo": 999}, None, id="unknown-to-one-question"),
        pytest.param({"error": 3}, None, id="supports-nothing"),
        pytest.param({"refuse:nvmlDeviceGetHandleByIndex_v2": 4}, 4, id="no-permission"),
        pytest.param({"refuse:nvmlDeviceGetHandleByIndex_v2": 8}, 8, id="power-cable"),
        pytest.param({"refuse:nvmlDeviceGetUtilizationRates": 15}, 15, id="lost-in-mid-round"),
        pytest.param({"error": 4711}, 4711, id="a-code-that-no-table-knows"),
    ],
)
def test_the_gpu_as_a_whole(opened: Open, state: State, lines: dict[str, int], error: int | None) -> None:
    state.lines.update({(5, key): value for key, value in lines.items()})
    state.lines.pop((5, "error"), None)
    state.write()
    reader = opened()
    if "error" in lines:
        facts(reader)
        state.gpu(5, error=lines["error"])
    found = facts(reader)
    assert found.gpus[5].error == error
    assert [gpu.error for gpu in found.gpus if gpu.index != 5] == [None] * 7


@pytest.mark.parametrize(
    ("lines", "field", "why"),
    [
        pytest.param({"utilization": 808}, "utilization_ratio", "808 % is out of range", id="808-percent"),
        pytest.param({"utilization": 4294967295}, "utilization_ratio", "NVML says: not available", id="all-ones"),
        pytest.param({"used": 4294967295 << 20}, "memory_used_bytes", "out of range", id="4294967295-MiB"),
        pytest.param({"used": 90_000 << 20}, "memory_used_bytes", "out of range", id="more-than-there-is"),
        pytest.param({"total": 0}, "memory_total_bytes", "0 bytes with SUCCESS is no data", id="no-memory"),
        pytest.param({"power_mw": 0}, "power_watts", "0 mW with SUCCESS is no data", id="0-watts"),
        pytest.param({"sm_clock": 0}, "sm_clock_mhz", "0 MHz with SUCCESS is no data", id="0-MHz"),
        pytest.param({"temperature": 0}, "temperature_celsius", "0 °C with SUCCESS is no data", id="0-degrees"),
        pytest.param({"temperature": 255}, "temperature_celsius", "255 °C is out of range", id="255-degrees"),
        pytest.param({"width": 63}, "pcie_width", "63 lanes is out of range", id="width-63-off-the-bus"),
        pytest.param({"fielderror:230": 3}, "recovery_action", "NOT_SUPPORTED (3)", id="one-field-refused"),
        pytest.param({"field:4": 2**64 - 1}, "ecc_uncorrected_volatile_count", "not available", id="64-ones"),
        pytest.param({"refuse:nvmlDeviceGetPowerUsage": 3, "fielderror:185": 3, "fielderror:186": 3},
                     "power_watts", "NOT_SUPPORTED (3)", id="not-supported"),
        pytest.param({"refuse:nvmlDeviceGetUtilizationRates": 999}, "utilization_ratio", "UNKNOWN (999)", id="unknown"),
        pytest.param({"refuse:nvmlDeviceGetMemoryInfo_v2": 3, "refuse:nvmlDeviceGetMemoryInfo": 3},
                     "memory_total_bytes", "NOT_SUPPORTED (3)", id="shared-memory-as-on-GB10"),
        pytest.param({"name_hex": "ff00fe"}, "name", "UnicodeDecodeError", id="a-name-that-is-no-text"),
        pytest.param({"bus_id": "nonsense"}, "pci", "'nonsense' is no PCI address", id="no-address"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_none_with_its_reason(
    opened: Open, state: State, lines: dict[str, int], field: str, why: str
) -> None:
    state.lines.update({(1, key): value for key, value in lines.items()})
    state.write()
    reading = opened().read()
    assert getattr(reading.facts.gpus[1], field) is None
    told = {name: words for place, words in reading.gaps.items() for name in place.removeprefix("gpus[1].").split(",")}
    assert why in told[field]
    assert reading.facts.gpus[1].error is None
    assert getattr(reading.facts.gpus[0], field) is not None


def test_nothing_idle_is_made_of_silent_zeros(opened: Open, state: State) -> None:
    state.gpu(1, power_mw=0, sm_clock=0, utilization=0)
    reading = opened().read()
    assert reading.facts.gpus[1].utilization_ratio is None
    state.gpu(1, power_mw=70_000, sm_clock=0, utilization=0)
    assert facts(opened()).gpus[1].utilization_ratio == 0.0


def test_pids_that_are_not_in_proc_are_dropped(opened: Open, state: State) -> None:
    state.gpu(6, pids=f"4294967295,{os.getpid()},4000001,0")
    reading = opened().read()
    assert reading.facts.gpus[6].pids == (os.getpid(),)
    assert reading.gaps["gpus[6].pids"] == "3 of 4 are not in /proc"


def test_the_same_reason_on_all_gpus_is_said_once(opened: Open, state: State) -> None:
    state.all(**{"refuse:nvmlDeviceGetSerial": 3})
    state.gpu(1, power_mw=0)
    state.gpu(4, power_mw=0)
    assert opened().read().gaps == {
        "gpus[*].serial": "NOT_SUPPORTED (3)",
        "gpus[1,4].power_watts": "0 mW with SUCCESS is no data",
    }


def test_a_geforce_that_claims_row_remapping(opened: Open, state: State) -> None:
    state.gpu(0, name="NVIDIA GeForce RTX 4090")
    reading = opened().read()
    assert reading.facts.gpus[0].row_remap_failed is None
    assert "no row remapping" in reading.gaps["gpus[0].row_remap_failed"]


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_a_driver_that_does_not_start_is_a_fact(opened: Open, state: State, code: int) -> None:
    state.all(init=code)
    reader = opened()
    reading = reader.read()
    assert reading.facts == NvmlFacts(init_error=code, pci_gpu_count=8, driver_loaded=True, pci_gpu_most_count=8)
    assert f"({code})" in reading.gaps["gpus"]
    state.all(init=None)
    assert len(facts(reader).gpus) == 8


def test_no_library_and_no_gpu_says_so_plainly(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    nothing = {"pci_devices": str(pci_tree(tmp_path / "none", 0)), "driver_file": str(tmp_path / "absent")}
    with pytest.raises(Unsupported, match="no NVIDIA GPU or driver on this node"):
        opened(library=False, **nothing).read()
    assert facts(opened(library=False)).init_error == 12  # eight on the bus: that is a fault, not a CPU node
    unreadable = opened(library=False, pci_devices=str(tmp_path / "absent"), driver_file=str(tmp_path / "absent"))
    reading = unreadable.read()
    assert (reading.facts.init_error, reading.facts.pci_gpu_count) == (12, None)
    assert "cannot be read" in reading.gaps["pci_gpu_count"]


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_missing_gpu_shows_as_the_difference(opened: Open, state: State) -> None:
    state.all(count=7)
    reader = opened()
    found = facts(reader)
    assert (len(found.gpus), found.pci_gpu_count) == (7, 8)
    state.all(count=8)
    assert len(facts(reader).gpus) == 8


def test_a_gpu_that_leaves_the_bus_is_not_counted(opened: Open, tmp_path: Path) -> None:
    reader = opened()
    assert facts(reader).pci_gpu_count == 8
    for part in ("vendor", "class"):
        (tmp_path / "pci" / "0000:02:00.0" / part).unlink()
    (tmp_path / "pci" / "0000:02:00.0").rmdir()
    assert facts(reader).pci_gpu_count == 7


def test_an_old_driver_is_asked_the_old_way(opened: Open) -> None:
    old = (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetFieldValues",
    )
    reader = opened(without=old)
    for _ in range(2):
        reading = reader.read()
        gpu = reading.facts.gpus[0]
        assert (gpu.temperature_celsius, gpu.clock_event_mask, gpu.memory_used_bytes) == (60, 4, 70_600 << 20)
        assert (gpu.recovery_action, gpu.error, gpu.pids) == (None, None, ())
        assert reading.gaps["gpus[*].recovery_action"] == "nvmlDeviceGetFieldValues: FUNCTION_NOT_FOUND (13)"


def test_slow_numbers_are_read_each_nth_round_and_kept_between(opened: Open, state: State) -> None:
    reader = opened(slow_every=3)
    assert facts(reader).gpus[0].ecc_uncorrected_volatile_count == 0
    state.gpu(0, field__4=5, utilization=11)
    second = facts(reader).gpus[0]
    assert (second.ecc_uncorrected_volatile_count, second.utilization_ratio) == (0, 0.11)
    facts(reader)
    assert facts(reader).gpus[0].ecc_uncorrected_volatile_count == 5


def test_the_recovery_action_is_read_each_round(opened: Open, state: State) -> None:
    reader = opened(slow_every=6)
    assert facts(reader).gpus[0].recovery_action == 0
    state.gpu(0, field__230=1)
    assert facts(reader).gpus[0].recovery_action == 1


def test_a_shutdown_by_somebody_else_is_mended(opened: Open, state: State) -> None:
    reader = opened()
    facts(reader)
    state.all(**{"refuse:nvmlDeviceGetCount_v2": 1})
    assert facts(reader).init_error == 1
    state.all(**{"refuse:nvmlDeviceGetCount_v2": None})
    assert facts(reader).init_error is None


def test_each_call_is_announced(opened: Open) -> None:
    notes: list[str] = []
    reader = opened()
    reader.watch(notes.append)
    reader.read()
    assert notes[0] == "nvmlInit"
    assert "nvmlDeviceGetUtilizationRates of GPU 7" in notes


@pytest.mark.parametrize(("setting", "told"), [("yes", True), ("no", False)])
def test_a_container_is_said(opened: Open, setting: str, told: bool) -> None:
    assert facts(opened(container=setting)).in_container is told


def test_another_module_of_the_same_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: json)
    with pytest.raises(ProbeError, match="not NVIDIA's binding"):
        nvml_library.Binding()


def test_metrics_say_how_many_should_be_here_and_how_many_work(opened: Open, state: State) -> None:
    reader = opened()
    facts(reader)
    state.gpu(3, error=15)
    state.gpu(0, power_mw=0)
    samples = list(nvml.metrics(facts(reader)))
    plain = {(sample.name, sample.labels.get("gpu")): sample.value for sample in samples}
    assert plain["gpuwatch_gpus_expected", None] == 8
    assert plain["gpuwatch_gpus_usable", None] == 7
    assert plain["gpuwatch_gpu_error_code", "3"] == 15
    assert plain["gpuwatch_gpu_utilization_ratio", "1"] == 0.9
    assert ("gpuwatch_gpu_power_watts", "0") not in plain  # missing, not 0
    assert ("gpuwatch_gpu_utilization_ratio", "3") not in plain
    info = next(sample for sample in samples if sample.name == "gpuwatch_gpu_info" and sample.labels["gpu"] == "3")
    assert info.labels["pci"] == "0000:4b:00"
    assert all(
        set(sample.labels) <= {"gpu", "kind", "spare_rows"} for sample in samples if not sample.name.endswith("_info")
    )


@pytest.mark.parametrize("count", [1_000_000, 4_294_967_295])
def test_an_absurd_count_is_a_failure_and_no_hang(opened: Open, state: State, count: int) -> None:
    reader = opened()
    state.all(count=count)
    with pytest.raises(ProbeError, match=str(count)):
        reader.read()
    state.all(count=8)
    assert len(facts(reader).gpus) == 8


def test_gpus_that_vanish_and_come_back_are_named_anew(opened: Open, state: State) -> None:
    reader = opened(slow_every=6, container="yes")
    before = facts(reader).gpus
    state.all(count=7)
    for index in range(7):
        state.gpu(index, uuid=f"GPU-other-{index}")
    assert [gpu.uuid for gpu in facts(reader).gpus] == [f"GPU-other-{index}" for index in range(7)]
    state.all(count=8)
    for index in range(7):
        state.gpu(index, uuid=None)
    after = facts(reader).gpus
    assert [gpu.uuid for gpu in after] == [gpu.uuid for gpu in before]
    assert all(gpu.power_limit_watts is not None for gpu in after)  # the slow numbers too: no gap without a reason


def test_a_driver_that_changes_under_us_is_told(opened: Open, state: State) -> None:
    reader = opened()
    before = facts(reader).driver_version
    state.all(driver="999.1")
    assert before != facts(reader).driver_version == "999.1"


def test_a_library_that_does_not_fit_the_driver_is_loaded_anew_by_a_new_process(opened: Open, state: State) -> None:
    state.all(init=18)
    reader = opened(slow_every=3)
    assert [(facts(reader).init_error, reader.spent) for _ in range(3)] == [(18, False), (18, False), (18, True)]
    state.all(init=None)
    reader = opened(slow_every=1)
    facts(reader)
    assert not reader.spent


def test_a_missing_gpu_restarts_the_library_only_each_nth_round(opened: Open, state: State) -> None:
    state.all(count=7)
    notes: list[str] = []
    reader = opened(slow_every=6)
    reader.watch(notes.append)
    for _ in range(12):
        reader.read()
    assert notes.count("nvmlInit") == 3  # at first, and after rounds 0 and 6
