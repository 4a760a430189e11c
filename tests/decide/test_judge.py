"""What is concluded of one node: how sure we must be, and how long we wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import gpuwatch.rules
from gpuwatch.decide.assess import assess
from gpuwatch.decide.judge import judge
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import CloudSays, FleetView, NodeView, SchedulerSays
from gpuwatch.model.wire import Goodbye
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, S, evidence, fleet_view, later, node_view, rank_view, run_view, source, with_nvml

ALL: dict[str, Rule[Any] | FleetRule[Any]] = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
RULES = {name: (rule, rule.settings()) for name, rule in ALL.items() if isinstance(rule, Rule)}


def conclude(fleet: FleetView, now: Moment = T0, before: Judgement | None = None, **policy: Any) -> Judgement:
    """Rules, then the judge, as the aggregator does it."""
    findings = {view.machine: assess(view, now, RULES) for view in fleet.nodes}
    return judge(fleet, findings, before, {"h100": Policy(**policy)}, now)


def one(view: NodeView, now: Moment = T0, **changes: Any) -> Verdict:
    """The verdict on this node, among 19 others that are well."""
    others = [node_view(f"other{n:02d}", at=now) for n in range(19)]
    return conclude(fleet_view(view, *others, **changes), now).nodes[0]


def told(view: NodeView, *found: Finding, now: Moment = T0, before: Verdict | None = None, **policy: Any) -> Verdict:
    """The verdict on this node, given these findings."""
    last = Judgement(nodes=(before,)) if before is not None else None
    return judge(fleet_view(view), {view.machine: found}, last, {"h100": Policy(**policy)}, now).nodes[0]


def cloud(state: str, age_s: float = 1.0, absent: str = "") -> CloudSays:
    return CloudSays(state=state, received_monotonic_ns=later(T0, -age_s).monotonic_ns, absent_because=absent)


def scheduler(state: str, age_s: float = 1.0, reason: str = "") -> SchedulerSays:
    return SchedulerSays(state=state, received_monotonic_ns=later(T0, -age_s).monotonic_ns, reason=reason)


@pytest.mark.parametrize(
    ("silent_s", "changes", "health"),
    [
        pytest.param(1, {}, Health.HEALTHY, id="reports"),
        pytest.param(12.5, {}, Health.HEALTHY, id="exactly-two-and-a-half-intervals"),
        pytest.param(12.6, {}, Health.SUSPECT, id="two-missed-and-half-a-third"),
        pytest.param(3600, {}, Health.SUSPECT, id="silence-alone-is-never-death"),
        pytest.param(3600, {"cloud": cloud("running")}, Health.SUSPECT, id="and-the-cloud-says-running"),
        pytest.param(60, {"cloud": cloud("failed")}, Health.DEAD, id="and-the-cloud-says-failed"),
        pytest.param(60, {"cloud": cloud("stopped")}, Health.DEAD, id="and-the-cloud-says-stopped"),
        pytest.param(60, {"cloud": cloud("failed", 61)}, Health.SUSPECT, id="said-too-long-ago"),
        pytest.param(60, {"cloud": cloud("failed", 60)}, Health.DEAD, id="said-just-recently-enough"),
        pytest.param(60, {"cloud": cloud("unknown")}, Health.SUSPECT, id="a-cloud-that-does-not-know"),
        pytest.param(60, {"scheduler": scheduler("down")}, Health.DEAD, id="and-the-scheduler-says-down"),
        pytest.param(60, {"scheduler": scheduler("down", 61)}, Health.SUSPECT, id="down-said-too-long-ago"),
        pytest.param(60, {"scheduler": scheduler("unknown")}, Health.SUSPECT, id="an-empty-answer-is-no-word"),
        pytest.param(29, {"cloud": cloud("failed")}, Health.SUSPECT, id="not-silent-for-long-enough"),
        pytest.param(30, {"cloud": cloud("failed")}, Health.DEAD, id="silent-for-just-long-enough"),
        pytest.param(1, {"cloud": cloud("failed")}, Health.SUSPECT, id="the-agent-speaks-against-the-cloud"),
        pytest.param(1, {"scheduler": scheduler("down")}, Health.SUSPECT, id="the-agent-speaks-against-the-scheduler"),
        pytest.param(
            1, {"cloud": cloud("failed"), "scheduler": scheduler("down")}, Health.SUSPECT, id="against-both-of-them"
        ),
        pytest.param(60, {"cloud": cloud("gone", absent="scaled_in")}, Health.ABSENT, id="scaled-in-is-not-dead"),
        pytest.param(60, {"cloud": cloud("stopped", absent="stopped")}, Health.ABSENT, id="stopped-by-somebody"),
        pytest.param(60, {"cloud": cloud("gone")}, Health.ABSENT, id="gone-without-a-reason"),
        pytest.param(1, {"cloud": cloud("gone")}, Health.SUSPECT, id="gone-but-it-speaks"),
        pytest.param(60, {"lifecycle": Lifecycle.RETIRED}, Health.ABSENT, id="retired-by-us"),
        pytest.param(
            60,
            {"scheduler": scheduler("down", reason="Reboot ASAP : x")},
            Health.SUSPECT,
            id="a-rebooting-node-is-not-dead",
        ),
        pytest.param(
            301, {"scheduler": scheduler("down", reason="reboot")}, Health.DEAD, id="unless-it-does-not-come-back"
        ),
        pytest.param(
            60,
            {"scheduler": scheduler("down"), "lifecycle": Lifecycle.REPAIRING},
            Health.SUSPECT,
            id="nor-under-repair",
        ),
    ],
)
def test_silence_and_its_witnesses(silent_s: float, changes: dict[str, Any], health: Health) -> None:
    verdict = one(node_view(silent_s=silent_s, **changes))
    assert verdict.health is health, verdict.because
    assert verdict.because


def test_a_dead_nodes_verdict_carries_its_witnesses_and_the_last_proof_of_life() -> None:
    verdict = one(node_view(silent_s=60, cloud=cloud("failed")))
    assert {e.path for e in verdict.evidence if e.argues_for is Health.DEAD} == {"agent", "cloud"}
    assert verdict.onset_unix_ns == later(T0, -60).unix_ns
    assert (verdict.kind, verdict.cause, verdict.action) == ("node_dead", "node_dead", "drain_replace")


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        pytest.param({}, Health.UNKNOWN, id="agent-stopped"),
        pytest.param({"cloud": cloud("failed")}, Health.UNKNOWN, id="its-silence-has-a-reason"),
        pytest.param({"cloud": cloud("failed"), "scheduler": scheduler("down")}, Health.DEAD, id="two-others-say-so"),
        pytest.param({"cloud": cloud("stopped", absent="stopped")}, Health.ABSENT, id="and-then-it-was-stopped"),
    ],
)
def test_goodbye_explains_the_silence(changes: dict[str, Any], health: Health) -> None:
    heard = later(T0, -600)
    said = Goodbye("upgrade", later(T0, -300).unix_ns)
    verdict = one(node_view(silent_s=600, goodbye=said, goodbye_monotonic_ns=heard.monotonic_ns, **changes))
    assert verdict.health is health, verdict.because
    if not changes:
        assert verdict.because == "agent stopped (upgrade), expected back 300 s ago"


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        pytest.param({"lifecycle": Lifecycle.PROVISIONING}, Health.JOINING, id="new"),
        pytest.param(
            {"lifecycle": Lifecycle.PROVISIONING, "first_seen_monotonic_ns": later(T0, -900).monotonic_ns},
            Health.JOINING,
            id="at-the-deadline",
        ),
        pytest.param(
            {"lifecycle": Lifecycle.PROVISIONING, "first_seen_monotonic_ns": later(T0, -901).monotonic_ns},
            Health.UNKNOWN,
            id="past-it",
        ),
        pytest.param({}, Health.UNKNOWN, id="in-service-and-not-heard-since-our-start"),
        pytest.param({"cloud": cloud("failed")}, Health.DEAD, id="and-the-cloud-says-failed"),
    ],
)
def test_a_node_that_was_never_heard(changes: dict[str, Any], health: Health) -> None:
    usual = {"first_seen_monotonic_ns": later(T0, -600).monotonic_ns, "last_report_monotonic_ns": None}
    verdict = one(node_view(**(usual | changes)))
    assert verdict.health is health, verdict.because


DEADLY: dict[str, Any] = {"silent_s": 60, "cloud": cloud("failed"), "scheduler": scheduler("down")}


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        pytest.param({}, Health.DEAD, id="no-doubt"),
        pytest.param({"blind_because": "the disk is full"}, Health.UNKNOWN, id="we-are-blind"),
        pytest.param({"started_monotonic_ns": later(T0, -119).monotonic_ns}, Health.UNKNOWN, id="we-just-started"),
        pytest.param({"started_monotonic_ns": later(T0, -120).monotonic_ns}, Health.DEAD, id="the-hold-off-is-over"),
    ],
)
def test_nobody_is_condemned_while_we_doubt_ourselves(changes: dict[str, Any], health: Health) -> None:
    verdict = one(node_view(**DEADLY), **changes)
    assert verdict.health is health, verdict.because


def many(silent: int, speaking: int, **changes: Any) -> Judgement:
    quiet = [node_view(f"q{n:02d}", silent_s=60, **changes) for n in range(silent)]
    return conclude(fleet_view(*quiet, *[node_view(f"s{n:02d}") for n in range(speaking)]))


@pytest.mark.parametrize(
    ("silent", "speaking", "changes", "health"),
    [
        pytest.param(5, 5, {}, Health.UNKNOWN, id="many-silent-suspect-us"),
        pytest.param(5, 5, {"scheduler": scheduler("down")}, Health.UNKNOWN, id="the-scheduler-may-sit-on-our-wire"),
        pytest.param(5, 5, {"cloud": cloud("failed")}, Health.DEAD, id="the-cloud-does-not"),
        pytest.param(3, 17, {"scheduler": scheduler("down")}, Health.DEAD, id="not-many"),
    ],
)
def test_many_silent_at_once(silent: int, speaking: int, changes: dict[str, Any], health: Health) -> None:
    judgement = many(silent, speaking, **changes)
    assert {v.health for v in judgement.nodes[:silent]} == {health}


def gang(own_step: int, other_step: int, moved_s: float) -> RunView:
    own = rank_view(0, "m-gpu01", step=own_step, moved_s=60)
    return run_view(own, rank_view(1, "m-other00", step=other_step, moved_s=moved_s))


@pytest.mark.parametrize(
    ("own_step", "other_step", "moved_s", "health"),
    [
        pytest.param(100, 103, 1, Health.UNKNOWN, id="the-gang-stepped-on-with-it"),
        pytest.param(100, 103, 29, Health.UNKNOWN, id="not-long-ago"),
        pytest.param(100, 103, 31, Health.DEAD, id="but-not-since"),
        pytest.param(100, 100, 1, Health.DEAD, id="the-others-only-finished-the-same-step"),
    ],
)
def test_a_gang_member_that_finished_a_step_since_is_not_dead(
    own_step: int, other_step: int, moved_s: float, health: Health
) -> None:
    run = gang(own_step, other_step, moved_s)
    verdict = one(node_view(run=run, **DEADLY), runs=(run,))
    assert verdict.health is health, verdict.because


def test_the_onset_of_death_is_never_before_a_step_that_its_own_rank_finished() -> None:
    run = run_view(rank_view(0, "m-gpu01", step_end_unix_ns=later(T0, -40).unix_ns))
    verdict = one(node_view(silent_s=60, cloud=cloud("failed"), run=run), runs=(run,))
    assert verdict.onset_unix_ns == later(T0, -40).unix_ns


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        pytest.param({"sources": {}}, "no NVML answer", id="no-answer"),
        pytest.param({"sources": {"nvml": source("nvml", status="failed", reason="dlopen")}}, "dlopen", id="failed"),
        pytest.param({"sources": {"nvml": source("nvml", status="unsupported")}}, "`gpus` to 0", id="not-there"),
        pytest.param(
            {"sources": {"nvml": source("nvml", at=later(T0, -91)), "host": source("host")}}, "91 s older", id="too-old"
        ),
        pytest.param({"facts": {}}, "no NvmlFacts", id="no-facts"),
        pytest.param({"expected_gpu_count": None, "facts": {}}, "no NvmlFacts", id="nothing-known"),
    ],
)
def test_missing_is_never_healthy(changes: dict[str, Any], word: str) -> None:
    verdict = one(node_view(**changes))
    assert verdict.health is Health.UNKNOWN
    assert word in verdict.because or any(word in unknown.because for unknown in verdict.unknowns)


@pytest.mark.parametrize("pci", [None, 0])
@pytest.mark.parametrize("code", [9, 12, 18, 28, 999])
def test_a_driver_that_does_not_start_where_nothing_is_known_of_gpus_is_not_healthy(code: int, pci: int | None) -> None:
    """No rule can call the driver failed where there may be no GPU at all; nobody may call the node well, either."""
    view = with_nvml(node_view(expected_gpu_count=None), init_error=code, gpus=(), pci_gpu_count=pci)
    verdict = one(view)
    assert verdict.health is not Health.HEALTHY
    assert verdict.health is Health.UNKNOWN or code == 18  # two versions beside each other are two versions
    if verdict.health is Health.UNKNOWN:
        assert "set its pool's `gpus` to 0" in verdict.because


def test_a_node_without_gpus_needs_only_to_report() -> None:
    assert one(node_view(expected_gpu_count=0, facts={}, sources={})).health is Health.HEALTHY


def test_an_unknown_about_a_run_says_nothing_of_the_node() -> None:
    about = Unknown(rule="training_stalled", subject=Subject("run", "opt"), because="no fresh heartbeat")
    assert told(node_view(), about).health is Health.HEALTHY
    about = Unknown(rule="fatal_xid", subject=Subject("machine", "m-gpu01"), because="no log")
    assert told(node_view(), about).health is Health.UNKNOWN


@pytest.mark.parametrize(
    ("found", "health", "kind", "cause"),
    [
        pytest.param([evidence()], Health.DRIVER_FAILED, "driver_failed", "probe_hung", id="conclusive"),
        pytest.param([evidence(conclusive=False)], Health.SUSPECT, "", "probe_hung", id="not-conclusive"),
        pytest.param(
            [evidence(conclusive=False, cause="x"), evidence("peer", conclusive=False, cause="x", path="peer")],
            Health.SUSPECT,
            "",
            "x",
            id="another-path-is-no-word-of-the-agents",
        ),
        pytest.param(
            [evidence("gpu_missing", argues_for=Health.DEGRADED, kind="gpu_missing")],
            Health.DEGRADED,
            "gpu_missing",
            "gpu_missing",
            id="degraded",
        ),
        pytest.param([evidence("rebooted", argues_for=Health.SUSPECT)], Health.SUSPECT, "", "rebooted", id="suspect"),
        pytest.param(
            [evidence("a", argues_for=Health.DEGRADED), evidence("b"), evidence("c", argues_for=Health.SUSPECT)],
            Health.DRIVER_FAILED,
            "driver_failed",
            "b",
            id="the-worst-counts",
        ),
        pytest.param(
            [evidence("a", action="reset_gpu"), evidence("b", action="drain_replace")],
            Health.DRIVER_FAILED,
            "driver_failed",
            "b",
            id="of-equals-the-one-that-asks-for-more",
        ),
    ],
)
def test_what_evidence_comes_to(found: list[Evidence], health: Health, kind: str, cause: str) -> None:
    verdict = told(node_view(), *found)
    assert (verdict.health, verdict.kind, verdict.cause) == (health, kind, cause)
    assert verdict.evidence == tuple(found)


def test_soft_only_if_all_that_condemns_is_soft_and_suspect_data_if_any() -> None:
    soft, hard = evidence("a", soft=True), evidence("b", data_suspect=True)
    assert told(node_view(), soft).soft
    both = told(node_view(), soft, hard)
    assert (both.soft, both.data_suspect) == (False, True)


@pytest.mark.parametrize(
    ("lasted_s", "health"), [(0, Health.SUSPECT), (59, Health.SUSPECT), (60, Health.DRIVER_FAILED)]
)
def test_what_must_last_is_a_suspicion_until_it_has(lasted_s: float, health: Health) -> None:
    hung = evidence(must_last="driver_grace_s")
    first = told(node_view(silent_s=0), hung)
    now = later(T0, lasted_s)
    verdict = told(node_view(at=now, silent_s=0), hung, now=now, before=first)
    assert verdict.health is health
    if health is Health.DRIVER_FAILED:
        assert verdict.onset_unix_ns == T0.unix_ns  # when it was first seen, not when it was believed


def test_what_ends_before_it_has_lasted_begins_anew() -> None:
    hung = evidence(must_last=60.0)
    verdict = told(node_view(silent_s=0), hung)
    for seconds, found in ((30, [hung]), (40, []), (50, [hung]), (100, [hung])):
        now = later(T0, seconds)
        verdict = told(node_view(at=now, silent_s=0), *found, now=now, before=verdict)
    assert verdict.health is Health.SUSPECT


def test_what_nobody_repeats_has_not_lasted() -> None:
    """The agent told of a hang once and fell silent: that is silence, not a proven hang."""
    hung = evidence(must_last=60.0)
    first = told(node_view(silent_s=0), hung)
    now = later(T0, 600)
    verdict = told(node_view(at=now, silent_s=600), hung, now=now, before=first)
    assert verdict.health is Health.SUSPECT


def test_what_was_proven_stands_while_the_agent_is_silent() -> None:
    verdict = told(node_view(silent_s=300), evidence())
    assert verdict.health is Health.DRIVER_FAILED
    assert "its last report is 300 s old" in verdict.because


def test_well_again_as_soon_as_nothing_argues_against_it() -> None:
    sick = told(node_view(), evidence())
    now = later(T0, 5)
    verdict = told(node_view(at=now), now=now, before=sick)
    assert (verdict.health, verdict.since_monotonic_ns, verdict.pending) == (Health.HEALTHY, now.monotonic_ns, {})


def test_since_and_name_stay_while_the_state_does() -> None:
    """An NVML word joins the Xid: one incident under its first name, since its first moment."""
    xid = evidence("fatal_xid", cause="xid_79", kind="gpu_lost", action="drain_replace", onset_unix_ns=5 * S)
    lost = evidence("gpu_lost", kind="gpu_lost", action="drain_replace")
    first = told(node_view(), xid)
    now = later(T0, 30)
    both = told(node_view(at=now), lost, xid, now=now, before=first)
    alone = told(node_view(at=now), lost, now=now, before=both)
    assert (both.cause, both.since_monotonic_ns, both.onset_unix_ns) == ("xid_79", T0.monotonic_ns, 5 * S)
    assert (alone.cause, alone.since_monotonic_ns) == ("gpu_lost", T0.monotonic_ns)


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_step_of_the_wall_clock_changes_no_verdict(step_s: int) -> None:
    nodes = [node_view("a"), node_view("b", silent_s=20), node_view("c", silent_s=60, cloud=cloud("failed"))]
    nodes += [node_view(f"w{n:02d}") for n in range(17)]
    before = conclude(fleet_view(*nodes))
    stepped = Moment(T0.unix_ns + step_s * S, T0.monotonic_ns)
    after = conclude(fleet_view(*nodes), stepped, before)
    assert [v.health for v in after.nodes] == [v.health for v in before.nodes]
    assert [v.onset_unix_ns for v in after.nodes] == [v.onset_unix_ns for v in before.nodes]
    assert [v.since_monotonic_ns for v in after.nodes] == [v.since_monotonic_ns for v in before.nodes]


def stalled_fleet(**member: Any) -> FleetView:
    ranks = [rank_view(n, f"m-w{n // 8:02d}", moved_s=900) for n in range(32)]
    ranks[9] = rank_view(9, "m-w01", moved_s=900, phase="data_wait")
    run = run_view(*ranks)
    nodes = [node_view(f"w{n:02d}", run=run) for n in range(4)]
    nodes[2] = replace(nodes[2], **member)
    return fleet_view(*nodes, *[node_view(f"x{n:02d}") for n in range(16)], runs=(run,))


def test_a_stalled_run_is_its_own_verdict_and_its_nodes_are_healthy() -> None:
    judgement = conclude(stalled_fleet())
    assert {v.health for v in judgement.nodes} == {Health.HEALTHY}
    (verdict,) = judgement.runs
    assert (verdict.run, verdict.kind, verdict.suspects, verdict.explained_by) == ("opt", "run_stalled", ("m-w01",), "")


@pytest.mark.parametrize(
    ("member", "explains"),
    [
        pytest.param({"sources": {"nvml": source("nvml", status="hung")}}, True, id="hung-and-not-yet-believed"),
        pytest.param({"last_report_monotonic_ns": later(T0, -11).monotonic_ns}, True, id="a-report-is-late"),
        pytest.param({"last_report_monotonic_ns": later(T0, -9).monotonic_ns}, False, id="reports"),
        pytest.param(
            {"sources": {"nvml": source("nvml", at=later(T0, -16)), "host": source("host")}}, True, id="nvml-is-late"
        ),
        pytest.param(
            {"sources": {"nvml": source("nvml", at=later(T0, -14)), "host": source("host")}},
            False,
            id="nvml-is-in-time",
        ),
    ],
)
def test_a_member_that_may_be_the_cause_explains_a_stall_for_a_while(member: dict[str, Any], explains: bool) -> None:
    first = conclude(stalled_fleet(**member))
    assert bool(first.runs[0].explained_by) is explains
    past = later(T0, -61)
    long_ago = replace_since(first, past)
    again = conclude(stalled_fleet(**member), before=long_ago)
    assert again.runs[0].explained_by == ""
    assert again.runs[0].since_monotonic_ns == past.monotonic_ns


def replace_since(judgement: Judgement, moment: Moment) -> Judgement:
    runs = tuple(msgspec.structs.replace(r, since_monotonic_ns=moment.monotonic_ns) for r in judgement.runs)
    return Judgement(nodes=judgement.nodes, runs=runs)


def test_a_sick_member_explains_a_stall_for_good() -> None:
    fleet = stalled_fleet(cloud=cloud("failed"), last_report_monotonic_ns=later(T0, -60).monotonic_ns)
    judgement = conclude(fleet)
    assert judgement.nodes[2].health is Health.DEAD
    again = conclude(fleet, before=replace_since(judgement, later(T0, -3600)))
    assert again.runs[0].explained_by == "m-w02"


@pytest.mark.parametrize(("degraded_s", "explained"), [(1499, "m-w02"), (1500, "")])
def test_a_degraded_member_explains_only_a_stall_that_came_with_it(degraded_s: float, explained: str) -> None:
    """The gang last moved 900 s ago; whoever was degraded for long before that did not stop it."""
    fleet = stalled_fleet()
    findings = {view.machine: assess(view, T0, RULES) for view in fleet.nodes}
    findings["m-w02"] += (evidence("gpu_missing", "m-w02", argues_for=Health.DEGRADED),)
    first = judge(fleet, findings, None, {}, later(T0, -degraded_s))
    again = judge(fleet, findings, first, {}, T0)
    assert again.nodes[2].health is Health.DEGRADED
    assert again.runs[0].explained_by == explained
