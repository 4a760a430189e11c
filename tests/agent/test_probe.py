"""The probe child by itself: frames on its output and nothing else, and an end in every case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpuwatch.agent import probe
from gpuwatch.agent.child import NOTE_BYTES
from gpuwatch.agent.frames import Frame, Unpacker

NS = 10**9
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def note() -> Iterator[int]:
    file = os.memfd_create("note")
    os.ftruncate(file, NOTE_BYTES)
    yield file
    os.close(file)


@pytest.fixture
def start(tmp_path: Path, note: int) -> Iterator[Start]:
    children: list[subprocess.Popen[bytes]] = []

    def begin(state: dict[str, object], before: str = "", **settings: object) -> subprocess.Popen[bytes]:
        (tmp_path / "gpus.json").write_text(json.dumps(state))
        script = f"from gpuwatch.agent import probe\n{before}\nimport sys\nsys.exit(probe.main('nvml'))"
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(note,), bufsize=0
        )
        children.append(child)
        simulated = {"preload": "gpuwatch.simulate.nvml:install", "preload_argument": str(tmp_path / "gpus.json")}
        assert child.stdin is not None
        orders = {"settings": {"interval_s": 0.1} | simulated | settings, "note": note}
        child.stdin.write(json.dumps(orders).encode() + b"\n")
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def frames(child: subprocess.Popen[bytes], count: int) -> list[Frame]:
    assert child.stdout is not None
    unpacker, found = Unpacker(), list[Frame]()
    while len(found) < count:
        piece = os.read(child.stdout.fileno(), 1 << 16)
        assert piece, "it ended"
        found += unpacker.feed(piece)
    return found


def test_it_reads_on_its_own_clock_and_leaves_when_its_input_ends(start: Start) -> None:
    child = start({"gpu_count": 2})
    got = frames(child, 4)
    assert [frame.status for frame in got] == ["ok"] * 4
    gaps = [(after.at_unix_ns - before.at_unix_ns) / 1e9 for before, after in pairwise(got[1:])]
    assert all(0.02 < gap < 2.0 for gap in gaps)
    assert all(0 < frame.next_in_s <= 0.2 for frame in got[1:])
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(10) == 0


def test_a_library_that_prints_does_not_print_into_the_frames(start: Start) -> None:
    noisy = "import os\nimport gpuwatch.simulate.nvml as nvml\nput = nvml.install\n"
    noisy += "nvml.install = lambda path: (os.write(1, b'NVIDIA says hello'), put(path))[1]"
    child = start({"gpu_count": 1}, noisy)
    assert frames(child, 1)[0].status == "ok"


def test_what_fails_is_told_and_tried_again_less_often(start: Start) -> None:
    child = start({}, preload="gpuwatch.simulate.nvml:no_such_thing")
    got = frames(child, 3)
    assert [frame.status for frame in got] == ["failed"] * 3
    assert "no_such_thing" in (got[0].reason or "")
    assert got[2].next_in_s > 2 * got[0].next_in_s


def test_it_reads_seldomer_where_that_is_slow_twice_and_not_where_it_slept_once(note: int) -> None:
    collector = probe.leaf("nvml")
    child = probe._Probe(collector, collector.settings(interval_s=5.0), note)
    assert 1.4 <= child._next_in_s(0.1) <= 5.1  # the first: each child of a fleet another time

    def next_in_s(took_s: float) -> float:
        child._next_ns = time.monotonic_ns()
        return child._next_in_s(took_s)

    assert [next_in_s(took_s) for took_s in (20.0, 0.1, 20.0)] == [pytest.approx(5, abs=0.5)] * 3
    assert next_in_s(20.0) == pytest.approx(60.0, abs=0.5)  # twelve intervals at most


def test_a_reading_that_was_asked_for_does_not_put_off_the_one_whose_turn_it_is(note: int) -> None:
    collector = probe.leaf("nvml")
    child = probe._Probe(collector, collector.settings(interval_s=5.0), note)
    child._next_in_s(0.1)
    child._next_ns = time.monotonic_ns() + 4 * NS
    assert child._next_in_s(0.1) == pytest.approx(4, abs=0.5)
    child._next_ns = time.monotonic_ns() + 1 * NS
    assert child._next_in_s(0.1) == pytest.approx(2.5, abs=0.5)  # but not at once again


def test_a_node_without_gpus_needs_no_child(start: Start, tmp_path: Path) -> None:
    (tmp_path / "pci").mkdir()
    child = start({"init_error": 12}, pci_devices=str(tmp_path / "pci"))
    (frame,) = frames(child, 1)
    assert (frame.status, frame.reason) == ("unsupported", "no NVIDIA GPU or driver on this node")
    assert child.wait(10) == 0


def test_a_note_made_ready_says_the_same_as_one_said_at_once(note: int) -> None:
    said = probe.Note(note)
    later = said.ready("nvmlDeviceGetName of GPU 3")
    said("nvmlInit, which is longer than what comes after it")
    later()
    assert os.pread(note, NOTE_BYTES, 0).rstrip(b"\0") == b"nvmlDeviceGetName of GPU 3"
    said("ü" * NOTE_BYTES)
    assert os.pread(note, 2 * NOTE_BYTES, 0) == ("ü" * (NOTE_BYTES // 2)).encode()


def test_the_note_says_which_call_does_not_return(start: Start, note: int) -> None:
    start({"gpu_count": 2, "hang": "nvmlDeviceGetClockInfo"})
    words = b""
    while b"nvmlDeviceGetClockInfo of GPU 0" not in words:
        time.sleep(0.01)
        words = os.pread(note, NOTE_BYTES, 0)


def test_an_orphan_that_hangs_leaves_in_the_end(start: Start, note: int) -> None:
    child = start({"gpu_count": 2, "hang": True}, "probe.ORPHAN_LEAVES_S = 0.1")
    while not os.pread(note, NOTE_BYTES, 0).strip(b"\0"):
        time.sleep(0.01)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(10) == 1
