"""Units as `systemctl show` prints them, by a stand-in for systemctl."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpuwatch.collectors import Hung, Unsupported, services
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.services import Unit
from gpuwatch.sdk.systemd_units import shown

RUNNING = {
    "Id": "slurmd.service",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "Type": "simple",
    "UnitFileState": "enabled",
    "ConditionResult": "yes",
    "NRestarts": "0",
    "ActiveEnterTimestampMonotonic": "5000000",
    "StateChangeTimestampMonotonic": "5000000",
}


def block(**changes: str) -> str:
    return "".join(f"{key}={value}\n" for key, value in (RUNNING | changes).items())


class Systemd:
    """Says what it is told to, as systemctl."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "run/systemd/system").mkdir(parents=True)
        self.script = root / "systemctl"
        self.does('cat "$0.says"')
        self.script.chmod(0o755)
        self.says()

    def does(self, command: str) -> None:
        self.script.write_text(f'#!/bin/sh\necho "$@" > "$0.asked"\n{command}\n')

    def says(self, *blocks: str) -> None:
        Path(f"{self.script}.says").write_text("\n".join(blocks))

    def reader(self, **changes: Any) -> Any:
        usual: dict[str, Any] = {"run_root": str(self.root / "run"), "systemctl": str(self.script)}
        return services.open_reader(services.Settings(**usual | changes))


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


def units(reader: Any) -> tuple[Unit, ...]:
    found = reader.read().facts.units
    assert isinstance(found, tuple)
    return found


def test_a_unit_that_runs(systemd: Systemd) -> None:
    systemd.says(block())
    (unit,) = units(systemd.reader(more=("extra.service",)))
    assert unit == Unit(
        "slurmd.service",
        "active",
        "running",
        "success",
        enabled=True,
        was_active=True,
        since_unix_ns=unit.since_unix_ns,
        restart_count=0,
    )
    assert unit.since_unix_ns is not None
    assert abs(unit.since_unix_ns - (time.time_ns() - time.monotonic_ns() + 5 * 10**9)) < 10**9
    asked = Path(f"{systemd.script}.asked").read_text()
    assert asked.startswith("show --no-pager --property=Id,LoadState,")
    assert asked.endswith("pbs.service gpuwatch-agent.service extra.service\n")


@pytest.mark.parametrize(
    ("changes", "told", "must_run"),
    [
        ({}, True, True),
        ({"LoadState": "not-found"}, False, False),
        ({"LoadState": "masked"}, False, False),
        ({"Type": "oneshot"}, False, False),
        ({"UnitFileState": "disabled"}, True, True),  # somebody started it in this boot
        ({"UnitFileState": "disabled", "ActiveEnterTimestampMonotonic": "0"}, True, False),
        ({"UnitFileState": "static", "ActiveEnterTimestampMonotonic": "0"}, True, False),
        ({"ConditionResult": "no", "ActiveEnterTimestampMonotonic": "0"}, False, False),
        ({"ActiveState": "failed", "Result": "exit-code"}, True, True),
        ({"ActiveState": "strange"}, False, False),
    ],
)
def test_which_units_are_told_and_wanted(systemd: Systemd, changes: dict[str, str], told: bool, must_run: bool) -> None:
    systemd.says(block(**changes))
    found = units(systemd.reader())
    assert [unit.must_run() for unit in found] == ([must_run] if told else [])


def test_the_agents_own_unit_is_asked_after(systemd: Systemd) -> None:
    """Its restarts are a symptom of the node (NVIDIA/NVSentinel#1748), and outlive it where systemd counts them."""
    systemd.says(block(Id="gpuwatch-agent.service", NRestarts="49"))
    assert units(systemd.reader())[0].restart_count == 49
    assert "gpuwatch-agent.service" in Path(f"{systemd.script}.asked").read_text().split()


def test_two_names_of_one_unit_are_one(systemd: Systemd) -> None:
    systemd.says(block(), block(), block(Id="munge.service"))
    assert [unit.name for unit in units(systemd.reader())] == ["slurmd.service", "munge.service"]


