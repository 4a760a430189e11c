"""A log told once: repeats folded, one fault one incident, good news applied, the strongest decides."""

from __future__ import annotations

import pytest

from gpuwatch.faults.incidents import Decision
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def told(*lines: str) -> tuple[Story, Decision]:
    story = Story()
    reader = LogReader(story)
    for line in lines:
        reader.feed(line.encode() + b"\n")
    reader.finish()
    return story, story.ending()


def xid(text: str, pci: str = "0000:05:00", at: str = "") -> str:
    return f"{at}NVRM: Xid (PCI:{pci}): {text}"


def counts(story: Story) -> list[tuple[int | None, int]]:
    return [(one.event.xid, one.lines) for one in story.told]


def test_a_burst_is_one_event_with_a_count() -> None:
    lines = [xid("31, pid=1, name=a, Ch 8", at=f"[{second}.5] ") for second in range(100, 160)]
    story, _ = told(*lines)
    assert counts(story) == [(31, 60)]


@pytest.mark.parametrize(
    ("first", "second", "events"),
    [
        ("[100.0] ", "[700.0] ", 1),
        ("[100.0] ", "[701.0] ", 2),
        ("[Fri Aug 30 11:43:09 2024] ", "[Fri Aug 30 11:53:09 2024] ", 1),
        ("[Fri Aug 30 11:43:09 2024] ", "[Fri Aug 30 11:53:10 2024] ", 2),
        ("[Fri Aug 30 11:43:09 2024] ", "[Sat Aug 31 11:43:09 2024] ", 2),
        ("[Fri Aug 30 23:59:59 2024] ", "[Sat Aug 31 00:00:01 2024] ", 1),
        ("kwi 15 07:56:59 h kernel: ", "kwi 15 08:06:59 h kernel: ", 1),
        ("kwi 15 07:56:59 h kernel: ", "kwi 16 07:56:59 h kernel: ", 2),
        ("kwi 15 07:56:59 h kernel: ", "maj 15 07:56:59 h kernel: ", 2),
        ("2024-04-15T07:56:59+0200 h kernel: ", "2024-04-15T07:57:59+0200 h kernel: ", 1),
        ("2024-04-15T07:56:59+0200 h kernel: ", "2024-05-15T07:56:59+0200 h kernel: ", 2),
        ("1790428806.5 h kernel: ", "1790428906.5 h kernel: ", 1),
        ("1790428806.5 h kernel: ", "1790438906.5 h kernel: ", 2),
        ("", "", 1),
        ("", "[100.0] ", 1),
        ("[100.0] ", "[2.0] ", 2),  # time went back: another boot
        ("[100.5] ", "[100.1] ", 1),  # two processors, out of order
    ],
)
def test_a_repeat_is_near_or_another_one(first: str, second: str, events: int) -> None:
    story, _ = told(xid("31, pid=1", at=first), xid("31, pid=1", at=second))
    assert len(story.told) == events


def test_gpus_and_slices_are_kept_apart() -> None:
    story, decision = told(
        xid("45, Ch 1", "0000:dc:00"),
        xid("45, Ch 1", "0000:ed:00"),
        xid("45, Ch 2", "0000:dc:00"),
        xid("94, x", "0000:dc:00 GPU-I:05"),
        xid("94, x", "0000:dc:00 GPU-I:06"),
        xid("45, Ch 2", "0000:ed:00"),
        xid("45, Ch 1", "0001:dc:00"),
    )
    assert counts(story) == [(45, 2), (45, 2), (94, 1), (94, 1), (45, 1)]
    assert decision.incidents == 3


