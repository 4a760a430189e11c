"""The cloud of processes: one machine for one action, whatever dies in between."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

import gpuwatch.clouds.local as module
from gpuwatch.clock import SystemClock
from gpuwatch.clouds import CloudMachine, reimager
from gpuwatch.clouds.local import LocalCloud, Settings
from gpuwatch.errors import CloudError
from gpuwatch.model.ledger import TICK_NS

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)", "{slot}", "{machine}", "{directory}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(directory=tmp_path, command=SLEEPER, usd_per_hour=Decimal("27.197"))


@pytest.fixture
def cloud(settings: Settings) -> Iterator[LocalCloud]:
    opened = LocalCloud(settings, SystemClock())
    yield opened
    for machine in opened.snapshot().machines:
        opened.release(machine.machine, action_id="end")


def _only(cloud: LocalCloud) -> CloudMachine:
    (machine,) = cloud.snapshot().machines
    return machine


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.01)
    return holds()


def _pid(settings: Settings, machine: str) -> int:
    return int((settings.directory / "machines" / machine / "pid").read_text())


def test_create_starts_one_process_and_the_same_action_again_starts_no_second(
    cloud: LocalCloud, settings: Settings
) -> None:
    first = cloud.create(slot="gpu1", group="local", action_id="a1")
    pid = _pid(settings, first.machine)
    again = LocalCloud(settings, SystemClock()).create(slot="gpu1", group="local", action_id="a1")
    assert again.machine == first.machine
    assert _pid(settings, first.machine) == pid
    assert _only(cloud).state == "running"


def test_another_action_is_another_machine(cloud: LocalCloud) -> None:
    machines = {cloud.create(slot="gpu1", group="local", action_id=f"a{n}").machine for n in range(2)}
    assert len(machines) == 2


def test_a_start_cut_off_before_the_pid_was_written_is_found_running(cloud: LocalCloud, settings: Settings) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    pid_file = settings.directory / "machines" / machine / "pid"
    pid = pid_file.read_text()
    pid_file.unlink()  # as if we had been killed between the start and the record of it
    cloud.create(slot="gpu1", group="local", action_id="a1")
    started = [p for p in psutil.process_iter(["cmdline"]) if machine in (p.info["cmdline"] or [])]
    assert [str(p.pid) for p in started] == [pid]
    assert pid_file.read_text() == pid
    os.kill(int(pid), signal.SIGKILL)
    assert _within(5, lambda: _only(cloud).state == "failed")


def test_what_was_cut_off_before_the_pid_was_written_is_released(cloud: LocalCloud, settings: Settings) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    pid_file = settings.directory / "machines" / machine / "pid"
    pid = int(pid_file.read_text())
    pid_file.unlink()
    assert cloud.release(machine, action_id="r1").state == "done"
    assert _only(cloud).state == "gone"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_machine_whose_process_is_gone_has_failed_and_is_not_started_again(
    cloud: LocalCloud, settings: Settings
) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    os.kill(_pid(settings, machine), signal.SIGKILL)
    assert _within(5, lambda: _only(cloud).state == "failed")
    cloud.create(slot="gpu1", group="local", action_id="a1")
    assert _only(cloud).state == "failed"


def test_release_ends_process_and_meter_and_twice_is_once(cloud: LocalCloud) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    assert cloud.release(machine, action_id="r1").state == "done"
    ended = _only(cloud).ended_unix_ns
    assert ended is not None
    assert cloud.release(machine, action_id="r1").state == "done"
    assert _only(cloud).ended_unix_ns == ended
    assert _only(cloud).state == "gone"


def test_release_kills_a_process_that_ignores_the_polite_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELEASE_WAIT_S", 0.3)
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "open(sys.argv[1] + '/deaf', 'w'); time.sleep(600)"
    )
    cloud = LocalCloud(Settings(directory=tmp_path, command=(sys.executable, "-c", deaf, "{directory}")), SystemClock())
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    assert _within(5, (tmp_path / "machines" / machine / "deaf").exists)
    assert cloud.release(machine, action_id="r1").state == "done"


def test_the_meter_bills_a_dead_machine_until_its_release_and_every_tick_exactly(
    cloud: LocalCloud, settings: Settings
) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    os.kill(_pid(settings, machine), signal.SIGKILL)
    cloud.release(machine, action_id="r1")
    (row,) = cloud.bill()
    assert row.period_end_unix_ns == _only(cloud).ended_unix_ns
    assert row.quantity_ticks == (row.period_end_unix_ns - row.period_start_unix_ns) // TICK_NS
    assert row.cost_usd == Decimal(row.quantity_ticks) * Decimal("27.197") / Decimal(10**9)


@pytest.mark.parametrize("call", ["release", "create"])
def test_an_unknown_name_is_refused_with_a_next_step(cloud: LocalCloud, call: str) -> None:
    with pytest.raises(CloudError) as caught:
        if call == "release":
            cloud.release("nobody", action_id="r")
        else:
            cloud.create(slot="gpu1", group="elsewhere", action_id="a")
    assert caught.value.next_step


def test_a_reimage_starts_the_same_machine_anew_with_nothing_of_its_own_left(
    cloud: LocalCloud, settings: Settings
) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    folder, pid = settings.directory / "machines" / machine, _pid(settings, machine)
    (folder / "spool").mkdir()
    (folder / "spool" / "1").write_text("left over")
    assert reimager(cloud) is cloud
    assert cloud.snapshot().groups[0].reimages
    assert cloud.reimage(machine, action_id="r1").state == "done"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not (folder / "spool").exists()
    again = _pid(settings, machine)
    assert again != pid
    assert LocalCloud(settings, SystemClock()).reimage(machine, action_id="r1").state == "done"
    assert _pid(settings, machine) == again  # the same action is one reimage
    assert _only(cloud).state == "running"
    assert cloud.reimage(machine, action_id="r2").state == "done"
    assert _pid(settings, machine) != again


def test_a_released_machine_is_not_reimaged(cloud: LocalCloud) -> None:
    machine = cloud.create(slot="gpu1", group="local", action_id="a1").machine
    cloud.release(machine, action_id="r")
    with pytest.raises(CloudError, match="cannot be reimaged"):
        cloud.reimage(machine, action_id="r1")
    assert _only(cloud).state == "gone"
