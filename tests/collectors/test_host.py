"""The host collector on this machine: plausible numbers, gaps with reasons, and little work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.collectors import host
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.sdk.process_states import Processes, States


def test_this_machine() -> None:
    reader = host.open_reader(host.Settings())
    first = reader.read()
    assert first.facts.cpu_ratio is None
    assert first.gaps == {"cpu_ratio": "a ratio needs two readings"}
    second, end_s = reader.read(), time.monotonic() + 5
    while second.facts.cpu_ratio is None and time.monotonic() < end_s:  # the kernel counts by the hundredth of a second
        assert second.gaps == {"cpu_ratio": "a ratio needs two readings"}
        second = reader.read()
    facts: HostFacts = second.facts
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


PROC = {
    "stat": "cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 10 0 10 70 10 0 0 0 5 0\nbtime 1800000000\n",
    "meminfo": "MemTotal: 100 kB\nMemAvailable: 30 kB\nSwapTotal:  2048 kB\nSwapFree:  1024 kB\n",
    "vmstat": "pgfault 1\noom_kill 3\n",
    "pressure/memory": "some avg10=1.00 avg60=2.00 total=5\nfull avg10=0.00 avg60=12.50 total=5\n",
    "self/mountinfo": "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,discard\n",
}


def proc(root: Path, **changes: str | bytes) -> host.Settings:
    for name, text in (PROC | changes).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return host.Settings(proc_root=str(root), fstab=str(root / "fstab"))


def test_what_proc_says(tmp_path: Path) -> None:
    reading = host.open_reader(proc(tmp_path)).read()
    facts: HostFacts = reading.facts
    assert (facts.swap_total_bytes, facts.swap_used_bytes) == (2 << 20, 1 << 20)
    assert (facts.oom_kill_count, facts.memory_stalled_ratio) == (3, 0.125)
    assert (facts.memory_total_bytes, facts.memory_used_bytes) == (100 << 10, 70 << 10)
    assert facts.boot_unix_ns == 1_800_000_000 * 10**9
    assert [(disk.mount, disk.kind, disk.read_only) for disk in facts.disks] == [("/", "ext4", False)]
    assert (facts.blocked_process_count, facts.zombie_process_count) == (0, 0)
    assert reading.gaps.keys() == {"cpu_ratio"}


def test_an_old_kernel_and_an_empty_proc(tmp_path: Path) -> None:
    settings = proc(tmp_path, vmstat="pgfault 1\n")
    (tmp_path / "pressure/memory").unlink()
    reading = host.open_reader(settings).read()
    assert (reading.facts.oom_kill_count, reading.facts.memory_stalled_ratio) == (None, None)
    assert reading.gaps.keys() == {"cpu_ratio"}  # it cannot say: no fault of this node
    gaps = host.open_reader(host.Settings(proc_root=str(tmp_path / "none"))).read().gaps
    assert gaps.keys() >= {"blocked_process_count", "disks", "swap_total_bytes", "oom_kill_count"}


@settings(max_examples=60, deadline=None)
@given(
    file=st.sampled_from(sorted(PROC)), text=st.binary(max_size=300) | st.sampled_from([b"full avg60=", b"oom_kill x"])
)
def test_any_bytes_in_any_file(file: str, text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reading = host.open_reader(proc(Path(folder), **{file: text})).read()
        list(host.metrics(reading.facts))
        assert reading.facts.memory_total_bytes is not None or file == "meminfo"  # one bad file is a gap of its own
        assert reading.facts.load1 is not None
