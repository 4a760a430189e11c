"""A line of log is one line, whatever words came from outside; the same trouble is written a few times a minute."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from gpuwatch.logs import MOST_REMEMBERED, SAME_A_MINUTE, OneLine, Repeats


@pytest.mark.parametrize(
    ("said", "line"),
    [
        pytest.param("plain", "WARNING plain", id="plain"),
        pytest.param("a\nERROR forged", "WARNING a\\nERROR forged", id="newline"),
        pytest.param("gone\nwhy: x\nnext: y", "WARNING gone; why: x; next: y", id="parts-of-an-error"),
        pytest.param("a\r\x1b[31mred", "WARNING a\\x0d\\x1b[31mred", id="escape"),
        pytest.param("a\u2028b\x9bc", "WARNING a\\x2028b\\x9bc", id="unicode-line-and-c1"),
        pytest.param("tab\tstays, é too", "WARNING tab\tstays, é too", id="harmless"),
    ],
)
def test_control_characters_are_shown_not_obeyed(said: str, line: str) -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%s", (said,), None)
    assert OneLine("%(levelname)s %(message)s").format(record) == line


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO, list[float]]]:
    """A logger as a process of ours has it, what it wrote, and its clock."""
    written, now_s = io.StringIO(), [0.0]
    handler = logging.StreamHandler(written)
    handler.setFormatter(OneLine("%(message)s"))
    handler.addFilter(Repeats(lambda: now_s[0]))
    logger = logging.getLogger("gpuwatch.of.the.test")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, written, now_s
    logger.removeHandler(handler)


def test_what_goes_wrong_each_second_fills_no_disk(log: tuple[logging.Logger, io.StringIO, list[float]]) -> None:
    logger, written, now_s = log
    for second in range(3600):
        now_s[0] = second
        logger.warning("%s is full", "/x" if second % 2 else "/y")
    lines = written.getvalue().splitlines()
    assert len(lines) == 2 * 60 * SAME_A_MINUTE
    assert lines[:3] == ["/y is full", "/x is full", "/y is full"]
    assert lines.count("/x is full (left out before: 25 times the same)") == 59


def test_what_is_new_and_what_is_no_trouble_always_passes(
    log: tuple[logging.Logger, io.StringIO, list[float]],
) -> None:
    logger, written, _ = log
    for number in range(2 * MOST_REMEMBERED):
        logger.error("fault %d", number)
        logger.info("news")
    assert len(written.getvalue().splitlines()) == 4 * MOST_REMEMBERED
    for what in ["one"] * 20 + ["two"] * 20:
        try:
            raise ValueError(what)
        except ValueError:
            logger.exception("a tick failed")
    told = written.getvalue()
    assert [told.count(f"ValueError: {what}") for what in ("one", "two")] == [SAME_A_MINUTE, SAME_A_MINUTE]


def test_a_traceback_keeps_its_lines_indented() -> None:
    try:
        raise ValueError("bad\x1b[2J")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "went wrong", (), (ValueError, error, error.__traceback__)
        )
    lines = OneLine("%(message)s").format(record).split("\n")
    assert lines[0] == "went wrong"
    assert all(line.startswith("  ") for line in lines[1:])
    assert "\x1b" not in lines[-1]
