"""The release of the driver: who may ask, how long it holds, and a probe that obeys."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuwatch.agent.release import ReleaseFile, Request
from gpuwatch.errors import UsageError
from gpuwatch.model.moment import Moment

NS = 10**9


def at(seconds: float) -> Moment:
    return Moment(1_800_000_000 * NS, int(seconds * NS))


def test_what_is_asked_for_holds_until_it_is_taken_back(tmp_path: Path) -> None:
    asker, agent = ReleaseFile(tmp_path), ReleaseFile(tmp_path)
    assert agent.reason(at(0)) == ""
    asker.ask(at(0), 600.0, "driver 580.95")
    words = "released on request: driver 580.95 (for 10 min at most; `gpuwatch agent resume` ends it)"
    assert agent.reason(at(1)) == words
    assert agent.reason(at(599)) == words
    assert asker.take_back()
    assert agent.reason(at(600)) == ""
    assert not asker.take_back()


def test_it_ends_by_itself_and_the_file_goes(tmp_path: Path) -> None:
    asker, agent = ReleaseFile(tmp_path), ReleaseFile(tmp_path)
    asker.ask(at(10), 600.0)
    assert agent.reason(at(10)).startswith("released on request (for 10 min")
    assert agent.reason(at(609.9))
    assert agent.reason(at(610)) == ""
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_asked_for_again_begins_again(tmp_path: Path) -> None:
    asker, agent = ReleaseFile(tmp_path), ReleaseFile(tmp_path)
    asker.ask(at(0), 600.0)
    assert agent.reason(at(0))
    asker.ask(at(599), 1200.0)
    assert agent.reason(at(600))
    assert agent.reason(at(1798))
    assert agent.reason(at(1799)) == ""


def test_another_agent_obeys_it_too_for_no_longer_and_another_boot_does_not(tmp_path: Path) -> None:
    ReleaseFile(tmp_path).ask(at(1000), 600.0)
    assert ReleaseFile(tmp_path).reason(at(1500))
    assert ReleaseFile(tmp_path).reason(at(20)) == ""  # the clock of a machine begins anew with it
    assert list(tmp_path.iterdir()) == []


def _foreign(path: Path) -> None:
    path.write_bytes(msgspec.json.encode(Request(asked_monotonic_ns=0)))
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "garbage", "empty", "huge", pytest.param(
    "foreign", marks=pytest.mark.needs("root"))])  # fmt: skip
def test_what_is_no_request_is_not_obeyed_and_disturbs_nothing(tmp_path: Path, kind: str) -> None:
    path, elsewhere = tmp_path / "release", tmp_path / "elsewhere"
    elsewhere.write_bytes(msgspec.json.encode(Request(asked_monotonic_ns=0)))
    makers: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(elsewhere),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "garbage": lambda: path.write_bytes(b"\xff\x00{"),
        "empty": path.touch,
        "huge": lambda: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 33),
        "foreign": lambda: _foreign(path),
    }
    makers[kind]()
    agent = ReleaseFile(tmp_path)
    for second in range(5):
        assert agent.reason(at(second)) == ""


def test_who_asks_follows_no_link_that_lies_there(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    (tmp_path / "state").mkdir()
    for name in ("release", f".release.{os.getpid()}"):
        (tmp_path / "state" / name).symlink_to(precious)
    asker = ReleaseFile(tmp_path / "state")
    with pytest.raises(UsageError, match="cannot be asked for"):
        asker.ask(at(0))
    asker.ask(at(0))  # the draft's link is out of the way
    assert precious.read_text() == "as it was"
    assert not (tmp_path / "state" / "release").is_symlink()
    assert asker.reason(at(0))


def test_where_it_cannot_be_written_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be asked for") as raised:
        ReleaseFile(tmp_path / "nowhere").ask(at(0))
    assert "as root or as the agent's user" in raised.value.next_step
