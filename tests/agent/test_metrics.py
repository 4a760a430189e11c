"""The agent's page: names by convention (promtool says so), few labels, missing series instead of zeros."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gpuwatch.collectors
from gpuwatch.agent.answers import Latest
from gpuwatch.agent.backoff import BackOff
from gpuwatch.agent.exporter import MOST_CLIENTS, Exporter
from gpuwatch.agent.metrics import MOST_SERIES, EventCounts, Page
from gpuwatch.agent.sender import Parcel, Sender
from gpuwatch.agent.spool import Spool
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.model.facts.host import Disk, HostFacts, NetworkMount, StuckProcess
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.pcie import PciDevice, PcieFacts
from gpuwatch.model.facts.services import ServicesFacts, Unit
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.registry import leaves

DOORS: dict[str, Collector[Any]] = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
GPU = Gpu(
    0, "GPU-0", "0000:1b:00", "H100", None, 0.97, 0.5, 70 << 30, 80 << 30, 612.3, 700.0, 61, 1755, 2619, 4, 0, 1, 2, 0,
    0, False, False, 5, 16, 16, 0, (1, 2), "165",
)  # fmt: skip
FACTS: dict[str, Any] = {
    "nvml": msgspec.Raw(
        msgspec.msgpack.encode(NvmlFacts("580.95.05", (GPU, Gpu(1, "GPU-1", error=15)), None, 8, True))
    ),
    "host": HostFacts(
        1,
        96,
        1.0,
        0.5,
        1 << 38,
        1 << 40,
        0.4,
        0,
        0,
        "6.1",
        48 << 20,
        1.5,
        "boot",
        60.0,
        0,
        0,
        0.1,
        3,
        stuck_processes=(StuckProcess(7, "python", 9.0),),
        disks=(Disk("/", "/dev/sda", "ext4", 0.5, 0.1),),
        network_mounts=(NetworkMount("/home", "nfs:/home", "nfs4", "ok"), NetworkMount("/x", "y", "nfs", "not_asked")),
        clock_synchronised=True,
        clock_offset_s=0.001,
        clock_max_error_s=0.1,
    ),
    "training": TrainingFacts(
        (Beat("r", "a", 0, 8, 7, "train", 5, 10**18, 1, None, None, alive=True),), unreadable_count=1
    ),
    "kernel_log": KernelLogFacts(True, (), 0, "kmsg"),
    "services": ServicesFacts((Unit("slurmd.service", "active", restart_count=3),)),
    "pcie": PcieFacts(
        (
            PciDevice("0000:1a:00.0", "gpu", width=16, width_best=16, speed_gts=32.0, aer={"fatal": 0}),
            PciDevice("0000:1b:00.0", "nvme", gone=True),
        )
    ),
    "infiniband": InfinibandFacts(
        (
            RdmaPort("mlx5_0", 1, state="active", rate_gbps=400.0, counters={"port_xmit_data": 4, "link_downed": 1}),
            RdmaPort("rdmap16s27", 1, state="down", counters={"tx_bytes": 5, "rx_drops": 1}),
        )
    ),
}


class FakeSource:
    """A source of which only the last answer matters."""

    def __init__(self, name: str, latest: Latest | None) -> None:
        self.name = name
        self._latest = latest

    def latest(self) -> Latest | None:
        return self._latest

    def readings(self) -> dict[str, int]:
        return {"ok": 3, "failed": 1}


def page(*latest: Latest | None, sender: Sender | None = None, counts: EventCounts | None = None) -> Page:
    names = [one.collector if one else "host" for one in latest]
    sources: Any = [FakeSource(name, one) for name, one in zip(names, latest, strict=True)]
    return Page(sources, DOORS, counts or EventCounts(), sender)


def good() -> list[Latest]:
    return [Latest(collector=name, status="ok", at_unix_ns=10**18, took_s=0.01, facts=FACTS[name]) for name in FACTS]


def hung() -> Latest:
    return Latest(
        collector="nvml", status="hung", at_unix_ns=2 * 10**18, reason="r", since_unix_ns=10**18, abandoned_count=1
    )


def scraped(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.status == 200
    text = response.read().decode()
    connection.close()
    return text


def served(made: Page) -> str:
    exporter = Exporter("127.0.0.1", 0, made)
    exporter.start()
    try:
        return scraped(exporter.port)
    finally:
        exporter.stop()


def values(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"|{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def a_sender(tmp_path: Path) -> Sender:
    sender = Sender([], Spool(tmp_path, max_bytes=1 << 20, max_reports=9), BackOff(1, 2), SystemClock())
    sender.accepted_count, sender.repeated_count, sender.last_accepted_unix_ns = 7, 1, 10**18
    sender.refused[409] += 2
    sender.failures["unreachable"] += 3
    sender._spool.lost["disk"] += 1
    sender.put(Parcel(b"x"))
    return sender


def xids() -> EventCounts:
    counts = EventCounts()
    events = [
        KernelEvent("1", 1, "xid", "", xid=79, pci="0000:1b:00"),
        KernelEvent("2", 1, "xid", "", xid=79, pci="0000:1b:00", count=4),
        KernelEvent("3", 1, "xid", "", xid=31),
        KernelEvent("4", 1, "hung_task", ""),
    ]
    counts.add(KernelLogFacts(True, tuple(events), lost_count=6))
    counts.add(HostFacts())
    return counts


@pytest.mark.needs("promtool")
def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    text = served(page(*good(), sender=a_sender(tmp_path), counts=xids()))
    text_hung = served(page(hung()))
    for said in (text, text_hung):
        check = subprocess.run(
            ["promtool", "check", "metrics"], input=said, capture_output=True, text=True, check=False
        )
        assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_the_numbers(tmp_path: Path) -> None:
    found = values(served(page(*good(), sender=a_sender(tmp_path), counts=xids())))
    assert found["gpuwatch_gpus_expected"] == 8
    assert found["gpuwatch_gpus_usable"] == 1
    assert found["gpuwatch_gpu_utilization_ratio|gpu=0"] == 0.97
    assert found["gpuwatch_gpu_info|gpu=0|name=H100|pci=0000:1b:00|serial=165|uuid=GPU-0"] == 1
    assert found["gpuwatch_gpu_error_code|gpu=1"] == 15
    assert "gpuwatch_gpu_utilization_ratio|gpu=1" not in found
    assert found["gpuwatch_gpu_ecc_volatile_errors_total|gpu=0|kind=uncorrected"] == 1
    assert found["gpuwatch_gpu_sm_clock_hertz|gpu=0"] == 1.755e9
    assert found["gpuwatch_xid_events_total|pci=0000:1b:00|xid=79"] == 5
    assert found["gpuwatch_xid_events_total|pci=unknown|xid=31"] == 1
    assert found["gpuwatch_kernel_events_total|kind=hung_task"] == 1
    assert found["gpuwatch_kernel_log_lost_total"] == 6
    assert found["gpuwatch_reports_accepted_total"] == 7
    assert found["gpuwatch_reports_refused_total|code=409"] == 2
    assert found["gpuwatch_reports_lost_total|why=disk"] == 1
    assert found["gpuwatch_reports_waiting"] == 1
    assert found["gpuwatch_training_ranks|alive=true"] == 1
    assert found["gpuwatch_collector_answers_total|collector=nvml|status=ok"] == 3
    assert found["process_resident_memory_bytes"] > 0


def test_a_hung_source_shows_its_state_and_no_old_numbers() -> None:
    found = values(served(page(hung())))
    assert found["gpuwatch_collector_status|collector=nvml|status=hung"] == 1
    assert found["gpuwatch_collector_status|collector=nvml|status=ok"] == 0
    assert found["gpuwatch_collector_abandoned_children|collector=nvml"] == 1
    assert found["gpuwatch_collector_hung_since_timestamp_seconds|collector=nvml"] == 1e9
    assert not any(name.startswith("gpuwatch_gpu") for name in found)


def test_before_the_first_answer_there_is_nothing_to_say() -> None:
    found = values(served(page(None)))
    assert not any(name.startswith(("gpuwatch_host", "gpuwatch_collector_status")) for name in found)


def test_a_client_that_says_nothing_hinders_nobody_and_stopping_is_quick() -> None:
    exporter = Exporter("127.0.0.1", 0, page(*good()))
    exporter.start()
    with socket.create_connection(("127.0.0.1", exporter.port)):
        assert "gpuwatch_gpus_expected" in scraped(exporter.port)
        begun_s = time.monotonic()
        exporter.stop()
        assert time.monotonic() - begun_s < 1.0
    with pytest.raises(OSError):
        scraped(exporter.port)


def test_a_port_that_is_taken_is_an_os_error() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(OSError):
            Exporter("127.0.0.1", sock.getsockname()[1], page())


def test_a_hundred_slow_clients_keep_nobody_out_and_cost_few_threads() -> None:
    exporter = Exporter("127.0.0.1", 0, page(*good()))
    exporter.start()
    before, begun_s = threading.active_count(), time.monotonic()
    slow = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(100)]
    try:
        for number, sock in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.send([b"GET /metr", b"\x16\x03\x01\x02\x00\xff\xfe", b"\r\n" * 3, b"x" * 100_000][number % 4])
        assert "gpuwatch_gpus_expected" in scraped(exporter.port)
        assert time.monotonic() - begun_s < 5  # no connection was lost in the crowd and tried again later
        end_s = time.monotonic() + 5
        while threading.active_count() > before + MOST_CLIENTS + 1:
            assert time.monotonic() < end_s
            time.sleep(0.01)
    finally:
        for sock in slow:
            sock.close()
        exporter.stop()


def test_a_forged_log_makes_a_bounded_page() -> None:
    counts = EventCounts()
    for bus in range(5000):
        event = KernelEvent("i", 0, "xid", "t", xid=79, pci=f"{bus:04x}:00:00", count=2)
        counts.add(KernelLogFacts(True, (event,), 0, "file"))
    assert len(counts.xids) <= MOST_SERIES + 1
    assert sum(counts.xids.values()) == 10_000
