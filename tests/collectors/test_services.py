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
    assert asked.endswith("pbs.service extra.service\n")


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
    assert [recent(count, after_s) for count, after_s in steps] == [0, 0, 2, 3, 3, 0, 0, 1, 0]


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
