"""A site as docs/operating.md says: an aggregator and its nodes, each a Debian with a real systemd.

TLS, shipped units and settings; only the GPUs are simulated, and some times are short.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import trustme

from tests.systemd_nodes import TREE, Centre, Machine, Switch, installed_root, until, wheel

AGENT, AGGREGATOR = "gpuwatch-agent", "gpuwatch-aggregator"
WATCHDOG_S = 4  # instead of the unit's 60

AGGREGATOR_TOML = """\
[server]
listen = "{address}:9190"
secret_file = "secret"
operator_token_file = "operator"
tls_cert_file = "cert.pem"
tls_key_file = "key.pem"
[pools.h100]
nodes = ["gpu[1-{count}]"]
gpus = 8
[pools.h100.policy]
hold_off_s = 3.0
"""


class Site(NamedTuple):
    """What was built."""

    switch: Switch
    centre: Centre
    nodes: dict[str, Machine]

    def story(self) -> str:
        words = [f"{self.centre.fleet()}", self.centre.machine.says("journalctl", "-u", AGGREGATOR, "-n", "20")]
        return "\n".join([*words, *(node.says("journalctl", "-u", AGENT, "-n", "20") for node in self.nodes.values())])

    def well(self) -> bool:
        return self.centre.health() == dict.fromkeys(self.nodes, "healthy") and not self.centre.fleet()["blind_because"]

    def until_well(self, seconds: float = 40.0) -> float:
        return until("all nodes are healthy", seconds, self.well, self.story)


@contextlib.contextmanager
def built(slots: Sequence[str], versions: Sequence[str], *options: str) -> Iterator[Site]:
    """An aggregator's machine and a node for each slot, all running; `options`: of each node, for systemd-nspawn."""
    work = Path(tempfile.mkdtemp(prefix="gpuwatch-systemd-", dir="/var/tmp"))
    switch = Switch(("ctl", *slots))
    machines: list[Machine] = []
    try:
        root = installed_root(work, [wheel(version, work) for version in versions])
        centre = Machine("ctl", root, switch, work)
        machines.append(centre)
        url = f"https://{switch.address['ctl']}:9190"
        authority = trustme.CA()
        set_up_centre(centre, switch.address["ctl"], len(slots), authority)
        nodes: dict[str, Machine] = {}
        for slot in slots:
            nodes[slot] = Machine(slot, root, switch, work, "--bind=/dev/kmsg", "--capability=CAP_SYSLOG", *options)
            machines.append(nodes[slot])
            set_up_node(nodes[slot], centre, url, authority)
        yield Site(switch, Centre(centre, url), nodes)
    finally:
        for machine in machines:
            machine.close()
        switch.close()
        shutil.rmtree(work, ignore_errors=True)


def set_up_centre(machine: Machine, address: str, count: int, authority: trustme.CA) -> None:
    """As docs/operating.md says."""
    machine.write("/etc/gpuwatch/aggregator.toml", AGGREGATOR_TOML.format(address=address, count=count))
    certificate = authority.issue_cert(address)
    machine.write("/etc/gpuwatch/cert.pem", "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems))
    machine.write("/etc/gpuwatch/key.pem", certificate.private_key_pem.bytes().decode())
    machine.write("/etc/gpuwatch/ca.pem", authority.cert_pem.bytes().decode())
    for name in ("secret", "operator"):
        machine.run("sh", "-c", f"umask 077; head -c 32 /dev/urandom | base64 > /etc/gpuwatch/{name}")
        machine.run("chown", "gpuwatch", f"/etc/gpuwatch/{name}")
    machine.run("systemctl", "enable", "--now", AGGREGATOR)


def set_up_node(machine: Machine, centre: Machine, url: str, authority: trustme.CA) -> None:
    """As docs/operating.md says, with the shipped agent.toml; only the GPUs are simulated, and some times are short."""
    example = (TREE / "deploy" / "agent.toml").read_text()
    changes = {
        "http://aggregator.example:9190": url,
        '# ca_file = "/etc/gpuwatch/ca.pem"': 'ca_file = "/etc/gpuwatch/ca.pem"',
        "interval_s = 5.0                ": "interval_s = 1.0                ",
        "retry_most_s = 15.0": "retry_most_s = 3.0",
        '"auto"          # /dev/kmsg': '"file"\npath = "/var/log/kern.log"  #',
        "[collectors.nvml]\nenabled = true\ninterval_s = 5.0": "[collectors.nvml]\nenabled = true\ninterval_s = 1.0\n"
        'preload = "gpuwatch.simulate.nvml:install"\npreload_argument = "/etc/gpuwatch/gpus.json"',
    }
    for old, new in changes.items():
        assert old in example, old
        example = example.replace(old, new)
    machine.write("/etc/gpuwatch/agent.toml", example)
    machine.write("/etc/gpuwatch/ca.pem", authority.cert_pem.bytes().decode())
    machine.write("/etc/gpuwatch/gpus.json", msgspec.json.encode({"gpu_count": 8, "seed": machine.name}).decode())
    machine.write("/var/log/kern.log", "", group="adm")
    dropin = f"/etc/systemd/system/{AGENT}.service.d/short.conf"
    machine.write(dropin, f"[Service]\nWatchdogSec={WATCHDOG_S}\n", mode="0644", group="root")
    machine_id = msgspec.json.decode(machine.says("sh", "-c", "gpuwatch scan --json 2> /dev/null"))["machine"]
    machine.write("/etc/gpuwatch/token", centre.run("gpuwatch", "token", machine_id))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", AGENT)
