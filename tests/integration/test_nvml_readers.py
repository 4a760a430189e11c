"""The agent's numbers beside nvitop's, both through NVIDIA's binding from the same C library at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.model.facts.nvml import NvmlFacts
from tests.agent_node import Aggregator, Node, facts_of, status_is
from tests.nvml_library.build import build
from tests.nvml_library.state import State

pytestmark = pytest.mark.needs("gcc")

NVITOP = """
import json
from nvitop import Device, NA
def plain(value):
    return None if value is NA or value == NA else value
found = []
for device in Device.all():
    clocks = device.clock_infos()
    found.append({
        "index": device.index, "uuid": device.uuid(), "name": device.name(), "pci": device.bus_id(),
        "gpu_percent": plain(device.gpu_utilization()), "memory_percent": plain(device.memory_utilization()),
        "used": plain(device.memory_used()), "total": plain(device.memory_total()),
        "power_mw": plain(device.power_usage()), "limit_mw": plain(device.power_limit()),
        "celsius": plain(device.temperature()), "sm_mhz": plain(clocks.sm), "memory_mhz": plain(clocks.memory),
        "ecc": plain(device.total_volatile_uncorrected_ecc_errors()), "pids": sorted(device.processes()),
    })
print(json.dumps(found))
"""


@pytest.fixture
def library(tmp_path: Path) -> tuple[State, dict[str, str]]:
    state = State(tmp_path / "nvml.txt")
    return state, {"LD_LIBRARY_PATH": str(build()), "GPUWATCH_TEST_NVML_STATE": str(state.path)}


def nvitop(environment: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", NVITOP], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def ours(facts: NvmlFacts) -> list[dict[str, Any]]:
    """The agent's facts in nvitop's units."""
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "pci": f"0000{gpu.pci}.0".upper() if gpu.pci else None,
            "gpu_percent": None if gpu.utilization_ratio is None else round(gpu.utilization_ratio * 100),
            "memory_percent": (
                None if gpu.memory_utilization_ratio is None else round(gpu.memory_utilization_ratio * 100)
            ),
            "used": gpu.memory_used_bytes,
            "total": gpu.memory_total_bytes,
            "power_mw": None if gpu.power_watts is None else round(gpu.power_watts * 1000),
            "limit_mw": None if gpu.power_limit_watts is None else round(gpu.power_limit_watts * 1000),
            "celsius": gpu.temperature_celsius,
            "sm_mhz": gpu.sm_clock_mhz,
            "memory_mhz": gpu.memory_clock_mhz,
            "ecc": gpu.ecc_uncorrected_volatile_count,
            "pids": sorted(gpu.pids),
        }
        for gpu in facts.gpus
    ]


def test_the_agent_and_nvitop_say_the_same(tmp_path: Path, library: tuple[State, dict[str, str]]) -> None:
    state, environment = library
    for index in range(8):
        state.gpu(
            index,
            utilization=7 + 11 * index,
            memory_utilization=3 + 5 * index,
            used=(9_000 + 1_111 * index) << 20,
            power_mw=91_234 + 55_555 * index,
            limit_mw=650_000 + 1_000 * index,
            temperature=33 + 4 * index,
            sm_clock=345 + 201 * index,
            memory_clock=1_593 + index,
            field__4=index % 3,
            name=f"NVIDIA H100 number {index}",
        )
    state.gpu(5, **{"refuse:nvmlDeviceGetUtilizationRates": 3})
    state.gpu(2, pids=f"{os.getpid()},{os.getppid()}")
    aggregator = Aggregator()
    node = Node(tmp_path / "node", aggregator.url, simulated=False, **environment)
    try:
        node.start()
        _, report = aggregator.wait(status_is("nvml", "ok"))
        facts = facts_of(report, "nvml")
        assert facts.driver_version == "580.95.05"
        assert ours(facts) == nvitop(environment)
        state.gpu(0, utilization=0, used=0, temperature=29)
        _, report = aggregator.wait(lambda report: facts_of(report, "nvml").gpus[0].temperature_celsius == 29)
        assert ours(facts_of(report, "nvml")) == nvitop(environment)
    finally:
        node.end()
        aggregator.close()
