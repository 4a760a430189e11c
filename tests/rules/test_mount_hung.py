"""Mounts that somebody else serves and does not answer for."""

from __future__ import annotations

import pytest

from gpuwatch.model.evidence import Subject
from gpuwatch.rules.mount_hung import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import network_mount, with_host


@pytest.mark.parametrize(("answer", "told"), [("ok", 0), ("not_asked", 0), ("hung", 1), ("failed", 1)])
def test_each_answer(answer: str, told: int) -> None:
    view = with_host(network_mounts=(network_mount(answer=answer, reason="why", since_unix_ns=5), network_mount("/x")))
    found = list(examine(view, T0, Settings()))
    assert len(found) == told
    for one in found:
        assert one.subject == Subject("file_system", "nfs1:/home")
        assert (one.soft, one.action, one.must_last, one.onset_unix_ns) == (True, "contact_support", 600.0, 5)


def test_what_it_says() -> None:
    mount = network_mount(answer="hung", reason="state D, wait channel rpc_wait, kernel stack a < b")
    (one,) = examine(with_host(network_mounts=(mount,)), T0, Settings())
    assert one.because == "/home (nfs4 of nfs1:/home) does not answer: state D, wait channel rpc_wait"
    assert list(examine(node_view(), T0, Settings())) == []
