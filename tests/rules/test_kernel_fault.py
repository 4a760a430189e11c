"""Faults in the kernel log that are no Xid: which drain, which are counted, which are only told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.decide.judge import judge
from gpuwatch.faults.catalogue import events as catalogue
from gpuwatch.faults.interpreter import Interpreter
from gpuwatch.faults.prefix import Record
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.states import Health
from gpuwatch.rules import fatal_xid
from gpuwatch.rules.kernel_fault import Settings, examine
from tests.fakes import T0, facts_without, fleet_view, gpus, later, node_view, source, with_nvml, xid_event


def told(message: str, *, t: float = 0.0, boot: str = "boot-1") -> KernelEvent:
    """The event of a kernel line, as the agent would send it."""
    (event,) = Interpreter().hear(Record(message=message))
    at = later(T0, t)
    return KernelEvent(
        id=f"{boot}/{t}/{message}",
        at_unix_ns=at.unix_ns,
        kind=event.kind,
        text=message,
        pci=event.pci,
        pid=event.pid,
        name=event.name,
        severity=event.severity,
        action=event.action,
        drain=event.drain,
        boot_id=boot,
        sxid=event.sxid,
        subject=event.subject,
    )


def findings(*events: KernelEvent, **nvml: Any) -> list[Evidence]:
    found = examine(replace(with_nvml(node_view(), **nvml), events=events), T0, Settings())
    return [] if found is None else [found] if isinstance(found, Evidence) else list(found)


DISK = "nvme nvme4: Disabling device after reset failure: -19"
CARD = "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
BUS = "pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
LATE = "nvme nvme0: I/O 12 QID 3 timeout, aborting"
NOT_STARTED = "NVRM: GPU 0000:10:00.0: RmInitAdapter failed! (0x62:0x40:2393)"


@pytest.mark.parametrize(
    ("message", "health", "subject", "action", "soft"),
    [
        (DISK, Health.DEGRADED, ("machine", "m-gpu01"), "drain_replace", True),
        (CARD, Health.DEGRADED, ("link", "m-gpu01/0000:d2:00.0"), "drain_replace", False),
        (SWITCH, Health.DRIVER_FAILED, ("switch", "m-gpu01/0000:05:00.0"), "reset_gpu", False),
        (BUS, Health.DEGRADED, ("machine", "m-gpu01"), "drain_replace", False),
        (
            "EXT4-fs (md0): Remounting filesystem read-only",
            Health.DEGRADED,
            ("file_system", "m-gpu01/md0"),
            None,
            False,
        ),
        ("md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.", Health.DEGRADED, None, None, True),
        ("EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0)", Health.DEGRADED, None, "drain_replace", False),
        ("Watchdog detected hard LOCKUP on cpu 3", Health.DRIVER_FAILED, ("machine", "m-gpu01"), "reboot", False),
        ("infiniband efa_0: Wait for completion (polling) timeout", Health.DRIVER_FAILED, None, "reboot", False),
    ],
)
def test_what_drains_at_once(
    message: str, health: Health, subject: tuple[str, str] | None, action: str | None, soft: bool
) -> None:
    (found,) = findings(told(message))
    assert (found.argues_for, found.conclusive, found.soft, found.note) == (health, True, soft, False)
    assert action is None or found.action == action
    assert subject is None or (found.subject.kind, found.subject.id) == subject
    assert message[:60] in found.because
    assert found.onset_unix_ns == T0.unix_ns
    assert found.kind == told(message).kind


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="nothing"),
        pytest.param([told(DISK, boot="boot-0")], id="of-an-earlier-boot"),
        pytest.param(
            [told("pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0", t=t * 600.0) for t in range(6)],
            id="corrected-errors",
        ),
        pytest.param(
            [told("python3[7]: segfault at 0 ip 0 sp 0 error 14 in libnccl.so.2[1+2]", t=t * 600.0) for t in range(6)],
            id="crashing-programs",
        ),
        pytest.param([told(LATE)], id="one-late-answer"),
        pytest.param([told(LATE, t=t) for t in range(100)], id="many-within-a-burst"),
        pytest.param([told(LATE), told(LATE, t=600), told(LATE.replace("nvme0", "nvme1"), t=1200)], id="of-two-disks"),
        pytest.param([told(LATE), told(LATE, t=600), told(LATE, t=7200)], id="too-far-apart"),
        pytest.param(
            [told("mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link DOWN", t=t * 600.0) for t in range(6)],
            id="flaps-are-another-rules",
        ),
        pytest.param([xid_event(79)], id="an-xid-is-another-rules"),
    ],
)
def test_what_drains_nobody(events: list[KernelEvent]) -> None:
    assert findings(*events) == []


def test_the_third_time_within_the_window_is_once_too_often() -> None:
    (found,) = findings(told(LATE), told(LATE, t=600), told(LATE, t=1200))
    assert (found.argues_for, found.soft, found.action) == (Health.DEGRADED, True, "contact_support")
    assert "nvme_timeout 3 times within 60 min" in found.because


@pytest.mark.parametrize(
    "message",
    [
        "Out of memory: Killed process {n} (python3) total-vm:1kB",
        "INFO: task python3:{n} blocked for more than 120 seconds.",
        "nfs: server 10.0.0.5 not responding, still trying",
        "VFS: file-max limit 1000000 reached",
    ],
)
def test_what_a_job_or_a_file_server_does_is_told_and_drains_nobody(message: str) -> None:
    events = [told(message.format(n=7), t=n * 300.0) for n in range(6)]
    view = replace(node_view(), events=tuple(events))
    found = list(examine(view, T0, Settings()) or ())  # type: ignore[arg-type]
    assert [one.note for one in found] == [True]
    judgement = judge(fleet_view(view), {view.machine: tuple(found)}, None, {}, T0)
    assert judgement.nodes[0].health is Health.HEALTHY


def test_ten_programs_killed_at_once_are_one_occurrence() -> None:
    events = [told(f"Out of memory: Killed process {pid} (python3) total-vm:1kB", t=pid / 10) for pid in range(7, 17)]
    assert findings(*events) == []


def test_a_card_that_its_driver_brought_back_is_a_matter_for_the_jobs_end() -> None:
    back = told("mlx5_core 0000:d2:00.0: mlx5_health_try_recover:380:(pid 71): health recovery succeeded", t=30)
    (found,) = findings(told(CARD), back)
    assert (found.argues_for, found.soft) == (Health.DEGRADED, True)
    assert "recovery succeeded" in found.because
    (found,) = findings(told(CARD, t=60), back)
    assert not found.soft, "it failed again after that"


def test_a_gpu_that_could_not_be_started_counts_until_nvml_shows_all_at_work() -> None:
    assert findings(told(NOT_STARTED)) == []
    (found,) = findings(told(NOT_STARTED), gpus=gpus(7))
    assert (found.argues_for, found.subject.kind) == (Health.DRIVER_FAILED, "gpu")
    assert len(findings(told(NOT_STARTED), gpus=gpus(error=999))) == 1
    view = node_view()
    blind = replace(view, facts=facts_without(view, NvmlFacts), events=(told(NOT_STARTED),))
    assert len(list(examine(blind, T0, Settings()) or ())) == 1  # type: ignore[arg-type]


def test_a_log_that_cannot_be_read_is_said_and_condemns_nobody() -> None:
    view = node_view()
    blind = replace(view, facts=dict(view.facts) | {KernelLogFacts: KernelLogFacts(readable=False)})
    found = examine(blind, T0, Settings())
    assert isinstance(found, Evidence)
    assert found.note
    assert "cannot be read" in found.because
    assert examine(replace(view, facts={}), T0, Settings()) is None, "the agent does not watch it"
    for status in ("failed", "hung"):
        gone = {"kernel_log": source("kernel_log", status=status, reason="journalctl ended")}
        found = examine(replace(view, facts={}, sources=gone), T0, Settings())
        assert isinstance(found, Evidence)
        assert "cannot be read (journalctl ended)" in found.because


def test_what_was_heard_before_hides_no_blindness() -> None:
    old = xid_event(45, severity="warn", action="none", drain="no")
    view = replace(node_view(), events=(old,))
    blind = replace(view, facts=dict(view.facts) | {KernelLogFacts: KernelLogFacts(readable=False)})
    (found,) = examine(blind, T0, Settings()) or ()  # type: ignore[misc]
    assert found.cause == "kernel_log_unreadable"
    assert list(examine(view, T0, Settings()) or ()) == []  # type: ignore[arg-type]


def test_11760_xid_45_on_a_healthy_job_drain_nobody() -> None:
    events = tuple(
        xid_event(45, at=later(T0, n / 10), pid=1000 + n % 640, severity="warn", action="none", drain="no")
        for n in range(11_760)
    )
    view = replace(node_view(), events=events)
    found = [*(examine(view, T0, Settings()) or ()), *(fatal_xid.examine(view, T0, fatal_xid.Settings()) or ())]  # type: ignore[misc]
    assert found == []
    assert judge(fleet_view(view), {view.machine: ()}, None, {}, T0).nodes[0].health is Health.HEALTHY


def test_each_fault_of_the_catalogue_has_a_verdict_that_a_rule_can_judge() -> None:
    for kind, known in catalogue().items():
        assert known.row.severity in ("info", "warn", "degraded", "fatal"), kind
        assert known.row.drain in ("no", "after_count", "yes"), kind
        assert all((known.row.name, known.row.meaning, known.row.source)), kind
        assert not (known.row.severity == "info" and known.row.drain != "no"), kind
