"""Several runs that stop at once suspect what they share."""

from __future__ import annotations

import pytest

from gpuwatch.model.evidence import Evidence, SharedCause, Subject
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.rules.stalled_together import Settings, examine
from tests.fakes import T0, fleet_view, node_view, rank_view, run_view


def together(*moved_s: float) -> list[SharedCause]:
    """One run of two nodes for each, stalled for so many seconds."""
    nodes, runs, verdicts = [], [], []
    for n, since in enumerate(moved_s):
        slots = [f"r{n}a", f"r{n}b"]
        nodes += [node_view(slot) for slot in slots]
        ranks = [rank_view(i, f"m-{slot}", moved_s=since) for i, slot in enumerate(slots)]
        runs.append(run_view(*ranks, run=f"run{n}"))
        stalled = Evidence(
            rule="training_stalled", subject=Subject("run", f"run{n}"), argues_for=Health.SUSPECT, because=""
        )
        verdicts.append(
            Verdict(slot=slots[0], machine=f"m-{slots[0]}", health=Health.HEALTHY, because="", evidence=(stalled,))
        )
    return list(examine(fleet_view(*nodes, runs=tuple(runs)), tuple(verdicts), T0, Settings()))


@pytest.mark.parametrize(
    ("moved_s", "slots"),
    [
        pytest.param((900.0,), 0, id="one-run-hangs-alone"),
        pytest.param((900.0, 900.0), 4, id="two-at-once"),
        pytest.param((900.0, 600.0), 4, id="at-the-edge-of-the-window"),
        pytest.param((901.0, 600.0), 0, id="a-second-too-far-apart"),
        pytest.param((900.0, 890.0, 200.0), 4, id="a-third-one-much-later-is-its-own"),
    ],
)
def test_stalled_together(moved_s: tuple[float, ...], slots: int) -> None:
    found = together(*moved_s)
    assert [len(cause.slots) for cause in found] == ([slots] if slots else [])
    for cause in found:
        assert cause.subject.kind == "file_system"
