"""The host collector on this machine: plausible numbers, gaps with reasons, and little work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.collectors import host
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.sdk.process_states import Processes, States


def test_this_machine() -> None:
    reader = host.open_reader(host.Settings())
    first = reader.read()
    assert first.facts.cpu_ratio is None
    assert first.gaps == {"cpu_ratio": "a ratio needs two readings"}
    facts: HostFacts = reader.read().facts
    assert facts.cpu_ratio is not None
    assert 0 <= facts.cpu_ratio <= 1
    assert facts.memory_used_bytes
    assert facts.memory_total_bytes
    assert 0 < facts.memory_used_bytes < facts.memory_total_bytes
    assert facts.root_disk_used_ratio is not None
    assert 0 < facts.root_disk_used_ratio < 1
    assert facts.boot_unix_ns
    assert facts.boot_unix_ns < time.time_ns()
    assert facts.kernel_release == os.uname().release
    assert facts.agent_rss_bytes
    assert facts.agent_rss_bytes > 1 << 20
    assert facts.agent_cpu_s is not None
    assert facts.boot_id
    assert facts.uptime_s
    assert facts.uptime_s > 0
    assert facts.swap_total_bytes is not None
    assert facts.clock_synchronised is not None
    assert [disk for disk in facts.disks if disk.mount == "/"] or not Path("/etc/fstab").exists()


def test_zombies_are_counted_and_our_children_weigh_in() -> None:
    reader = host.open_reader(host.Settings(processes_every=1))
    before = reader.read().facts
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    assert reader.read().facts.agent_rss_bytes > before.agent_rss_bytes + (2 << 20)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert reader.read().facts.zombie_process_count >= 1
    child.communicate()


def test_processes_are_looked_at_each_nth_round(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(_: Processes) -> States:
        looks.append(1)
        return States(len(looks), 0, ())

    monkeypatch.setattr(Processes, "look", look)
    reader = host.open_reader(host.Settings(processes_every=3))
    assert [reader.read().facts.blocked_process_count for _ in range(7)] == [1, 1, 1, 2, 2, 2, 3]


def test_a_source_that_fails_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[float, float, float]:
        raise OSError("no load here")

    monkeypatch.setattr(os, "getloadavg", broken)
    reading = host.open_reader(host.Settings(root="/nowhere/at/all")).read()
    assert reading.facts.load1 is None
    assert reading.gaps["load1"] == "OSError: no load here"
    assert "No such file" in reading.gaps["root_disk_used_ratio"]
    assert reading.facts.memory_total_bytes is not None


def test_a_missing_number_is_a_missing_series() -> None:
    samples = list(host.metrics(HostFacts(load1=0.0, boot_unix_ns=5 * 10**9)))
    assert {sample.name: sample.value for sample in samples} == {
        "gpuwatch_host_load1": 0.0,
        "gpuwatch_host_boot_time_seconds": 5.0,
    }
