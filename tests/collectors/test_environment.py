"""What runs on the node, with real processes that have real files mapped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.collectors.environment import COLLECTOR, Settings, metrics
from gpuwatch.model.facts.environment import EnvironmentFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.sdk import software
from gpuwatch.sdk.containers import image_of
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.file_look import head_of_file

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@box)\nGCC version: 12\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
MAPPER = """
import mmap, sys, time
files = [open(path, "rb") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
time.sleep(600)
"""


class Node:
    """A root folder whose /proc has the kernel's own entries of the test's processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.children: list[subprocess.Popen[bytes]] = []
        self.put("proc/driver/nvidia/version", OPEN)
        self.put("proc/sys/kernel/osrelease", "6.1.0-25-amd64\n")
        self.put("etc/os-release", 'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n')
        self.put("sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n")
        self.put("sys/class/infiniband/mlx5_1/fw_ver", "28.39.1002\n")

    def put(self, path: str, content: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def training(self, *mapped: Path, **environment: str) -> int:
        command = [sys.executable, "-S", "-c", MAPPER, *map(str, mapped)]
        child = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **environment})
        self.children.append(child)
        until_s = time.monotonic() + 10
        while not all(str(path) in Path(f"/proc/{child.pid}/maps").read_text() for path in mapped):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        (self.root / "proc" / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        return child.pid

    def packages(self, **versions: str) -> Path:
        """A site-packages folder, and a library of it to map."""
        folder = f"opt/env-{len(list(self.root.glob('opt/*')))}/lib/python3.12/site-packages"
        for name, version in versions.items():
            (self.root / folder / f"{name}-{version}.dist-info").mkdir(parents=True)
        return self.put(f"{folder}/torch/lib/libtorch_cpu.so", "x")

    def reader(self, *pids: int, **changes: Any) -> Any:
        reader: Any = COLLECTOR.open(Settings(root=str(self.root), settle_s=0, **changes))
        plain = (Gpu(0, name="H100", pids=pids), Gpu(1, name="H100"))
        gpus = tuple(msgspec.structs.replace(gpu, vbios_version="96.00.74") for gpu in plain)
        reader.meet(lambda name: NvmlFacts(gpus=gpus) if name == "nvml" else None)
        return reader


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait()


def test_the_parts_of_a_node(node: Node) -> None:
    facts = node.reader().read().facts
    assert isinstance(facts, EnvironmentFacts)
    assert facts.parts == {
        "driver": "580.95.05",
        "driver_kind": "open",
        "kernel": "6.1.0-25-amd64",
        "os": "debian 12",
        "nic_firmware": "28.39.1002",
        "gpu_model": "H100",
        "gpu_vbios": "96.00.74",
    }
    assert len(facts.fingerprint) == 12
    node.put("sys/class/infiniband/mlx5_1/fw_ver", "28.42.1000\n")
    other = node.reader().read().facts
    assert other.parts["nic_firmware"] == "mlx5_0 28.39.1002, mlx5_1 28.42.1000"
    assert other.fingerprint != facts.fingerprint
    assert next(iter(metrics(facts))).labels["fingerprint"] == facts.fingerprint


def test_since_when_a_part_has_its_value_outlives_the_agent(node: Node, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    reader = node.reader()
    reader.keep(state)
    first = reader.read().facts.since_unix_ns
    again = node.reader()
    again.keep(state)
    node.put("proc/driver/nvidia/version", CLOSED)
    second = again.read().facts
    assert second.parts["driver"] == "535.183.01"
    assert second.since_unix_ns["kernel"] == first["kernel"]
    assert second.since_unix_ns["driver"] > first["driver"]
    (state / "environment.json").write_text("garbage")
    forgetful = node.reader()
    forgetful.keep(state)
    assert forgetful.read().facts.since_unix_ns["kernel"] > first["kernel"]
    a_look = node.reader()
    a_look.keep(state, ours=False)
    (state / "environment.json").write_text("{}")
    a_look.read()
    assert (state / "environment.json").read_text() == "{}"


def test_what_the_disk_did_not_take_is_written_with_a_later_round(node: Node, tmp_path: Path) -> None:
    state, aside = tmp_path / "state", tmp_path / "aside"
    state.mkdir()
    reader = node.reader()
    reader.keep(state)
    state.rename(aside)
    first = reader.read().facts.since_unix_ns
    aside.rename(state)
    reader.read()
    again = node.reader()
    again.keep(state)
    assert again.read().facts.since_unix_ns == first


def test_the_libraries_of_training_processes(node: Node) -> None:
    library = node.packages(torch="2.4.1+cu121", numpy="1.26.4", requests="2.32.0", nvidia_nccl_cu12="2.20.5")
    nccl = node.put("opt/lib/libnccl.so.2.20.5", "x")
    first, second = node.training(library, nccl), node.training(library, nccl)
    third = node.training(node.packages(torch="2.5.0"))
    programs = {program.pids: program.parts for program in node.reader(first, second, third).read().facts.programs}
    assert programs == {
        (first, second): {
            "python": "3.12",
            "torch": "2.4.1+cu121",
            "numpy": "1.26.4",
            "nvidia_nccl_cu12": "2.20.5",
            "libnccl": "2.20.5",
        },
        (third,): {"python": "3.12", "torch": "2.5.0"},
    }


def test_a_process_is_looked_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = node.training(node.packages(torch="2.4.1"))
    reader = node.reader(pid)
    assert len(reader.read().facts.programs) == 1
    monkeypatch.setattr("gpuwatch.collectors.environment.mapped", lambda *_, **__: pytest.fail("again"))
    reader._look_at = lambda pids, gaps: {} if not pids else pytest.fail("again")
    assert len(reader.read().facts.programs) == 1


def test_a_heartbeat_makes_a_training_process_too_and_a_young_one_waits(node: Node) -> None:
    pid = node.training(node.packages(torch="2.4.1"))
    beat = Beat("r", "a", 0, 1, pid, "train", 1, 1, None, None, None, alive=True)
    for settle_s, count in ((0.0, 1), (3600.0, 0)):
        reader: Any = COLLECTOR.open(Settings(root=str(node.root), settle_s=settle_s))
        reader.meet(lambda name: TrainingFacts((beat,)) if name == "training" else None)
        assert len(reader.read().facts.programs) == count


def test_the_image_of_a_container(node: Node) -> None:
    head = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(range(16)) + b"rest" * 40
    image = node.put("shared/train.sif", head)
    pid = node.training(node.packages(torch="2.4.1"), APPTAINER_CONTAINER=str(image))
    parts = node.reader(pid).read().facts.programs[0].parts
    assert parts["image"] == "train.sif 00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_processes_that_cannot_be_read_keep_nobody_waiting(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.collectors.environment.MOST_NEW", 2)
    bad = [node.training() for _ in range(3)]
    good = node.training(node.packages(torch="2.4.1"))
    for pid in bad:
        entry = node.root / "proc" / str(pid)
        entry.unlink()
        entry.mkdir()
    reader = node.reader(*bad, good)
    found = [reader.read().facts.programs for _ in range(2)]
    assert [program.pids for program in found[-1]] == [(good,)]


@pytest.mark.parametrize("named", ["pipe", "/dev/zero", "/proc/version", "/sys/kernel/uevent_seqnum", "folder", "gone"])
def test_what_a_process_calls_its_image_and_is_no_file_is_not_opened(named: str, node: Node, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    reader = Errands("test")
    begun_s = time.monotonic()
    assert head_of_file(reader, str(tmp_path / named), deadline_s=5.0) == b""
    assert time.monotonic() - begun_s < 4.0  # the open of a pipe would wait for its writer
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"content")
    assert head_of_file(reader, str(tmp_path / "link"), deadline_s=5.0, most_bytes=4) == b"cont"


def test_an_image_as_its_runtime_wrote_it_down(tmp_path: Path) -> None:
    box = "ab" * 32
    node = Node(tmp_path)
    assert image_of(box, str(tmp_path)) == ""
    node.put(f"var/lib/docker/containers/{box}/config.v2.json", '{"Image": "sha256:12", "Config": {"Image": "a:1"}}')
    assert image_of(box, str(tmp_path)) == "a:1 sha256:12"
    place = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{box}/config.json"
    node.put(place, '{"annotations": {"io.kubernetes.cri.image-name": "reg.example/t@sha256:34"}}')
    assert image_of(box, str(tmp_path)) == "reg.example/t@sha256:34"
    for garbage in ("", "[]", '{"annotations": 3}', "\0"):
        node.put(place, garbage)
        image_of(box, str(tmp_path))
    assert image_of("../../etc", str(tmp_path)) == ""


def test_packages_on_a_file_system_that_hangs_cost_their_deadline(node: Node) -> None:
    pid = node.training(node.packages(torch="2.4.1"))
    reader = node.reader(pid, deadline_s=0.3)
    ask = reader._errands.ask

    def stuck(wanted: Any, **how: Any) -> Any:
        return ask({s: ["sleep", "9"] if s.startswith("packages") else w for s, w in wanted.items()}, **how)

    reader._errands.ask = stuck
    reading = reader.read()
    assert reading.gaps[f"programs[{pid}].packages"].startswith("no answer for more than 0.3 s")
    assert reading.facts.programs[0].parts == {"python": "3.12"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (OPEN, {"driver": "580.95.05", "driver_kind": "open"}),
        (CLOSED, {"driver": "535.183.01", "driver_kind": "proprietary"}),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02",
            {"driver": "470.57.02", "driver_kind": "proprietary"},
        ),
        ("", {}),
        ("garbage", {}),
    ],
)
def test_the_driver_s_own_line(text: str, parts: dict[str, str]) -> None:
    assert software.driver_parts(text) == parts


@given(st.text(max_size=200), st.binary(max_size=200), st.lists(st.text(max_size=60), max_size=5))
def test_no_text_is_too_strange(text: str, head: bytes, names: list[str]) -> None:
    software.driver_parts(text)
    software.os_release(text)
    software.sif_id(head)
    software.of_mapped(names)
    software.of_packages(names)
    software.fingerprint({text: text})


@given(
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
)
def test_fingerprints_are_equal_if_and_only_if_all_parts_are(one: dict[str, str], other: dict[str, str]) -> None:
    assert (software.fingerprint(one) == software.fingerprint(other)) == (one == other)


def test_this_machine() -> None:
    facts = COLLECTOR.open(Settings()).read().facts
    assert facts.parts["kernel"] == os.uname().release
    assert facts.programs == ()
