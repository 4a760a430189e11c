"""A repair is proven, or not, by what was read after it: the last word of a slow source may be of before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatch.aggregator.heard import Heard, Received
from gpuwatch.aggregator.reach import Done, Failed, Waiting
from gpuwatch.aggregator.repair import proven
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.wire import Envelope, Status
from tests.fakes import T0, evidence, later

S = 10**9
SKEW_S = 3_600  # the node's clock is an hour ahead of ours
CAUSE = "service_down_nvidia-fabricmanager"


def judged(health: Health, *, read_s: float | None, status: Status = "ok", cause: str = CAUSE) -> Any:
    """The step began at T0; the last report came 30 s later; `read_s`: when the source was read, from T0."""
    now, node_ns = later(T0, 30), later(T0, 30 + SKEW_S).unix_ns
    at_ns = later(T0, (read_s or 0.0) + SKEW_S).unix_ns
    told = {"services": Received(Envelope("services", at_ns, 0.1, status), now.monotonic_ns)}
    heard = Heard(
        boot="b",
        agent_id="a",
        sequence=9,
        interval_s=5.0,
        last=now,
        sent_unix_ns=node_ns,
        sent_monotonic_ns=now.monotonic_ns,
        skew_ns=0,
        sources=told if read_s is not None else {},
    )
    against = () if health is Health.HEALTHY else (evidence("service_down", cause=cause),)
    verdict = Verdict(slot="s", machine="m", health=health, because="x", evidence=against)
    action = SimpleNamespace(machine="m", cause=cause, kind="repair", order="restart_service")
    hands: Any = SimpleNamespace(
        saga=SimpleNamespace(action=action),
        scene=SimpleNamespace(verdicts={"m": verdict}, now=now),
        began=T0,
        reach=SimpleNamespace(fleet=SimpleNamespace(get=lambda _: SimpleNamespace(heard=heard))),
    )
    return proven(hands)


@pytest.mark.parametrize(
    ("health", "read_s", "status", "kind"),
    [
        (Health.HEALTHY, 10.0, "ok", Done),
        (Health.HEALTHY, -10.0, "ok", Waiting),
        (Health.HEALTHY, 10.0, "failed", Waiting),
        (Health.HEALTHY, None, "ok", Waiting),
        (Health.DRIVER_FAILED, 10.0, "ok", Failed),
        (Health.DRIVER_FAILED, -10.0, "ok", Waiting),
        (Health.UNKNOWN, -10.0, "ok", Waiting),
    ],
)
def test_a_service_that_was_restarted(health: Health, read_s: float | None, status: Status, kind: type) -> None:
    assert isinstance(judged(health, read_s=read_s, status=status), kind)


@pytest.mark.parametrize(("health", "kind"), [(Health.HEALTHY, Done), (Health.DRIVER_FAILED, Failed)])
def test_what_nvml_tells_is_read_each_few_seconds(health: Health, kind: type) -> None:
    assert isinstance(judged(health, read_s=None, cause="gpu_lost"), kind)
