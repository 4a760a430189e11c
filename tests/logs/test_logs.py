"""A line of log is one line, whatever words came from outside."""

from __future__ import annotations

import logging

import pytest

from gpuwatch.logs import OneLine


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
