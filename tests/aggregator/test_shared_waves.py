"""A fault of something shared that reaches node after node must not empty a pool, however fast the first are mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.model.facts.host import HostFacts, NetworkMount
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.model.wire import Envelope
from tests.fakes_centre import Centre, _raw


def down(_: float) -> tuple[str, Any]:
    return "infiniband", InfinibandFacts((RdmaPort("mlx5_0", 1, state="down", expected=True),))


def flaps(since_s: float) -> tuple[str, Any]:
    count = min(15, int(since_s / 10))
    return "infiniband", InfinibandFacts((RdmaPort("mlx5_0", 1, state="active", expected=True, flap_count=count),))


def hangs(_: float) -> tuple[str, Any]:
    return "host", HostFacts(network_mounts=(NetworkMount("/home", "srv:/home", "nfs4", "hung", "no answer"),))


@pytest.mark.parametrize(
    ("fault", "apart_s", "seconds", "most_out"),
    [
        pytest.param(down, 1, 400, 0, id="a-switch-is-down"),
        pytest.param(down, 400, 2400, 2, id="port-after-port-slower-than-a-machine-is-replaced"),
        pytest.param(flaps, 20, 700, 0, id="a-switch-flaps"),
        pytest.param(hangs, 400, 2400, 0, id="a-file-server-is-gone"),
    ],
)
def test_a_wave(
    tmp_path: Path, fault: Callable[[float], tuple[str, Any]], apart_s: int, seconds: int, most_out: int
) -> None:
    centre = Centre(tmp_path)
    centre.settle()
    agents = list(centre.agents.values())
    for second in range(seconds):
        for number, agent in enumerate(agents):
            if second >= number * apart_s:
                name, facts = fault(second - number * apart_s)
                agent.extra = (Envelope(name, centre.clock.unix_ns(), 0.01, "ok", facts=_raw(facts)),)
        centre.second()
    assert len({saga.action.slot for saga in centre.executor.sagas()}) <= most_out
    plan, judged = centre.stage.scene.plan, centre.stage.scene.verdicts.values()
    assert {hold.reason for hold in plan.holds} == {"shared_cause"}
    assert len(plan.holds) == sum(1 for verdict in judged if str(verdict.health) == "degraded") > 1
    assert centre.stage.scene.objections == ()
    assert centre.store is not None
    centre.store.close()
