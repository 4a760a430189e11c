"""What was begun is never done twice: over restarts, crashes, boots, clock steps and disks that take nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.hands import carry
from gpuwatch.hands.command import Outcome
from gpuwatch.hands.journal import Journal, JournalError, Line
from gpuwatch.hands.memory import INTERRUPTED, KEPT_ANSWERS, Memory
from gpuwatch.hands.settings import Reboot, RestartService
from tests.hands_node import HandsNode

NS = 10**9
HOUR_S = 3600.0


@pytest.fixture
def node(tmp_path: Path) -> HandsNode:
    return HandsNode(tmp_path)


class Killed(BaseException):
    """Stands for kill -9: nothing of the process runs after it."""


def killed(*_: Any, **__: Any) -> Outcome:
    raise Killed


def state_of(node: HandsNode, action_id: str) -> tuple[str, str]:
    (found,) = [answer for answer in node.hands.facts().answers if answer.action_id == action_id]
    return found.state, found.reason


def test_an_order_cut_short_is_not_repeated(node: HandsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    text = node.sign(node.order())
    monkeypatch.setattr(carry, "run", killed)
    with pytest.raises(Killed):
        node.hands.take(text)
    monkeypatch.undo()
    node.again()
    assert state_of(node, "act-1") == ("unknown", INTERRUPTED)
    node.hands.take(text)
    assert node.answer(node.order())[0] == "unknown"  # signed anew, with a fresh nonce: the same action still
    assert node.did() == []
    assert node.answer(node.order(action_id="act-2"))[0] == "done"


def test_a_nonce_survives_a_restart_and_is_good_once_all_the_same(node: HandsNode) -> None:
    order = node.order()
    node.again()
    assert node.answer(order)[0] == "done"
    node.again()
    assert node.answer(msgspec.structs.replace(order, action_id="act-2"))[0] == "refused"
    assert node.did() == ["restart slurmd.service"]


def test_a_refusal_is_remembered_with_its_reason(node: HandsNode) -> None:
    (node.folder / "HOLD").touch()
    text = node.sign(node.order())
    _, why = node.hand_in(text)
    (node.folder / "HOLD").unlink()
    node.again()
    assert node.hand_in(text) == ("refused", why)  # it does not wait in a drawer until HOLD is gone
    assert node.did() == []


def test_a_reboot_is_reported_by_the_next_boot(node: HandsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "reboot", killed)
    with pytest.raises(Killed):
        node.hands.take(node.sign(node.order("reboot", "")))
    monkeypatch.undo()
    node.again(boot="boot-2")
    assert state_of(node, "act-1") == ("done", "it runs as boot boot-2 now")
    node.again()
    assert state_of(node, "act-1") == ("done", "it runs as boot boot-2 now")


def test_a_reboot_that_comes_late_is_done_after_all(node: HandsNode) -> None:
    assert node.answer(node.order("reboot", ""))[0] == "failed"
    node.again()
    assert state_of(node, "act-1")[0] == "failed"
    node.again(boot="boot-2")
    assert state_of(node, "act-1")[0] == "done"


def test_a_nonce_of_an_earlier_boot_is_void(node: HandsNode) -> None:
    order = node.order(expires_monotonic_ns=10**18)
    node.again(boot="boot-2")
    state, why = node.answer(msgspec.structs.replace(order, boot_id="boot-2"))
    assert (state, why[:26]) == ("refused", "its nonce was used already")


def test_the_ladder_of_a_reboot(node: HandsNode) -> None:
    state, why = node.answer(node.order("reboot", ""))
    assert node.did() == ["reboot", "force"]
    assert (node.folder / "sysrq").read_text() == "sub"
    assert state == "failed"
    assert why.endswith("and it runs still")
    steps = [line.text.rpartition(" ")[2] for line in lines_of(node) if line.what == "step"]
    assert steps[:2] == ["reboot", "force"]
    assert [line.what for line in lines_of(node)] == ["nonce", "begun", *["step"] * 5, "ended"]


def test_hold_stops_a_reboot_between_its_steps(node: HandsNode) -> None:
    hold = node.folder / "HOLD"
    node.settings = node.usual(
        reboot=Reboot(allowed=True, command=("/usr/bin/touch", str(hold)), deadline_s=0.1, sysrq=node.folder / "sysrq")
    )
    node.again()
    assert node.answer(node.order("reboot", "")) == ("failed", f"{hold} is there: somebody wants hands off")
    assert not (node.folder / "sysrq").exists()


@pytest.mark.parametrize(
    ("ran_s", "wall_s", "refused"),
    [
        pytest.param(60.0, 60.0, True, id="a-minute"),
        pytest.param(60.0, 48 * HOUR_S, True, id="the-wall-clock-jumped-two-days-on"),
        pytest.param(60.0, -48 * HOUR_S, True, id="the-wall-clock-jumped-back"),
        pytest.param(6 * HOUR_S - 400, 6 * HOUR_S, True, id="not-quite"),
        pytest.param(6 * HOUR_S, 6 * HOUR_S, False, id="six-hours"),
        pytest.param(6 * HOUR_S, -48 * HOUR_S, False, id="six-hours-by-its-own-running"),
    ],
)
def test_one_reboot_in_six_hours_of_running(node: HandsNode, ran_s: float, wall_s: float, refused: bool) -> None:
    node.answer(node.order("reboot", ""))
    node.again(boot="boot-2")
    node.fake.unix += int(wall_s * NS)
    node.fake.monotonic = int(ran_s * NS)
    state, why = node.answer(node.order("reboot", "", action_id="act-2"))
    assert (state == "refused") is refused
    assert not refused or "h of running ago; once in 6 h is allowed" in why


def test_running_adds_up_over_boots(node: HandsNode) -> None:
    node.answer(node.order("reboot", ""))
    for number in range(2, 5):  # 3 boots of 3 hours each
        node.again(boot=f"boot-{number}")
        node.fake.monotonic = int(3 * HOUR_S * NS)
        node.hands.tick()
    node.again(boot="boot-5")
    assert node.answer(node.order("reboot", "", action_id="act-2"))[0] == "failed"  # it was tried: 9 h are over
    node.again(boot="boot-6")
    assert node.answer(node.order("reboot", "", action_id="act-3"))[0] == "refused"


def test_reboots_are_remembered_over_many_restarts_of_the_process(node: HandsNode) -> None:
    node.answer(node.order("reboot", ""))
    for _ in range(50):
        node.again()
    assert node.answer(node.order("reboot", "", action_id="act-2"))[0] == "refused"
    assert len(lines_of(node)) < 12


def test_only_the_newest_answers_are_kept(node: HandsNode) -> None:
    for number in range(KEPT_ANSWERS + 8):
        assert node.answer(node.order(action_id=f"act-{number}"))[0] == "done"
    node.again()
    assert [answer.action_id for answer in node.hands.facts().answers][-1] == f"act-{KEPT_ANSWERS + 7}"
    assert len(lines_of(node)) < KEPT_ANSWERS + 8


class FullDisk(Journal):
    """Takes so many lines more."""

    left = 10**9

    def write(self, line: Line) -> None:
        if FullDisk.left <= 0:
            raise JournalError("the journal cannot be written", why=os.strerror(errno.ENOSPC))
        FullDisk.left -= 1
        super().write(line)


@pytest.mark.parametrize(("left", "state", "did"), [(0, "refused", []), (1, "failed", []), (2, "done", ["restart"])])
def test_what_cannot_be_written_down_is_not_done(
    node: HandsNode, left: int, state: str, did: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.hands_node.Journal", FullDisk)
    node.again()
    order = node.order()
    monkeypatch.setattr(FullDisk, "left", left)
    assert node.answer(order)[0] == state
    assert [line.split()[0] for line in node.did()] == did
    assert node.hands.facts().refuses == "the journal cannot be written"
    monkeypatch.setattr(FullDisk, "left", 10**9)
    node.fake.pass_s(200)
    node.hands.tick()
    assert node.hands.facts().refuses == ""
    node.again()
    known = {answer.action_id: answer.state for answer in node.hands.facts().answers}
    assert known == ({} if left == 0 else {"act-1": "unknown"})


def test_a_line_that_a_crash_cut_short_is_dropped(node: HandsNode) -> None:
    node.answer(node.order())
    with (node.settings.state_dir / "journal").open("ab") as file:
        file.write(b'{"what":"begun","unix_ns":1')
    node.again()
    assert state_of(node, "act-1")[0] == "done"


@pytest.mark.parametrize("damage", [b"\0\0\0", b'{"unknown":' + b"[" * 100_000])
def test_a_damaged_journal_takes_no_orders(node: HandsNode, damage: bytes) -> None:
    path = node.settings.state_dir / "journal"
    node.hands.close()
    path.write_bytes(damage + b"\n" + path.read_bytes())
    with pytest.raises(JournalError, match="is damaged at line 1"):
        node.begin()


def test_two_processes_do_not_share_a_journal(node: HandsNode) -> None:
    with pytest.raises(JournalError, match="other hands use"):
        node.begin()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such device >&2; exit 3", "sh ended with 3: no such device"),
        ("kill -11 $$", "sh was ended by signal 11"),
        ("sleep 60", "sh took longer than 0.3 s"),
    ],
)
def test_a_command_that_fails(node: HandsNode, script: str, words: str) -> None:
    command = ("/bin/sh", "-c", script, "{unit}")
    service = RestartService(units=("slurmd.service",), command=command, deadline_s=0.3)
    node.settings = node.usual(restart_service=service)
    node.again()
    assert node.answer(node.order()) == ("failed", words)


def test_a_program_that_is_not_there(node: HandsNode) -> None:
    service = RestartService(units=("slurmd.service",), command=("/nowhere/systemctl", "{unit}"))
    node.settings = node.usual(restart_service=service)
    node.again()
    state, why = node.answer(node.order())
    assert (state, why[:39]) == ("failed", "/nowhere/systemctl cannot be started: [")


def test_a_shell_would_see_nothing_to_do(node: HandsNode) -> None:
    unit = "a$(touch x)`id`;b.service"
    node.settings = node.usual(restart_service=msgspec.structs.replace(node.settings.restart_service, units=(unit,)))
    node.again()
    node.answer(node.order(target=unit))
    assert node.did() == [f"restart {unit}"]


def test_compaction_changes_nothing_that_counts() -> None:
    memory = Memory("b2")
    memory.learn(
        [
            Line(what="begun", unix_ns=1, monotonic_ns=5 * NS, boot="b1", action_id="r", kind="reboot", nonce="n0"),
            Line(what="alive", unix_ns=2, monotonic_ns=9 * NS, boot="b1"),
            Line(what="nonce", unix_ns=3, monotonic_ns=7 * NS, boot="b2", nonce="n1", expires_monotonic_ns=99 * NS),
            Line(what="refused", unix_ns=4, monotonic_ns=8 * NS, boot="b2", action_id="x", nonce="n2", text="HOLD"),
        ]
    )
    memory.learn(memory.unfinished(5, 8 * NS))
    again = Memory("b2")
    again.learn(memory.lines(6, 8 * NS, window_ns=100 * NS))
    assert again.nonces == memory.nonces == {"n1": 99 * NS}
    assert again.answers() == memory.answers()
    assert again.ran_since_reboot_ns(8 * NS) == memory.ran_since_reboot_ns(8 * NS) == 12 * NS
    assert again.is_answered("x", "n2")
    assert not again.is_answered("x", "n3")
    assert again.unfinished(7, 8 * NS) == []


def lines_of(node: HandsNode) -> list[Line]:
    text = (node.settings.state_dir / "journal").read_bytes()
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


def test_a_shutdowns_last_phase_leaves_the_hands_alone_while_they_wait_for_it(
    node: HandsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: systemd.io/ROOT_STORAGE_DAEMONS; and nothing is held open that keeps a file system from read-only."""
    seen: list[tuple[bytes, bool]] = []

    def look() -> None:
        writing = [path for path in Path("/proc/self/fd").iterdir() if _writes_below(path, node.settings.state_dir)]
        seen.append((Path("/proc/self/cmdline").read_bytes()[:1], bool(writing)))

    before = Path("/proc/self/cmdline").read_bytes()
    monkeypatch.setattr(node.hands, "_meanwhile", look)
    node.answer(node.order("reboot", ""))
    assert set(seen) == {(b"@", False)}
    assert Path("/proc/self/cmdline").read_bytes() == before
    assert node.answer(node.order(action_id="act-2"))[0] == "done"


def _writes_below(path: Path, folder: Path) -> bool:
    try:
        if not str(path.readlink()).startswith(str(folder)):
            return False
        flags = Path(f"/proc/self/fdinfo/{path.name}").read_text().split("flags:\t")[1].split()[0]
    except OSError:
        return False
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def test_a_journal_that_was_put_in_place_and_not_told_so_is_the_one_that_is_written(
    node: HandsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder takes no sync after the new journal has its name: no line may go to the old one, which has none."""
    order = node.order(action_id="act-1")
    monkeypatch.setattr("gpuwatch.hands.journal.MOST_BYTES", 10)

    def fails(_: Journal) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_sync_folder", fails)
        node.hands.tick()
    node.fake.pass_s(151)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_sync_folder", fails)
        node.hands.tick()  # time for a new nonce
        assert node.hands.facts().refuses
        node.answer(msgspec.structs.replace(order, expires_monotonic_ns=10**18))
    assert "begun" in [line.what for line in lines_of(node)]
    node.again()
    node.answer(msgspec.structs.replace(order, expires_monotonic_ns=10**18))
    assert node.did() == ["restart slurmd.service"]
