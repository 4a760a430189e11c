"""The agent's unit on a real systemd: settings read again, broken ones, the driver released, a probe that nothing ends,
heartbeats of strangers, and what another user may try. One story in order, on a node of its own.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd_nodes import Machine, sh, until
from tests.systemd_site import AGENT, Site, built

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "systemd-nspawn", "debootstrap", "ip", "fsfreeze", "mkfs.ext4"),
]

SETTINGS = "/etc/gpuwatch/agent.toml"
BEATS = "/run/gpuwatch/heartbeats"
PYTHON = "/opt/gpuwatch/bin/python"
PAGE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9101/metrics').read().decode())"

# The simulated driver, of which every call also writes to a file system: one that is frozen holds the caller in the
# kernel, where no signal reaches it, as a GPU does whose firmware died.
STUCK_DRIVER = """\
import os
from gpuwatch.simulate import nvml

def install(argument):
    now = nvml.State.now
    def slowly(state):
        file = os.open("/srv/frozen/call", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(file, b"x")
        os.close(file)
        return now(state)
    nvml.State.now = slowly
    nvml.install(argument)
"""


class Disk:
    """A small file system of its own, which can be frozen."""

    def __init__(self, folder: Path) -> None:
        self.at = folder / "disk"
        self.at.mkdir()
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(16 << 20)
        sh("mkfs.ext4", "-q", str(image))
        sh("mount", "-o", "loop", str(image), str(self.at))
        self.at.chmod(0o777)
        self.frozen = False

    def freeze(self, *, frozen: bool) -> None:
        if self.frozen != frozen:
            sh("fsfreeze", "-f" if frozen else "-u", str(self.at))
            self.frozen = frozen

    def close(self) -> None:
        self.freeze(frozen=False)
        subprocess.run(["umount", "-l", str(self.at)], check=False)


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="gpuwatch-frozen-", dir="/var/tmp") as folder:
        made = Disk(Path(folder))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def site(disk: Disk) -> Iterator[Site]:
    with built(("gpu1",), ("0.0.1",), f"--bind={disk.at}:/srv/frozen") as made:
        made.until_well()
        try:
            yield made
        finally:
            disk.freeze(frozen=False)


@pytest.fixture
def node(site: Site) -> Machine:
    return site.nodes["gpu1"]


def fails(node: Machine, *words: str) -> str:
    """What a command says that must fail."""
    with pytest.raises(AssertionError) as raised:
        node.run(*words)
    return str(raised.value)


def metrics(node: Machine) -> str:
    return node.run("python3", "-c", PAGE)


def nvml_says(site: Site) -> str:
    """What the aggregator knows of the node's GPUs."""
    return site.centre.get("/api/v1/nodes/gpu1")


def probes(node: Machine) -> set[int]:
    """The pids of all probes, whoever's child they are."""
    words = "import pathlib\nfor path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n try:\n  if "
    words += "b'gpuwatch.agent.probe' in path.read_bytes().split(b'\\0'): print(path.parts[2])\n except OSError: pass"
    return {int(pid) for pid in node.run("python3", "-c", words).split()}


def test_a_reload_takes_good_settings_over_and_refuses_broken_ones(site: Site, node: Machine) -> None:
    pid, good = node.shows(AGENT, "MainPID"), node.run("cat", SETTINGS)
    node.write(SETTINGS, good.replace("[collectors.host]\nenabled = true", "[collectors.host]\nenabled = false"))
    node.run("systemctl", "reload", AGENT)
    until("host is off", 10, lambda: 'collector="host"' not in metrics(node), site.story)
    node.write(SETTINGS, "interval_s = -1\nnonsense = 1\n")
    fails(node, "systemctl", "reload", AGENT)
    assert "2 faults in the settings" in node.run("journalctl", "-u", AGENT)
    assert node.shows(AGENT, "ActiveState") == "active"
    node.run("systemctl", "kill", "-s", "HUP", "--kill-who=main", AGENT)  # without the check before it
    until("it is refused", 10, lambda: "settings file is refused" in node.shows(AGENT, "StatusText")
          or "stay in force" in node.run("journalctl", "-u", AGENT), site.story)  # fmt: skip
    node.write(SETTINGS, good)
    node.run("systemctl", "reload", AGENT)
    until("host is on", 10, lambda: 'collector="host"' in metrics(node), site.story)
    assert (node.shows(AGENT, "MainPID"), node.shows(AGENT, "NRestarts")) == (pid, "0")
    site.until_well()


def test_settings_that_cannot_be_used_end_in_a_failed_unit_and_no_storm(site: Site, node: Machine) -> None:
    good = node.run("cat", SETTINGS)
    node.write(SETTINGS, "interval_s = -1\nnonsense = 1\n")
    fails(node, "systemctl", "restart", AGENT)
    time.sleep(7.0)  # longer than RestartSec
    assert (node.shows(AGENT, "ActiveState"), node.shows(AGENT, "ExecMainStatus")) == ("failed", "2")
    assert node.shows(AGENT, "NRestarts") == "0"
    assert "2 faults in the settings" in node.run("journalctl", "-u", AGENT, "-n", "20")
    node.write(SETTINGS, good)
    node.run("systemctl", "restart", AGENT)
    site.until_well()


def test_the_driver_is_released_for_root_alone_and_taken_again(site: Site, node: Machine) -> None:
    pid = node.shows(AGENT, "MainPID")
    node.write("/tmp/readable.toml", node.run("cat", SETTINGS), mode="0644")
    refused = ["runuser", "-u", "nobody", "--", "gpuwatch", "agent", "release", "-c", "/tmp/readable.toml"]
    assert "the release cannot be asked for" in fails(node, *refused)
    begun_s = time.monotonic()
    said = node.run("gpuwatch", "agent", "release", "--because", "driver 580.95")
    took_s = time.monotonic() - begun_s
    assert "no process of the agent holds the driver" in said
    assert probes(node) == set()
    until("it is unknown, with the reason", 15, lambda: "driver 580.95" in nvml_says(site), site.story)
    until("it is unknown", 15, lambda: site.centre.health() == {"gpu1": "unknown"}, site.story)
    node.run("systemctl", "restart", AGENT)
    until("it speaks", 15, lambda: "released on request" in node.shows(AGENT, "StatusText")
          or "nvml" in node.shows(AGENT, "StatusText"), site.story)  # fmt: skip
    assert probes(node) == set()
    assert "watched again by process" in node.run("gpuwatch", "agent", "resume")
    site.until_well()
    assert node.shows(AGENT, "MainPID") != pid
    print(f"\nreleased in {took_s:.1f} s", end="")


def test_a_probe_that_nothing_ends_delays_no_stop_and_gets_no_second_beside_it(
    site: Site, node: Machine, disk: Disk
) -> None:
    packages = node.run(PYTHON, "-c", "import site; print(site.getsitepackages()[0])")
    node.write(f"{packages}/stuck_driver.py", STUCK_DRIVER, mode="0644")
    node.write(f"/etc/systemd/system/{AGENT}.service.d/frozen.conf", "[Service]\nReadWritePaths=/srv/frozen\n",
               mode="0644", group="root")  # fmt: skip
    was = node.run("cat", SETTINGS)
    now = was.replace("gpuwatch.simulate.nvml:install", "stuck_driver:install")
    now = now.replace("deadline_s = 10.0 ", "deadline_s = 2.0 ").replace("kill_after_s = 60.0 ", "kill_after_s = 4.0 ")
    asked = tomllib.loads(now)["collectors"]["nvml"]
    assert (asked["preload"], asked["deadline_s"], asked["kill_after_s"]) == ("stuck_driver:install", 2.0, 4.0)
    node.write(SETTINGS, now)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", AGENT)
    site.until_well()
    disk.freeze(frozen=True)
    until("it is hung, and said where", 20, lambda: "wait channel percpu_rwsem_wait" in nvml_says(site), site.story)
    assert "child state D" in nvml_says(site)
    until("it is given up", 20, lambda: "cannot be killed" in node.run("journalctl", "-u", AGENT), site.story)
    (stuck,) = probes(node)
    begun_s = time.monotonic()
    node.says("systemctl", "restart", AGENT)
    took_s = time.monotonic() - begun_s
    assert took_s < 15.0
    until("another agent runs", 15, lambda: node.shows(AGENT, "ActiveState") == "active", site.story)
    until(
        "it counts the left-over", 15, lambda: 'abandoned_children{collector="nvml"} 1.0' in metrics(node), site.story
    )
    time.sleep(5.0)
    assert probes(node) == {stuck}  # no second one beside it
    assert site.centre.health()["gpu1"] != "healthy"
    disk.freeze(frozen=False)
    site.until_well(60)
    assert stuck not in probes(node)
    node.write(SETTINGS, was)
    node.run("systemctl", "restart", AGENT)
    site.until_well()
    print(f"\nrestarted in {took_s:.1f} s with a probe in state D", end="")


def test_every_user_may_write_heartbeats_and_nobody_gets_further_with_them(site: Site, node: Machine) -> None:
    assert node.run("stat", "-c", "%a %U", BEATS) == "1777 gpuwatch"
    script = "import time; from gpuwatch.training import Heartbeat; h = Heartbeat('opt', rank=0, world_size=1)\n"
    script += "while True: h.step(1); time.sleep(0.5)"
    node.run("sh", "-c", f'runuser -u games -- {PYTHON} -c "$1" > /tmp/rank 2>&1 & echo $! > /run/rank', "sh", script)
    ranks = 'gpuwatch_training_ranks{alive="true"} 1.0'
    until("the rank of a stranger is seen", 20, lambda: ranks in metrics(node), site.story)
    evil = f"cd {BEATS}; ln -s /etc/shadow link.beat; mkfifo fifo.beat; mkdir folder.beat; truncate -s 8G huge.beat"
    node.run("runuser", "-u", "nobody", "--", "sh", "-c", evil)
    until("what is none is counted", 20, lambda: "gpuwatch_training_unreadable_files 4.0" in metrics(node)
          or "gpuwatch_training_unreadable_files 3.0" in metrics(node), site.story)  # fmt: skip
    assert ranks in metrics(node)
    node.run("systemctl", "restart", AGENT)
    until("it is seen by the next agent too", 20, lambda: ranks in metrics(node), site.story)
    node.run("sh", "-c", f"rm -rf {BEATS}/*.beat; kill $(cat /run/rank); pkill -u games; true")


def test_a_folder_that_is_replaced_by_a_link_opens_nothing(site: Site, node: Machine) -> None:
    """Whoever got the agent's user must not get more with the unit's help."""
    was = node.run("stat", "-c", "%a %U", "/etc/ssl")
    node.run("runuser", "-u", "gpuwatch", "--", "sh", "-c", f"mv {BEATS} {BEATS}.old; ln -s /etc/ssl {BEATS}")
    node.run("systemctl", "restart", AGENT)
    site.until_well()
    assert node.run("stat", "-c", "%a %U", "/etc/ssl") == was
    node.run("sh", "-c", f"rm {BEATS}; mv {BEATS}.old {BEATS}")


@pytest.mark.parametrize("kind", ["read-only", "full", "another's"])
def test_a_state_directory_that_cannot_be_used_blinds_nobody(site: Site, node: Machine, kind: str) -> None:
    node.run("systemctl", "stop", AGENT)
    folder = "/var/lib/gpuwatch"
    if kind == "another's":
        node.run("chown", "-R", "nobody", folder)  # systemd gives it back to the unit's user
    else:
        node.run("mount", "-t", "tmpfs", "-o", "size=64k,mode=0755,uid=gpuwatch,gid=gpuwatch", "gw", folder)
        if kind == "full":
            node.says("sh", "-c", f"cat /dev/zero > {folder}/fill")
        else:
            node.run("mount", "-o", "remount,ro", folder)
    try:
        node.run("systemctl", "start", AGENT)
        site.until_well()
        assert "Traceback" not in node.run("journalctl", "-u", AGENT)
        said = node.run("journalctl", "-u", AGENT, "-n", "30")
        assert kind == "another's" or "cannot be" in said or "the spool" in said, said
    finally:
        if kind != "another's":
            node.run("systemctl", "stop", AGENT)
            node.run("umount", "-l", folder)
            node.run("systemctl", "start", AGENT)
    site.until_well()


def test_a_second_agent_on_the_machine_is_refused(site: Site, node: Machine) -> None:
    said = fails(node, "runuser", "-u", "gpuwatch", "--", PYTHON, "-m", "gpuwatch.wiring.agent", "-c", SETTINGS)
    assert "another agent uses /var/lib/gpuwatch" in said
    assert site.well()


def test_a_token_that_every_user_may_read_is_said(site: Site, node: Machine) -> None:
    node.run("chmod", "0644", "/etc/gpuwatch/token")
    node.run("systemctl", "restart", AGENT)
    site.until_well()
    assert "every user of this node may read or write the token file" in node.run("journalctl", "-u", AGENT, "-n", "20")
    node.run("chmod", "0640", "/etc/gpuwatch/token")


def test_the_firmwares_uuid_reaches_an_agent_that_may_not_read_it(site: Site, node: Machine) -> None:
    """By the unit's own line, from a file that stands in for the firmware's; and only where root wrote it."""
    uuid, copy = "4c4c4544-0043-4410-8058-c4c04f4d3732", "/run/gpuwatch-machine/product_uuid"
    dropin = f"/etc/systemd/system/{AGENT}.service.d/firmware.conf"
    scan = ["sh", "-c", "gpuwatch scan --only host --json | grep '\"machine\"'"]
    as_nobody = ["runuser", "-u", "nobody", "--", *scan]
    (line,) = [line for line in node.run("systemctl", "cat", AGENT).splitlines() if copy in line]
    node.write("/srv/firmware", uuid.upper(), mode="0400", group="root")
    node.write(dropin, "[Service]\n" + line.replace("/sys/class/dmi/id/product_uuid", "/srv/firmware"), mode="0644",
               group="root")  # fmt: skip
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", AGENT)
    said = f"watching gpu1 (machine {uuid})"
    until("it says its machine", 10, lambda: said in node.run("journalctl", "-u", AGENT, "-n", "20"), site.story)
    assert node.run("stat", "-c", "%a %U %F", "/run/gpuwatch-machine", copy).splitlines() == [
        "755 root directory", "444 root regular file"]  # fmt: skip
    assert uuid in node.says(*as_nobody)
    node.run("chown", "gpuwatch", copy)
    assert uuid not in node.says(*as_nobody)
    node.run("rm", "-r", dropin, "/srv/firmware", "/run/gpuwatch-machine")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", AGENT)
    site.until_well()
