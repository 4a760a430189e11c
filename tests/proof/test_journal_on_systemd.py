"""Who is heard through a real journald: a service by its unit, and nobody who takes its name or the kernel's.

The reader runs under the agent's account and groups, and without the unit's mounts: in a container they hide its own
boot id, by which `journalctl -f` chooses what it follows. On a machine of its own there is one boot id.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd_nodes import Machine, until
from tests.systemd_site import Site, built

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "systemd-nspawn", "debootstrap", "ip"),
]

ABORT = "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"
XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=a, GPU has fallen off the bus."
UNIT = "[Service]\nType=oneshot\nExecStart=/bin/cat /etc/said\n"
HEARD = "/var/tmp/heard"
LISTEN = """\
import select
from gpuwatch.collectors import kernel_log
reader = kernel_log.open_reader(kernel_log.Settings(source="journal"))
while True:
    for event in reader.read().facts.events:
        print(event.kind, event.xid, flush=True)
    select.select([reader], [], [], 1.0)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with built(("gpu1",), ("0.0.1",)) as made:
        yield made


@pytest.fixture(scope="module")
def node(site: Site) -> Machine:
    made = site.nodes["gpu1"]
    made.write("/etc/said", f"{ABORT}\n", mode="0644", group="root")
    for name in ("nvidia-fabricmanager", "quoting"):
        made.write(f"/etc/systemd/system/{name}.service", UNIT, mode="0644", group="root")
    made.write("/etc/listen.py", LISTEN, mode="0644", group="root")
    made.write(HEARD, "", mode="0666", group="root")
    made.run("systemctl", "daemon-reload")
    account = (
        "-p",
        "User=gpuwatch",
        "-p",
        "SupplementaryGroups=adm systemd-journal",
        "-p",
        f"StandardOutput=file:{HEARD}",
    )
    made.run("systemd-run", "-q", "--unit=listening", *account, "/opt/gpuwatch/bin/python", "/etc/listen.py")
    return made


def heard(node: Machine) -> list[str]:
    return node.says("cat", HEARD).splitlines()


def test_a_service_is_heard_by_its_unit_and_nobody_by_its_name(site: Site, node: Machine) -> None:
    until("it listens", 20, lambda: node.shows("listening", "ActiveState") == "active", site.story)
    for words in (
        ("systemctl", "start", "quoting"),
        ("logger", "-t", "nv-fabricmanager", ABORT),
        ("logger", "-t", "kernel", "-p", "kern.err", XID),
        ("systemd-cat", "-t", "kernel", "-p", "err", "echo", XID),
        ("systemd-cat", "-t", "nv-fabricmanager", "echo", ABORT),
    ):
        node.says(*words)
    forged = f"MESSAGE={ABORT}\nSYSLOG_IDENTIFIER=nv-fabricmanager\n_SYSTEMD_UNIT=nvidia-fabricmanager.service\n"
    node.run("logger", "--journald", text=forged)
    assert ABORT in node.says("journalctl", "-o", "cat", "-n", "50"), "all of them are in the journal"
    for times in (1, 2):
        node.run("systemctl", "start", "nvidia-fabricmanager")
        until("the fabric manager is heard", 30, lambda: len(ours(node)) >= times, site.story)  # noqa: B023
    assert ours(node) == ["fm_topology_mismatch None"] * 2, "the others were not"
    assert not [line for line in heard(node) if line.startswith("xid")], "nobody is the kernel"


def ours(node: Machine) -> list[str]:
    return [line for line in heard(node) if line.startswith("fm_")]
