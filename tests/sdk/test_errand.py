"""Errands: what comes back, what is late, what cannot even be killed, and what an earlier agent left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.sdk import processes
from gpuwatch.sdk.errand import MOST_ABANDONED, Abandoned, Errands, program
from tests.components import go_without

SLEEP = program("sleep")


def until(true: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.005)


OTHERS: set[int] = set()  # children that tests before this one have left


def children() -> list[int]:
    return [pid for pid in all_children() if pid not in OTHERS]


def all_children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


@pytest.fixture
def errands(tmp_path: Path) -> Errands:
    OTHERS.clear()
    OTHERS.update(all_children())
    made = Errands("test")
    made.keep(tmp_path)
    return made


def test_what_they_say_and_how_they_end(errands: Errands, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\xff\n")
    found = errands.ask(
        {
            "good": ["cat", str(tmp_path / "a")],
            "part": ["cat", str(tmp_path / "a"), str(tmp_path / "gone")],
            "none": ["no-such-program"],
            "bad": ["/etc/hostname"],
        }
    )
    assert (found["good"].status, found["good"].out) == ("ok", b"x\xff\n")
    assert (found["part"].status, found["part"].out) == ("failed", b"x\xff\n")
    assert "No such file" in found["part"].reason
    assert found["none"].reason == "this node has no no-such-program"
    assert found["bad"].status == "absent"
    assert "cannot be started" in found["bad"].reason
    assert not [pid for pid in children() if processes.start_ticks(pid) is None]  # nothing is left to bury


def test_one_that_talks_without_end_is_ended(errands: Errands) -> None:
    (said,) = errands.ask({"x": ["cat", "/dev/zero"]}, most_bytes=100_000).values()
    assert (said.status, said.reason) == ("failed", "it said more than 100000 bytes")
    assert len(said.out) <= 100_000


def test_one_that_is_late_dies_and_the_others_are_heard(errands: Errands, tmp_path: Path) -> None:
    begun_s = time.monotonic()
    found = errands.ask({"slow": ["sleep", "60"], "quick": ["echo", "hello"]}, deadline_s=0.5)
    assert time.monotonic() - begun_s < 1.0
    assert found["quick"].out == b"hello\n"
    slow = found["slow"]
    assert slow.status == "late"
    assert slow.reason.startswith("no answer for more than 0.5 s; state S, wait channel ")
    assert slow.since_unix_ns
    assert errands.abandoned_count == 0
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_stopped_is_late(errands: Errands) -> None:
    found = errands.ask({"x": ["sh", "-c", "kill -STOP $$"]}, deadline_s=0.4)
    assert found["x"].status == "late"
    assert "state T" in found["x"].reason


def test_one_whose_own_child_keeps_the_pipe_is_late_and_nobody_else_is_killed(errands: Errands) -> None:
    found = errands.ask({"x": ["sh", "-c", "sleep 2 & exit 0"]}, deadline_s=0.3)
    assert found["x"].status == "late"
    assert errands.abandoned_count == 0


def test_many_at_once(errands: Errands) -> None:
    found = errands.ask({str(number): ["echo", str(number)] for number in range(40)})
    assert {subject: one.out.decode() for subject, one in found.items()} == {str(n): f"{n}\n" for n in range(40)}


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup whose processes stand still in the kernel, deaf to SIGKILL: a true D state that a test can end."""
    group = Path(f"/sys/fs/cgroup/freezer/gpuwatch-errand-{os.getpid()}")
    if not (group.parent / "cgroup.procs").exists():
        go_without("freezer", "no cgroup v1 freezer")
    try:
        group.mkdir()
    except OSError as error:
        go_without("freezer", f"no cgroup can be made: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
    until(lambda: _removed(group), "the group to go")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def freeze_next_child(group: Path) -> threading.Thread:
    """As soon as a program runs that sleeps for 77 s, it stands still."""

    def work() -> None:
        def frozen() -> bool:
            for pid in children():
                with contextlib.suppress(OSError):
                    if b"sleep" in Path(f"/proc/{pid}/stat").read_bytes():
                        (group / "cgroup.procs").write_text(str(pid))
                        (group / "freezer.state").write_text("FROZEN")
                        return True
            return False

        until(frozen, "a program to freeze")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.needs("root")
def test_one_that_cannot_be_killed_is_abandoned_once_over_restarts(
    errands: Errands, tmp_path: Path, freezer: Path
) -> None:
    thread = freeze_next_child(freezer)
    begun_s = time.monotonic()
    found = errands.ask({"mount /data": ["sleep", "77"]}, deadline_s=0.6)
    assert time.monotonic() - begun_s < 1.2
    thread.join()
    first = found["mount /data"]
    assert first.status == "stuck", first
    assert "state D, wait channel" in first.reason
    assert errands.abandoned_count == 1
    (stuck,) = children()

    again = errands.ask({"mount /data": ["sleep", "77"], "other": ["echo", "hello"]}, deadline_s=0.6)
    assert again["mount /data"] == first  # no second one was started beside it
    assert again["other"].out == b"hello\n"
    assert children() == [stuck]

    other_agent = Errands("test")
    other_agent.keep(tmp_path)
    assert other_agent.abandoned_count == 1
    assert other_agent.ask({"mount /data": ["echo"]})["mount /data"] == first
    scan = Errands("test")
    scan.keep(tmp_path, ours=False)
    assert scan.abandoned_count == 1

    (freezer / "freezer.state").write_text("THAWED")
    until(lambda: other_agent.abandoned_count == 0, "it to go")  # buried, though another object started it
    assert errands.abandoned_count == 0
    assert errands.ask({"mount /data": ["echo", "back"]})["mount /data"].out == b"back\n"
    assert list(tmp_path.iterdir()) == []
    assert children() == []


def test_one_that_waits_when_the_agent_is_killed_is_known_to_the_next(tmp_path: Path) -> None:
    ours = os.fork()
    if ours == 0:
        doomed = Errands("test")
        doomed.keep(tmp_path)
        doomed.ask({"x": ["sleep", "77"]}, deadline_s=60)
        os._exit(0)
    until(lambda: (tmp_path / "errands-test.json").exists(), "its note")
    os.kill(ours, signal.SIGKILL)
    os.waitpid(ours, 0)
    following = Errands("test")
    following.keep(tmp_path)
    assert following.abandoned_count == 1
    known = following.ask({"x": ["echo"]})["x"]
    assert known.status == "stuck"
    left = following._abandoned["x"]
    processes.kill_once(left.pid, left.start_ticks)
    until(lambda: following.abandoned_count == 0, "it to go")
    assert following.ask({"x": ["echo", "hello"]})["x"].out == b"hello\n"


@pytest.mark.parametrize("text", [b"", b"\xff\x00", b"{}", b'[{"subject": 5}]', b"[" * 10_000])
def test_garbage_in_the_file_is_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "errands-test.json").write_bytes(text)
    errands = Errands("test")
    errands.keep(tmp_path)
    assert errands.abandoned_count == 0


