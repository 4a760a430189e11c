"""How much room a call is told that it has: never more than its record has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from gpuwatch.sdk.nvml_answers import INSUFFICIENT_SIZE, SUCCESS
from gpuwatch.sdk.nvml_calls import LEAST_PROCESSES, Calls
from gpuwatch.sdk.nvml_routine import Routine

PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


class Driver:
    """Lists `pids` where the room that it is told is large enough, and writes past the table where the room is not
    there."""

    def __init__(self) -> None:
        self.pids = list(range(1, 11))
        self.called = 0
        self.overran = False

    def processes(self, _handle: Any, count: Any, table: Any) -> int:
        told = count._obj
        self.called += 1
        self.overran |= told.value > len(table)
        room, told.value = told.value, len(self.pids)
        if room < len(self.pids):
            return INSUFFICIENT_SIZE
        for record, pid in zip(table, self.pids, strict=False):
            record.pid = pid
        return SUCCESS


@pytest.fixture
def driver() -> Driver:
    return Driver()


def calls_of(driver: Driver) -> Calls:
    number: Callable[..., int] = lambda *_: SUCCESS  # noqa: E731
    calls = Calls()
    calls._functions |= {PROCESSES: driver.processes, "one": number, "another": number}
    return calls


def test_a_table_that_has_become_too_small_is_made_larger(driver: Driver) -> None:
    calls, handle = calls_of(driver), ctypes.c_void_p(1)
    assert calls.pids(handle) == driver.pids
    driver.pids = list(range(1, 3 * LEAST_PROCESSES))
    assert calls.pids(handle) == driver.pids
    assert not driver.overran


def test_a_call_ahead_that_nobody_looked_at_does_not_make_the_next_one_write_past_its_table(driver: Driver) -> None:
    """It left behind how many processes there are, where the next call is told how many it may write."""
    calls, routine, handle = calls_of(driver), Routine(), ctypes.c_void_p(1)
    calls.follow(routine)
    calls.number("one", handle)
    assert calls.pids(handle) == driver.pids
    calls.follow(None)
    driver.pids = list(range(1, 3 * LEAST_PROCESSES))
    routine.perform()
    calls.follow(routine)
    calls.number("another", handle)  # from here on what was called ahead does not count
    assert calls.pids(handle) == driver.pids
    calls.follow(None)
    assert not driver.overran
