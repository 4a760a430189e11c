"""Every call that the collector makes x everything that NVML can answer: the right fact, the right verdict, no crash.

The calls are not listed by hand: they are those that a healthy round makes, so a new one is in the table by itself. One
GPU of eight is struck; the other seven must be as they were.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

import gpuwatch.rules
from gpuwatch.collectors import Reading, nvml
from gpuwatch.decide.assess import assess
from gpuwatch.decide.judge import judge
from gpuwatch.errors import ProbeError
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.states import Health
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from gpuwatch.sdk.nvml_routine import Routine
from tests.fakes import T0, fleet_view, node_view
from tests.nvml_library.build import SONAME, build
from tests.nvml_library.state import State

pytestmark = pytest.mark.needs("gcc")

STRUCK = 2
CODES = (1, 2, 3, 4, 6, 7, 8, 10, 11, 13, 14, 15, 16, 17, 19, 20, 21, 23, 25, 26, 27, 999, 4711)
AHEAD_CODES = (1, 3, 4, 7, 13, 15, 16, 25, 999)
RATES = ("utilization_ratio", "memory_utilization_ratio")
CONDEMNING = {8, 11, 14, 15, 16}
ANSWERS = {3, 6, 7, 13, 19, 21, 25, 26}  # "this board has no such thing", "not now": no word on its health
HANDLE = "nvmlDeviceGetHandleByIndex_v2"
TOLD_ANOTHER_WAY = {"nvmlDeviceGetMarginTemperature"}  # worked out from the limit
GROWN = {name for name in Gpu.__struct_fields__ if name.endswith(("_hour_count", "_ratio"))}
RULES: dict[str, tuple[Rule[Any], Any]] = {
    name: (rule, rule.settings())
    for name, rule in leaves(gpuwatch.rules, "RULE", Rule, FleetRule).items()
    if isinstance(rule, Rule)
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("GPUWATCH_TEST_NVML_STATE", str(tmp_path / "nvml.txt"))
    return State(tmp_path / "nvml.txt")


Opened = Callable[..., tuple[Any, list[str]]]


@pytest.fixture
def opened(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A reader that asks everything each round, and what it called."""
    (tmp_path / "pci").mkdir()
    for number in range(8):
        device = tmp_path / "pci" / f"0000:{0x1B + 0x10 * number:02x}:00.0"
        device.mkdir()
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    (tmp_path / "driver").write_text("NVRM version: 580")
    readers: list[Any] = []

    def make(**settings: Any) -> tuple[Any, list[str]]:
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(build() / SONAME)))
        places = {"pci_devices": str(tmp_path / "pci"), "driver_file": str(tmp_path / "driver"), "container": "no"}
        often = {"calm_every": 1, "slow_every": 1, "seldom_every": 1}
        reader = nvml.open_reader(nvml.Settings(**(places | often | settings)))
        notes: list[str] = []
        reader.watch(notes.append)
        readers.append(reader)
        return reader, notes

    yield make
    for reader in readers:
        reader.close()


