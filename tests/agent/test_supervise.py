"""Supervision of a probe child under a clock that the test moves: hung, killed once, stuck, gone, crashed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.agent.answers import Latest
from gpuwatch.agent.book import Book, ChildRecord
from gpuwatch.agent.child import Child
from gpuwatch.agent.frames import Frame, packed
from gpuwatch.agent.supervise import Probe
from gpuwatch.collectors import Collector
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment

NS = 10**9
BOOT = "boot-1"
SINCE_1970_NS = 1_800_000_000 * NS


class Settings(msgspec.Struct, frozen=True):
    interval_s: float = 5.0
    deadline_s: float = 10.0
    kill_after_s: float = 60.0
    enabled: bool = True


class FakeChild:
    """A child that does what the test says."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start_ticks = pid * 10
        self.said = b""
        self.code: int | None = None
        self.kills = 0
        self.mortal = True  # False: in an uninterruptible call
        self.open = True
        self.sent_away = False
        self.hurries = 0

    def fileno(self) -> int:
        return 99

    def read(self) -> bytes:
        said, self.said = self.said, b""
        return said

    def exit_code(self) -> int | None:
        return self.code

    def doing(self) -> str:
        return "nvmlDeviceGetUtilizationRates of GPU 3"

    def waits_for(self) -> str:
        return "state D, wait channel nvidia_ioctl"

    def hurry(self) -> None:
        self.hurries += 1

    def send_away(self) -> None:
        self.sent_away = True

    def kill(self) -> None:
        self.kills += 1
        if self.mortal:
            self.code = -9

    def let_go(self) -> None:
        self.open = False


class FakeProcesses:
    """An operating system without processes."""

    def __init__(self) -> None:
        self.children: list[FakeChild] = []
        self.orphans: dict[int, int] = {}  # pid -> ticks, of earlier agents
        self.kills: list[int] = []
        self.refuse: OSError | None = None

    def start(self, source: str, settings: Any) -> Child:
        if self.refuse:
            raise self.refuse
        self.children.append(FakeChild(1000 + len(self.children)))
        return self.children[-1]

    def is_alive(self, pid: int, ticks: int) -> bool:
        ours = any(child.pid == pid and child.start_ticks == ticks and child.code is None for child in self.children)
        return ours or self.orphans.get(pid) == ticks

    def kill_once(self, pid: int, ticks: int) -> None:
        self.kills.append(pid)

    def what_it_waits_for(self, pid: int) -> str:
        return "state D, wait channel rpc_wait"