def test_what_differs_in_what_it_says_is_not_folded() -> None:
    story, _ = told(
        xid("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),
        xid("154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)"),
        xid("149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000)"),
        xid("149, NETIR_LINK_EVT Fatal XC0 i0 Link 02 (0x021425c6 0x00000000)"),
        xid("149, NETIR_LINK_EVT Fatal XC0 i0 Link 02 (0x021425c6 0x00000000)"),
        xid("74, NVLink: fatal error detected on link 6(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        xid("74, NVLink: fatal error detected on link 7(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
    )
    assert counts(story) == [(154, 1), (154, 1), (149, 1), (149, 2), (74, 1), (74, 1)]


def test_the_first_known_process_is_kept_and_all_are_counted() -> None:
    story, _ = told(xid("13, pid='<unknown>', name=<unknown>, x"), xid("13, pid=7, name=a"), xid("13, pid=8, name=b"))
    (one,) = story.told
    assert (one.event.pid, one.event.name, list(one.pids)) == (7, "a", [7, 8])


LOST_1 = "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."
LOST_3 = (
    "NVRM: The NVIDIA GPU 0000:05:00.0",
    "NVRM: (PCI ID: 10de:2901) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
XID_79 = xid("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


@pytest.mark.parametrize(
    ("lines", "inferred"),
    [
        ((XID_79, LOST_1), False),
        ((LOST_1, XID_79), False),
        ((*LOST_3, XID_79), False),
        ((LOST_3[0], XID_79, *LOST_3[1:]), False),
        ((XID_79, *LOST_3), False),
        ((LOST_1,), True),
        (LOST_3, True),
        ((*LOST_3, LOST_1), True),
        (("[ 1843.308145] " + LOST_3[0], *("               " + line for line in LOST_3[1:])), True),
        (("#012".join(("Feb 14 05:03:41 host1 kernel: " + LOST_3[0], *LOST_3[1:])),), True),
        (("3,900,1843308145,-;" + "\\x0a".join(LOST_3),), True),
        ((LOST_3[0] + " " + " ".join(line.removeprefix("NVRM: ") for line in LOST_3[1:]),), True),
        (("NVRM: The NVIDIA GPU 05:00.0 installed in this system has fallen off the bus",), True),
        (("NVRM: GPU at 0000:05:00.0 has fallen off the bus.",), True),
        (("NVRM: GPU at PCI:0000:05:00: GPU-1", LOST_3[0], "NVRM: installed in this system has", LOST_3[2]), True),
        ((LOST_3[0], "[9.9] usb 1-1: new device", *LOST_3[1:]), True),
    ],
)
def test_a_lost_gpu_is_one_xid_79(lines: tuple[str, ...], inferred: bool) -> None:
    story, decision = told(*lines)
    (one,) = story.told
    event = one.event
    assert (event.xid, event.pci, event.inferred, one.lines > 0) == (79, "0000:05:00", inferred, True)
    assert (decision.action, decision.drain) == ("drain_replace", "yes")


def test_two_lost_gpus_whose_lines_interleave() -> None:
    story, _ = told(LOST_3[0], "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", *LOST_3[1:])
    assert [one.event.pci for one in story.told] == ["0000:29:00", "0000:05:00"]


@pytest.mark.parametrize(
    "lines",
    [
        ("NVRM: The NVIDIA GPU invalid-bdf.0", LOST_3[2]),
        (LOST_3[2],),
        (
            LOST_3[0],
            "NVRM: installed in this system is not supported by the 370.28",
            "NVRM: NVIDIA Linux driver release.",
        ),
        (LOST_3[0], *["NVRM: something else"] * 8, LOST_3[2]),
        ("NVRM: GPU 0000:05:00.0: GPU serial number is 165.",),
        ("NVRM: GPU at PCI:0000:05:00: GPU-00000000-0000-0000-0000-000000000006",),
        ("nvidia 0000:05:00.0: GPU has fallen off the bus.",),
        ("host1 gpud[1]: NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",),
    ],
)
def test_what_is_no_lost_gpu(lines: tuple[str, ...]) -> None:
    story, _ = told(*lines)
    assert story.told == []


def test_a_lost_gpu_without_an_address_is_remembered_for_the_person() -> None:
    story = Story()
    reader = LogReader(story)
    reader.feed(b"NVRM: fallen off the bus and is not responding to commands.\n")
    assert [record.line for record in reader.interpreter.unattributed] == [1]


def test_good_news_ends_the_alarm_and_a_new_alarm_counts_again() -> None:
    up = xid("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    down = xid("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    story, decision = told(up, down)
    assert [one.cleared for one in story.told] == [True, False]
    assert (decision.action, decision.drain, decision.root) == ("none", "no", None)
    story, decision = told(up, down, up)
    assert [one.cleared for one in story.told] == [True, False, False]
    assert (decision.action, decision.drain) == ("reset_gpu", "yes")
    _, decision = told(up, down.replace("05:00", "06:00"))
    assert decision.drain == "yes", "another GPU's good news"
    _, decision = told(XID_79, up, down)
    assert decision.action == "drain_replace", "only what a 154 said is over"


def test_the_worse_decides_and_45_is_never_the_root() -> None:
    story, decision = told(
        xid("13, x"),
        xid("109, pid=1, name=a, x"),
        xid("45, pid=1, name=a, Ch 1 caused by previous Xid 109"),
        xid("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    )
    assert decision.root is not None
    assert (decision.root.xid, decision.action, decision.drain, decision.incidents) == (109, "reboot", "yes", 1)
    assert [one.event.xid for one in story.told if one.root] == [109]


def test_memory_errors_beside_each_other_are_one_incident() -> None:
    story, decision = told(
        xid("48, pid=7, name=a, DBE", at="[100.1] "),
        xid("171, x", at="[100.2] "),
        xid("63, Row Remapper: New row marked for remapping, reset gpu to activate.", at="[100.3] "),
        xid("94, Contained", at="[100.4] "),
        xid("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", at="[100.5] "),
        xid("31, other job", at="[9000.0] "),
    )
    assert [one.incident for one in story.told] == [1, 1, 1, 1, 1, 2]
    assert decision.root is not None
    assert decision.root.xid == 48


def test_a_switch_that_fails_before_the_gpu_is_not_its_echo() -> None:
    sxid = "[100.0] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    _, decision = told(sxid, xid("79, x", at="[101.0] "))
    assert decision.incidents == 2
    _, decision = told(xid("79, x", at="[99.0] "), sxid)
    assert decision.incidents == 1
    _, decision = told(xid("79, x", at="[9.0] "), sxid)
    assert decision.incidents == 2, "a minute and a half later is another story"


def test_boots_are_kept_apart() -> None:
    for mark in (
        "-- Boot 0123456789abcdef0123456789abcdef --",
        "-- Reboot --",
        "[    0.000000] Linux version 6.1.0 (x)",
    ):
        story, decision = told(xid("119, x"), mark, xid("119, x"))
        assert counts(story) == [(119, 1), (119, 1)]
        assert decision.incidents == 2


def test_repeats_in_syslogs_words_count() -> None:
    head = "Nov 22 18:29:55 host1 "
    story, _ = told(
        f"{head}kernel: {xid('31, x')}",
        f"{head}kernel: message repeated 3 times: [ {xid('31, x')}]",
        f"{head}last message repeated 2 times",
        f"{head}sshd[1]: hello",
        f"{head}last message repeated 7 times",
    )
    assert counts(story) == [(31, 6)]


def test_a_storm_is_one_event() -> None:
    story = Story()
    reader = LogReader(story)
    for number in range(20_000):
        reader.feed(
            f"[{1000 + number}.000001] NVRM: Xid (PCI:0000:05:00): 95, pid={number + 1}, Uncontained\n".encode()
        )
    reader.finish()
    (one,) = story.told
    assert one.lines == 20_000
    assert len(one.pids) <= 64
