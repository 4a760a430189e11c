"""Whole logs: wrapped lines, journal entries, garbage, and speed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def read(*lines: bytes) -> tuple[LogReader, Story]:
    story = Story()
    reader = LogReader(story)
    for line in lines:
        reader.feed(line)
    reader.finish()
    story.ending()
    return reader, story


HEAD = "[171167.620236] NVRM: Xid (PCI:0009:01:00): "


@pytest.mark.parametrize(
    ("lines", "key", "value"),
    [
        (("154, GPU recovery action changed from 0x0 (None) to", "0x1 (GPU Reset Required)"), "to", 1),
        (("154, GPU recovery action changed from 0x0 (None) to 0x", "2 (Node Reboot Required)"), "to", 2),
        (("149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000", "0x00000000)"), "registers", 3),
        (("149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x0214", "25c6 0x00000000 0x00000000)"), "subcode", 33),
        (("149, NETIR_LINK_EVT Fatal XC0 i0 Link 0", "1 (0x021425c6 0x00000000)"), "link", 1),
        (("149, NETIR_LINK_EVT", "Fatal XC0 i0 Link 01 (0x021425c6", "0x00000000 0x00000000)"), "subcode", 33),
        (("74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10", "000, 0x0, 0x0, 0x0, 0x0)"), "reg2_bit", 16),
    ],
)
def test_a_wrapped_line_is_mended(lines: tuple[str, ...], key: str, value: int) -> None:
    _, story = read(
        *((HEAD if place == 0 else "").encode() + line.encode() + b"\n" for place, line in enumerate(lines))
    )
    (told,) = story.told
    assert told.event.details[key] == value
    assert "registers_incomplete" not in told.event.details


def test_a_wrapped_address_is_mended() -> None:
    _, story = read(b"NVRM: Xid (PCI:0000:0", b"5:00): 79, pid=7, GPU has fallen off the bus.")
    assert [(told.event.xid, told.event.pci, told.event.pid) for told in story.told] == [(79, "0000:05:00", 7)]


@pytest.mark.parametrize(
    "after",
    [
        "usb 1-1: new device",
        "[1.5] NVRM: Xid (PCI:0000:06:00): 31, x",
        "",
        "   ",
        "kernel: hello",
        "to be or not to be (0x)",
    ],
)
def test_the_line_after_a_cut_one_is_left_alone(after: str) -> None:
    _, story = read(b"NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406", after.encode())
    first = story.told[0].event
    assert (first.xid, first.severity, first.details["registers"]) == (149, "fatal", 1)
    assert len(story.told) == (2 if "31" in after else 1)


def entry(message: object, **fields: object) -> bytes:
    keys = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "4"}
    extra = {"_BOOT_ID": "b1", "_SOURCE_MONOTONIC_TIMESTAMP": "966503025", "__CURSOR": "s=1"}
    return json.dumps({**keys, **extra, **fields, "MESSAGE": message}).encode()


XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=a, GPU has fallen off the bus."


def test_journal_entries() -> None:
    _, story = read(entry(XID))
    (told,) = story.told
    assert (told.event.xid, told.first.uptime_us, told.first.level) == (79, 966_503_025, 4)
    for before in (b"\x1e", b"data: "):  # json-seq, json-sse
        _, story = read(before + entry(XID), b"", before + entry(XID, _TRANSPORT="stdout"))
        assert [(told.event.xid, told.lines) for told in story.told] == [(79, 1)]
    _, story = read(entry([*XID.encode(), 0xFF]))  # what is not UTF-8 comes as numbers
    assert [told.event.xid for told in story.told] == [79]
    _, story = read(
        entry(
            "NVRM: The NVIDIA GPU 0000:05:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands."
        )
    )
    assert [(told.event.xid, told.event.inferred) for told in story.told] == [(79, True)]
    _, story = read(entry(XID), entry(XID, _BOOT_ID="b2"))
    assert len(story.told) == 2


@pytest.mark.parametrize(
    "line",
    [
        entry(XID, _TRANSPORT="syslog"),
        entry(XID, _TRANSPORT="stdout"),
        entry(XID, SYSLOG_FACILITY="1"),  # written through /dev/kmsg
        entry(XID, SYSLOG_IDENTIFIER="gpud"),
        entry(None),
        entry({"a": 1}),
        entry(XID)[:-1],
        b'{"_TRANSPORT": "kernel", "MESSAGE": "gpud: ' + XID.encode() + b'"}',
        b'{"log": "' + XID.encode() + b'", "_TRANSPORT": "x"}',
        b'{"msg": "NVRM: Xid (PCI:0000:05:00): 79", "level": "error"}',
    ],
)
def test_other_programs_entries_are_no_kernel_messages(line: bytes) -> None:
    _, story = read(line)
    assert story.told == []


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_make_it_raise(lines: list[bytes]) -> None:
    read(*lines)
    read(*(b"NVRM: " + line for line in lines))
    read(*(b"NVRM: Xid (PCI:0000:05:00): 149, " + line for line in lines))
    read(*(b"1,2,3,-;" + line for line in lines))
    read(*(b'{"_TRANSPORT":"kernel","MESSAGE":' + line for line in lines))
    read(*(b"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, " + line for line in lines))


@pytest.mark.parametrize("digits", [30, 5_000])
def test_absurdly_long_numbers(digits: int) -> None:
    nine = b"9" * digits
    _, story = read(
        nine + b",1,1,-;NVRM: Xid (PCI:0000:05:00): 79",
        b"4," + nine + b"," + nine + b",-;NVRM: Xid (PCI:0000:05:00): 79",
        b"[" + nine + b".1] NVRM: Xid (PCI:0000:05:00): 79",
        b"NVRM: Xid (PCI:0000:05:00): " + nine,
        b"kernel: message repeated " + nine + b" times: [ NVRM: Xid (PCI:0000:05:00): 79]",
        b"host1 last message repeated " + nine + b" times",
        b"NVRM: Xid (PCI:0000:05:00): 31, pid=" + nine + b", name=a",
        b"NVRM: Xid (PCI:0000:05:00): 154, to 0x" + nine,
        b"NVRM: Xid (PCI:0000:05:00): 149, NETIR Fatal Link " + nine + b" (0x" + nine,
        b"NVRM: Xid (PCI:0000:05:00): 74, link " + nine + b"(0x" + nine + b", 0x" + nine + b")",
        b"NVRM: Xid (PCI:0000:05:00): 45, caused by previous Xid " + nine,
    )
    assert {told.event.xid for told in story.told} == {31, 154, 149, 74, 45}


def test_bad_utf8_in_a_name() -> None:
    _, story = read(b"[1.5] NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=tr\xffin, Ch 8\n")
    assert (story.told[0].event.pid, story.told[0].event.name) == (7, "tr\ufffdin")


@pytest.mark.parametrize(
    "line",
    [
        b"NVRM: Xid (PCI:0000:05:00 " + b"GPU-I:1 " * 4_000,
        b"NVRM: Xid (" + b"0" * 60_000,
        b"Nov 22 " * 9_000 + b"NVRM",
        b"kernel " * 9_000 + b"NVRM",
        b"[1.1] " * 9_000 + b"NVRM: Xid (PCI:0000:05:00): 79",
        b"<4>" * 20_000 + b"NVRM: Xid (PCI:0000:05:00): 79",
        b"message repeated 2 times: [ " * 2_000 + b"NVRM: Xid (PCI:0000:05:00): 79",
        b"\x1b[" * 20_000 + b"NVRM",
        b"NVRM: Xid (PCI:0000:05:00): 149, " + b"A" * 60_000,
        b"NVRM: Xid (PCI:0000:05:00): 149, (" + b"0x1 " * 15_000,
        b"NVRM: The NVIDIA GPU 0000:05:00.0 " + b"fallen off " * 6_000,
        b"nvidia-peermem " + b"a:1 " * 10_000,
        b" " * 60_000 + b"NVRM",
    ],
    ids=lambda line: line[:24].decode(),
)
def test_no_line_takes_long(line: bytes) -> None:
    began = time.perf_counter()
    read(line, line, line)
    assert time.perf_counter() - began < 1.0


def test_a_busy_nodes_log_is_read_at_once() -> None:
    other = b"Nov 22 18:29:55 host1 kernel: [  966.503025] usb 1-1: new high-speed USB device number 3 using xhci_hcd\n"
    xid = b"Nov 22 18:29:55 host1 kernel: [  966.503025] NVRM: Xid (PCI:0000:05:00): 31, pid=1, name=a, Ch 8\n"
    lines = [xid if number % 10_000 == 0 else other for number in range(100_000)]
    began = time.process_time()
    reader, story = read(*lines)
    assert time.process_time() - began < 1.0  # 0.2 s where it was written; a slow machine is given five times that
    assert (reader.lines, story.told[0].lines) == (100_000, 10)
