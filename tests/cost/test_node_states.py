"""What a node's time is when no run uses it: the whole table, and what overrides it."""

from __future__ import annotations

import pytest

from gpuwatch.cost.intervals import partition
from gpuwatch.model.ledger import ActionStep, Maintenance, ProvenUp
from gpuwatch.model.money import Interval
from tests.ledgers import Pen, at

HEALTHS = ("healthy", "joining", "suspect", "degraded", "unknown", "driver_failed", "dead")
TABLE = {
    "in_service": ("idle", "quarantine", "quarantine", "quarantine", "unknown", "dead", "dead"),
    "cordoned": ("draining",) * 7,
    "draining": ("draining",) * 7,
    "drained": ("draining",) * 7,
    "replacing": ("draining",) * 7,
    "retired": ("draining",) * 7,
    "repairing": ("quarantine",) * 7,
    "validating": ("quarantine",) * 7,
    "quarantined": ("quarantine",) * 7,
}
CELLS = [(row, health, word) for row, words in TABLE.items() for health, word in zip(HEALTHS, words, strict=True)]


def last(pen: Pen, now: float = 60) -> Interval:
    return [one for one in partition(pen.lines, at(now)) if one.machine == "n"][-1]


@pytest.mark.parametrize(("lifecycle", "health", "category"), CELLS)
def test_state_table(lifecycle: str, health: str, category: str) -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 30, lifecycle=lifecycle, health=health)
    assert last(pen).category == category


@pytest.mark.parametrize("health", HEALTHS)
def test_before_it_was_ever_in_service_all_is_provisioning(health: str) -> None:
    pen = Pen()
    pen.born("n", 0, fault="F")
    pen.state("n", 0, lifecycle="provisioning")
    pen.state("n", 10, lifecycle="validating", health=health)
    found = last(pen)
    assert (found.category, found.start_unix_ns, found.fault) == ("provisioning", at(0), "F")


@pytest.mark.parametrize(("lifecycle", "health", "category"), CELLS)
def test_in_an_announced_window_all_of_it_is_maintenance(lifecycle: str, health: str, category: str) -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 30, lifecycle=lifecycle, health=health)
    pen.add(Maintenance(at_unix_ns=at(10), machine="n", begin_unix_ns=at(30), end_unix_ns=at(51)))
    words = [(one.category, one.start_unix_ns, one.end_unix_ns) for one in partition(pen.lines, at(60))]
    assert words == [("idle", at(0), at(30)), ("maintenance", at(30), at(51)), (category, at(51), at(60))]


def test_a_window_announced_late_counts_from_then_on() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.add(Maintenance(at_unix_ns=at(36), machine="n", begin_unix_ns=at(30), end_unix_ns=at(48)))
    assert [(one.category, one.start_unix_ns) for one in partition(pen.lines, at(60))][1] == ("maintenance", at(36))


@pytest.mark.parametrize(
    ("health", "category"),
    [
        ("suspect", "productive"),
        ("degraded", "productive"),
        ("unknown", "productive"),
        ("joining", "productive"),
        ("dead", "dead"),
        ("driver_failed", "dead"),
    ],
)
@pytest.mark.parametrize("lifecycle", ["in_service", "cordoned", "draining", "repairing"])
def test_in_use_only_a_broken_node_takes_time_from_the_run(health: str, category: str, lifecycle: str) -> None:
    pen = Pen()
    for name in ("n", "peer"):
        pen.node(name, 0)
    pen.start("1", 0, ["n", "peer"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 30)
    pen.state("n", 30, lifecycle=lifecycle, health=health)
    if category == "productive":
        pen.step("1", 2, 60)
    assert last(pen).category == category


@pytest.mark.parametrize(("health", "category"), [("dead", "maintenance"), ("driver_failed", "dead")])
def test_in_use_in_a_window_only_what_is_unreachable_is_maintenance(health: str, category: str) -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 30)
    pen.state("n", 30, health=health)
    pen.add(Maintenance(at_unix_ns=at(10), machine="n", begin_unix_ns=at(20), end_unix_ns=at(60)))
    assert last(pen).category == category


