"""What the node's other sources see under the shipped unit, on a real systemd: services by their units, mounts of the
node and not of the sandbox, a file server that stands still, the clock though the kernel may not be asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import go_without
from tests.hung_mount import HungMount
from tests.systemd_nodes import Machine, until
from tests.systemd_site import AGENT, Site, built

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "systemd-nspawn", "debootstrap", "ip"),
]

SETTINGS = "/etc/gpuwatch/agent.toml"
PAGE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9101/metrics').read().decode())"
UNIT = """\
[Service]
ExecStart={command}
Restart={restart}
RestartSec=0.2
StartLimitIntervalSec=0
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def server() -> Iterator[HungMount]:
    with tempfile.TemporaryDirectory(prefix="gpuwatch-mount-", dir="/var/tmp") as folder:
        try:
            mount = HungMount(Path(folder))
        except OSError as error:
            go_without("fuse", f"nothing can be mounted: {error}")
        yield mount
        mount.end()


@pytest.fixture(scope="module")
def site(server: HungMount) -> Iterator[Site]:
    with built(("gpu1",), ("0.0.1",), f"--bind={server.place}:/home/shared") as made:
        yield made


@pytest.fixture(scope="module")
def node(site: Site) -> Machine:
    made = site.nodes["gpu1"]
    shipped = made.run("cat", SETTINGS)
    changes = {
        "interval_s = 30.0": "interval_s = 1.0\nmounts_every = 1",
        "mount_deadline_s = 2.0": "mount_deadline_s = 0.5",
        "interval_s = 60.0\nmore = []": 'interval_s = 1.0\nmore = ["looping.service"]',
    }
    for old, new in changes.items():
        assert shipped.count(old) == 1, old
        shipped = shipped.replace(old, new)
    made.write(SETTINGS, shipped)
    for name, command, restart in (("slurmd", "/bin/sleep infinity", "no"), ("looping", "/bin/false", "always")):
        text = UNIT.format(command=command, restart=restart)
        made.write(f"/etc/systemd/system/{name}.service", text, mode="0644", group="root")
    made.run("systemctl", "daemon-reload")
    made.run("systemctl", "enable", "--now", "slurmd")
    made.run("systemctl", "restart", AGENT)
    return made


def series(node: Machine) -> dict[str, float]:
    """The agent's page: series with labels -> value."""
    lines = node.says("/opt/gpuwatch/bin/python", "-c", PAGE).splitlines()
    words = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in words if value[:1].isdigit()}


def until_series(node: Machine, site: Site, what: str, value: float, seconds: float = 30.0) -> None:
    until(f"{what} is {value:g}", seconds, lambda: series(node).get(what) == value, site.story)


def test_services_by_their_units(site: Site, node: Machine) -> None:
    until_series(node, site, 'gpuwatch_service_active{unit="slurmd.service"}', 1)
    assert series(node)['gpuwatch_service_expected{unit="slurmd.service"}'] == 1
    assert not [name for name in series(node) if "munge" in name]  # what is not installed is not told
    node.run("systemctl", "stop", "slurmd")
    until_series(node, site, 'gpuwatch_service_active{unit="slurmd.service"}', 0)
    node.run("systemctl", "start", "--no-block", "looping")
    loops = 'gpuwatch_service_restarts_total{unit="looping.service"}'
    until("it is restarted again and again", 30, lambda: series(node).get(loops, 0) >= 3, site.story)
    node.run("systemctl", "stop", "looping")


def test_disks_are_the_nodes_and_not_the_sandboxs(site: Site, node: Machine) -> None:
    """Under ProtectSystem=strict everything is read-only for the agent itself."""
    read_only = {name: value for name, value in series(node).items() if name.startswith("gpuwatch_host_disk_read_only")}
    assert set(read_only.values()) <= {0.0}, read_only
    main = node.shows(AGENT, "MainPID")
    own = node.run("cat", f"/proc/{main}/mountinfo").splitlines()
    assert any(" / ro" in line for line in own), own
    site.until_well()


def test_the_clock_is_known_though_the_kernel_may_not_be_asked(site: Site, node: Machine) -> None:
    assert "gpuwatch_host_clock_offset_seconds" not in series(node)  # only the kernel could tell that
    said = node.run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    until_series(node, site, "gpuwatch_host_clock_synchronised", float(said == "yes"))


def test_a_file_server_that_stands_still(site: Site, node: Machine, server: HungMount) -> None:
    answers = 'gpuwatch_host_mount_answers{mount="/home/shared",source="server:/export"}'
    until_series(node, site, answers, 1)
    server.answers = False
    until_series(node, site, answers, 0)
    abandoned = 'gpuwatch_collector_abandoned_children{collector="host"}'
    until("programs are left behind", 20, lambda: 1 <= series(node).get(abandoned, 0) <= 2, site.story)
    first = series(node)[abandoned]
    node.run("systemctl", "restart", AGENT)  # is not held up by them
    until_series(node, site, abandoned, first)
    assert node.shows(AGENT, "Result") == "success"
    server.die()
    until_series(node, site, abandoned, 0)