class Bench:
    """One probe, its fake processes, and the time."""

    def __init__(self, folder: Path, processes: FakeProcesses | None = None, at_s: float = 0.0) -> None:
        self.released = ""
        self.folder = folder
        self.processes = processes or FakeProcesses()
        self.at_s = at_s
        self.probe = Probe(
            "nvml",
            Collector(facts=HostFacts, settings=Settings, open=lambda _: None, can_hang=True),  # type: ignore[arg-type,return-value]
            Settings(),
            boot_id=BOOT,
            book=Book(folder, "nvml"),
            processes=self.processes,
            released=lambda _: self.released,
        )

    def now(self) -> Moment:
        return Moment(SINCE_1970_NS + int(self.at_s * NS), int(self.at_s * NS))

    def at(self, seconds: float) -> Latest | None:
        """Go there in steps of a second, as the loop would."""
        while self.at_s < seconds:
            self.at_s = min(seconds, self.at_s + 1.0)
            self.probe.tick(self.now())
        self.probe.tick(self.now())
        return self.probe.latest()

    def say(self, status: Any = "ok", next_in_s: float = 5.0, reason: str | None = None) -> None:
        frame = Frame(self.now().unix_ns, 0.01, status, next_in_s, reason, msgspec.Raw(b"\x90"))
        self.child.said += packed(frame)
        self.probe.readable(self.now())

    def latest(self) -> Latest:
        found = self.probe.latest()
        assert found is not None
        return found

    @property
    def child(self) -> FakeChild:
        return self.processes.children[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.at(0)
    return made


def test_an_answer_is_passed_on_as_it_is(bench: Bench) -> None:
    assert bench.probe.take() is None
    bench.say()
    latest = bench.probe.latest()
    assert latest is not None
    assert (latest.status, latest.facts) == ("ok", msgspec.Raw(b"\x90"))
    assert bench.probe.fresh_ns() == bench.now().monotonic_ns
    taken = bench.probe.take()
    assert taken is not None
    assert bytes(taken[0].facts) == b"\x90"
    assert bench.probe.fresh_ns() is None
    assert bench.probe.urgent()  # its first answer is news
    assert not bench.probe.urgent()


@pytest.mark.parametrize(("silent_s", "status"), [(5.0, "ok"), (14.9, "ok"), (15.0, "hung"), (40.0, "hung")])
def test_silence_past_the_deadline_is_hung(bench: Bench, silent_s: float, status: str) -> None:
    bench.say()
    latest = bench.at(silent_s)
    assert latest is not None
    assert latest.status == status
    assert bench.child.kills == 0


def test_a_hung_report_says_since_when_where_and_what_it_waits_for(bench: Bench) -> None:
    bench.at(2)
    bench.say()
    bench.probe.urgent()
    latest = bench.at(30)
    assert latest is not None
    assert latest.since_unix_ns == SINCE_1970_NS + 7 * NS  # when the reading that never came was to begin
    assert latest.reason == (
        "no answer for more than 10 s in nvmlDeviceGetUtilizationRates of GPU 3; "
        "child state D, wait channel nvidia_ioctl"
    )
    assert bench.probe.urgent()
    assert bench.probe.expected_ns(0) is None


def test_the_next_readings_are_expected_on_its_own_clock(bench: Bench) -> None:
    assert bench.probe.expected_ns(0) is not None
    bench.at(2)
    bench.say()
    first_ns = bench.probe.expected_ns(0)
    assert first_ns is not None
    assert bench.probe.expected_ns(first_ns) == first_ns
    assert bench.probe.expected_ns(first_ns + 1) == first_ns + 5 * NS
    assert bench.probe.expected_ns(first_ns + 11 * NS) == first_ns + 15 * NS


def test_a_call_that_returns_late_is_an_answer_again(bench: Bench) -> None:
    bench.say()
    bench.at(40)
    bench.say()
    assert bench.latest().status == "ok"
    assert bench.child.kills == 0


def test_a_child_that_hangs_for_long_is_killed_once_and_the_next_one_does_not_make_it_well(bench: Bench) -> None:
    bench.say()
    latest = bench.at(65)
    assert bench.child.kills == 1
    latest = bench.at(80)
    assert latest is not None
    assert latest.status == "hung"
    assert len(bench.processes.children) == 2
    assert latest.since_unix_ns == SINCE_1970_NS + 5 * NS
    latest = bench.at(3600)
    assert latest is not None
    assert (latest.status, latest.since_unix_ns) == ("hung", SINCE_1970_NS + 5 * NS)
    assert bench.probe.readings()["hung"] == 1  # never flapped
    assert [child.kills for child in bench.processes.children[:-1]] == [1] * (len(bench.processes.children) - 1)
    starts = len(bench.processes.children)
    assert starts < 20  # 3600 s / (70 s to kill + 5, 10, 20 … 300 s of patience)
    while bench.probe.fileno() < 0:
        bench.at(bench.at_s + 1)
    bench.say()
    assert bench.latest().status == "ok"


def test_a_child_that_cannot_be_killed_is_left_alone_until_it_is_gone(bench: Bench) -> None:
    bench.say()
    bench.child.mortal = False
    stuck = bench.child
    latest = bench.at(4000)
    assert latest is not None
    assert (latest.status, latest.abandoned_count, stuck.kills) == ("hung", 1, 1)
    assert len(bench.processes.children) == 1
    stuck.code = -9
    bench.at(4010)
    assert len(bench.processes.children) == 2
    assert not stuck.open
    assert bench.latest().status == "hung"  # nobody has answered yet
    bench.say()
    assert bench.latest().status == "ok"
    assert bench.latest().abandoned_count == 0


def test_the_next_agent_finds_the_stuck_child_and_starts_no_other(bench: Bench) -> None:
    bench.say()
    bench.child.mortal = False
    bench.at(100)
    first_since = bench.latest().since_unix_ns
    bench.probe.close()
    bench.processes.orphans[bench.child.pid] = bench.child.start_ticks
    later = Bench(bench.folder, bench.processes, at_s=101)
    latest = later.at(200)
    assert latest is not None
    assert (latest.status, latest.abandoned_count, latest.since_unix_ns) == ("hung", 1, first_since)
    assert "nvidia_ioctl" in (latest.reason or "")
    assert len(bench.processes.children) == 1
    assert bench.processes.kills == []  # it had its one SIGKILL
    bench.processes.orphans.clear()
    bench.child.code = -9
    later.at(210)
    assert len(bench.processes.children) == 2


def test_an_orphan_of_a_killed_agent_that_ends_by_itself_costs_a_moment(tmp_path: Path) -> None:
    processes = FakeProcesses()
    processes.orphans[7] = 70
    Book(tmp_path, "nvml").write(ChildRecord(pid=7, start_ticks=70, boot_id=BOOT))
    bench = Bench(tmp_path, processes)
    assert bench.at(1) is None
    assert processes.children == []
    processes.orphans.clear()
    bench.at(2)
    assert len(processes.children) == 1
    assert processes.kills == []


def test_an_orphan_that_hangs_gets_its_one_kill(tmp_path: Path) -> None:
    processes = FakeProcesses()
    processes.orphans[7] = 70
    Book(tmp_path, "nvml").write(ChildRecord(pid=7, start_ticks=70, boot_id=BOOT))
    bench = Bench(tmp_path, processes)
    latest = bench.at(100)
    assert latest is not None
    assert (latest.status, latest.abandoned_count, processes.kills) == ("hung", 1, [7])
    assert "rpc_wait" in (latest.reason or "")
    assert processes.children == []
    written = Book(tmp_path, "nvml").read()
    assert written is not None
    assert written.killed


@pytest.mark.parametrize(
    ("record", "orphans"),
    [
        pytest.param(ChildRecord(pid=7, start_ticks=70, boot_id="boot-0", killed=True), {7: 70}, id="another-boot"),
        pytest.param(ChildRecord(pid=7, start_ticks=70, boot_id=BOOT, killed=True), {7: 71}, id="pid-given-to-another"),
        pytest.param(ChildRecord(pid=7, start_ticks=70, boot_id=BOOT, killed=True), {}, id="gone"),
    ],
)
def test_a_record_that_no_longer_holds_is_no_obstacle(
    tmp_path: Path, record: ChildRecord, orphans: dict[int, int]
) -> None:
    processes = FakeProcesses()
    processes.orphans = orphans
    Book(tmp_path, "nvml").write(record)
    Bench(tmp_path, processes).at(0)
    assert len(processes.children) == 1


def test_a_crash_is_a_failure_with_growing_patience(bench: Bench) -> None:
    bench.child.code = -11
    latest = bench.at(1)
    assert latest is not None
    assert (latest.status, latest.reason) == ("failed", "its probe ended with SIGSEGV")
    starts: list[float] = []
    for second in range(2, 400):
        before = len(bench.processes.children)
        bench.at(float(second))
        if len(bench.processes.children) > before:
            starts.append(second)
            bench.child.code = 1
    gaps = [round(after - before) for before, after in itertools.pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 10
    assert gaps[-1] <= 300 + 2


def test_a_node_without_gpus_is_looked_at_every_ten_minutes(bench: Bench) -> None:
    bench.say("unsupported", reason="no NVIDIA GPU or driver on this node")
    bench.child.code = 0
    latest = bench.at(599)
    assert latest is not None
    assert (latest.status, latest.reason) == ("unsupported", "no NVIDIA GPU or driver on this node")
    assert len(bench.processes.children) == 1
    bench.at(605)
    assert len(bench.processes.children) == 2


def test_noise_instead_of_frames_ends_the_child(bench: Bench) -> None:
    bench.child.said = b"\xff\xff\xff\xffgarbage"
    bench.probe.readable(bench.now())
    assert bench.latest().status == "failed"
    assert bench.child.kills == 1
    bench.at(3)
    assert "length" in (bench.latest().reason or "")


def test_a_child_that_cannot_be_started_is_tried_again(bench: Bench, tmp_path: Path) -> None:
    processes = FakeProcesses()
    processes.refuse = BlockingIOError("no more processes")
    other = Bench(tmp_path / "other", processes)
    latest = other.at(0)
    assert latest is not None
    assert latest.status == "failed"
    processes.refuse = None
    other.at(10)
    assert len(processes.children) == 1


def test_a_stop_kills_only_what_hangs(bench: Bench) -> None:
    bench.say()
    bench.probe.close()
    assert (bench.child.kills, bench.child.open) == (0, False)


def test_a_stop_kills_what_hangs_and_waits_for_nothing(bench: Bench) -> None:
    bench.say()
    bench.child.mortal = False
    bench.at(20)
    bench.probe.close()
    assert (bench.child.kills, bench.child.open) == (1, False)
    record = Book(bench.folder, "nvml").read()
    assert record is not None
    assert (record.killed, record.since_unix_ns) == (True, SINCE_1970_NS + 5 * NS)


@settings(max_examples=60, deadline=None)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["answer", "silent", "crash", "stick", "free", "restart"]), st.integers(1, 120)),
        max_size=25,
    )
)
def test_whatever_happens_there_is_never_a_second_living_child(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    bench = Bench(tmp_path_factory.mktemp("probe"))
    bench.at(0)
    for act, seconds in acts:
        running = bench.probe.fileno() >= 0
        if act == "answer" and running:
            bench.say()
        elif act == "crash" and running:
            bench.child.code = 1
        elif act == "stick" and bench.processes.children:
            bench.child.mortal = False
        elif act == "free" and bench.processes.children and bench.child.kills:
            bench.child.code = -9
            bench.processes.orphans.clear()
        elif act == "restart":
            bench.probe.close()
            if bench.processes.children and bench.child.code is None and bench.child.mortal:
                bench.child.code = 0  # its input ended
            bench = Bench(bench.folder, bench.processes, bench.at_s)
        bench.at(bench.at_s + seconds)
        living = [child for child in bench.processes.children if child.code is None]
        assert len(living) <= 1
        assert all(child.kills <= 1 for child in bench.processes.children)
        assert bench.probe.wake_ns() > bench.now().monotonic_ns - NS  # it never asks to be woken at once for ever


def test_the_last_words_of_a_child_that_has_ended_are_heard(bench: Bench) -> None:
    frame = Frame(bench.now().unix_ns, 0.01, "unsupported", 5.0, "no GPU")
    bench.child.said += packed(frame)
    bench.child.code = 0
    latest = bench.at(1)  # the loop looks before the pipe is selected on
    assert latest is not None
    assert (latest.status, latest.reason) == ("unsupported", "no GPU")
    bench.at(500)
    assert len(bench.processes.children) == 1


def test_words_that_wait_in_the_pipe_are_no_silence(bench: Bench) -> None:
    bench.at(8)
    bench.child.said += packed(Frame(bench.now().unix_ns, 0.01, "ok", 5.0))
    latest = bench.at(22)
    assert latest is not None
    assert latest.status == "ok"


def test_a_spent_child_is_replaced_without_a_word(bench: Bench) -> None:
    bench.at(1)
    bench.say()
    bench.child.code = 0
    for second in range(2, 6):
        bench.at(float(second))
        assert bench.latest().status == "ok"
        assert len(bench.processes.children) == 1
    bench.at(7)
    assert len(bench.processes.children) == 2
    assert bench.probe.readings() == {"ok": 1}


@pytest.mark.parametrize("asleep_s", [17.5, 20.0, 75.0, 3600.0])
def test_our_own_sleep_is_not_the_childs(bench: Bench, asleep_s: float) -> None:
    bench.at(1)
    bench.say()
    bench.at_s += asleep_s  # SIGSTOP and SIGCONT, a container that was frozen: the child slept as well
    bench.probe.tick(bench.now())
    assert bench.latest().status == "ok"
    assert bench.child.kills == 0
    bench.at(bench.at_s + 9)
    assert bench.latest().status == "ok"
    bench.at(bench.at_s + 2)
    assert bench.latest().status == "hung"  # it had its whole deadline since


def test_a_child_whose_pipe_is_closed_and_that_does_not_end_is_not_selected_on(bench: Bench) -> None:
    bench.at(1)
    bench.say()
    bench.probe.readable(bench.now())  # the end of the pipe: it is dying inside the driver
    assert bench.probe.fileno() == -1
    for second in range(2, 15):
        bench.at(float(second))
        assert bench.probe.wake_ns() > bench.now().monotonic_ns
    bench.at(17)
    assert bench.latest().status == "hung"
    bench.child.code = -9
    bench.at(18)
    assert bench.probe.fileno() == -1
    bench.at(30)
    assert bench.probe.fileno() >= 0


RELEASED = "released on request"


def test_while_the_driver_is_released_there_is_no_child_and_then_one_at_once(bench: Bench) -> None:
    bench.say()
    bench.released = RELEASED
    bench.at(3)
    first = bench.child
    assert (first.sent_away, first.kills) == (True, 0)
    assert bench.latest().status == "ok"  # until it is gone
    first.code = 0
    bench.at(4)
    bench.at(5)
    assert (bench.latest().status, bench.latest().reason) == ("failed", RELEASED)
    assert bench.probe.urgent()
    assert bench.at(300) is not None
    assert len(bench.processes.children) == 1
    assert Book(bench.folder, "nvml").read() is None
    assert bench.probe.wake_ns() - bench.now().monotonic_ns <= NS
    bench.released = ""
    bench.at(301)
    assert len(bench.processes.children) == 2
    bench.say()
    assert bench.latest().status == "ok"


def test_an_agent_that_starts_while_it_is_released_starts_no_child(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.released = RELEASED
    bench.at(10)
    assert (bench.processes.children, bench.latest().reason) == ([], RELEASED)


def test_a_child_that_hangs_is_hung_also_while_the_driver_is_released(bench: Bench) -> None:
    bench.say()
    bench.at(20)
    assert bench.latest().status == "hung"
    bench.released = RELEASED
    bench.child.mortal = False
    bench.at(100)
    assert bench.child.kills == 1
    assert (bench.latest().status, bench.latest().abandoned_count) == ("hung", 1)
    bench.child.code = -9
    bench.at(110)
    assert bench.latest().reason == RELEASED
    assert len(bench.processes.children) == 1


def test_other_settings_come_with_another_child_and_the_last_answer_stays(bench: Bench) -> None:
    bench.say()
    first = bench.child
    bench.probe.change(Settings(interval_s=1.0, deadline_s=2.0, kill_after_s=3.0))
    assert first.sent_away
    first.code = 0
    bench.at(1)
    bench.at(2)
    assert len(bench.processes.children) == 2
    assert bench.latest().status == "ok"
    bench.say(next_in_s=1.0)
    bench.at(6)
    assert bench.latest().status == "hung"  # by the new deadline
    assert bench.processes.children[1].kills == 1


def test_other_settings_end_a_long_wait(bench: Bench) -> None:
    bench.say("unsupported", reason="no driver")
    bench.child.code = 0
    bench.at(2)
    bench.probe.change(Settings(interval_s=1.0))
    bench.at(3)
    assert len(bench.processes.children) == 2


def test_a_reading_that_was_asked_for_is_reported_at_once(bench: Bench) -> None:
    bench.say()
    assert bench.probe.urgent()
    bench.say()
    assert not bench.probe.urgent()
    bench.probe.hurry()
    assert bench.child.hurries == 1
    bench.say()
    assert bench.probe.urgent()
    bench.say()
    assert not bench.probe.urgent()


def test_nobody_is_hurried_that_does_not_run(bench: Bench) -> None:
    bench.say()
    bench.released = "the driver is released"
    bench.at(1.0)
    bench.probe.hurry()
    assert bench.child.hurries == 0
