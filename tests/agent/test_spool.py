"""The spool: order, bounds, what goes first when there is no room, and what a crash or a full disk leaves."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.agent.spool import KEPT_REFUSED, Spool

ROOMY = {"max_bytes": 1 << 20, "max_reports": 1000}


def drained(spool: Spool) -> list[bytes]:
    found: list[bytes] = []
    while (first := spool.first()) is not None:
        found.append(first[1])
        spool.done(first[0])
    return found


def test_order_is_kept_over_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", **ROOMY)
    for number in range(12):
        assert spool.put(b"%d" % number, events=number % 3 == 0)
    again = Spool(tmp_path / "spool", **ROOMY)
    assert (len(again), again.bytes) == (12, spool.bytes)
    again.put(b"12", events=False)
    assert drained(again) == [b"%d" % number for number in range(13)]
    assert (again.bytes, len(again)) == (0, 0)
    assert len(Spool(tmp_path / "spool", **ROOMY)) == 0


@pytest.mark.parametrize("bound", [{"max_bytes": 40, "max_reports": 1000}, {"max_bytes": 1000, "max_reports": 4}])
def test_reports_with_events_stay_longest(tmp_path: Path, bound: dict[str, int]) -> None:
    spool = Spool(tmp_path, **bound)
    for name, events in [("e1", True), ("g1", False), ("e2", True), ("g2", False), ("g3", False), ("e3", True)]:
        spool.put(name.encode().ljust(10), events=events)
    assert [data.strip() for data in drained(spool)] == [b"e1", b"e2", b"g3", b"e3"]
    assert spool.lost == {"no_room": 2}


def test_a_day_without_an_aggregator(tmp_path: Path) -> None:
    """Each half minute a report, one in a hundred with events: all of those and the newest gauges come, in order."""
    spool = Spool(tmp_path / "spool", max_bytes=4 << 20, max_reports=500)
    for number in range(2_880):
        assert spool.put(b"%d" % number, events=number % 100 == 7)
    found = [int(data) for data in drained(Spool(tmp_path / "spool", max_bytes=4 << 20, max_reports=500))]
    assert found == sorted(found)
    assert len(found) == 500
    assert [number for number in found if number % 100 == 7] == list(range(7, 2_880, 100))
    assert set(range(2_480, 2_880)) < set(found)
    assert spool.lost == {"no_room": 2_380}


def test_when_there_are_only_events_the_oldest_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000, max_reports=2)
    for number in range(4):
        spool.put(b"%d" % number, events=True)
    assert drained(spool) == [b"2", b"3"]


def test_what_is_larger_than_all_the_room_is_not_taken(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=10, max_reports=5)
    spool.put(b"gauge", events=False)
    assert not spool.put(b"x" * 11, events=True)
    assert drained(spool) == [b"gauge"]


def test_a_write_that_a_crash_cut_short_is_thrown_away(tmp_path: Path) -> None:
    spool = Spool(tmp_path, **ROOMY)
    spool.put(b"whole", events=True)
    spool.put(b"empty", events=True)
    (tmp_path / "000000000002-e.report").write_bytes(b"")
    (tmp_path / "000000000003-e.new").write_bytes(b"half a rep")
    (tmp_path / "notes.txt").write_text("a person's")
    again = Spool(tmp_path, **ROOMY)
    assert drained(again) == [b"whole"]
    assert again.lost == {"unreadable": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


def test_a_full_disk_costs_gauges_first_and_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, **ROOMY)
    spool.put(b"gauge", events=False)
    spool.put(b"event", events=True)
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if len(list(tmp_path.glob("*.report"))) >= 2:
            real(path, data[:3])
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert spool.put(b"new", events=True)  # in the gauge's place
    assert not spool.put(b"newer", events=True)  # nothing left to give
    assert spool.lost == {"disk": 1}
    assert drained(spool) == [b"event", b"new"]
    assert list(tmp_path.glob("*.new")) == []


def test_a_folder_that_cannot_be_made_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool", **ROOMY)
    assert not spool.put(b"x", events=True)
    assert spool.first() is None


def test_refused_reports_are_kept_for_a_person_the_newest_few(tmp_path: Path) -> None:
    spool = Spool(tmp_path, **ROOMY)
    for number in range(KEPT_REFUSED + 3):
        spool.set_aside(b"%d" % number, "409 the same id with another body")
    kept = sorted((tmp_path / "refused").glob("*.report"))
    assert len(kept) == KEPT_REFUSED
    assert kept[-1].read_bytes() == b"%d" % (KEPT_REFUSED + 2)
    assert "409" in kept[-1].with_suffix(".why").read_text()
    again = Spool(tmp_path, **ROOMY)
    again.set_aside(b"next", "400")
    assert sorted((tmp_path / "refused").glob("*.report"))[-1].read_bytes() == b"next"


@settings(max_examples=40, deadline=None)
@given(
    puts=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=30),
    max_bytes=st.integers(30, 200),
    max_reports=st.integers(1, 12),
)
def test_bounds_always_hold_and_events_outlive_gauges(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[bool, int]], max_bytes: int, max_reports: int
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"), max_bytes=max_bytes, max_reports=max_reports)
    refused = 0
    for number, (events, size) in enumerate(puts):
        refused += not spool.put(b"%03d%c" % (number, b"ge"[events]) + b"." * (size - 1), events=events)
        assert spool.bytes <= max_bytes
        assert len(spool) <= max_reports
    kept = drained(spool)
    assert [data[:3] for data in kept] == sorted(data[:3] for data in kept)
    assert len(kept) + spool.lost["no_room"] + refused == len(puts)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EACCES])
def test_a_disk_that_only_reads_costs_nothing_that_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    spool = Spool(tmp_path, **ROOMY)
    for number in range(5):
        spool.put(b"%d" % number, events=False)

    def refuse(path: Path, data: bytes) -> int:
        raise OSError(code, "no")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert not any(spool.put(b"new", events=events) for events in (True, False) * 3)
    assert spool.lost == {}
    assert len(spool) == 5


def test_an_event_may_take_the_place_of_several_gauges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, **ROOMY)
    for number in range(5):
        spool.put(b"%d" % number, events=False)
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if sum(file.stat().st_size for file in tmp_path.glob("*.report")) + len(data) > 5:
            raise OSError(errno.ENOSPC, "full")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert spool.put(b"xid", events=True)
    assert not spool.put(b"ga", events=False)  # a gauge is worth one gauge
    assert spool.lost == {"disk": 4}


def test_a_disk_that_takes_every_other_report_is_complained_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, **ROOMY)
    tries = itertools.count()
    real = Path.write_bytes

    def almost_full(path: Path, data: bytes) -> int:
        if next(tries) % 2:
            raise OSError(errno.EROFS, "read-only")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", almost_full)
    assert [spool.put(b"gauge", events=False) for _ in range(6)] == [True, False] * 3
    assert len(caplog.records) == 1
    drained(spool)
    assert [spool.put(b"gauge", events=False) for _ in range(2)] == [True, False]
    assert len(caplog.records) == 2


def test_what_is_found_in_the_folder_never_ends_the_agent(tmp_path: Path) -> None:
    for name in ("000000000001-e.report", "000000000002-g.new", "refused"):
        (tmp_path / name).mkdir()
    (tmp_path / "refused" / "000000000009.report").mkdir()
    (tmp_path / "\u00b2-e.report").write_bytes(b"x")
    (tmp_path / "000000000003-e.report").symlink_to(tmp_path / "nowhere")
    spool = Spool(tmp_path, **ROOMY)
    assert spool.first() is None
    spool.put(b"new", events=False)
    assert drained(spool) == [b"new"]


def test_what_had_to_go_meanwhile_may_be_called_done(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000, max_reports=1)
    spool.put(b"old", events=False)
    first = spool.first()
    spool.put(b"new", events=False)
    assert first is not None
    spool.done(first[0])
    assert drained(spool) == [b"new"]
