"""SXid: guide, word in the line and table, in that order; up to three lines are one error."""

from __future__ import annotations

import pytest

from gpuwatch.faults import switch
from gpuwatch.faults.catalogue import sxids
from gpuwatch.faults.event import Event
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def judged(text: str) -> Event:
    line = switch.parse(f"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): {text}")
    assert line is not None
    return switch.judge(line)


@pytest.mark.parametrize(
    ("text", "severity", "action", "drain"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "fatal", "reset_gpu", "yes"),
        ("20009, Non-fatal, Link 3 RX Short Error Rate", "warn", "none", "after_count"),
        ("22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", "info", "none", "no"),
        ("10001, Fatal, Host_priv_error", "warn", "none", "after_count"),  # the guide: not fatal alone
        ("19049, Fatal, Link 1 NCISOC DAT ECC LIMIT_ERR", "info", "none", "no"),  # corrected, whatever the line says
        ("19055, Fatal, Link 1 x", "info", "none", "no"),
        ("19048, Fatal, Link 1 x", "fatal", "reset_gpu", "yes"),  # A100 switch
        ("19048, Non-fatal, Link 1 x", "warn", "none", "after_count"),  # H100 switch
        ("12014, Non-fatal, Link 1 x", "warn", "none", "after_count"),
        ("12014, Fatal, Link 1 x", "fatal", "reset_gpu", "yes"),
        ("12028, Non-fatal, Link 1 x", "degraded", "reboot", "after_count"),
        ("12028, Data {0x1}", "degraded", "reboot", "after_count"),
        ("22003, Non-fatal, Link 1 x", "fatal", "reboot", "yes"),  # always fatal
        ("26008, SOE Watchdog error", "fatal", "reboot", "yes"),  # no word: table
        ("28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)", "warn", "none", "after_count"),
        ("29002, Non-fatal, Link 46 x", "warn", "none", "after_count"),  # numbers moved: the word counts
        ("29001, Fatal, Link 46 x", "fatal", "reset_gpu", "yes"),
        ("28003, Module 3 overtemp", "degraded", "contact_support", "after_count"),
        ("99999, Fatal, Link 1 x", "fatal", "reset_gpu", "yes"),
        ("99999, Non-fatal, Link 1 x", "warn", "none", "after_count"),
        ("99999, Correctable, Link 1 x", "info", "none", "no"),
        ("99999, x", "warn", "contact_support", "after_count"),
        ("20034, Severity 1 Engine instance 60 Sub-engine instance 00", "fatal", "reset_gpu", "yes"),
        ("20034, Severity 0 Engine instance 60", "warn", "none", "after_count"),
        ("20009, Non-fatal, Li", "warn", "none", "after_count"),
        ("20034", "fatal", "reset_gpu", "yes"),
    ],
)
def test_severity(text: str, severity: str, action: str, drain: str) -> None:
    event = judged(text)
    assert (event.severity, event.action, event.drain) == (severity, action, drain)


@pytest.mark.parametrize("number", sorted(sxids()))
def test_without_a_word_the_table_decides(number: int) -> None:
    event, row = judged(str(number)), sxids()[number]
    assert (event.severity, event.action, event.drain) == (row.severity, row.action, row.drain)


@pytest.mark.parametrize(
    "message",
    [
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
        "nvidia-nvswitch2: open (major=510)",
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0) 20034",
        "x nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034",
        "nvidia-nvswitch: SXid (PCI:0000:00:00.0): 20034",
    ],
)
def test_what_is_no_sxid(message: str) -> None:
    assert switch.parse(message) is None


def test_a_data_line_has_the_severity_of_its_own_switchs_word() -> None:
    story = Story()
    reader = LogReader(story)
    for text in ("19048, Non-fatal, Link 4 x", "19048, Severity 0 Engine instance 4", "19048, Data {0x1, 0x2}"):
        reader.feed(f"[  38.178720] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): {text}\n".encode())
    reader.finish()
    (told,) = story.told
    assert (told.event.severity, told.lines, told.event.details["link"]) == ("warn", 3, 4)
