"""Every order that must be refused is refused, with its reason, and nothing is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.hands.settings import HandsSettings, Reboot, ResetGpu, RestartService
from gpuwatch.model.order import SignedOrder, from_text
from gpuwatch.training import Heartbeat
from tests.hands_node import GPU_PCI, GPU_UUID, HandsNode

GPU_3 = ("/dev/nvidiactl", "/dev/nvidia3")


@pytest.fixture
def node(tmp_path: Path) -> HandsNode:
    return HandsNode(tmp_path)


def test_a_good_order_is_done_once(node: HandsNode) -> None:
    assert node.answer(node.order()) == ("done", "")
    assert node.did() == ["restart slurmd.service"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"machine": "m-2"}, "it is for the machine 'm-2'", id="another-machine"),
        pytest.param({"machine": ""}, "it is for the machine ''", id="no-machine"),
        pytest.param({"boot_id": "boot-0"}, "it is for the boot 'boot-0'; this is boot-1", id="another-boot"),
        pytest.param({"nonce": "ab" * 16}, "its nonce was used already", id="a-nonce-of-nobody"),
        pytest.param({"nonce": ""}, "its nonce was used already", id="no-nonce"),
        pytest.param({"expires_monotonic_ns": 49_999 * 10**9}, "it has expired 1 s ago", id="expired"),
        pytest.param({"expires_monotonic_ns": 50_000 * 10**9}, "it has expired 0 s ago", id="expires-now"),
        pytest.param({"target": "sshd.service"}, "'sshd.service' is not among restart_service.units", id="other-unit"),
        pytest.param({"target": ""}, "'' is not among restart_service.units", id="no-unit"),
        pytest.param({"kind": "reset_gpu", "target": "3"}, "'3' is neither the UUID nor the PCI", id="gpu-by-index"),
        pytest.param({"kind": "reset_gpu", "target": "0000:9b:00;reboot"}, "is neither the UUID nor", id="injection"),
        pytest.param({"kind": "reset_gpu", "target": "0000:19:00.0"}, "there is no GPU 0000:19:00.0", id="no-such-gpu"),
        pytest.param({"kind": "reboot", "target": "all"}, "a reboot has no target", id="reboot-of-something"),
    ],
)
def test_what_the_order_says(node: HandsNode, changed: dict[str, Any], reason: str) -> None:
    state, why = node.answer(node.order(**changed))
    assert state == "refused"
    assert reason in why
    assert node.did() == []


def test_a_key_that_is_not_known(node: HandsNode) -> None:
    text = node.sign(node.order(), node.new_key("stranger"))
    state, why = node.hand_in(text)
    assert (state, why[:42]) == ("refused", "it is signed with a key that is not known ")


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "m-2"},
        {"boot_id": "boot-2"},
        {"action_id": "act-2"},
        {"kind": "reboot", "target": ""},
        {"target": "sshd.service"},
        {"nonce": "00"},
        {"expires_monotonic_ns": 10**18},
        {"because": "nothing"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_signed(node: HandsNode, change: dict[str, Any]) -> None:
    order = node.order()
    signed = from_text(node.sign(order))
    assert signed is not None
    forged = msgspec.structs.replace(signed, order=msgspec.structs.replace(order, **change))
    state, why = node.hand_in(msgspec.json.encode(forged))
    assert (state, why) == ("refused", "the signature is not one of this order: somebody changed it")
    assert node.did() == []


@pytest.mark.parametrize("signature", ["", "00" * 64, "zz" * 64, "00" * 63])
def test_what_is_no_signature(node: HandsNode, signature: str) -> None:
    order = node.order()
    text = msgspec.json.encode(SignedOrder(order=order, key=node.signer.public, signature=signature))
    assert node.hand_in(text)[0] == "refused"


def test_fields_cannot_run_into_each_other(node: HandsNode) -> None:
    one = node.order(action_id="ab", target="c")
    two = node.order(action_id="a", target="bc")
    assert one.signed_bytes() != two.signed_bytes()


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b"[" * 4000, b"reboot", b"x" * 5000])
def test_what_is_no_order_is_let_lie(node: HandsNode, text: bytes) -> None:
    assert node.hand_in(text) == ("", "")


def test_a_nonce_is_good_once(node: HandsNode) -> None:
    order = node.order()
    assert node.answer(order)[0] == "done"
    state, why = node.answer(msgspec.structs.replace(order, action_id="act-2"))
    assert (state, why) == ("refused", "its nonce was used already, has expired, or was never given out here")
    assert node.answer(order)[0] == "refused"  # the last word is still that of act-2
    assert node.did() == ["restart slurmd.service"]


def test_a_nonce_ends_by_the_monotonic_clock(node: HandsNode) -> None:
    order = node.order(expires_monotonic_ns=10**18)
    node.fake.monotonic += 300 * 10**9
    node.fake.unix -= 3600 * 10**9  # an hour back helps nobody
    node.hands.tick()
    assert node.answer(order) == ("refused", "its nonce was used already, has expired, or was never given out here")


def test_the_earlier_nonce_is_good_while_the_next_is_given_out(node: HandsNode) -> None:
    order = node.order(expires_monotonic_ns=10**18)
    node.fake.pass_s(200)
    node.hands.tick()
    assert node.hands.facts().nonce != order.nonce
    assert node.answer(order)[0] == "done"


def test_an_action_that_was_done_is_not_done_again_with_a_fresh_nonce(node: HandsNode) -> None:
    assert node.answer(node.order())[0] == "done"
    assert node.answer(node.order())[0] == "done"
    assert node.did() == ["restart slurmd.service"]


@pytest.mark.parametrize(
    ("settings", "kind", "target", "reason"),
    [
        ({"restart_service": RestartService()}, "restart_service", "slurmd.service", "is not among"),
        ({"reset_gpu": ResetGpu()}, "reset_gpu", GPU_UUID, "reset_gpu.allowed is not set"),
        ({"reboot": Reboot()}, "reboot", "", "reboot.allowed is not set"),
        ({"public_keys": ()}, "reboot", "", "no public key is set here: nobody may order anything"),
    ],
)
def test_nothing_is_allowed_by_default(
    node: HandsNode, settings: dict[str, Any], kind: str, target: str, reason: str
) -> None:
    node.settings = node.usual(**settings)
    node.again()
    state, why = node.answer(node.order(kind, target))
    assert state == "refused"
    assert reason in why
    assert HandsSettings().restart_service.units == ()


def slurm_step(node: HandsNode) -> None:
    node.process(50, name="slurmstepd", program="/usr/sbin/slurmstepd", uid=0, title=b"slurmstepd: [4711.extern]\0")


def slurm_unreadable(node: HandsNode) -> None:
    node.process(50, name="slurmstepd", program="/usr/sbin/slurmstepd", uid=0, title=b"\0")


def pod_with_gpu(node: HandsNode) -> None:
    node.process(51, cgroup="/kubepods.slice/kubepods-pod1.slice/cri-1.scope", devices=GPU_3)


def pod_of_a_user_called_like_a_friend(node: HandsNode) -> None:
    node.process(51, cgroup="/kubepods/pod1", devices=GPU_3, program="/usr/bin/dcgm-exporter", uid=2000)


def batch_task(node: HandsNode) -> None:
    node.process(52, cwd="/mnt/batch/tasks/workitems/job/job-1/task/wd")


def training(node: HandsNode) -> None:
    (node.folder / "beats").mkdir()
    Heartbeat("opt", rank=5, world_size=8, directory=node.folder / "beats").step(3)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    node.process(os.getpid())  # ourselves are left out among processes, not among who trains
    (node.proc / str(os.getpid()) / "stat").write_text(f"1 (python) S {'0 ' * 18}{ticks} 0\n")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (slurm_step, "a job runs here: the Slurm step 4711.extern"),
        (slurm_unreadable, "a job runs here: the Slurm step slurmstepd (50)"),
        (pod_with_gpu, "a job runs here: a pod with a GPU: python (51)"),
        (pod_of_a_user_called_like_a_friend, "a job runs here: a pod with a GPU: python (51)"),
        (batch_task, "a job runs here: an Azure Batch task: python (52)"),
        (training, "a job runs here: a training process: rank 5 of opt (pid {pid})"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "target"), [("restart_service", "slurmd.service"), ("reset_gpu", GPU_UUID), ("reboot", "")]
)
def test_a_job_runs(node: HandsNode, job: Callable[[HandsNode], None], reason: str, kind: str, target: str) -> None:
    job(node)
    assert node.answer(node.order(kind, target)) == ("refused", reason.format(pid=os.getpid()))
    assert node.did() == []


def test_a_plain_pod_counts_where_it_shall(node: HandsNode) -> None:
    node.process(51, cgroup="/kubepods/pod1", name="kube-proxy")
    assert node.answer(node.order(action_id="a"))[0] == "done"
    node.settings = node.usual(work=node.work(pods="any"))
    node.again()
    assert node.answer(node.order(action_id="b")) == ("refused", "a job runs here: a pod: kube-proxy (51)")


def quiet_node(node: HandsNode) -> None:
    """What is there on every node that nobody uses."""
    cgroup = "/system.slice/slurmstepd.scope/system"
    node.process(40, name="slurmstepd", uid=0, cgroup=cgroup, title=b"/usr/sbin/slurmstepd\0infinity\0")
    node.process(41, name="nvidia-persiste", program="/usr/bin/nvidia-persistenced", uid=112, devices=GPU_3)
    node.process(42, name="nv-hostengine", program="/usr/bin/nv-hostengine", uid=0, devices=GPU_3)
    node.process(43, program="/usr/bin/dcgm-exporter", uid=0, cgroup="/kubepods/pod2", devices=GPU_3)
    node.process(44, name="pause", program="/pause", cgroup="/kubepods/pod2")
    node.process(45, name="Xorg", devices=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"))
    node.process(46, state="Z (zombie)", cgroup="/kubepods/pod2", devices=GPU_3)


@pytest.mark.parametrize(
    ("kind", "target", "did"),
    [
        ("restart_service", "slurmd.service", ["restart slurmd.service"]),
        ("reset_gpu", GPU_UUID, ["release", f"reset {GPU_UUID}", "resume"]),
        ("reset_gpu", "00000000:9B:00.0", ["release", "reset 00000000:9B:00.0", "resume"]),
    ],
)
def test_a_quiet_node_is_free(node: HandsNode, kind: str, target: str, did: list[str]) -> None:
    quiet_node(node)
    assert node.answer(node.order(kind, target)) == ("done", "")
    assert node.did() == did


@pytest.mark.parametrize(
    ("kind", "target", "devices", "refused"),
    [
        ("reset_gpu", GPU_UUID, GPU_3, True),
        ("reset_gpu", GPU_PCI, GPU_3, True),
        ("reset_gpu", GPU_UUID, ("/dev/nvidia2",), False),  # another GPU
        ("reset_gpu", GPU_UUID, ("/dev/nvidia-caps/nvidia-cap33",), True),  # a part of one, of which is not told
        ("restart_service", "slurmd.service", ("/dev/nvidia2",), True),
        ("reboot", "", ("/dev/nvidia2",), True),
    ],
)
def test_a_foreign_process_on_the_gpu(
    node: HandsNode, kind: str, target: str, devices: tuple[str, ...], refused: bool
) -> None:
    node.process(60, name="jupyter", devices=devices)
    state, why = node.answer(node.order(kind, target))
    assert (state == "refused", why if refused else "") == (refused, "a GPU is in use: jupyter (60)" if refused else "")


def test_a_name_alone_makes_no_friend(node: HandsNode) -> None:
    node.process(60, name="nvidia-persistenced", program="/tmp/nvidia-persistenced", uid=2000, devices=GPU_3)
    assert node.answer(node.order("reset_gpu", GPU_UUID)) == ("refused", "a GPU is in use: nvidia-persistenced (60)")


def test_a_process_that_was_killed_stops_a_reset_but_no_reboot(node: HandsNode) -> None:
    node.process(60, name="python", devices=GPU_3, state="D (disk sleep)", pending=1 << 8)
    assert node.answer(node.order("reset_gpu", GPU_UUID, action_id="a"))[0] == "refused"
    assert node.answer(node.order("reboot", "", action_id="b"))[0] == "failed"  # it was tried
    assert node.did() == ["reboot", "force"]


def test_a_partitioned_gpu(node: HandsNode) -> None:
    node.mig()
    why = f"the GPU {GPU_PCI} is partitioned: 1 MIG instances"
    assert node.answer(node.order("reset_gpu", GPU_UUID)) == ("refused", why)


def test_the_agents_own_probe_must_let_go(node: HandsNode) -> None:
    node.process(70, devices=GPU_3, uid=900, cgroup="/system.slice/gpuwatch-agent.service")
    state, why = node.answer(node.order("reset_gpu", GPU_UUID))
    assert (state, why) == ("failed", "the agent's own probe did not let the GPU go within 0.5 s: python (70)")
    assert node.did() == ["release", "resume"]


def test_hold_stops_everything(node: HandsNode) -> None:
    (node.folder / "HOLD").touch()
    state, why = node.answer(node.order())
    assert (state, why) == ("refused", f"{node.folder / 'HOLD'} is there: somebody wants hands off")
    assert node.hands.facts().refuses == why
    (node.folder / "HOLD").unlink()
    assert node.answer(node.order())[0] == "done"  # a fresh nonce, a new try
