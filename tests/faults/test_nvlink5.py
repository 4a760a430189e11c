"""Xid 144-150: every published row, by name and by bits, and what happens where line and table disagree."""

from __future__ import annotations

import pytest

from gpuwatch.faults import xid
from gpuwatch.faults.catalogue import Nvlink5Row, nvlink5, xids
from gpuwatch.faults.event import Event

ROWS = [row for rows in nvlink5().values() for row in rows]


def judged(number: int, text: str) -> Event:
    line = xid.parse(f"NVRM: Xid (PCI:0008:01:00): {number}, {text}")
    assert line is not None
    return xid.judge(line)


def bits(pattern: str) -> int:
    return int(pattern.replace("-", "0"), 2)


def ids(row: Nvlink5Row) -> str:
    return f"{row.xid}-{row.units[-1]}-{row.subcode}-{row.status:x}"


@pytest.mark.parametrize("row", ROWS, ids=ids)
@pytest.mark.parametrize("layout", [0, 1], ids=["before-r575", "r575-on"])
def test_every_published_row(row: Nvlink5Row, layout: int) -> None:
    word = "Fatal" if row.is_fatal() else "Nonfatal"
    register = bits(row.layouts[layout]) | 5 << 13  # a link number in bits that say nothing of the unit
    for unit in (*row.units, "/".join(row.units)):
        event = judged(
            row.xid, f"{unit} {word} XC0 i0 Link 05 (0x{register:08x} 0x{row.status:08x} 0x00000000 0x00000000)"
        )
        assert (event.severity, event.action, event.drain) == (row.severity, row.action, row.drain)
        assert (event.details["unit"], event.details["link"], event.details["subcode"]) == (unit, 5, row.subcode)
        assert event.details.get("follow_xid154", False) is row.follow_xid154
        assert "disagree" not in event.details


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_the_unit_is_known_by_its_bits(row: Nvlink5Row) -> None:
    event = judged(row.xid, f"(0x{bits(row.layouts[1]):08x} 0x{row.status:08x} 0x00000000 0x00000000)")
    assert (event.severity, event.action, event.drain) == (row.severity, row.action, row.drain)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_where_word_and_table_disagree_the_worse_counts(row: Nvlink5Row) -> None:
    word = "Nonfatal" if row.is_fatal() else "Fatal"
    event = judged(row.xid, f"{row.units[0]} {word} XC1 i0 Link 00 (0x{bits(row.layouts[0]):08x} 0x{row.status:08x})")
    if row.is_fatal():
        assert (event.severity, event.action, event.drain) == (row.severity, row.action, row.drain)
    else:
        assert (event.severity, event.action, event.drain) == ("fatal", "reset_gpu", "yes")
    assert "disagree" in event.details


@pytest.mark.parametrize(
    ("number", "text", "severity", "action", "drain"),
    [
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6", "fatal", "reset_gpu", "yes"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08", "fatal", "reset_gpu", "yes"),
        (149, "NETIR_LINK_EVT Fatal", "fatal", "reset_gpu", "yes"),
        (149, "NETIR_LINK_EVT", "degraded", "reset_gpu", "after_count"),
        (149, "NETIR_BER_EVENT", "warn", "none", "no"),
        (149, "NETIR_BER_EVENT Nonfatal XC0", "warn", "none", "no"),
        (149, "", "degraded", "reset_gpu", "after_count"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x006001c6 0x00000000)", "fatal", "reset_gpu", "yes"),  # sub-code 6
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x006001c6 0x00000000)", "warn", "none", "no"),
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x026001c6 0x0)", "degraded", "contact_support", "after_count"),
        (149, "NEW_UNIT Fatal XC0 i0 Link 02 (0xffffffff 0x00000001)", "fatal", "reset_gpu", "yes"),
        (149, "NEW_UNIT Nonfatal XC0 i0 Link 02 (0xffffffff 0x00000001)", "warn", "none", "no"),
        (144, "SAW_EGR Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x00000000 0x00000000)", "warn", "none", "no"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000041)", "fatal", "reset_gpu", "yes"),  # two errors
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000101)", "warn", "none", "after_count"),
        (145, "rlw_remap non-fatal xc0 i0 link 00 (0X00000004 0X00000040)", "fatal", "reset_gpu", "yes"),
        (145, "RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000001)", "fatal", "reset_gpu", "yes"),
        (150, "", "fatal", "reset_gpu", "yes"),
        (147, "TREX", "warn", "none", "no"),
        (148, "garbage", "warn", "none", "no"),
    ],
)
def test_short_and_strange_lines(number: int, text: str, severity: str, action: str, drain: str) -> None:
    event = judged(number, text)
    assert (event.severity, event.action, event.drain) == (severity, action, drain)


@pytest.mark.parametrize("subcode", range(64))
def test_only_some_sub_codes_point_to_the_peer(subcode: int) -> None:
    event = judged(149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x{subcode << 20 | 0x5C6:08x} 0x00000000 0x0)")
    assert event.details["subcode"] == subcode
    published = subcode in {row.subcode for row in nvlink5()[149] if "NETIR_LINK_EVT" in row.units}
    assert event.suspect_peer is (published and subcode in {21, 32, 33, 34, 35, 36, 37})


def test_registers_are_counted_and_a_cut_is_said() -> None:
    event = judged(144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000)")
    assert event.details["registers"] == 4
    assert "registers_incomplete" not in event.details
    event = judged(144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x0000000")
    assert event.details["registers"] == 1
    assert event.details["registers_incomplete"] is True


def test_the_meaning_speaks_to_a_person() -> None:
    for number in range(144, 151):
        assert "csv" not in judged(number, "").meaning
        assert judged(number, "").title == xids()[number].name
