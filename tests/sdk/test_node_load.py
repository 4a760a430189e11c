"""What the whole node's numbers are made of, and what is no number."""

from __future__ import annotations

import contextlib

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sdk.node_load import CpuShare, available_bytes, booted_unix_s, memory_bytes
from gpuwatch.sdk.small_file import kernel_file


def stat(user: int, idle: int, waiting: int = 0, guest: int = 0) -> str:
    return f"cpu  {user} 0 0 {idle} {waiting} 0 0 0 {guest} 0\ncpu0 1 1 1 1\nbtime 1800000000\nprocesses 5\n"


def test_a_share_is_of_the_time_between_two_looks() -> None:
    share = CpuShare()
    assert share.of(stat(1000, 1000)) is None
    assert share.of(stat(1030, 1060, waiting=10)) == pytest.approx(0.3)
    assert share.of(stat(1030, 1060, waiting=10)) is None  # no time has passed
    assert share.of(stat(1130, 1060, waiting=10, guest=100)) == pytest.approx(1.0)  # a guest's time is in the user's
    assert share.of(stat(1130, 1050, waiting=20)) is None  # a processor's time fell: it was taken out
    assert share.of(stat(1140, 1040, waiting=30)) == 1.0


def test_what_does_not_say() -> None:
    for text in ("", "cpu", "cpu0 1 2 3 4 5\n", "intr 5\n"):
        with pytest.raises(ValueError, match="proc/stat"):
            CpuShare().of(text)
    with pytest.raises(ValueError, match="btime"):
        booted_unix_s("cpu 1 1 1 1\n")
    assert booted_unix_s(stat(1, 1)) == 1_800_000_000


def test_memory() -> None:
    found = memory_bytes(
        "MemTotal:  200 kB\nMemFree: 20 kB\nBuffers: 1 kB\nCached: 9 kB\nHugePages_Total: 4\nMemAvailable: odd kB\n"
    )
    assert found == {"MemTotal": 200 << 10, "MemFree": 20 << 10, "Buffers": 1 << 10, "Cached": 9 << 10}
    assert available_bytes(found) == 30 << 10
    assert available_bytes(found | {"MemAvailable": 7}) == 7
    with pytest.raises(KeyError):
        available_bytes({})


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert all(value >= 0 for value in memory_bytes(text).values())
    for ask in (CpuShare().of, booted_unix_s):
        with contextlib.suppress(ValueError):
            ask(text)


def test_it_is_what_others_say_too() -> None:
    memory = memory_bytes(kernel_file("/proc/meminfo").decode())
    said = psutil.virtual_memory()
    assert memory["MemTotal"] == said.total
    assert abs(available_bytes(memory) - said.available) < said.total / 10
    assert booted_unix_s(kernel_file("/proc/stat").decode()) == pytest.approx(psutil.boot_time(), abs=2)
