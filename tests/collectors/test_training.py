"""The training collector reads what real heartbeats wrote: progress, life and death, torn and foreign files."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.collectors import training
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.training import Heartbeat
from gpuwatch.training.heartbeat import FILE_BYTES, RECORD_OFFSET

ROOT = Path(__file__).resolve().parents[2]
DAY_NS = 86_400 * 10**9


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ns = 1_000 * 10**9

    def unix_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(tmp_path: Path, clock: Clock) -> Iterator[training._Reader]:
    opened = training._Reader(training.Settings(directories=(str(tmp_path / "beats"),)), clock)
    yield opened
    opened.close()


def facts(reader: training._Reader) -> TrainingFacts:
    found = reader.read().facts
    assert isinstance(found, TrainingFacts)
    return found


def one(reader: training._Reader) -> Beat:
    (beat,) = facts(reader).beats
    return beat


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "beats"


def process(folder: Path, script: str = "") -> subprocess.Popen[str]:
    """Another process that writes a heartbeat, says so, and lives until its standard input ends."""
    words = f"from gpuwatch.training import Heartbeat\nhb = Heartbeat('opt', rank=7, directory={str(folder)!r})\n"
    words += f"hb.step(41)\n{script}\nprint('ready', flush=True)\ninput()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_no_folder_is_no_heartbeat_and_no_fault(reader: training._Reader) -> None:
    assert facts(reader) == TrainingFacts(())


def test_progress(reader: training._Reader, folder: Path) -> None:
    hb = Heartbeat("opt", rank=2, world_size=8, attempt="5.0", team="pre", user="ada", gpu_index=2, directory=folder)
    fresh = one(reader)
    assert (fresh.phase, fresh.step, fresh.step_s, fresh.tokens, fresh.checkpoint_step) == (
        "init",
        None,
        None,
        None,
        None,
    )
    hb.phase("train")
    hb.step(5, tokens=100)
    hb.checkpoint_saved(4)
    beat = one(reader)
    assert (beat.run, beat.attempt, beat.rank, beat.world_size, beat.gpu_index) == ("opt", "5.0", 2, 8, 2)
    assert (beat.phase, beat.step, beat.tokens, beat.checkpoint_step) == ("train", 5, 100, 4)
    assert (beat.team, beat.user, beat.pid, beat.alive) == ("pre", "ada", os.getpid(), True)
    assert beat.step_s is not None
    assert beat.step_s > 0
    assert beat.sequence > fresh.sequence
    assert beat.read_unix_ns >= (beat.step_end_unix_ns or 0)


def test_eight_ranks_of_one_process_come_in_order(reader: training._Reader, folder: Path) -> None:
    for rank in (7, 3, 0, 5):
        Heartbeat("opt", rank=rank, directory=folder)
    assert [beat.rank for beat in facts(reader).beats] == [0, 3, 5, 7]


def test_a_process_that_is_killed_is_told_at_once(reader: training._Reader, folder: Path) -> None:
    child = process(folder)
    try:
        assert one(reader).alive is True
        assert not select.select([reader], [], [], 0)[0]
    finally:
        child.kill()
    assert select.select([reader], [], [], 10)[
        0
    ]  # dead already, though nobody has waited for it: a zombie is not alive
    reading = reader.read()
    assert reading.urgent
    assert [beat.alive for beat in reading.facts.beats] == [False]
    assert not reader.read().urgent
    child.communicate()


def test_a_process_that_is_done_is_not_urgent(reader: training._Reader, folder: Path) -> None:
    child = process(folder, "hb.close()")
    assert one(reader).alive is True
    child.communicate("\n")
    reading = reader.read()
    assert (reading.facts.beats[0].phase, reading.facts.beats[0].alive, reading.urgent) == ("done", False, False)


def test_ended_processes_are_forgotten_after_a_while(reader: training._Reader, folder: Path, clock: Clock) -> None:
    process(folder).communicate("\n")
    assert one(reader).alive is False
    clock.ns += 600 * 10**9
    assert one(reader).alive is False
    clock.ns += 1 * 10**9
    assert facts(reader).beats == ()
    assert list(folder.iterdir()) == []


def patched(path: Path, at: int, new: bytes, *, header: bool = False) -> None:
    """Change bytes of a file and mend the checksum."""
    import zlib

    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    if header:
        data[508:512] = zlib.crc32(data[:508]).to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "new", "alive"),
    [
        pytest.param(24, (1).to_bytes(8, "little"), False, id="the-pid-was-given-to-another"),
        pytest.param(24, (0).to_bytes(8, "little"), True, id="start-not-known"),
        pytest.param(40, b"\x01" * 16, True, id="another-boot-id-in-a-container"),
        pytest.param(40, b"\x00" * 16, True, id="boot-not-known"),
        pytest.param(440, (1).to_bytes(8, "little"), None, id="a-container's-own-pids"),
        pytest.param(8, (2**31 - 7).to_bytes(4, "little"), False, id="no-such-pid"),
    ],
)
def test_life(reader: training._Reader, folder: Path, at: int, new: bytes, alive: bool | None) -> None:
    path = Path(Heartbeat("opt", directory=folder).path)
    patched(path, at, new, header=True)
    assert one(reader).alive is alive


@pytest.mark.parametrize(("age_s", "boot", "alive"), [(2000, b"\x01" * 16, False), (2000, b"\0" * 16, True),
                                                      (500, b"\x01" * 16, True)])  # fmt: skip
def test_a_file_of_an_earlier_boot(
    reader: training._Reader, folder: Path, clock: Clock, age_s: int, boot: bytes, alive: bool
) -> None:
    """The clock says that this machine is up for 1000 s."""
    path = Path(Heartbeat("opt", directory=folder).path)
    patched(path, 40, boot, header=True)
    os.utime(path, (time.time() - age_s,) * 2)
    assert one(reader).alive is alive


def test_nobody_is_called_dead_where_other_processes_cannot_be_seen(reader: training._Reader, folder: Path) -> None:
    reader._sees_others = False
    Heartbeat("opt", directory=folder)
    assert one(reader).alive is None


def test_a_file_whose_life_is_unknown_and_that_does_not_move_is_forgotten_after_a_day(
    reader: training._Reader, folder: Path, clock: Clock
) -> None:
    reader._sees_others = False
    hb = Heartbeat("opt", directory=folder)
    assert one(reader).alive is None
    clock.ns += DAY_NS
    hb.step(1)
    assert one(reader).step == 1
    clock.ns += DAY_NS + 1
    assert facts(reader).beats == ()


@pytest.mark.parametrize(
    ("at", "new", "header"),
    [
        pytest.param(0, b"XXXX", True, id="magic"),
        pytest.param(4, b"\x63", True, id="version"),
        pytest.param(60, b"y", False, id="header-checksum"),
        pytest.param(530, b"\x63", False, id="torn-record"),
    ],
)
def test_what_cannot_be_read_is_counted_and_hides_nobody(
    reader: training._Reader, folder: Path, at: int, new: bytes, header: bool
) -> None:
    Heartbeat("good", directory=folder)
    patched(Path(Heartbeat("bad", directory=folder).path), at, new, header=header)
    found = facts(reader)
    assert [beat.run for beat in found.beats] == ["good"]
    assert found.unreadable_count == 1


def test_files_that_are_no_heartbeats(reader: training._Reader, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("not ours")
    (folder / "just-made.0.1.beat").touch()
    old = folder / "empty.0.1.beat"
    old.touch()
    os.utime(old, (1, 1))
    os.mkfifo(folder / "pipe.0.1.beat")
    (folder / "link.0.1.beat").symlink_to("/dev/zero")
    (folder / "folder.0.1.beat").mkdir()
    assert facts(reader) == TrainingFacts((), unreadable_count=4)


def test_no_torn_record_is_ever_accepted(reader: training._Reader, folder: Path) -> None:
    child = process(
        folder, "print('ready', flush=True)\nn = 0\nwhile True:\n    n += 1\n    hb.step(n, tokens=n * 4096)"
    )
    try:
        until_s = time.monotonic() + 1.0
        last = reads = 0
        while time.monotonic() < until_s:
            for beat in facts(reader).beats:
                if beat.tokens is not None and beat.step is not None:
                    assert beat.tokens == beat.step * 4096
                    assert beat.step >= last
                    last, reads = beat.step, reads + 1
        assert reads > 100
    finally:
        child.kill()
        child.communicate()


def test_metrics_are_few_and_a_missing_one_is_missing(folder: Path) -> None:
    names = [sample.name for sample in training.metrics(TrainingFacts(()))]
    assert names == ["gpuwatch_training_ranks"] * 3 + ["gpuwatch_training_unreadable_files"]
    beat = Beat("r", "a", 0, 1, 9, "train", 5, 7 * 10**9, None, None, None, alive=True)
    samples = list(training.metrics(TrainingFacts((beat,))))
    assert samples[-1].value == 7.0
    assert {sample.labels["alive"]: sample.value for sample in samples[:3]} == {"true": 1, "false": 0, "unknown": 0}


def test_the_pidfds_of_ended_processes_are_closed(reader: training._Reader, folder: Path) -> None:
    def pidfds() -> int:
        links = []
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # the folder's own
                links.append(str(file.readlink()))
        return sum("pidfd" in link for link in links)

    before = pidfds()
    for _ in range(3):
        child = process(folder)
        assert any(beat.alive for beat in facts(reader).beats)
        assert pidfds() == before + 1
        child.communicate("\n")
        assert not any(beat.alive for beat in facts(reader).beats)
    assert pidfds() == before


def test_a_file_that_is_spoiled_before_its_process_ends_does_not_wake_us_for_ever(
    reader: training._Reader, folder: Path
) -> None:
    child = process(folder)
    try:
        assert one(reader).alive
        next(folder.iterdir()).write_bytes(b"torn" * 200)
        child.kill()
        child.wait()
        assert select.select([reader], [], [], 5)[0]
        assert facts(reader).unreadable_count == 1
        assert not select.select([reader], [], [], 0)[0]
    finally:
        child.communicate()


def test_a_record_that_is_cut_short_while_it_is_read_is_no_record(folder: Path) -> None:
    whole = bytes(FILE_BYTES)
    assert training._record(str(folder / "gone"), whole[:RECORD_OFFSET]) is None


def test_a_folder_full_of_garbage_hides_no_rank(
    reader: training._Reader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_FILES", 10)
    folder.mkdir()
    kinds: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(b"x" * 1_000_000),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(bytes(FILE_BYTES)),
    ]
    for number in range(60):
        kinds[number % len(kinds)](folder / f"{number}.beat")
    with Heartbeat("opt", rank=3, directory=folder) as heartbeat:
        heartbeat.step(1)
        found = [facts(reader).beats for _ in range(12)]
        first = next(number for number, beats in enumerate(found) if beats)
        assert all(beats for beats in found[first:])  # once seen, it is looked at first
        assert found[-1][0].rank == 3
        gaps = reader.read().gaps
        assert "61 files" in gaps["beats"]


def test_descriptors_are_bounded(reader: training._Reader, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_WATCHED", 4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    hearts = [Heartbeat("opt", rank=rank, directory=folder) for rank in range(9)]
    assert len(facts(reader).beats) == 9
    assert len(list(Path("/proc/self/fd").iterdir())) - before == 9 + 4
    for heart in hearts:
        heart.close()


@pytest.mark.needs("root")
@pytest.mark.parametrize(("owner", "speaks"), [(0, True), (12345, True), (12346, False)])
def test_nobody_speaks_for_the_process_of_another(
    reader: training._Reader, folder: Path, owner: int, speaks: bool
) -> None:
    child = process(folder, "import os\nos.setresuid(12345, 12345, 12345)")
    try:
        (path,) = folder.glob("*.beat")
        os.chown(path, owner, -1)
        found = facts(reader)
        assert ([beat.alive for beat in found.beats], found.unreadable_count) == (([True], 0) if speaks else ([], 1))
        assert facts(reader) == found or speaks
    finally:
        child.kill()
        child.communicate()
