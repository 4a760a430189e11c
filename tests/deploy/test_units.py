"""The systemd units: nothing unknown in them, hardened, and what the processes rely on is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import gpuwatch.collectors
from gpuwatch.agent.settings import checked, load
from gpuwatch.collectors import Collector
from gpuwatch.errors import StoreError
from gpuwatch.registry import leaves
from gpuwatch.sdk.machine_id import HANDED, SOURCES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
AGENT, AGGREGATOR = DEPLOY / "gpuwatch-agent.service", DEPLOY / "gpuwatch-aggregator.service"
HANDS = DEPLOY / "gpuwatch-hands.service"
UNITS = pytest.mark.parametrize("unit", [AGENT, AGGREGATOR], ids=["agent", "aggregator"])
ALL = pytest.mark.parametrize("unit", [AGENT, AGGREGATOR, HANDS], ids=["agent", "aggregator", "hands"])
MOST_EXPOSED = {  # of 10, as systemd 252 counts
    HANDS: 2.2,  # root, and it must see all processes
    AGENT: 2.1,  # it sees that /home is there, to ask a file server below it whether it answers
}
USUALLY_EXPOSED = 2.0


def keys(unit: Path) -> dict[str, list[str]]:
    """Key -> its values in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and line[0] not in "#;":
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


@ALL
@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_to_say(unit: Path, tmp_path: Path) -> None:
    """In a root with nothing but systemd's own units and what the unit starts."""
    shutil.copytree("/lib/systemd/system", tmp_path / "lib/systemd/system", symlinks=True)
    shutil.copy(unit, tmp_path / "lib/systemd/system")
    for name in ("opt/gpuwatch/bin/python", "opt/gpuwatch/bin/gpuwatch", "usr/bin/install"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    words = ["systemd-analyze", "verify", f"--root={tmp_path}", unit.name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # an unknown key is only a line, not an exit code


@ALL
@pytest.mark.needs("systemd-analyze")
def test_little_is_exposed(unit: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED.get(unit, USUALLY_EXPOSED)


@UNITS
@pytest.mark.parametrize(
    "line",
    [
        "Type=notify",
        "Restart=always",
        "KillMode=mixed",
        "User=gpuwatch",
        "StateDirectory=gpuwatch",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "LimitCORE=0",
        "SystemCallErrorNumber=EPERM",
        "RestartPreventExitStatus=2",
    ],
)
def test_what_both_rely_on(unit: Path, line: str) -> None:
    assert line in unit.read_text().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeDirectoryPreserve=yes",
        "CapabilityBoundingSet=CAP_SYSLOG",
        "DeviceAllow=/dev/kmsg r",
        "DeviceAllow=char-195 rw",  # also where the driver is loaded after the agent
        "OOMPolicy=continue",  # the end of a probe is not the end of the agent
    ],
)
def test_what_the_agent_relies_on(line: str) -> None:
    assert line in AGENT.read_text().splitlines()


@UNITS
def test_nothing_is_done_as_root_in_folders_that_are_not_roots(unit: Path) -> None:
    found = keys(unit)
    commands = [value for key, values in found.items() if key.startswith("Exec") for value in values]
    assert commands
    as_root = [command for command in commands if command.lstrip("-:@")[0] in "+!"]
    hand_over = f"-+/usr/bin/install -D -m 0444 {SOURCES[0]} {HANDED}"
    assert as_root == ([hand_over] if unit == AGENT else [])
    ours = {f"/run/{name}" for name in " ".join(found.get("RuntimeDirectory", [])).split()}
    assert str(Path(HANDED).parent) not in ours  # those belong to the unit's user, who could lay a link there


@UNITS
def test_settings_that_cannot_be_used_end_with_the_code_that_no_restart_follows(unit: Path, tmp_path: Path) -> None:
    """And what a restart may mend ends with another."""
    (prevented,) = keys(unit)["RestartPreventExitStatus"]
    module = {AGENT: "gpuwatch.wiring.agent", AGGREGATOR: "gpuwatch.wiring.aggregator"}[unit]
    broken = tmp_path / "settings.toml"
    broken.write_text("nonsense = 1\n")
    for path in (broken, tmp_path / "absent.toml"):
        words = [sys.executable, "-m", module, "--config", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert str(done.returncode) == prevented, done.stderr
        assert done.stderr.startswith("gpuwatch: ")
    assert str(StoreError("x").exit_code) != prevented


@pytest.mark.parametrize(
    "line",
    [
        "ConditionPathExists=/etc/gpuwatch/hands.toml",  # nothing without settings
        "DefaultDependencies=no",  # a shutdown that hangs does not end it first
        "PrivateNetwork=yes",
        "RestrictAddressFamilies=AF_UNIX",
        "StateDirectory=gpuwatch-hands",
        "StateDirectoryMode=0700",
        "RuntimeDirectory=gpuwatch-hands",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "LimitCORE=0",
    ],
)
def test_what_the_hands_rely_on(line: str) -> None:
    assert line in HANDS.read_text().splitlines()


def test_the_hands_can_reach_the_last_step_of_a_reboot_and_outlive_its_first() -> None:
    found = keys(HANDS)
    assert not {"ProtectKernelTunables", "ProtectProc", "Conflicts", "Requires", "BindsTo", "PrivateTmp"} & found.keys()


@ALL
def test_the_stop_is_short_and_limits_hold(unit: Path) -> None:
    found = keys(unit)
    assert int(found["TimeoutStopSec"][0]) <= 10
    assert int(found["TimeoutAbortSec"][0]) <= 10
    assert int(found["WatchdogSec"][0]) >= 30
    assert {"MemoryHigh", "MemoryMax", "CPUQuota", "TasksMax"} <= found.keys()


def test_the_agent_stays_small_and_sees_the_kernels_ring() -> None:
    found = keys(AGENT)
    assert found["MemoryMax"] == ["256M"]
    assert found["CPUQuota"] == ["20%"]
    assert not {"ProtectKernelLogs", "PrivateDevices", "PrivateUsers"} & found.keys()  # each hides /dev/kmsg


def test_the_example_settings_are_the_usual_values() -> None:
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    example = load(DEPLOY / "agent.toml", doors)
    usual = checked({}, doors, file="")
    assert example.collectors == usual.collectors
    ours = msgspec.structs.replace(example.agent, aggregator=(), token_file="", collectors={})
    assert ours == usual.agent
