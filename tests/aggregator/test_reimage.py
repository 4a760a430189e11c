"""A fresh disk instead of another machine, by a whole centre: cured, not cured, sick again, killed in the middle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.settings import Settings
from gpuwatch.errors import CloudError
from gpuwatch.faults.nvml_codes import DRIVER_NOT_LOADED
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.wire import Envelope
from tests.fakes_centre import Centre, _raw

POLICY = 'software_fault = "reimage"\njoin_deadline_s = 200\nempty_deadline_s = 60\n'
SICK, SLOT = "m-gpu02", "gpu02"


class Killed(BaseException):
    """kill -9 at this instant."""


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = begun(tmp_path)
    yield made
    assert made.store is not None
    made.store.close()


def begun(folder: Path, policy: str = POLICY) -> Centre:
    made = Centre(folder, policy=policy)
    made.cloud.reimages = True
    made.settle()
    return made


def unload(centre: Centre) -> None:
    """The driver is not there after a kernel update."""
    facts = NvmlFacts(None, (), init_error=DRIVER_NOT_LOADED, pci_gpu_count=8, driver_loaded=False)
    centre.agents[SICK].nvml = Envelope("nvml", 0, 0.01, "ok", facts=_raw(facts))


def cures(centre: Centre, boot: str, *, well: bool = True) -> Callable[[str], None]:
    """What a reimage does to the node: silence, then another boot, with a driver or still without."""

    def hook(call: str) -> None:
        agent = centre.agents.get(SICK)
        if call == "reimage" and agent is not None and agent.boot != boot:
            agent.reboot(boot)
            if well:
                agent.nvml = None

    return hook


def calls(centre: Centre) -> list[str]:
    return [name for name, _ in centre.cloud.calls]


def done(centre: Centre) -> list[str]:
    return [line.step for line in centre.lines("action_step") if line.state == "done"]


def test_a_missing_driver_is_cured_on_the_same_machine(centre: Centre) -> None:
    centre.cloud.hook = cures(centre, "boot-2")
    centre.cloud.pending_count = 4
    unload(centre)
    centre.seconds(90)
    assert set(calls(centre)) == {"reimage"}
    assert done(centre) == ["drain", "end_job", "empty", "reimage", "join", "validate", "resume"]
    assert centre.states()[SLOT] == "healthy in_service"
    current = centre.fleet.current(SLOT)
    assert current is not None
    assert current.machine == SICK
    assert centre.scheduler.drains[SLOT] == ""
    lifecycles = [line.lifecycle for line in centre.lines("lifecycle") if line.machine == SICK]
    assert lifecycles[-4:] == ["draining", "repairing", "validating", "in_service"]
    (opened,) = centre.opened()
    assert opened.kind == "driver_failed"
    assert centre.book.open == {}
    centre.seconds(30)
    assert centre.states()[SLOT] == "healthy in_service"  # its own reboot makes it no suspect


def test_by_default_it_is_another_machine(tmp_path: Path) -> None:
    centre = begun(tmp_path, "")
    unload(centre)
    centre.seconds(90)
    assert calls(centre) == ["create", "release"]


def test_sick_again_it_is_replaced(centre: Centre) -> None:
    centre.cloud.hook = cures(centre, "boot-2")
    unload(centre)
    centre.seconds(90)
    assert calls(centre) == ["reimage"]
    unload(centre)
    centre.seconds(120)
    assert calls(centre) == ["reimage", "create", "release"]
    assert centre.states()[SLOT] == "healthy in_service"


def test_what_a_fresh_disk_does_not_cure_is_replaced(centre: Centre) -> None:
    centre.cloud.hook = cures(centre, "boot-2", well=False)
    unload(centre)
    centre.seconds(300)
    told = [line for line in centre.lines("action_step") if line.state == "failed"]
    assert [(line.step, line.because.partition(":")[0]) for line in told] == [
        ("validate", "a fresh system disk did not cure it")
    ]
    assert calls(centre) == ["reimage", "create", "release"]
    assert centre.states()[SLOT] == "healthy in_service"
    assert len(centre.opened()) == 1


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda c: c.cloud.fails.append(CloudError("no room")), id="the-cloud-refuses"),
        pytest.param(lambda c: setattr(c.cloud, "pending_count", 10**6), id="it-never-ends"),
        pytest.param(lambda _centre: None, id="it-never-boots-anew"),
    ],
)
def test_a_reimage_that_fails_goes_on_to_replacement(centre: Centre, break_it: Callable[[Centre], Any]) -> None:
    break_it(centre)
    unload(centre)
    centre.seconds(230)
    centre.cloud.pending_count = 0
    centre.seconds(120)
    assert list(dict.fromkeys(calls(centre))) == ["reimage", "create", "release"]
    assert centre.states()[SLOT] == "healthy in_service"
    assert len(centre.cloud.alive(SLOT)) == 1
    assert len(centre.opened()) == 1


def test_a_person_who_takes_over_in_the_middle_wins(centre: Centre) -> None:
    centre.scheduler.add_job("run.1", (SLOT,), may_requeue=False)
    unload(centre)
    centre.seconds(20)
    assert centre.executor.open()
    centre.scheduler.drains[SLOT] = "maintenance by ada"
    centre.seconds(200)
    assert calls(centre) == []
    assert centre.executor.open() == []
    assert centre.scheduler.drains[SLOT] == "maintenance by ada"
    assert centre.states()[SLOT].endswith("draining")  # by another


def test_a_board_that_fails_before_the_disk_is_thrown_away_is_replaced(centre: Centre) -> None:
    centre.scheduler.add_job("run.1", (SLOT,), may_requeue=False)
    unload(centre)
    centre.seconds(20)
    assert [saga.action.kind for saga in centre.executor.open()] == ["reimage"]
    centre.agents[SICK].xid(79)
    centre.seconds(10)
    centre.scheduler.end_job("run.1", "completed", 0)
    centre.seconds(120)
    assert calls(centre) == ["create", "release"]


def test_the_policy_is_changed_back_before_the_call(centre: Centre) -> None:
    centre.cloud.owner = "aks"
    unload(centre)
    centre.seconds(200)
    assert calls(centre) == []
    assert centre.states()[SLOT].endswith("drained")


def test_killed_at_each_persisted_step_it_is_reimaged_and_never_replaced(tmp_path: Path) -> None:
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        centre = begun(folder)
        centre.cloud.hook = cures(centre, "boot-2")
        store: Any = centre.store
        save, count = store.save_saga, 0

        def dying(row: Any, lines: Any, save: Any = save, number: int = number) -> None:
            nonlocal count
            save(row, lines)
            count += 1
            if count == number + 1:
                raise Killed

        store.save_saga = dying
        unload(centre)
        try:
            centre.seconds(100)
        except Killed:
            centre.boot()
            centre.seconds(150)
        told = f"killed {number}"
        assert set(calls(centre)) == {"reimage"}, told
        assert centre.executor.open() == [], told
        assert [saga.outcome for saga in centre.executor.sagas()] == ["done"], told
        assert centre.states()[SLOT] == "healthy in_service", told
        assert centre.scheduler.drains[SLOT] == "", told
        assert centre.store is not None
        centre.store.close()
        if count <= number:
            assert number > 10
            return


def test_a_process_that_begins_after_the_new_boot_knows_that_we_ordered_it(centre: Centre) -> None:
    centre.cloud.hook = cures(centre, "boot-2")
    unload(centre)
    while "join" not in done(centre):
        centre.second()
    seen = [record.last_seen() for record in centre.fleet.machines()]
    old = [msgspec.structs.replace(row, boot_id="boot-of-m-gpu02") if row.machine == SICK else row for row in seen]
    assert centre.store is not None
    centre.store.keep([], old)  # what was kept last before the crash
    centre.boot()
    centre.seconds(150)
    assert centre.states()[SLOT] == "healthy in_service"
    assert calls(centre) == ["reimage"]


def test_the_settings_file_knows_the_words(tmp_path: Path) -> None:
    settings: Settings = begun(tmp_path).settings
    assert settings.policies()["p"].software_fault == "reimage"