def test_another_boots_left_over_is_none(tmp_path: Path) -> None:
    ticks = processes.start_ticks(os.getpid())
    text = f'[{{"subject":"x","pid":{os.getpid()},"start_ticks":{ticks},"boot_id":"another","since_unix_ns":1}}]'
    (tmp_path / "errands-test.json").write_text(text)
    errands = Errands("test")
    errands.keep(tmp_path)
    assert errands.abandoned_count == 0


def test_it_is_cheap(errands: Errands) -> None:
    begun = os.times()
    for _ in range(50):
        errands.ask({"x": ["echo"]})
    ended = os.times()
    spent_s = sum(ended[:4]) - sum(begun[:4])
    assert spent_s / 50 < 0.05


def test_of_one_source_only_so_many_are_left_behind(tmp_path: Path) -> None:
    """Each takes the place of a process that the agent's unit may have."""
    me = os.getpid()
    left = [
        Abandoned(
            subject=f"environ-{number}",
            pid=me,
            start_ticks=processes.start_ticks(me) or 0,
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            since_unix_ns=1,
        )
        for number in range(MOST_ABANDONED)
    ]
    (tmp_path / "errands-test.json").write_bytes(msgspec.json.encode(left[1:]))
    made = Errands("test")
    made.keep(tmp_path, ours=False)
    found = made.ask({"another": ["echo", "1"], "and one": ["echo", "2"], "environ-3": ["echo"]})
    assert [one.status for one in found.values()] == ["stuck", "ok", "ok"]  # one at a time, as far as there is room
    (tmp_path / "errands-test.json").write_bytes(msgspec.json.encode(left))
    made.keep(tmp_path, ours=False)
    assert made.ask({"another": ["echo"]})["another"].reason == "not asked: 16 others have not come back"


def test_each_who_looks_once_leaves_no_other_one_behind(tmp_path: Path) -> None:
    me = os.getpid()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    stuck = Abandoned(
        subject="all", pid=me, start_ticks=processes.start_ticks(me) or 0, boot_id=boot_id, since_unix_ns=1
    )
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "errands-scan-test.new").symlink_to(victim)
    first = Errands("test")
    first.keep(tmp_path, ours=False)
    first._abandoned["all"] = stuck
    first._remember({})
    assert victim.read_text() == "kept"
    for ours in (False, True):
        other = Errands("test")
        other.keep(tmp_path, ours=ours)
        assert other.ask({"all": ["echo"]})["all"].status == "stuck"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["errands-scan-test.json", "victim"]
