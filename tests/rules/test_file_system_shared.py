"""One server that does not answer is one fault, held on every node that has its mount."""

from __future__ import annotations

from typing import Any

from gpuwatch.decide.assess import assess
from gpuwatch.decide.judge import judge
from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import NodeView
from gpuwatch.rules import gpu_lost, mount_hung
from gpuwatch.rules.file_system_shared import Settings, examine
from tests.fakes import T0, fleet_view, gpus, node_view, with_nvml
from tests.fakes_node import network_mount, with_host

RULES: dict[str, Any] = {
    "mount_hung": (mount_hung.RULE, mount_hung.Settings()),
    "gpu_lost": (gpu_lost.RULE, gpu_lost.Settings()),
}


def node(slot: str, source: str = "nfs1:/home", answer: str = "hung") -> NodeView:
    return with_host(node_view(slot), network_mounts=(network_mount(source=source, answer=answer, reason="D"),))


def shared(*nodes: NodeView) -> list[SharedCause]:
    fleet = fleet_view(*nodes)
    verdicts: tuple[Verdict, ...] = judge(fleet, {n.machine: assess(n, T0, RULES) for n in nodes}, None, {}, T0).nodes
    return list(examine(fleet, verdicts, T0, Settings()))


def test_two_nodes_suffice_before_either_is_condemned() -> None:
    (cause,) = shared(node("a"), node("b"), node("c", answer="ok"), node("d", source="nfs2:/data"), node_view("e"))
    assert cause.subject == Subject("file_system", "nfs1:/home")
    assert cause.slots == ("a", "b")
    assert "on 2 of 3 nodes" in cause.because


def test_one_node_alone_is_not_shared() -> None:
    assert shared(node("a"), node("b", answer="ok"), node("c", source="nfs2:/data")) == []


def test_a_node_that_is_condemned_for_something_else_is_not_held() -> None:
    first, *rest = gpus()
    lost = with_nvml(node("a"), gpus=(type(first)(first.index, first.uuid, first.pci, error=15), *rest))
    (cause,) = shared(lost, node("b"), node("c"))
    assert cause.slots == ("b", "c")
