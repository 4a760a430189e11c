"""A run that makes no progress; a pause with a name, and a silent agent, are no hang."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.model.run import RankView, RunView
from gpuwatch.rules.training_stalled import Settings, examine
from tests.fakes import T0, later, node_view, rank_view, run_view


def look(run: RunView, settings: Settings | None = None) -> Any:
    return examine(node_view(machine="m-a", run=run), T0, settings or Settings())


def ranks(moved_s: float, count: int = 4, **changes: Any) -> list[RankView]:
    return [rank_view(n, "m-a" if n < 2 else "m-b", moved_s=moved_s, **changes) for n in range(count)]


@pytest.mark.parametrize(
    ("usual_s", "moved_s", "fires"),
    [
        pytest.param(100.0, 500.0, False, id="exactly-five-steps"),
        pytest.param(100.0, 501.0, True, id="a-second-past"),
        pytest.param(1.0, 120.0, False, id="at-the-floor"),
        pytest.param(1.0, 121.0, True, id="past-the-floor"),
        pytest.param(None, 660.0, False, id="at-the-limit-of-a-step-not-learned"),
        pytest.param(None, 661.0, True, id="past-it"),
        pytest.param(10.0, 0.0, False, id="just-stepped"),
    ],
)
def test_the_limit_is_learned(usual_s: float | None, moved_s: float, fires: bool) -> None:
    found = look(run_view(*ranks(moved_s), usual_step_s=usual_s))
    assert isinstance(found, Evidence) is fires


@pytest.mark.parametrize(
    ("phase", "usual_s", "moved_s", "fires"),
    [
        pytest.param("checkpoint", 300.0, 600.0, False, id="a-long-save-is-no-hang"),
        pytest.param("checkpoint", 300.0, 601.0, True, id="a-save-that-never-ends-is"),
        pytest.param("checkpoint", None, 1200.0, False, id="not-learned-ten-minutes-twice"),
        pytest.param("checkpoint", None, 1201.0, True, id="past-that"),
        pytest.param("init", None, 3600.0, False, id="start-up"),
        pytest.param("init", None, 3601.0, True, id="start-up-that-hangs"),
        pytest.param("evaluate", None, 7200.0, False, id="evaluation"),
        pytest.param("data_wait", None, 121.0, True, id="waiting-for-data-is-part-of-a-step"),
    ],
)
def test_a_pause_with_a_name_has_its_own_limit(phase: str, usual_s: float | None, moved_s: float, fires: bool) -> None:
    run = run_view(*ranks(moved_s, phase=phase), phase=phase, usual_phase_s=usual_s)
    assert isinstance(look(run), Evidence) is fires


def test_one_rank_that_saves_while_the_others_wait_for_it_is_a_save() -> None:
    waiting = ranks(700)
    run = run_view(rank_view(0, "m-a", moved_s=700, phase="checkpoint"), *waiting[1:], phase="checkpoint")
    assert look(run) is None


def test_silence_of_the_reporting_path_is_no_hang() -> None:
    stale = [rank_view(n, "m-a", moved_s=5000, received_monotonic_ns=later(T0, -31).monotonic_ns) for n in range(4)]
    assert isinstance(look(run_view(*stale)), Unknown)


def test_some_ranks_read_freshly_and_still_are_enough() -> None:
    stale = rank_view(3, "m-b", moved_s=5000, received_monotonic_ns=later(T0, -300).monotonic_ns, still_s=0.0)
    assert isinstance(look(run_view(*ranks(5000)[:3], stale)), Evidence)


def test_a_gang_whose_other_ranks_go_on_is_not_stalled() -> None:
    assert look(run_view(*ranks(5000)[:3], rank_view(3, "m-b", moved_s=1))) is None


def test_the_first_old_record_of_a_replay_is_no_proof_of_standing_still() -> None:
    """After an outage the spool's first report shows what was known before it: read then, not now."""
    assert look(run_view(*ranks(5000, still_s=5.0))) is None


@pytest.mark.parametrize(("moved_s", "fires"), [(60.0, False), (61.0, True)])
def test_a_rank_whose_process_is_gone_needs_less_time(moved_s: float, fires: bool) -> None:
    dead = rank_view(3, "m-b", moved_s=moved_s, alive=False)
    assert isinstance(look(run_view(*ranks(moved_s)[:3], dead)), Evidence) is fires


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(ranks(5000, phase="done"), id="all-done"),
        pytest.param(ranks(5000, alive=False), id="all-gone"),
        pytest.param([*ranks(5000, phase="done")[:3], *ranks(5000, alive=False)[3:]], id="all-done-or-gone"),
    ],
)
def test_what_is_over_is_not_stalled(odd: list[RankView]) -> None:
    assert look(run_view(*odd)) is None


def test_a_run_is_asked_once_through_its_first_machine() -> None:
    run = run_view(*ranks(5000))
    assert examine(node_view(machine="m-b", run=run), T0, Settings()) is None
    assert examine(node_view(machine="m-a"), T0, Settings()) is None


def test_what_it_says() -> None:
    found = look(run_view(*ranks(5000)))
    assert isinstance(found, Evidence)
    assert (found.subject.kind, found.subject.id) == ("run", "opt")
    assert (found.kind, found.action) == ("run_stalled", "restart_job")
    assert "no rank of opt has moved for 5000 s after step 100 (limit 120 s" in found.because
    assert found.onset_unix_ns == later(T0, -5000 + 10).unix_ns  # one usual step after the last proof of progress


def test_the_limits_are_data() -> None:
    run = run_view(*ranks(9.0), usual_step_s=0.5)
    assert isinstance(look(run, Settings(min_s=6.0)), Evidence)
    assert look(run, Settings(min_s=10.0)) is None