def test_restarts_within_the_window(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("gpuwatch.collectors.services.time.monotonic", lambda: now_s[0])
    reader = systemd.reader(restart_window_s=600)

    def recent(count: str, after_s: float) -> int:
        now_s[0] += after_s
        systemd.says(block(NRestarts=count))
        return reader._recent(shown(block(NRestarts=count))[0])  # type: ignore[no-any-return]

    steps = [("7", 60), ("7", 60), ("9", 60), ("10", 60), ("10", 500), ("10", 200), ("2", 60), ("3", 60), ("x", 1)]
    assert [recent(count, after_s) for count, after_s in steps] == [0, 0, 2, 3, 1, 0, 0, 1, 0]
    assert [recent("3", 700), recent("9", 601), recent("9", 1)] == [0, 0, 0], "six came, nobody knows when"


def test_restarts_stay_counted_over_a_restart_of_the_agent_and_end_with_the_boot(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recent(count: str) -> int:
        systemd.says(block(NRestarts=count))
        reader = systemd.reader()
        reader.keep(tmp_path)
        return units(reader)[0].recent_restart_count

    assert [recent(count) for count in ("7", "12", "12")] == [0, 5, 5]
    monkeypatch.setattr("gpuwatch.collectors.services.this_boot_id", lambda: "another")
    assert [recent(count) for count in ("1", "3")] == [0, 2]
    (tmp_path / "learned-services.json").write_bytes(b"\xff{")
    assert recent("9") == 0


class Agents:
    """One agent after another on the same node, at moments that the test gives."""

    def __init__(self, systemd: Systemd, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 50_000.0
        self._systemd, self._folder = systemd, folder
        monkeypatch.setattr("gpuwatch.collectors.services.time.monotonic", lambda: self.now_s)

    def begin(self) -> Any:
        reader = self._systemd.reader(restart_window_s=3600)
        reader.keep(self._folder)
        return reader

    def told(self, reader: Any, count: int, *, looks: int = 1) -> int:
        """After so many looks, one a minute."""
        self._systemd.says(block(NRestarts=str(count)))
        for _ in range(looks):
            self.now_s += 60
            (unit,) = units(reader)
        return unit.recent_restart_count


def test_what_the_disk_did_not_take_is_not_told_anew_by_the_next_agent(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    agents = Agents(systemd, folder, monkeypatch)
    first = agents.begin()
    assert agents.told(first, 5, looks=3) == 0
    folder.rename(tmp_path / "aside")  # from here on nothing can be written
    assert agents.told(first, 13) == 8
    assert agents.told(first, 13, looks=61) == 0, "that was more than an hour ago"
    (tmp_path / "aside").rename(folder)
    assert agents.told(agents.begin(), 13) == 0


def test_what_the_disk_did_not_take_is_written_when_it_can_be(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    agents = Agents(systemd, folder, monkeypatch)
    first = agents.begin()
    agents.told(first, 5)
    folder.rename(tmp_path / "aside")
    assert agents.told(first, 13) == 8
    (tmp_path / "aside").rename(folder)
    assert agents.told(first, 13, looks=2) == 8
    assert "13]" in (folder / "learned-services.json").read_text()
    assert agents.told(agents.begin(), 13) == 8, "less than an hour ago, whoever asks"


@pytest.mark.parametrize(("away_s", "told"), [(1800, 8), (3600, 0), (86_400, 0)])
def test_restarts_while_no_agent_ran_are_told_only_where_they_are_surely_fresh(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float, told: int
) -> None:
    agents = Agents(systemd, tmp_path, monkeypatch)
    agents.told(agents.begin(), 5, looks=3)
    agents.now_s += away_s
    second = agents.begin()
    assert agents.told(second, 13) == told
    assert agents.told(second, 13, looks=61) == 0


def test_what_was_learned_is_rarely_written(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(systemd, tmp_path, monkeypatch)
    reader, written = agents.begin(), set[int]()
    for _ in range(60):
        agents.told(reader, 5)
        written.add((tmp_path / "learned-services.json").stat().st_mtime_ns)
    assert len(written) <= 13


@pytest.mark.parametrize(
    "looks",
    [
        "[[99999, 5], [99999.5, 6]]",  # of a time to come
        "[[100, 9], [200, 5]]",
        "[[300, 5], [200, 9]]",
        "[]",
        "[[1, 2, 3]]",
        '[["a", 5]]',
    ],
)
def test_a_memory_that_makes_no_sense_is_none(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: str
) -> None:
    agents = Agents(systemd, tmp_path, monkeypatch)
    monkeypatch.setattr("gpuwatch.collectors.services.this_boot_id", lambda: "b")
    (tmp_path / "learned-services.json").write_text(f'{{"boot_id": "b", "units": {{"slurmd.service": {looks}}}}}')
    reader = agents.begin()
    assert [agents.told(reader, count) for count in (13, 13, 14)] == [0, 0, 1]


def test_a_boot_that_nobody_knows_is_another_one(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatch.collectors.services.this_boot_id", lambda: "")
    agents = Agents(systemd, tmp_path, monkeypatch)
    assert agents.told(agents.begin(), 5) == 0
    assert agents.told(agents.begin(), 13) == 0


def test_a_node_without_systemd_is_unsupported(systemd: Systemd, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="does not run systemd"):
        systemd.reader(run_root=str(tmp_path / "none")).read()
    with pytest.raises(Unsupported, match="has no no-such-systemctl"):
        systemd.reader(systemctl="no-such-systemctl").read()


def test_a_systemctl_that_fails_or_is_no_program(systemd: Systemd) -> None:
    systemd.does("echo 'Failed to connect to bus' >&2; exit 1")
    with pytest.raises(ProbeError) as caught:
        systemd.reader().read()
    assert caught.value.why == "Failed to connect to bus"
    systemd.script.write_bytes(b"\x00")
    with pytest.raises(ProbeError, match="could not be asked"):
        systemd.reader().read()


def test_a_systemd_that_does_not_answer_is_hung_since_the_first_time(systemd: Systemd) -> None:
    systemd.does("exec sleep 60")
    reader = systemd.reader(deadline_s=0.3)
    with pytest.raises(Hung, match=r"systemd does not answer: no answer for more than 0\.3 s") as first:
        reader.read()
    with pytest.raises(Hung) as second:
        reader.read()
    assert first.value.since_unix_ns == second.value.since_unix_ns
    systemd.does('cat "$0.says"')
    systemd.says(block())
    assert len(units(reader)) == 1


@hypothesis_settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300) | st.lists(st.sampled_from([*RUNNING, "=", "\n", "9" * 30, "loaded"])).map("".join))
def test_whatever_systemctl_prints(text: str) -> None:
    shown(text)


def test_this_machine() -> None:
    reader = services.open_reader(services.Settings())
    if Path("/run/systemd/system").exists():
        reader.read()
    else:
        with pytest.raises(Unsupported):
            reader.read()
