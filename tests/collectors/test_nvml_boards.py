"""Other boards, drivers and modes: MIG, Blackwell's links, old fabric records, boards without any, a new driver."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from gpuwatch.collectors import nvml
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.sdk import nvml_growth
from tests.nvml_library.build import SONAME, build
from tests.nvml_library.state import State

pytestmark = pytest.mark.needs("gcc")

Open = Callable[..., Any]
SLOW = {"calm_every": 1, "slow_every": 1, "seldom_every": 1}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("GPUWATCH_TEST_NVML_STATE", str(tmp_path / "nvml.txt"))
    state = State(tmp_path / "nvml.txt")
    state.all(count=2)
    return state


@pytest.fixture
def opened(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    readers: list[Any] = []
    (tmp_path / "pci").mkdir()
    (tmp_path / "driver").write_text("NVRM version: 580.95.05")

    def make(*, without: tuple[str, ...] = (), **settings: Any) -> Any:
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(build(without) / SONAME)))
        places = {"pci_devices": str(tmp_path / "pci"), "driver_file": str(tmp_path / "driver"), "container": "no"}
        readers.append(nvml.open_reader(nvml.Settings(**(places | SLOW | settings))))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def facts(reader: Any) -> NvmlFacts:
    found = reader.read().facts
    assert isinstance(found, NvmlFacts)
    return found


def test_a_divided_gpu_is_asked_what_it_can_tell(opened: Open, state: State) -> None:
    state.gpu(0, mig=1, mig_instances=3, fielderror__142=3, fielderror__143=3, fielderror__144=3, fielderror__145=3)
    state.gpu(0, **{"refuse:nvmlDeviceGetUtilizationRates": 3, "refuse:nvmlDeviceGetRowRemapperHistogram": 3})
    divided, whole = facts(opened()).gpus
    assert (divided.mig_mode, divided.mig_instance_count, divided.error) == (True, 3, None)
    assert (divided.utilization_ratio, divided.row_remap_failed, divided.row_remap_banks) == (None, None, None)
    assert (whole.mig_mode, whole.mig_instance_count) == (False, None)


def test_links_that_are_down_and_what_they_counted(opened: Open, state: State) -> None:
    state.gpu(0, **{"field:165.3": 0, "field:165.7": 3, "field:165.9": 2, "field:162": 2, "field:161.1": 5})
    one, other = facts(opened()).gpus
    assert one.nvlink_inactive == (3, 7)  # 2 is asleep
    assert (one.nvlink_recovery_count, one.nvlink_replay_count, one.nvlink_crc_count) == (36, 5, 0)
    assert other.nvlink_inactive == ()


@pytest.mark.parametrize("noise", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 1 << 63])
def test_a_link_that_counts_nothing_possible_is_left_out_of_the_sum(opened: Open, state: State, noise: int) -> None:
    state.gpu(0, **{"field:162": 2, "field:162.5": noise})
    assert facts(opened()).gpus[0].nvlink_recovery_count == 34
    state.gpu(0, **{"field:162": noise, "fielderror:215": 3})
    assert facts(opened()).gpus[0].nvlink_recovery_count is None


def test_newer_links_count_otherwise(opened: Open, state: State) -> None:
    state.all(fielderror__161=3, fielderror__162=3, fielderror__163=3, field__215=1)
    gpu = facts(opened()).gpus[0]
    assert (gpu.nvlink_recovery_count, gpu.nvlink_replay_count, gpu.nvlink_crc_count) == (18, None, None)


def test_a_board_without_links_is_asked_for_none(opened: Open, state: State) -> None:
    state.gpu(0, fielderror__91=3)
    state.gpu(1, links=0)
    reading = opened().read()
    without, none = reading.facts.gpus
    assert (without.nvlink_count, without.nvlink_inactive, none.nvlink_count) == (None, None, 0)
    assert any("nvlink_count" in place for place in reading.gaps)


@pytest.mark.parametrize(("version", "mask", "summary"), [(3, 0x1AA, 1), (2, 0x1AA, None), (1, None, None)])
def test_the_fabric_in_the_record_that_the_driver_knows(
    opened: Open, state: State, version: int, mask: int | None, summary: int | None
) -> None:
    state.all(fabric_version=version)
    gpu = facts(opened()).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fabric_clique) == (3, 0, 1)
    assert (gpu.fabric_health_mask, gpu.fabric_health_summary) == (mask, summary)


def test_no_fabric_has_no_status(opened: Open, state: State) -> None:
    state.all(fabric_state=0, fabric_status=999)
    gpu = facts(opened()).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fabric_cluster) == (0, None, None)


def test_an_old_driver_has_none_of_it_and_no_fault(opened: Open) -> None:
    old = (
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetRowRemapperHistogram",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
    )
    gpu = facts(opened(without=old)).gpus[0]
    assert (gpu.error, gpu.fabric_state, gpu.mig_mode, gpu.row_remap_banks, gpu.nvlink_count) == (None,) * 5
    assert gpu.temperature_margin_celsius == 32  # from the limit
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.power_limit_default_watts) == (612.34, 700.0, 700.0)


def test_what_is_not_supported_is_asked_once(opened: Open, state: State) -> None:
    state.all(**{"refuse:nvmlDeviceGetGpuFabricInfoV": 3, "refuse:nvmlDeviceGetUtilizationRates": 3}, fielderror__82=3)
    notes: list[str] = []
    reader = opened(seldom_every=4)
    reader.watch(notes.append)
    for _ in range(4):
        reader.read()
    assert notes.count("nvmlDeviceGetUtilizationRates of GPU 0") == 1
    assert notes.count("nvmlDeviceGetGpuFabricInfoV of GPU 0") == 1
    state.all(**{"refuse:nvmlDeviceGetUtilizationRates": None})
    assert facts(reader).gpus[0].utilization_ratio == 0.9  # asked again with the names, modes and limits


def test_a_round_takes_few_calls(opened: Open, state: State) -> None:
    state.all(count=8)
    notes: list[str] = []
    reader = opened(calm_every=3, slow_every=12, seldom_every=60)
    reader.watch(notes.append)
    reader.read()
    notes.clear()
    rounds: list[int] = []
    for _ in range(60):
        notes.clear()
        reader.read()
        rounds.append(len(notes))
    assert sum(rounds) / 60 <= 38
    assert max(rounds) <= 80  # four GPUs in turn: all of them and everything would be 240


def test_what_grew_and_how_long_clocks_were_held(opened: Open, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_growth, "STEP_NS", 0)
    reader = opened()
    first = facts(reader).gpus[0]
    assert (first.ecc_uncorrected_hour_count, first.thermal_slowdown_ratio) == (None, None)
    state.gpu(0, field__4=3, field__94=40, field__270=10**18)
    grown = facts(reader).gpus[0]
    assert (grown.ecc_uncorrected_hour_count, grown.pcie_replay_hour_count) == (3, 40)
    assert (grown.thermal_slowdown_ratio, grown.power_brake_ratio) == (1.0, 0.0)
    assert facts(reader).gpus[1].pcie_replay_hour_count == 0


def test_a_reset_that_was_done_is_seen_at_once(opened: Open, state: State) -> None:
    reader = opened(calm_every=3, slow_every=6, seldom_every=60)
    state.gpu(0, **{"refuse:nvmlDeviceGetEccMode": 16})
    assert [facts(reader).gpus[0].error for _ in range(3)] == [16, 16, 16]
    state.gpu(0, **{"refuse:nvmlDeviceGetEccMode": None})
    assert [facts(reader).gpus[0].error for _ in range(2)] == [None, None]


def test_a_new_start_of_the_library_does_not_forget_what_grew(
    opened: Open, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_growth, "STEP_NS", 0)
    reader = opened()
    facts(reader)
    state.gpu(0, field__4=2)
    assert facts(reader).gpus[0].ecc_uncorrected_hour_count == 2
    state.all(**{"refuse:nvmlDeviceGetCount_v2": 1})
    facts(reader)
    state.all(**{"refuse:nvmlDeviceGetCount_v2": None})
    assert facts(reader).gpus[0].ecc_uncorrected_hour_count == 2


def test_another_board_at_the_same_place_inherits_nothing(opened: Open, state: State) -> None:
    reader = opened()
    facts(reader)
    state.gpu(0, uuid="GPU-another", serial="2", field__4=9)
    gpu = facts(reader).gpus[0]
    assert (gpu.uuid, gpu.serial, gpu.ecc_uncorrected_hour_count) == ("GPU-another", "2", None)


def test_another_driver_under_us_asks_for_another_process(opened: Open, tmp_path: Path) -> None:
    reader = opened()
    facts(reader)
    assert not reader.spent
    (tmp_path / "driver").write_text("NVRM version: 590.10")
    facts(reader)
    assert reader.spent


def test_a_driver_that_was_unloaded_and_loaded_is_started_anew(opened: Open, state: State) -> None:
    notes: list[str] = []
    reader = opened()
    reader.watch(notes.append)
    facts(reader)
    state.all(**{"refuse:nvmlDeviceGetCount_v2": 9}, init=9)
    assert facts(reader).init_error == 9
    assert "nvmlShutdown" in notes  # NVML counts its starts: without an end the next would start nothing
    state.all(**{"refuse:nvmlDeviceGetCount_v2": None}, init=None)
    assert [gpu.error for gpu in facts(reader).gpus] == [None, None]


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        pytest.param(errno.EPERM, True, id="refused-by-the-cgroup"),
        pytest.param(errno.ENOENT, False, id="no-such-file"),
        pytest.param(None, False, id="may-open-it"),
    ],
)
def test_rights_that_were_lost_are_told(
    opened: Open, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None, lost: bool
) -> None:
    """docker or systemd rewrote the device cgroup: NVML answers 999 to everything, and nothing is broken."""
    device = tmp_path / "nvidiactl"
    if answer is None:
        device.touch()
    real = os.open

    def guarded(path: Any, *rest: Any, **named: Any) -> int:
        if str(path) == str(device) and answer == errno.EPERM:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", guarded)
    reader = opened(device_file=str(device))
    assert facts(reader).rights_lost is False
    state.all(error=999)
    found = facts(reader)
    assert ([gpu.error for gpu in found.gpus], found.rights_lost) == ([999, 999], lost)
    state.all(error=None, init=999)
    fresh = facts(opened(device_file=str(device)))
    assert (fresh.init_error, fresh.rights_lost) == (999, lost)


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say_of_any_number(opened: Open, state: State) -> None:
    state.gpu(0, mig=1, mig_instances=2)
    reader = opened(expected_gpus=2)
    facts(reader)
    found = facts(reader)
    samples = list(nvml.metrics(msgspec.structs.replace(found, pci_gpu_count=2, init_error=9)))
    names = {sample.name for sample in samples}
    assert {"gpuwatch_gpus_expected", "gpuwatch_gpus_seen", "gpuwatch_gpus_usable", "gpuwatch_gpus_on_bus"} <= names
    text = ""
    for name in sorted(names):
        alike = [sample for sample in samples if sample.name == name]
        assert {sample.counter for sample in alike} == {name.endswith("_total")}
        assert len({sample.help for sample in alike}) == 1
        text += f"# HELP {name} {alike[0].help}\n# TYPE {name} {'counter' if alike[0].counter else 'gauge'}\n"
        for sample in alike:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            text += f"{name}{{{labels}}} {float(sample.value)}\n"
    said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_xids_are_heard_only_where_they_are_asked_for(opened: Open, state: State) -> None:
    reader, deaf = opened(xids="yes"), opened(xids="no")
    assert facts(reader).xids == ()
    state.all(xid=48, xid_gpu=1, xid_serial=1)
    assert facts(deaf).xids == ()
    reading = reader.read()
    (heard,) = reading.facts.xids
    assert (heard.xid, heard.pci, reading.urgent) == (48, "0000:2b:00", True)
    again = reader.read()
    assert (again.facts.xids, again.urgent) == ((heard,), False)  # in every report for a while, once by its id
    state.all(xid=94, xid_serial=2)
    assert [event.xid for event in facts(reader).xids] == [48, 94]


def test_a_driver_that_tells_no_xids_is_no_fault(opened: Open, state: State) -> None:
    state.all(**{"refuse:nvmlEventSetCreate": 3})
    found = facts(opened(xids="yes"))
    assert (found.xids, [gpu.error for gpu in found.gpus]) == ((), [None, None])
    state.all(**{"refuse:nvmlEventSetCreate": None})
    state.gpu(0, **{"refuse:nvmlDeviceRegisterEvents": 15})
    state.all(xid=48, xid_gpu=1, xid_serial=3)
    assert [event.xid for event in facts(opened(xids="yes")).xids] == [48]
