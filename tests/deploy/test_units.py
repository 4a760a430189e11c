"""The systemd units: nothing unknown in them, and what the agent relies on is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import gpuwatch.collectors
from gpuwatch.agent.settings import checked, load
from gpuwatch.collectors import Collector
from gpuwatch.registry import leaves

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "gpuwatch-agent.service"


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_to_say(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/gpuwatch/bin/python", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert ours == []  # an unknown key is only a line here, not an exit code


@pytest.mark.parametrize(
    "line",
    [
        "Type=notify",
        "KillMode=mixed",
        "RuntimeDirectoryPreserve=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=CAP_SYSLOG",
        "DeviceAllow=/dev/kmsg r",
    ],
)
def test_what_the_agent_relies_on(line: str) -> None:
    assert line in UNIT.read_text().splitlines()


def test_the_stop_is_short_and_limits_hold() -> None:
    keys = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    assert int(keys["TimeoutStopSec"]) <= 10
    assert int(keys["WatchdogSec"]) >= 30
    assert keys["MemoryMax"] == "256M"
    assert "ProtectKernelLogs" not in keys


def test_the_example_settings_are_the_usual_values() -> None:
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    example = load(UNIT.with_name("agent.toml"), doors)
    usual = checked({}, doors, file="")
    assert example.collectors == usual.collectors
    ours = msgspec.structs.replace(example.agent, aggregator=(), token_file="", collectors={})
    assert ours == usual.agent
