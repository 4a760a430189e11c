"""The simulated library under NVIDIA's real binding, in a process of its own, as a probe child uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.model.facts.nvml import NvmlFacts

READ = """
import sys, msgspec
from gpuwatch.collectors import nvml
reader = nvml.open_reader(nvml.Settings(preload="gpuwatch.simulate.nvml:install", preload_argument=sys.argv[1],
                                        calm_every=1, slow_every=1, seldom_every=1))
for _ in range(int(sys.argv[2])):
    input()
    sys.stdout.write(msgspec.msgpack.encode(reader.read().facts).hex() + "\\n")
    sys.stdout.flush()
"""


def readings(path: Path, *states: dict[str, Any]) -> list[NvmlFacts]:
    """One reading after each state."""
    child = subprocess.Popen(
        [sys.executable, "-c", READ, str(path), str(len(states))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    found: list[NvmlFacts] = []
    for state in states:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(path)
        child.stdin.write("\n")
        child.stdin.flush()
        found.append(msgspec.msgpack.decode(bytes.fromhex(child.stdout.readline()), type=NvmlFacts))
    child.communicate()
    return found


def test_what_the_state_file_says_is_what_the_binding_reads(tmp_path: Path) -> None:
    well, hot, lost, short, down, back = readings(
        tmp_path / "gpus.json",
        {"gpu_count": 8, "seed": "gpu-001"},
        {"gpu_count": 8, "seed": "gpu-001", "temperature": 88, "gpus": {"2": {"utilization": 4, "pids": [1]}}},
        {"gpu_count": 8, "seed": "gpu-001", "lost": [3], "gpus": {"5": {"error": 16}}},
        {"gpu_count": 7, "seed": "gpu-001", "gpus": {"1": {"recovery_action": 1, "ecc_uncorrected": 9}}},
        {"gpu_count": 0, "init_error": 18},
        {"gpu_count": 2, "seed": "gpu-002"},
    )
    assert [gpu.utilization_ratio for gpu in well.gpus] == [0.97] * 8
    assert len({gpu.uuid for gpu in well.gpus} | {gpu.pci for gpu in well.gpus}) == 16
    assert (hot.gpus[2].utilization_ratio, hot.gpus[2].pids, hot.gpus[2].temperature_celsius) == (0.04, (1,), 88)
    assert [gpu.error for gpu in lost.gpus] == [None, None, None, 15, None, 16, None, None]
    assert lost.gpus[3].uuid == well.gpus[3].uuid
    assert len(short.gpus) == 7
    assert (short.gpus[1].recovery_action, short.gpus[1].ecc_uncorrected_volatile_count) == (1, 9)
    assert len(down.gpus) == 0 or down.init_error == 18
    assert {gpu.uuid for gpu in back.gpus}.isdisjoint(gpu.uuid for gpu in well.gpus)
