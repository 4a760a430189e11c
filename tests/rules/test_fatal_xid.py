"""Fatal Xids: which events count, which need confirming, which are taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Finding, Unknown
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.states import Health
from gpuwatch.rules.fatal_xid import Settings, examine
from tests.fakes import T0, facts_without, gpus, later, node_view, source, with_nvml, xid_event


def findings(*events: KernelEvent, **nvml: Any) -> list[Finding]:
    view = replace(with_nvml(node_view(), **nvml), events=events)
    found = examine(view, T0, Settings())
    return [] if found is None else [found] if isinstance(found, Evidence | Unknown) else list(found)


def app(number: int = 31, t: float = 0.0, **changes: Any) -> KernelEvent:
    usual: dict[str, Any] = {"severity": "warn", "drain": "after_count", "action": "restart_app"}
    return xid_event(number, at=later(T0, t), **(usual | changes))


def test_an_xid_79_is_a_lost_gpu_that_the_agent_alone_may_tell() -> None:
    (found,) = findings(xid_event(79, text="GPU has fallen off the bus."))
    assert isinstance(found, Evidence)
    assert (found.argues_for, found.conclusive, found.path) == (Health.DRIVER_FAILED, True, "agent")
    assert (found.kind, found.cause, found.action) == ("gpu_lost", "xid_79", "drain_replace")
    assert (found.subject.id, found.onset_unix_ns) == ("GPU-0", T0.unix_ns)
    assert "fallen off the bus" in found.because


@pytest.mark.parametrize(
    ("event", "health", "suspect"),
    [
        pytest.param(xid_event(48, action="reset_gpu"), Health.DRIVER_FAILED, True, id="48-makes-results-suspect"),
        pytest.param(xid_event(95, action="reset_gpu"), Health.DRIVER_FAILED, True, id="95-too"),
        pytest.param(xid_event(119, action="reset_gpu"), Health.DRIVER_FAILED, False, id="119-gsp"),
        pytest.param(xid_event(64, severity="degraded"), Health.DEGRADED, False, id="degraded-but-to-be-drained"),
    ],
)
def test_what_drains_at_once(event: KernelEvent, health: Health, suspect: bool) -> None:
    (found,) = findings(event)
    assert isinstance(found, Evidence)
    assert (found.argues_for, found.data_suspect, found.kind) == (health, suspect, "xid")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(xid_event(43, severity="warn", drain="no"), id="application"),
        pytest.param(xid_event(63, severity="warn", drain="no"), id="row-remap-recorded"),
        pytest.param(xid_event(154, severity="info", drain="no", clears=True), id="good-news"),
        pytest.param(xid_event(79, boot_id="boot-0"), id="of-an-earlier-boot"),
        pytest.param(app(31), id="one-application-fault"),
    ],
)
def test_what_drains_nobody(event: KernelEvent) -> None:
    assert findings(event) == []


@pytest.mark.parametrize(
    ("nvml", "others", "outcome"),
    [
        pytest.param({}, [], None, id="the-driver-wants-nothing"),
        pytest.param({"gpus": gpus(recovery_action=1)}, [], Evidence, id="the-driver-wants-a-reset"),
        pytest.param({"gpus": gpus(recovery_action=None)}, [], Unknown, id="not-readable"),
        pytest.param({"gpus": ()}, [], Unknown, id="that-gpu-does-not-answer"),
        pytest.param({}, [xid_event(119)], Evidence, id="another-fatal-event-of-the-same-gpu"),
        pytest.param({}, [xid_event(119, pci="0000:11:00")], None, id="a-fatal-event-of-another-gpu"),
    ],
)
def test_a_109_must_be_confirmed(nvml: dict[str, Any], others: list[KernelEvent], outcome: type | None) -> None:
    found = findings(xid_event(109, action="reset_gpu"), *others, **nvml)
    mine = [f for f in found if "109" in f.because]
    assert [type(f) for f in mine] == ([] if outcome is None else [outcome])


@pytest.mark.parametrize(
    ("events", "left"),
    [
        pytest.param([xid_event(48), xid_event(154, at=later(T0, 9), clears=True, drain="no")], [], id="cleared-later"),
        pytest.param(
            [xid_event(154, clears=True, drain="no"), xid_event(48, at=later(T0, 9))], [48], id="cleared-before"
        ),
        pytest.param(
            [xid_event(48), xid_event(154, at=later(T0, 9), clears=True, drain="no", pci="0000:11:00")],
            [48],
            id="another-gpu-is-well-again",
        ),
        pytest.param(
            [xid_event(163), xid_event(48), xid_event(162, at=later(T0, 9), clears=True, drain="no")],
            [48],
            id="162-takes-back-163-only",
        ),
    ],
)
def test_good_news_takes_back_what_came_before_it(events: list[KernelEvent], left: list[int]) -> None:
    found = findings(*events)
    assert [f.cause for f in found if isinstance(f, Evidence)] == [f"xid_{number}" for number in left]


@pytest.mark.parametrize(
    ("events", "fires"),
    [
        pytest.param([app(t=0, pid=1), app(t=10, pid=2)], False, id="two-processes"),
        pytest.param([app(t=0, pid=1), app(t=10, pid=2), app(t=20, pid=3)], True, id="three-processes"),
        pytest.param([app(t=float(t), pid=1) for t in range(50)], False, id="one-crash-prints-many-lines"),
        pytest.param([app(t=float(t)) for t in range(50)], False, id="one-burst-without-pid"),
        pytest.param([app(t=0), app(t=179), app(t=358)], False, id="a-burst-goes-on"),
        pytest.param([app(t=0), app(t=180), app(t=360)], True, id="three-bursts"),
        pytest.param([app(t=0, pid=1), app(t=1800, pid=2), app(t=3600, pid=3)], True, id="within-the-hour"),
        pytest.param([app(t=0, pid=1), app(t=1800, pid=2), app(t=3601, pid=3)], False, id="a-second-too-long"),
        pytest.param(
            [app(t=0, pid=1), app(t=1, pid=2, pci="0000:11:00"), app(t=2, pid=3)], False, id="over-different-gpus"
        ),
        pytest.param([app(31, 0, pid=1), app(13, 1, pid=2), app(32, 2, pid=3)], False, id="different-numbers"),
    ],
)
def test_repetition_drains_where_no_single_event_does(events: list[KernelEvent], fires: bool) -> None:
    found = findings(*events)
    assert bool(found) is fires
    for one in found:
        assert isinstance(one, Evidence)
        assert one.argues_for is Health.DEGRADED
        assert one.action == "restart_app"


def test_one_gpu_is_told_once_for_one_number_since_its_first_event() -> None:
    (found,) = findings(*(xid_event(79, at=later(T0, float(t))) for t in (5, 3, 9)))
    assert isinstance(found, Evidence)
    assert found.onset_unix_ns == later(T0, 3).unix_ns


def test_an_event_without_an_address_concerns_the_machine() -> None:
    (found,) = findings(xid_event(79, pci=None))
    assert isinstance(found, Evidence)
    assert found.subject.kind == "machine"


def test_a_log_that_cannot_be_read_is_unknown_unless_the_driver_answers_for_every_gpu() -> None:
    blind = {KernelLogFacts: KernelLogFacts(readable=False)}
    view = node_view()
    assert examine(replace(view, facts=dict(view.facts) | blind), T0, Settings()) is None
    silent = with_nvml(replace(view, facts=dict(view.facts) | blind), gpus=gpus(recovery_action=None))
    assert isinstance(examine(silent, T0, Settings()), Unknown)
    refused = source("kernel_log", status="failed", reason="no right to read /dev/kmsg")
    bare = replace(view, facts=facts_without(view, KernelLogFacts), sources={"kernel_log": refused})
    bare = replace(bare, facts=facts_without(bare, NvmlFacts))
    found = examine(bare, T0, Settings())
    assert isinstance(found, Unknown)
    assert "no right to read /dev/kmsg" in found.because
    heard = replace(bare, events=(xid_event(45, severity="warn", action="none", drain="no"),))
    (found,) = examine(heard, T0, Settings()) or ()  # type: ignore[misc]
    assert isinstance(found, Unknown), "what was heard before says nothing of now"


def test_a_node_without_gpus_needs_no_kernel_log() -> None:
    assert examine(node_view(expected_gpu_count=0, facts={}), T0, Settings()) is None
