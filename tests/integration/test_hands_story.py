"""The whole way by real processes: a GPU wants a reset; aggregator, agent and hands do it once; the node is back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpuwatch.model.identity import pci_address
from gpuwatch.sdk.ed25519 import make_key
from gpuwatch.simulate.nvml import pci_bus_id
from tests.hands_process import HandsProcess
from tests.living_cluster import Living

GPU = 3
POLICY = 'local_repair = ["reset_gpu", "reboot"]\norder_deadline_s = 60.0\nspare_quota = 1'
AGENT = (
    "\n[collectors.hands]\nenabled = true\ninterval_s = 0.2\n"
    'order_file = "{directory}/hands/order"\nstatus_file = "{directory}/hands/told/status"\n'
)


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    """A cluster that may order a reset or a reboot."""
    made = Living(tmp_path / "cluster")
    folder = made.cluster.directory
    config = made.cluster.config
    text = config.read_text().replace("spare_quota = 1", POLICY)
    config.write_text(text + '\n[hands]\nkey_file = "order.pem"\n')
    shared = json.loads((folder / "cluster.json").read_text())
    shared["agent_toml"] += AGENT
    (folder / "cluster.json").write_text(json.dumps(shared))
    yield made
    made.cluster.stop()


def boot_of(machine: Path) -> str:
    """The boot that the machine's agent was told."""
    head = psutil.Process(int((machine / "pid").read_text()))
    (agent,) = [child for child in head.children() if "gpuwatch.wiring.agent" in child.cmdline()]
    return agent.environ()["GPUWATCH_BOOT_ID"]


def has_hands(living: Living, slot: str) -> bool:
    """The aggregator knows what this node's hands say."""
    machines = living.api(f"nodes/{slot}").get("machines", [])
    return ("agent/hands", "ok") in [(word["witness"], word["says"]) for one in machines for word in one["seen"]]


def test_killed_at_chosen_steps_a_gpu_is_reset_once_and_its_node_is_back(living: Living) -> None:
    public = make_key(living.cluster.directory / "order.pem")
    living.start()
    cluster, slot = living.cluster, living.slots[1]
    machine, before = cluster.machine_directory(slot), set(cluster.machine_ids())
    hands = HandsProcess(machine / "hands", machine.name, public, boot=boot_of(machine))
    try:
        healthy = (machine / "gpus.json").read_text()
        (machine / "healthy.json").write_text(healthy)
        hands.note_and(f"sleep 2; cp {machine / 'healthy.json'} {machine / 'gpus.json'}")
        hands.gpu(
            str(pci_address(pci_bus_id(GPU))), f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{machine.name}/{GPU}')}", 0
        )
        hands.start()
        living.until("their word came", 60, lambda: has_hands(living, slot))  # looked for seldom while there were none
        (machine / "gpus.json").write_text(json.dumps(json.loads(healthy) | {"gpus": {GPU: {"recovery_action": 1}}}))
        for step, state in (("sign", "done"), ("order", "intended"), ("order", "done")):
            living.until(f"{step} is {state}", 60, lambda: (step, state) in [found[1:] for found in living.steps()])  # noqa: B023
            cluster.kill_aggregator()
            cluster.start_aggregator()
        living.until("the action is over", 60, lambda: bool(living.steps()) and not living.open_actions())
        living.until("all nodes are healthy", 60, living.well)
        assert [line.split()[0] for line in hands.did()] == ["reset"]
        assert set(cluster.machine_ids()) == before
        assert living.nodes()[slot]["machine"] == machine.name
        assert len({action for action, _, _ in living.steps()}) == 1
        living.check_money()
    finally:
        hands.end()