@functools.cache
def usual() -> tuple[tuple[Gpu, ...], tuple[str, ...], tuple[str, ...]]:
    """Eight healthy GPUs; the calls on a GPU and those on the library that it takes to see them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GPUWATCH_TEST_NVML_STATE", raising=False)
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(build() / SONAME)))
        reader = nvml.open_reader(nvml.Settings(container="no"))
        notes: list[str] = []
        reader.watch(notes.append)
        gpus = reader.read().facts.gpus
        reader.close()
    on_gpu = {note.partition(" of GPU ")[0] for note in notes if " of GPU " in note}
    return gpus, tuple(sorted(on_gpu)), tuple(sorted({n for n in notes if " of GPU " not in n} - {"nvmlInit"}))


def plain(gpu: Gpu) -> dict[str, Any]:
    """Everything but what depends on when one looked."""
    return {name: getattr(gpu, name) for name in Gpu.__struct_fields__ if name not in GROWN}


def told(gpu: Gpu) -> dict[str, Any]:
    """Everything that does not depend on how long a round took."""
    return {name: getattr(gpu, name) for name in Gpu.__struct_fields__ if not name.endswith("_ratio") or name in RATES}


def verdict(facts: NvmlFacts) -> tuple[Health, set[str]]:
    """What the node is judged to be by these facts, and which rules spoke against it."""
    view = node_view()
    view = replace(view, facts=dict(view.facts) | {NvmlFacts: facts})
    found = assess(view, T0, RULES)
    (said,) = judge(fleet_view(view), {view.machine: found}, None, {}, T0).nodes
    return said.health, {finding.rule for finding in found if isinstance(finding, Evidence) and not finding.note}


def test_the_table_has_the_calls() -> None:
    _, on_gpu, on_library = usual()
    assert len(on_gpu) > 20
    assert {HANDLE, "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV"} <= set(on_gpu)
    assert set(on_library) == {
        "nvmlDeviceGetCount_v2",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlShutdown",
    }


def test_every_call_on_a_gpu_with_every_code(opened: Opened, state: State) -> None:
    gpus, on_gpu, _ = usual()
    for function in on_gpu:
        for code in CODES:
            state.lines = {(STRUCK, f"refuse:{function}"): code, (-1, "reserved"): 0}  # as the old way counts
            state.write()
            reading = opened()[0].read()
            where = f"{function} answers {code}"
            struck = reading.facts.gpus[STRUCK]
            assert len(reading.facts.gpus) == 8, where
            others = [gpu for gpu in reading.facts.gpus if gpu.index != STRUCK]
            assert all(plain(gpu) == plain(gpus[gpu.index]) for gpu in others), where
            told = any(f"[{STRUCK}]" in place for place in reading.gaps)
            assert told or plain(struck) == plain(gpus[STRUCK]) | {"error": struck.error}, where
            condemned = code in CONDEMNING or function == HANDLE
            assert struck.error == (code if condemned else None), where
            health, rules = verdict(reading.facts)
            if code == 15:
                assert (health, "gpu_lost" in rules) == (Health.DRIVER_FAILED, True), where
            elif not condemned:
                assert health is Health.HEALTHY, f"{where}: {health} by {rules}"
            else:
                assert health is not Health.HEALTHY or code in ANSWERS, f"{where}: {health} by {rules}"


@pytest.mark.parametrize("how", ["refuse", "garbage"])
def test_calls_made_ahead_of_the_look_at_them_come_to_the_same(
    opened: Opened, state: State, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One reader makes the calls of a round in one go, the other one by one. The fault comes after healthy rounds,
    stays for some and goes."""
    healthy: dict[tuple[int, str], object] = {(-1, "count"): 3, (-1, "reserved"): 0}
    for function in usual()[1]:
        for code in AHEAD_CODES if how == "refuse" else (0,):
            state.lines = dict(healthy)
            state.write()
            readers = [opened(seldom_every=1000, calm_every=2, slow_every=3)[0] for _ in range(2)]
            for number in range(9):
                if number in (4, 7):
                    place, value = (f"refuse:{function}", code) if how == "refuse" else ("garbage", function)
                    state.lines = healthy | ({(STRUCK, place): value} if number == 4 else {})
                    state.write()
                ahead = readers[0].read()
                with monkeypatch.context() as patch:
                    patch.setattr(Routine, "perform", lambda self: None)
                    one_by_one = readers[1].read()
                where = f"{function} answers {code or how} in round {number}"
                assert [told(gpu) for gpu in ahead.facts.gpus] == [told(gpu) for gpu in one_by_one.facts.gpus], where
                assert ahead.gaps == one_by_one.gaps, where


def test_a_round_makes_each_call_once_and_a_lost_gpu_is_asked_no_more(opened: Opened, state: State) -> None:
    reader, notes = opened(seldom_every=1000)
    reader.read()
    notes.clear()
    reader.read()
    first = list(notes)
    notes.clear()
    reader.read()
    assert sorted(notes) == sorted(first)
    assert len(notes) == len(set(notes)) + 8 * 2  # two clocks have one name, and two sets of fields
    state.gpu(STRUCK, error=15)
    notes.clear()
    assert reader.read().facts.gpus[STRUCK].error == 15
    assert sum(note.endswith(f" of GPU {STRUCK}") for note in notes) == 1


def test_every_call_on_a_gpu_with_noise(opened: Opened, state: State) -> None:
    """No noise becomes a number, a fault, or another GPU's."""
    gpus, on_gpu, _ = usual()
    for function in on_gpu:
        if function == HANDLE:
            continue  # its answer is the GPU
        state.lines = {(STRUCK, "garbage"): function}
        state.write()
        reading = opened()[0].read()
        others = [gpu for gpu in reading.facts.gpus if gpu.index != STRUCK]
        assert all(plain(gpu) == plain(gpus[gpu.index]) for gpu in others), function
        struck = reading.facts.gpus[STRUCK]
        assert struck.error is None, function
        for name in Gpu.__struct_fields__:
            value = getattr(struck, name)
            if name not in GROWN and value != getattr(gpus[STRUCK], name):
                assert value is None or value == (), f"{function} made {name} {value!r}"
        if function not in TOLD_ANOTHER_WAY:
            assert any(f"[{STRUCK}]" in place for place in reading.gaps), function
        assert verdict(reading.facts)[0] is Health.HEALTHY, function


