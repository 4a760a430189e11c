"""Who would slip past the look at the node: by a name, by a dead first thread, by coming late, behind other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.hands import beats, carry
from gpuwatch.hands.command import run
from gpuwatch.training.heartbeat import SUFFIX
from tests.hands_node import GPU_UUID, HandsNode

GPU_3 = ("/dev/nvidiactl", "/dev/nvidia3")


@pytest.fixture
def node(tmp_path: Path) -> HandsNode:
    return HandsNode(tmp_path)


def test_a_hold_that_leads_nowhere_holds(node: HandsNode) -> None:
    (node.folder / "HOLD").symlink_to(node.folder / "nowhere")
    assert node.answer(node.order())[0] == "refused"


@pytest.mark.parametrize(
    ("cgroup", "ours"),
    [
        ("/system.slice/gpuwatch-agent.service", True),
        ("/../../system.slice/gpuwatch-agent.service", True),  # as seen from a container
        ("/monitoring.slice/monitoring-gpu.slice/gpuwatch-agent.service", True),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/gpuwatch-agent.service", False),
        ("/system.slice/docker-4f.scope/gpuwatch-agent.service", False),
        ("/system.slice/slurmstepd.scope/job_7/gpuwatch-agent.service", False),
        ("/system.slice/not-gpuwatch-agent.service", False),
    ],
)
def test_a_users_own_unit_of_the_agents_name_is_a_stranger(node: HandsNode, cgroup: str, ours: bool) -> None:
    node.process(60, name="train", devices=("/dev/nvidia3",), cgroup=cgroup)
    state, why = node.answer(node.order("reboot", ""))
    assert (state, why if not ours else "") == (
        ("failed", "") if ours else ("refused", "a GPU is in use: train (60)")
    )  # ours: the reboot was tried


def leave_a_thread(node: HandsNode, pid: int, *, pending: int) -> None:
    """The first thread is a zombie without files; another one hangs in the driver."""
    node.process(pid + 1, devices=GPU_3, state="D (disk sleep)", pending=pending)
    node.process(pid, state="Z (zombie)")
    (node.proc / str(pid) / "task").mkdir()
    (node.proc / str(pid + 1)).rename(node.proc / str(pid) / "task" / str(pid + 1))


def test_a_zombie_of_which_a_thread_lives_holds_the_gpu(node: HandsNode) -> None:
    leave_a_thread(node, 60, pending=1 << 8)
    assert node.answer(node.order("reset_gpu", GPU_UUID, action_id="a")) == ("refused", "a GPU is in use: python (60)")
    assert node.answer(node.order("reboot", "", action_id="b"))[0] == "failed"  # it was tried: that frees it
    assert node.did() == ["reboot", "force"]


def test_a_process_whose_first_thread_has_ended_works_on(node: HandsNode) -> None:
    leave_a_thread(node, 60, pending=0)
    assert node.answer(node.order("reboot", "")) == ("refused", "a GPU is in use: python (60)")


@pytest.mark.parametrize(
    ("comes", "why"),
    [
        (
            lambda node: node.process(50, name="slurmstepd", uid=0, title=b"slurmstepd: [4711.extern]\0"),
            "a job runs here: the Slurm step 4711.extern",
        ),
        (lambda node: node.process(60, name="jupyter", devices=GPU_3), "a GPU is in use: jupyter (60)"),
        (lambda node: (node.folder / "HOLD").touch(), "somebody wants hands off"),
    ],
    ids=["job", "process", "hold"],
)
def test_who_comes_while_the_driver_is_let_go_is_seen(
    node: HandsNode, monkeypatch: pytest.MonkeyPatch, comes: Callable[[HandsNode], None], why: str
) -> None:

    def slow(words: list[str], *args: Any, **more: Any) -> Any:
        if words[-1] == "release":
            comes(node)
        return run(words, *args, **more)

    monkeypatch.setattr(carry, "run", slow)
    state, said = node.answer(node.order("reset_gpu", GPU_UUID))
    assert (state, why in said) == ("failed", True)
    assert node.did() == ["release", "resume"]


def test_a_run_cannot_be_hidden_behind_files_of_others(node: HandsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "MOST_FILES", 2)
    (node.folder / "beats").mkdir()
    for name in ("0", "1"):
        (node.folder / "beats" / f"{name}{SUFFIX}").touch()
    assert node.answer(node.order(action_id="a"))[0] == "done"
    (node.folder / "beats" / f"2{SUFFIX}").touch()
    assert node.answer(node.order(action_id="b"))[0] == "refused"


def test_a_look_that_fails_is_a_refusal_and_takes_the_nonce_back(node: HandsNode) -> None:
    text = node.sign(node.order())
    node.proc.rename(node.folder / "elsewhere")
    state, why = node.hand_in(text)
    assert (state, why[:35]) == ("refused", "whether it may be done cannot be told"[:35])
    (node.folder / "elsewhere").rename(node.proc)
    assert node.hand_in(text)[0] == "refused"
    assert node.did() == []
