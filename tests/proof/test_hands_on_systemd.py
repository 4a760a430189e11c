"""The hands' unit on a real systemd: its sandbox lets it work, and a reboot whose shutdown hangs comes all the same.

One machine; the settings allow one service and the reboot. Orders are signed here, as an aggregator would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import Answer, Order, SignedOrder, as_text
from gpuwatch.sdk.ed25519 import Signer, make_key
from tests.systemd_nodes import TREE, Machine, Switch, _pip, installed_root, sh, until, wheel

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "systemd-nspawn", "debootstrap", "ip"),
]

HANDS = "gpuwatch-hands.service"
HOURS = int(time.monotonic() // 3600) + 7  # containers share this machine's clock: all it ran is after the reboot
SETTINGS = """\
public_keys = ["{key}"]
[restart_service]
units = ["victim.service"]
[reboot]
allowed = true
deadline_s = 15.0
force_deadline_s = 60.0
window_s = {window_s}
sysrq = "/run/gpuwatch-hands/sysrq"
"""
VICTIM = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
STUBBORN = """\
[Service]
ExecStart=/bin/sleep infinity
ExecStop=/bin/sleep infinity
TimeoutStopSec=infinity
[Install]
WantedBy=multi-user.target
"""
BOOT_ID = """\
[Service]
ExecStartPre=+/bin/sh -c '[ -e /run/boot ] || echo GPUWATCH_BOOT_ID=$(cat /proc/sys/kernel/random/uuid) > /run/boot'
EnvironmentFile=-/run/boot
"""  # containers share the kernel's own
LIBRARY = ("cryptography", "cffi", "pycparser")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    path = tmp_path_factory.mktemp("key") / "order.pem"
    make_key(path)
    return Signer(path)


class Node:
    """One machine, which may be booted again: its settings lie in its root, what the hands remember outside."""

    def __init__(self, work: Path, signer: Signer) -> None:
        self._work = work
        self._root = root = installed_root(work, [wheel("0.0.1", work)])
        _install_library(root, work)
        units = root / "etc" / "systemd" / "system"
        (units / HANDS).write_bytes((TREE / "deploy" / HANDS).read_bytes())
        (units / f"{HANDS}.d").mkdir()
        (units / f"{HANDS}.d" / "boot.conf").write_text(BOOT_ID)
        (units / "victim.service").write_text(VICTIM)
        (units / "stubborn.service").write_text(STUBBORN)
        settings = SETTINGS.format(key=signer.public, window_s=HOURS * 3600.0)
        (root / "etc" / "gpuwatch" / "hands.toml").write_text(settings)
        sh("systemctl", f"--root={root}", "enable", HANDS, "victim.service", "stubborn.service")
        (work / "state").mkdir()
        self.journal = work / "state" / "journal"
        self._switch = Switch(("gpu1",))
        self.machine = self._boot()

    def _boot(self) -> Machine:
        state = f"--bind={self._work / 'state'}:/var/lib/gpuwatch-hands"
        return Machine("gpu1", self._root, self._switch, self._work, state)

    def boot_again(self) -> None:
        self._cut()
        self.machine = self._boot()

    def close(self) -> None:
        self._cut()
        self._switch.close()

    def _cut(self) -> None:
        """Pull the plug: one of its units never stops, so that no orderly way leads out. Its container may be one that
        systemd-nspawn booted again by itself."""
        outer = self.machine._outer.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{outer}/task/{outer}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        self.machine.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("hands"), signer)
    yield made
    made.close()


@pytest.fixture
def machine(node: Node) -> Machine:
    return node.machine


def _install_library(root: Path, work: Path) -> None:
    """What `pip install gpuwatch[hands]` adds, from the lock."""
    lock = (TREE / "requirements-dev.lock").read_text().split("\n")
    pins = [line.split(" ")[0] for line in lock if line.split("==")[0] in LIBRARY]
    shelf = root / "srv" / "wheels"
    words = ["--python-version", "3.11", "--only-binary", ":all:", "--no-deps", "-d", str(shelf)]
    sh(*_pip(work / "builder"), "download", *pins, *words)
    pip = ["/opt/gpuwatch/bin/pip", "install", "-q", "--no-index", "--find-links", "/srv/wheels", "cryptography"]
    sh("unshare", "--net", "chroot", str(root), "/usr/bin/env", "-i", "PATH=/usr/bin:/bin", *pip)


def told(machine: Machine) -> HandsFacts:
    return msgspec.json.decode(machine.run("cat", "/run/gpuwatch-hands/status"), type=HandsFacts)


def give(machine: Machine, signer: Signer, action_id: str, kind: str, target: str = "") -> None:
    """As the agent does."""
    facts = told(machine)
    order = Order(
        machine=machine.run("cat", "/etc/machine-id"),
        boot_id=facts.boot_id,
        action_id=action_id,
        kind=kind,  # type: ignore[arg-type]
        target=target,
        nonce=facts.nonce,
        expires_monotonic_ns=facts.nonce_expires_monotonic_ns,
    )
    signed = SignedOrder(order=order, key=signer.public, signature=signer.sign(order.signed_bytes()))
    machine.run("install", "-d", "/run/gpuwatch/hands")
    machine.write("/run/gpuwatch/hands/order", as_text(signed), mode="0600", group="root")


def answer(machine: Machine, action_id: str) -> Answer | None:
    return next((found for found in told(machine).answers if found.action_id == action_id), None)


def story(machine: Machine) -> str:
    return machine.says("journalctl", "-u", HANDS, "--no-pager", "-n", "40")


def test_it_runs_with_what_it_needs_and_no_more(machine: Machine) -> None:
    assert machine.shows(HANDS, "ActiveState") == "active"
    assert machine.shows(HANDS, "NRestarts") == "0"
    status = machine.run("cat", f"/proc/{machine.shows(HANDS, 'MainPID')}/status")
    keys = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(keys["CapEff"], 16) == 1 << 21 | 1 << 19 | 1 << 2 | 1 << 1  # SYS_ADMIN, SYS_PTRACE, DAC_*
    assert (keys["NoNewPrivs"], keys["Seccomp"]) == ("1", "2")
    assert told(machine).units == ("victim.service",)
    assert (
        machine.run("stat", "-c", "%a %U", "/run/gpuwatch-hands/status", "/var/lib/gpuwatch-hands")
        == "644 root\n700 root"
    )
    assert "reboot now: would be done" in machine.says("gpuwatch", "hands", "check")
    print(f"\nresident: {keys['VmRSS'].strip()}")


def test_a_service_is_restarted_by_the_real_systemctl(machine: Machine, signer: Signer) -> None:
    before = machine.shows("victim.service", "MainPID")
    give(machine, signer, "act-1", "restart_service", "victim.service")
    until("it is answered", 20, lambda: answer(machine, "act-1") is not None, lambda: story(machine))
    found = answer(machine, "act-1")
    assert found is not None
    assert (found.state, found.reason) == ("done", "")
    assert machine.shows("victim.service", "MainPID") != before


def test_a_job_of_slurm_stops_it(machine: Machine, signer: Signer) -> None:
    python = "open('/proc/self/comm','w').write('slurmstepd'); import time; time.sleep(600)"
    script = f"exec -a 'slurmstepd: [7.0]' python3 -c \"{python}\""
    machine.run("systemd-run", "-q", "--unit=step", "bash", "-c", script)
    time.sleep(1.0)
    give(machine, signer, "act-2", "reboot")
    until("it is answered", 20, lambda: answer(machine, "act-2") is not None, lambda: story(machine))
    found = answer(machine, "act-2")
    assert found is not None
    assert (found.state, found.reason) == ("refused", "a job runs here: the Slurm step 7.0")
    machine.run("systemctl", "stop", "step")


def test_a_reboot_whose_shutdown_hangs_comes_by_force_and_is_reported_by_the_next_boot(
    node: Node, machine: Machine, signer: Signer
) -> None:
    boot = told(machine).boot_id
    give(machine, signer, "act-3", "reboot")
    begun_s = time.monotonic()
    until("it goes on to force", 60, lambda: "--force" in node.journal.read_text(), lambda: story(machine))
    forced_s = time.monotonic() - begun_s
    until("the machine goes down", 50, lambda: not Path(f"/proc/{machine._leader}").exists(), lambda: story(machine))
    down_s = time.monotonic() - begun_s
    assert "sysrq" not in node.journal.read_text()
    node.boot_again()
    found = answer(node.machine, "act-3")
    assert found is not None
    assert found.state == "done"
    assert told(node.machine).boot_id != boot
    give(node.machine, signer, "act-4", "reboot")
    until("it is answered", 20, lambda: answer(node.machine, "act-4") is not None, lambda: story(node.machine))
    again = answer(node.machine, "act-4")
    assert again is not None
    assert f"once in {HOURS} h is allowed" in again.reason
    print(f"\na shutdown that hangs: by force after {forced_s:.0f} s, down after {down_s:.0f} s")
