"""Three nodes and their aggregator, each a Debian with a real systemd: from the units' start to their removal.

The wheel is built from this tree, installed without a network, the settings are the shipped examples, the wire is TLS.
Simulated are only the GPUs. One story in order: each test goes on where the one before it ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator.heard import LATE_S
from gpuwatch.model.wire import Report
from tests.systemd_nodes import TREE, Machine, until
from tests.systemd_site import AGENT, AGGREGATOR, WATCHDOG_S, Site, built

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "systemd-nspawn", "debootstrap", "ip"),
]

SLOTS = ("gpu1", "gpu2", "gpu3")
FIRST, SECOND = "0.0.1", "0.0.2"
CUT_OFF_S = 25.0
CAP_SYSLOG = 1 << 34
LATE, REPEATED = (f'gpuwatch_reports_taken_total{{how="{how}"}}' for how in ("late", "repeated"))
XID = "NVRM: Xid (PCI:0000:{gpu:02x}:00): 43, pid=100, name=python, Ch 00000008"  # the same of one GPU is one event

PAGE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with built(SLOTS, (FIRST, SECOND)) as made:
        yield made


def kernel_says(machine: Machine, gpu: int) -> None:
    """One line of the kernel log."""
    uptime_s = Path("/proc/uptime").read_text().split()[0]
    machine.run("sh", "-c", f"echo '[{uptime_s}] {XID.format(gpu=gpu)}' >> /var/log/kern.log")


def test_both_start_are_ready_and_have_no_more_rights_than_they_need(site: Site) -> None:
    took_s = site.until_well()
    for machine, unit in ((site.centre.machine, AGGREGATOR), *((node, AGENT) for node in site.nodes.values())):
        assert machine.shows(unit, "ActiveState") == "active"
        assert machine.run("systemctl", "is-enabled", unit) == "enabled"
        assert machine.shows(unit, "NRestarts") == "0"
        words = machine.shows(unit, "StatusText")
        assert words, machine.name
        assert "not ok" not in words, words  # no source misses what the sandbox denies
        status = machine.run("cat", f"/proc/{machine.shows(unit, 'MainPID')}/status")
        keys = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(keys["Uid"].split()) == {machine.run("id", "-u", "gpuwatch")}
        assert int(keys["CapEff"], 16) == (CAP_SYSLOG if unit == AGENT else 0)
        assert (keys["NoNewPrivs"], keys["Seccomp"]) == ("1", "2")
        assert "Traceback" not in machine.run("journalctl", "-u", unit)
        assert machine.run("systemctl", "--failed", "--no-legend") == ""
    print(f"\nhealthy {took_s:.1f} s after the last agent was started")


def test_the_unit_may_read_the_kernels_ring(site: Site) -> None:
    node = site.nodes["gpu1"]
    settings = "/etc/gpuwatch/agent.toml"
    was = node.run("cat", settings)
    node.write(settings, was.replace('source = "file"\npath = "/var/log/kern.log"', 'source = "kmsg"'))
    node.run("systemctl", "restart", AGENT)
    files = f"ls -l /proc/{node.shows(AGENT, 'MainPID')}/fd"
    until("it reads /dev/kmsg", 20, lambda: "/dev/kmsg" in node.says("sh", "-c", files), site.story)
    node.write(settings, was)
    node.run("systemctl", "restart", AGENT)
    site.until_well()


def test_the_watchdog_ends_an_agent_that_hangs_and_another_begins(site: Site) -> None:
    node, mark = site.nodes["gpu2"], site.centre.mark()
    until("it was kept that it was seen", 40, lambda: "gpu2" in site.centre.last_seen(), site.story)
    before, agent = node.shows(AGENT, "MainPID"), site.centre.last_seen()["gpu2"]["agent_id"]
    node.run("sh", "-c", f"kill -STOP {before}")
    took_s = until("another begins", 40, lambda: node.shows(AGENT, "NRestarts") == "1", site.story)
    until("it speaks", 40, lambda: site.centre.last_seen()["gpu2"]["agent_id"] != agent, site.story)
    site.until_well()
    assert node.shows(AGENT, "MainPID") != before
    assert "atchdog timeout" in node.run("journalctl", "-u", AGENT)
    said = {(slot, health) for slot, health, _ in site.centre.judged(mark)}
    assert said <= {("gpu2", "suspect"), ("gpu2", "healthy"), ("gpu2", "unknown")}, said  # silent, but not dead
    print(f"\nstopped with SIGSTOP: ended by the watchdog ({WATCHDOG_S} s) and begun again after {took_s:.1f} s")


def test_the_watchdog_does_the_same_for_an_aggregator_that_hangs(site: Site) -> None:
    machine, mark = site.centre.machine, site.centre.mark()
    dropin = f"/run/systemd/system/{AGGREGATOR}.service.d/short.conf"
    machine.write(dropin, f"[Service]\nWatchdogSec={WATCHDOG_S}\n", mode="0644", group="root")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", AGGREGATOR)
    site.until_well()
    machine.run("sh", "-c", f"kill -STOP {machine.shows(AGGREGATOR, 'MainPID')}")
    took_s = until("another begins", 40, lambda: machine.shows(AGGREGATOR, "NRestarts") == "1", site.story)
    site.until_well()
    assert not [said for said in site.centre.judged(mark) if said[1] in ("dead", "suspect", "absent")]
    print(f"\nstopped with SIGSTOP: ended by the watchdog ({WATCHDOG_S} s) and begun again after {took_s:.1f} s")


def test_cut_off_and_back_nothing_is_lost_even_over_a_restart(site: Site) -> None:
    node, mark = site.nodes["gpu1"], site.centre.mark()
    spool = node.path("/var/lib/gpuwatch/spool")
    late_before, repeated_before = site.centre.metric(LATE), site.centre.metric(REPEATED)
    for gpu in (0x1A, 0x29):
        kernel_says(node, gpu)
    until("the first events came", 20, lambda: len(site.centre.rows("SELECT event_id FROM events")) == 2, site.story)
    site.switch.cable("gpu1", plugged=False)
    cut_s = time.monotonic()
    kernel_says(node, 0x3B)
    time.sleep(CUT_OFF_S / 2)
    node.run("systemctl", "restart", AGENT)
    stop_s = time.monotonic() - cut_s - CUT_OFF_S / 2
    kernel_says(node, 0x4C)
    time.sleep(CUT_OFF_S / 2)
    waiting: dict[str, list[int]] = {}
    long_ago_ns, old_count = time.time_ns() - int((LATE_S + 1.0) * 1e9), 0
    for file in sorted(spool.glob("*.report")):
        report = msgspec.msgpack.decode(file.read_bytes(), type=Report)
        waiting.setdefault(report.agent_id, []).append(report.sequence)
        old_count += report.sent_unix_ns < long_ago_ns
    site.switch.cable("gpu1", plugged=True)
    back_s = site.until_well(60)
    until("all events came", 30, lambda: len(site.centre.rows("SELECT event_id FROM events")) >= 4, site.story)
    until("nothing waits", 30, lambda: len(list(spool.glob("*.report"))) == 0, site.story)
    time.sleep(3.0)
    assert len(site.centre.rows("SELECT event_id FROM events")) == 4  # each once
    count = sum(len(numbers) for numbers in waiting.values())
    assert len(waiting) == 2, waiting  # the agent that was stopped, and the one after it
    assert all(sorted(numbers) == list(range(min(numbers), max(numbers) + 1)) for numbers in waiting.values()), waiting
    assert count > CUT_OFF_S / 2
    late = site.centre.metric(LATE) - late_before
    assert old_count <= late <= count  # what waited is not taken for news, nor is anything after it
    assert old_count >= CUT_OFF_S - LATE_S - 3.0
    # In order and once: a number behind a later one of the same agent counts as repeated, and so does one that comes
    # twice. One may: the report that the kernel had under way when the cable was pulled.
    assert site.centre.metric(REPEATED) - repeated_before <= 1
    lost = node.run("python3", "-c", PAGE.format(port=9101))
    assert not [
        line for line in lost.splitlines() if line.startswith("gpuwatch_reports_lost_total") and line[-2:] != " 0"
    ]
    said = {(slot, health) for slot, health, _ in site.centre.judged(mark)}
    assert said <= {("gpu1", "suspect"), ("gpu1", "healthy"), ("gpu1", "unknown")}, said
    print(
        f"\ncut off for {CUT_OFF_S:.0f} s with a restart ({stop_s:.1f} s): {count} reports waited without a gap,",
        end="",
    )
    print(f" none is left; {late:.0f} late; 4 of 4 events once; healthy {back_s:.1f} s after the cable was back")


def test_a_clean_stop_says_goodbye(site: Site) -> None:
    node, mark = site.nodes["gpu3"], site.centre.mark()
    begun_s = time.monotonic()
    node.run("systemctl", "stop", AGENT)
    took_s = time.monotonic() - begun_s
    assert took_s < 5.0
    assert node.shows(AGENT, "Result") == "success"
    until("goodbye", 10, lambda: bool(site.centre.last_seen()["gpu3"].get("goodbye")), site.story)
    time.sleep(5.0)  # longer than a silence needs
    assert [(slot, health) for slot, health, _ in site.centre.judged(mark)] == [("gpu3", "unknown")]
    node.run("systemctl", "start", AGENT)
    site.until_well()
    print(f"\nstopped in {took_s:.1f} s, {site.centre.judged(mark)[0][2]!r}")


def test_an_upgrade_wave_is_no_silence(site: Site) -> None:
    mark, lines = site.centre.mark(), len(site.centre.rows("SELECT id FROM ledger"))
    pip = ["/opt/gpuwatch/bin/pip", "install", "-q", "--no-index", "--find-links", "/srv/wheels", f"gpuwatch=={SECOND}"]
    centre = site.centre.machine
    for machine, unit in ((centre, AGGREGATOR), *((node, AGENT) for node in site.nodes.values())):
        was = machine.shows(unit, "MainPID")
        machine.run(*pip)
        begun_s = time.monotonic()
        machine.run("systemctl", "restart", unit)
        print(f"\n{machine.name}: restarted in {time.monotonic() - begun_s:.1f} s", end="")
        assert machine.shows(unit, "MainPID") != was
        assert SECOND in machine.run("/opt/gpuwatch/bin/pip", "show", "gpuwatch")
    site.until_well()
    time.sleep(5.0)
    assert site.well()
    assert not [said for said in site.centre.judged(mark) if said[1] not in ("healthy", "unknown")]
    assert len(site.centre.rows("SELECT id FROM ledger")) >= lines  # the ledger went on
    assert len(site.centre.rows("SELECT event_id FROM events")) == 4
    assert not site.centre.rows("SELECT id FROM ledger WHERE line = 'fault_opened'")


def test_a_machine_that_is_powered_off_says_goodbye_too(site: Site) -> None:
    mark = site.centre.mark()
    site.nodes["gpu3"].power_off()
    until("goodbye", 10, lambda: bool(site.centre.last_seen()["gpu3"].get("goodbye")), site.story)
    time.sleep(5.0)
    assert [(slot, health) for slot, health, _ in site.centre.judged(mark)] == [("gpu3", "unknown")]


def test_what_is_uninstalled_leaves_nothing(site: Site) -> None:
    node = site.nodes["gpu2"]
    for words in uninstall():
        node.run("sh", "-c", words)
    left = node.run("find", "/etc", "/opt", "/run", "/usr/local", "/var/lib", "-name", "*gpuwatch*").splitlines()
    assert left == [f"/etc/systemd/system/{AGGREGATOR}.service"]  # never enabled here; all machines share one root
    assert node.run("systemctl", "is-system-running") == "running"


def uninstall() -> list[str]:
    """The lines under "Uninstall" of docs/operating.md."""
    text = (TREE / "docs" / "operating.md").read_text().split("## Uninstall", 1)[1]
    return [line for line in text.split("```sh", 1)[1].split("```", 1)[0].splitlines() if line.strip()]