@pytest.mark.parametrize("kind", ["reboot", "burn_in", "reset_gpu"])
def test_a_repair_since_the_cordon_makes_draining_quarantine(kind: str) -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 12, lifecycle="cordoned", fault="F")
    step = ActionStep(
        at_unix_ns=at(24), action_id="x", kind=kind, step="s", state="intended", slot="n", machine="n", fault="F"
    )
    pen.add(step)
    pen.state("n", 36, lifecycle="drained")
    pen.state("n", 48, lifecycle="in_service")
    found = [(one.category, one.start_unix_ns, one.fault) for one in partition(pen.lines, at(60))]
    assert found == [
        ("idle", at(0), None),
        ("draining", at(12), "F"),
        ("quarantine", at(24), "F"),
        ("idle", at(48), None),
    ]


def test_a_drain_for_replacement_is_no_repair() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 12, lifecycle="cordoned")
    pen.add(
        ActionStep(
            at_unix_ns=at(24),
            action_id="x",
            kind="replace",
            step="grow",
            state="done",
            slot="n",
            machine="n",
            fault="F",
        )
    )
    assert last(pen).category == "draining"


def test_a_machine_of_which_nothing_is_known_is_unknown() -> None:
    pen = Pen()
    pen.born("n", 0)
    assert (last(pen).category, last(pen).cause) == ("unknown", "no_evidence")
    pen.state("n", 0, lifecycle="in_service")
    assert last(pen).category == "unknown"  # in service, but nobody ever said it was healthy


def test_gone_from_the_providers_list_ends_billed_time() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 30, health="absent")
    assert last(pen).end_unix_ns == at(30)
    pen.gone("n", 48, "provider")  # but the provider's own stop record says it was billed until then
    assert (last(pen).category, last(pen).cause, last(pen).end_unix_ns) == ("unknown", "billed_while_absent", at(48))


def test_retired_and_still_billed_says_so() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 30, lifecycle="retired")
    assert (last(pen).category, last(pen).cause) == ("draining", "billed_after_release")


def test_a_weaker_word_does_not_end_a_death_that_was_proven_earlier() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 12, health="suspect")  # first thought
    pen.state("n", 9, health="dead", fault="F")  # written later: it had been dead before
    assert (last(pen).category, last(pen).start_unix_ns, last(pen).fault) == ("dead", at(9), "F")
    pen.state("n", 30, health="joining")
    assert last(pen).category == "quarantine"


def test_proven_up_all_along_was_never_dead() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.state("n", 12, health="dead")
    pen.state("n", 36, health="healthy")
    pen.add(ProvenUp(at_unix_ns=at(6), machine="n", until_unix_ns=at(40)))
    assert [one.category for one in partition(pen.lines, at(60))] == ["idle"]


def test_no_death_before_the_end_of_a_step_that_its_own_rank_finished() -> None:
    pen = Pen()
    for name in ("n", "peer"):
        pen.node(name, 0)
    pen.start("1", 0, ["n", "peer"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.state("n", 12, health="dead")
    pen.step("1", 1, 24)
    assert (last(pen).category, last(pen).start_unix_ns) == ("dead", at(24))


def test_held_and_waiting_is_spare_for_its_run() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.hold(["n"], 12, 36)
    found = [(one.category, one.run, one.start_unix_ns) for one in partition(pen.lines, at(60))]
    assert found == [("idle", None, at(0)), ("spare", "train", at(12)), ("idle", None, at(36))]


def test_a_hold_ends_when_the_run_closes() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.hold(["n"], 0)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0)
    pen.end("1", 24, "planned")
    pen.close(36, "declared")
    found = [(one.category, one.start_unix_ns) for one in partition(pen.lines, at(60))]
    assert found[-2:] == [("spare", at(24)), ("idle", at(36))]


def test_a_held_node_that_is_cordoned_is_not_in_recovery() -> None:
    pen = Pen()
    for name in ("n", "peer"):
        pen.node(name, 0)
    pen.hold(["n", "peer"], 0)
    pen.start("1", 0, ["n", "peer"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 12)
    pen.state("n", 12, lifecycle="cordoned", fault="F")
    pen.end("1", 12, fault="F")
    found = {one.machine: one.category for one in partition(pen.lines, at(60))}
    assert found == {"n": "draining", "peer": "recovery"}
