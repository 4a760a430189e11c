"""Processes that nobody can wake or bury, in a made-up /proc and in the real one."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sdk.process_states import Processes


def process(root: Path, pid: int, state: str, *, name: str = "python", switches: int = 5, flags: int = 0) -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    fields = [state, "1", "1", "1", "0", "-1", str(flags), *["0"] * 12, str(1000 + pid), "0", "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    switched = f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t9\n"
    (folder / "status").write_text(f"Name:\t{name}\n{switched}")
    (folder / "wchan").write_text("rpc_wait_bit_killable")


def test_who_is_stuck_and_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("gpuwatch.sdk.process_states.time.monotonic", lambda: now_s[0])
    (tmp_path / "self").mkdir()
    (tmp_path / "99").mkdir()  # ended meanwhile
    process(tmp_path, 1, "S")
    process(tmp_path, 2, "D", name="kworker/0:1", flags=0x00208060)
    process(tmp_path, 3, "Z")
    process(tmp_path, 4, "D", name="a) D (b")
    process(tmp_path, 5, "D")
    processes = Processes(str(tmp_path))
    first = processes.look()
    assert (first.blocked_count, first.zombie_count) == (3, 1)
    assert [(one.pid, one.stuck_s) for one in first.stuck] == [(4, 0.0), (5, 0.0)]
    now_s[0] = 120
    process(tmp_path, 5, "D", switches=6)  # it was woken meanwhile, and waits anew
    second = processes.look()
    assert [(one.pid, one.name, one.stuck_s, one.waits) for one in second.stuck] == [
        (4, "a) D (b", 120.0, "rpc_wait_bit_killable"),
        (5, "python", 0.0, "rpc_wait_bit_killable"),
    ]
    process(tmp_path, 4, "R")
    now_s[0] = 240
    assert [(one.pid, one.stuck_s) for one in processes.look().stuck] == [(5, 120.0)]


def test_only_a_few_are_told_however_many_there_are(tmp_path: Path) -> None:
    for pid in range(1, 60):
        process(tmp_path, pid, "D")
    states = Processes(str(tmp_path)).look()
    assert (states.blocked_count, len(states.stuck)) == (59, 5)


@settings(max_examples=50, deadline=None)
@given(file=st.sampled_from(("stat", "status", "wchan")), text=st.binary(max_size=300))
def test_any_bytes_in_any_file(file: str, text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        process(root, 7, "D")
        (root / "7" / file).write_bytes(text)
        for one in Processes(folder).look().stuck:
            assert one.name.isprintable()
            assert one.waits.isprintable()


def test_five_hundred_defunct_processes_stay_cheap() -> None:
    """Fault: a broken parent buries none of its children."""
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "for i in $(seq 500); do true & done; exec sleep 60"], stdout=subprocess.PIPE
    )
    try:
        processes, end_s = Processes(), time.monotonic() + 30
        while (states := processes.look()).zombie_count < 500:
            assert time.monotonic() < end_s, states
            time.sleep(0.05)
        begun = os.times()
        for _ in range(10):
            processes.look()
        ended = os.times()
        assert (ended.user + ended.system - begun.user - begun.system) / 10 < 0.1
    finally:
        parent.kill()
        parent.communicate()


def test_no_process_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Processes(str(tmp_path / "none")).look()