@pytest.mark.parametrize("code", CODES)
def test_every_call_on_the_library_with_every_code(opened: Opened, state: State, code: int) -> None:
    for function in (*usual()[2], "nvmlInitWithFlags"):
        state.lines = {(-1, f"refuse:{function}"): code}
        state.write()
        facts = opened()[0].read().facts
        where = f"{function} answers {code}"
        if function in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2"):
            assert (facts.init_error, facts.gpus) == (code, ()), where
            assert verdict(facts)[0] is not Health.HEALTHY, where
            state.lines = {}
            state.write()
        else:
            assert [gpu.error for gpu in facts.gpus] == [None] * 8, where
            assert verdict(facts)[0] is Health.HEALTHY, where


def test_noise_from_the_library(opened: Opened, state: State) -> None:
    state.all(garbage="nvmlDeviceGetCount_v2")
    with pytest.raises(ProbeError, match="NVML counts 3735928559 GPUs"):
        opened()[0].read()
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        state.all(garbage=function)
        facts = opened()[0].read().facts
        version = facts.driver_version if function == "nvmlSystemGetDriverVersion" else facts.cuda_version
        assert (len(facts.gpus), version) == (8, None), function


def test_every_call_that_hangs_is_named_and_its_late_answer_is_an_answer(opened: Opened, state: State) -> None:
    """What the agent does with a child that hangs is tested beside its supervision; here: which call it is."""
    gpus, on_gpu, on_library = usual()
    calls = [(function, STRUCK) for function in on_gpu]
    calls += [(function, -1) for function in (*on_library, "nvmlInitWithFlags") if function != "nvmlShutdown"]
    for function, index in calls:
        state.lines = {(index, "hang"): function}
        state.write()
        reader, notes = opened()
        found: list[Reading] = []
        thread = threading.Thread(target=lambda r=reader, f=found: f.append(r.read()), daemon=True)
        thread.start()
        name = "nvmlInit" if function == "nvmlInitWithFlags" else function
        words = name if index < 0 else f"{name} of GPU {index}"
        until = time.monotonic() + 5
        while (not notes or notes[-1] != words) and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.01)
        assert thread.is_alive(), words
        assert notes[-1] == words
        state.lines = {}
        state.write()
        thread.join(5)
        assert [plain(gpu) for gpu in found[0].facts.gpus] == [plain(gpu) for gpu in gpus], words


@pytest.mark.parametrize(
    ("index", "function", "words"),
    [
        pytest.param(-1, "nvmlInitWithFlags", "nvmlInit", id="at-init"),
        pytest.param(-1, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount_v2", id="at-enumeration"),
        pytest.param(3, "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetUtilizationRates of GPU 3", id="on-one-gpu"),
        pytest.param(-1, "nvmlShutdown", "nvmlShutdown", id="on-shutdown"),
    ],
)
def test_a_child_that_hangs_is_told_and_killed_once(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch, index: int, function: str, words: str
) -> None:
    """The real child over the real library, with small deadlines; the parent never waits."""
    from gpuwatch.agent.book import Book
    from gpuwatch.agent.child import System
    from gpuwatch.agent.supervise import Probe
    from gpuwatch.clock import SystemClock
    from gpuwatch.model.moment import Moment

    monkeypatch.setenv("LD_LIBRARY_PATH", str(build()))
    state.gpu(index, hang=function)
    if function == "nvmlShutdown":
        state.all(count=7)  # the bus shows more: NVML is ended and started again
        (tmp_path / "pci" / "0000:1b:00.0").mkdir(parents=True)
        for number in range(8):
            device = tmp_path / "pci" / f"0000:{0x20 + number:02x}:00.0"
            device.mkdir()
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")
    settings = nvml.Settings(
        interval_s=0.1, deadline_s=1.0, kill_after_s=1.5, container="no", pci_devices=str(tmp_path / "pci")
    )
    probe = Probe("nvml", nvml.COLLECTOR, settings, boot_id="b", book=Book(tmp_path, "nvml"), processes=System())
    clock = SystemClock()
    slowest_s, said, until = 0.0, "", time.monotonic() + 15
    while time.monotonic() < until:
        begun = time.monotonic()
        now = Moment(clock.unix_ns(), clock.monotonic_ns())
        probe.tick(now)
        if probe.fileno() >= 0:
            probe.readable(now)
        slowest_s = max(slowest_s, time.monotonic() - begun)
        latest = probe.latest()
        if latest is not None and latest.status == "hung":
            said = latest.reason or ""
            break
        time.sleep(0.02)
    assert f"in {words}; child" in said
    assert slowest_s < 0.5
    state.lines = {}
    state.write()
    probe.close()
