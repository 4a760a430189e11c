"""Many small files in one errand: each file's bytes, or why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.file_look import Look, look


@pytest.fixture
def errands() -> Errands:
    return Errands("test")


def test_what_is_there_and_what_is_not(errands: Errands, tmp_path: Path) -> None:
    files = {"state": b"4: ACTIVE\n", "number": b"7\n", "pma": b"N/A (no PMA)\n", "empty": b"", "bytes": b"\xff\xff\n"}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "folder").mkdir()
    paths = {name: str(tmp_path / name) for name in (*files, "gone", "folder")}
    found = look(errands, {"x": list(paths.values()), "none": []}, deadline_s=3)
    seen = found["x"]
    assert {name: seen.contents[paths[name]] for name in files} == files
    assert seen.errors == {paths["gone"]: "No such file or directory", paths["folder"]: "Is a directory"}
    assert seen.text(paths["state"]) == "4: ACTIVE"
    assert [seen.number(paths[name]) for name in ("number", "pma", "empty", "bytes", "gone")] == [7, *[None] * 4]
    assert (found["none"].contents, found["none"].errors, found["none"].hung) == ({}, {}, "")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), (str(2**62 - 1), 2**62 - 1), (str(2**64 - 1), None), ("9" * 20, None), ("9" * 21, None), ("-1", None)],
)
def test_a_number_can_travel_or_is_none(text: str, number: int | None) -> None:
    """All ones is what a dead card says of each of its counters."""
    assert Look({"/a": text.encode()}, {}).number("/a") == number


def test_files_of_the_kernel_that_refuse_or_vanish(errands: Errands) -> None:
    """Invalid argument: what a driver says of a link that is down. No such process: it ended while it was read."""
    lo, gone, good = "/sys/class/net/lo/speed", f"/proc/{2**22}/stat", "/proc/version"
    seen = look(errands, {"x": [lo, gone, good]}, deadline_s=3)["x"]
    assert seen.contents.keys() == {good}
    assert seen.errors == {lo: "Invalid argument", gone: "No such file or directory"}


def test_long_files_are_cut(errands: Errands, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 1_000_000)
    paths = [str(tmp_path / name) for name in "ab"]
    found = look(errands, {"x": paths}, deadline_s=3, most_bytes=10)["x"]
    assert list(found.contents.values()) == [b"a" * 10, b"b" * 10]


def test_a_driver_that_does_not_answer(errands: Errands, tmp_path: Path) -> None:
    """A pipe that nobody writes to keeps its reader waiting as such a driver does."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "good").write_bytes(b"1\n")
    found = look(errands, {"bad": [str(tmp_path / "pipe")], "good": [str(tmp_path / "good")]}, deadline_s=0.4)
    assert "no answer for more than 0.4 s; state S, wait channel" in found["bad"].hung
    assert found["bad"].since_unix_ns
    assert found["good"].number(str(tmp_path / "good")) == 1


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(texts=st.lists(st.binary(max_size=300) | st.just(b"==> /x <==\n"), min_size=1, max_size=4))
def test_any_bytes_in_any_file(texts: list[bytes], tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_bytes(text)
        paths.append(str(tmp_path / str(number)))
    found = look(Errands("test"), {"x": paths}, deadline_s=3)["x"]
    assert [found.contents[path] for path in paths] == [text[:256] for text in texts]
    for path in paths:
        found.text(path)
        assert (found.number(path) or 0) >= 0
