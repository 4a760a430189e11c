"""The Xid line: every form it was ever printed in, cut anywhere, and what its text adds to the catalogue."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwatch.faults import prefix, xid
from gpuwatch.faults.catalogue import ACTIONS, DRAINS, SEVERITIES, UNKNOWN_XID, nvlink5, xids
from gpuwatch.faults.event import Event
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def judged(text: str) -> Event:
    line = xid.parse(f"NVRM: Xid (PCI:0000:05:00): {text}")
    assert line is not None
    return xid.judge(line)


PREFIXES = st.sampled_from(
    [
        "",
        "  ",
        "[111111111.111] ",
        "[  966.503025][ T1343] ",
        "[Fri Aug 30 11:43:09 2024] ",
        "[  +0.000844] ",
        "<4>[12345.678901] ",
        "4,1227,437812449932,c;",
        "4,1227,437812449932,-,caller=C12;",
        "Nov 22 18:29:55 host1 kernel: [  966.503025] ",
        "kwi 15 07:56:59 host1 kernel: ",
        "4月 15 07:56:59 host1 kernel: ",
        "2026-09-14T20:30:27-0400 host1 kernel: ",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
        "192.0.2.11: kern: warning: [2026-04-22T21:27:51.291660856Z]: ",
        "\x1b[32m[12345.678901] \x1b[0m",
    ]
)
HEX = st.integers(0, 255)


@st.composite
def addresses(draw: st.DrawFn) -> tuple[str, str]:
    """`(as printed, as joined)`"""
    domain, bus, device = draw(st.integers(0, 0xFFFF)), draw(HEX), draw(HEX)
    shape = draw(st.sampled_from(["{0:04x}:{1:02x}:{2:02x}", "{0:08x}:{1:02x}:{2:02x}", "{1:02x}:{2:02x}"]))
    text = shape.format(domain, bus, device)
    if shape.startswith("{1"):
        domain = 0
    text = text.upper() if draw(st.booleans()) else text
    text += draw(st.sampled_from(["", ".0"]))
    return draw(st.sampled_from(["PCI:", ""])) + text, f"{domain:04x}:{bus:02x}:{device:02x}"


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters=",'\"<>#"), min_size=1, max_size=15
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str, dict[str, object]]:
    """`(head up to the number, all after it, what must be read)`"""
    printed, pci = draw(addresses())
    wanted: dict[str, object] = {"pci": pci, "number": draw(st.integers(1, 99_999)), "pid": None, "name": None}
    mig = draw(st.sampled_from([(), (5,), (5, 1)]))
    wanted["gpu_instance"] = mig[0] if mig else None
    wanted["compute_instance"] = mig[1] if len(mig) > 1 else None
    place = printed + (f" GPU-I:{mig[0]:02d}" if mig else "") + (f" GPU-CI:{mig[1]:02d}" if len(mig) > 1 else "")
    rest = ""
    pid = draw(st.sampled_from([None, "'<unknown>'", "<unknown>", "0", "1234", "4071838", "'77'"]))
    if pid is not None:
        rest += f", pid={pid}"
        wanted["pid"] = int(pid.strip("'")) if pid.strip("'").isdecimal() and pid != "0" else None
    name = draw(st.none() | st.sampled_from(["<unknown>", "'<unknown>'"]) | NAMES)
    if name is not None:
        rest += f", name={name}"
        wanted["name"] = None if "<unknown>" in name else name
    rest += draw(st.sampled_from(["", ", Ch 00000008", ", GPU has fallen off the bus.", ", RST: Yes, D-RST: No", " "]))
    return f"NVRM: Xid ({place}): {wanted['number']}", rest, wanted


@given(before=PREFIXES, line=lines(), ending=st.sampled_from(["", "\n", "\r\n"]))
@settings(max_examples=500, deadline=None)
def test_every_form_reads_the_same(before: str, line: tuple[str, str, dict[str, object]], ending: str) -> None:
    head, rest, wanted = line
    (record,) = prefix.split(before + head + rest + ending)
    read = xid.parse(record.message)
    assert read is not None
    assert {key: getattr(read, key) for key in wanted} == wanted


@given(before=PREFIXES, line=lines(), cut=st.floats(0, 1))
@settings(max_examples=500, deadline=None)
def test_cut_anywhere_after_the_number_the_xid_is_kept(
    before: str, line: tuple[str, str, dict[str, object]], cut: float
) -> None:
    head, rest, wanted = line
    short = rest[: int(len(rest) * cut)]
    story = Story()
    reader = LogReader(story)
    reader.feed((before + head + short).encode())
    reader.finish()
    (told,) = story.told
    assert (told.event.xid, told.event.pci) == (wanted["number"], wanted["pci"])
    assert told.event.name is None or "<unk" not in told.event.name


LINK_TEXTS = [
    "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
    "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
]


@pytest.mark.parametrize("number", [74, 144, 145, 146, 147, 148, 149, 150, 154])
@pytest.mark.parametrize("text", LINK_TEXTS)
def test_a_cut_never_makes_a_decoded_line_crash_or_look_healthy(number: int, text: str) -> None:
    for end in range(len(text) + 1):
        event = judged(f"{number}, {text[:end]}" if end else str(number))
        assert event.xid == number
        assert event.severity in SEVERITIES
        assert not event.clears
        assert (event.severity, event.action) != ("info", "none"), "half a line is no good news"


@given(st.text(max_size=300))
@example("(" * 200)
@example("GPU-I:1 " * 100)
def test_no_text_makes_it_raise(text: str) -> None:
    for number in (13, 45, 74, 95, 144, 149, 150, 154, 999):
        assert judged(f"{number}, {text}").xid == number
    for message in (
        f"NVRM: Xid ({text}",
        f"NVRM: Xid (PCI:{text}): 79",
        f"NVRM: {text}",
        f"NVRM: Xid (PCI:0000:05:00 {text}): 7",
    ):
        line = xid.parse(message)
        assert line is None or line.number >= 0


@pytest.mark.parametrize(
    ("message", "pci", "number"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (0001:00): 13, 0000 01019700 00004097", "0000:01:00", 13),  # drivers before 2010: bus and device
        ("NVRM: Xid (0000:01:00): 6, PE0001 ", "0000:01:00", 6),
        ("NVRM: Xid (PCI:00000000:9B:00): 48", "0000:9b:00", 48),
        ("NVRM: Xid (PCI:0000:00:1E.0): 48, pid='1234', name=python3", "0000:00:1e", 48),
        ("NVRM: Xid (PCI:10de:AB:CD): 69", "10de:ab:cd", 69),
        ("NVRM:  Xid (PCI:0000:05:00):79, x", "0000:05:00", 79),
        ("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", "0000:05:00", 94),
        ("NVRM: Xid (PCI:0000:05:00 GPU-CI:01): 94", "0000:05:00", 94),
        ("NVRM: Xid (PCI:0000:05:00 FUTURE:01): 94", "0000:05:00", 94),
    ],
)
def test_old_and_new_addresses(message: str, pci: str, number: int) -> None:
    line = xid.parse(message)
    assert line is not None
    assert (line.pci, line.number) == (pci, number)


@pytest.mark.parametrize(
    "message",
    [
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid PCI:0000:01:00: 43, pid=1",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): , pid=1",
        "NVRM: Xid (PCI:0000:66:00): 79th try",
        "NVRM: Xid (PCI:0000:66:00): 0x4f, pid=1",
        "NVRM: Xid (PCI:0000:66:001): 79",
        "NVRM: Xid (PCI:zz00:66:00): 79",
        "NVRM: Xid (PCI:0000:66:00) 79",
        "NVRM: Xid (PCI:0000:66:00",
        "NVRM: xid=79",
        "XidCriticalError: Xid=69 on Device=GPU-1",
        "nvrm: xid (pci:0000:66:00): 79",
        " NVRM: Xid (PCI:0000:66:00): 79",
        "x NVRM: Xid (PCI:0000:66:00): 79",
        "NVRM: GPU0 says NVRM: Xid (PCI:0000:66:00): 79",
    ],
)
def test_what_is_no_xid(message: str) -> None:
    assert xid.parse(message) is None


@pytest.mark.parametrize(
    ("rest", "pid", "name"),
    [
        (", pid='<unknown>', name=<unknown>, x", None, None),
        (", pid=<unknown>, name='<unknown>'", None, None),
        (", pid=0, GPU has fallen off the bus.", None, None),
        (", pid=4294967295, name=x", None, "x"),
        (", pid=12, name=nvc:[driver], x", 12, "nvc:[driver]"),
        (", pid=12, name=ray::WorkerDict, x", 12, "ray::WorkerDict"),
        (", pid=12, name=VM Thread, x", 12, "VM Thread"),
        (", pid=12, name=(sd-pam), x", 12, "(sd-pam)"),
        (", pid=12, name=train.3, x", 12, "train.3"),
        (", name=plasmashell, MMU", None, "plasmashell"),
        (", pid=12, x", 12, None),
        (", pid=12", 12, None),
        (", pid=", None, None),
        (", pid=12, name=", 12, None),
        (", pid=12, name=<unk", 12, None),
        (", pid='<unk", None, None),
        (", na", None, None),
        ("", None, None),
        (", Ch 00000008, name=late", None, None),  # fields come before the text, nowhere else
    ],
)
def test_process_fields(rest: str, pid: int | None, name: str | None) -> None:
    line = xid.parse(f"NVRM: Xid (PCI:0000:05:00): 31{rest}")
    assert line is not None
    assert (line.pid, line.name) == (pid, name)


@pytest.mark.parametrize("number", sorted(xids()))
def test_the_catalogue_decides_where_the_text_adds_nothing(number: int) -> None:
    event, row = judged(str(number)), xids()[number]
    if number in (154, *range(144, 151)):
        return
    assert (event.title, event.severity, event.action, event.drain) == (row.name, row.severity, row.action, row.drain)


@pytest.mark.parametrize("number", [177, 200, 999, 99_999])
def test_an_unknown_number_is_kept_and_shown(number: int) -> None:
    event = judged(f"{number}, pid=1234, name=test")
    assert (event.xid, event.title) == (number, UNKNOWN_XID.name)
    assert (event.severity, event.action, event.drain) == ("warn", "contact_support", "after_count")


def test_the_tables_speak_the_same_words() -> None:
    said = [(row.severity, row.action, row.drain) for row in xids().values()]
    said += [(row.severity, row.action, row.drain) for rows in nvlink5().values() for row in rows]
    for severity, action, drain in said:
        assert severity in SEVERITIES
        assert action in ACTIONS
        assert drain in DRAINS


@pytest.mark.parametrize(
    ("text", "before", "after", "severity", "action", "drain", "clears"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", 0, 1, "fatal", "reset_gpu", "yes", False),
        ("from 0x0 (None) to 0x1 (PF FLR)", 0, 1, "fatal", "reset_gpu", "yes", False),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", 0, 2, "fatal", "reboot", "yes", False),
        ("from 0x0 (None) to 0x3 (Drain P2P)", 0, 3, "degraded", "reset_gpu", "after_count", False),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", 0, 4, "fatal", "reset_gpu", "yes", False),
        ("from 0x0 (None) to 0x5 (Recover IMEX Domain)", 0, 5, "warn", "contact_support", "after_count", False),
        ("from 0x4 (Drain and Reset) to 0x6 (BUS_RESET)", 4, 6, "fatal", "reset_gpu", "yes", False),
        ("from 0x0 (None) to 0x7 (SYSTEM_REBOOT)", 0, 7, "fatal", "reboot", "yes", False),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", 1, 0, "info", "none", "no", True),
        ("from 0x0 (None) to 0xa (New)", 0, 10, "warn", "contact_support", "after_count", False),
        ("from 0x0 (None) to 0X1F (New)", 0, 31, "warn", "contact_support", "after_count", False),
        ("from 0x0 (None) to ", 0, None, "warn", "contact_support", "after_count", False),
        ("from 0x0 (None) to 0x", 0, None, "warn", "contact_support", "after_count", False),
        ("from None to GPU Reset Required", None, 1, "fatal", "reset_gpu", "yes", False),
        ("", None, None, "warn", "contact_support", "after_count", False),
    ],
)
def test_154_by_its_to_number(
    text: str, before: int | None, after: int | None, severity: str, action: str, drain: str, clears: bool
) -> None:
    event = judged(f"154, GPU recovery action changed {text}")
    assert (event.details.get("from"), event.details.get("to")) == (before, after)
    assert (event.severity, event.action, event.drain, event.clears) == (severity, action, drain, clears)


def test_45_is_never_the_cause() -> None:
    event = judged("45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149")
    assert (event.severity, event.action, event.drain, event.caused_by) == ("info", "none", "no", 149)


@pytest.mark.parametrize(
    ("text", "rst", "drst"),
    [
        ("94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No", "no", "no"),
        ("95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", "yes", "no"),
        ("95, Uncontained: FBHUB. RST: Yes", "yes", None),
        ("95, Uncontained", None, None),
    ],
)
def test_reset_flags_of_memory_errors(text: str, rst: str | None, drst: str | None) -> None:
    event = judged(text)
    assert (event.details.get("rst"), event.details.get("drst")) == (rst, drst)


@pytest.mark.parametrize(
    ("registers", "severity", "check"),
    [
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "warn", "ignored"),
        ("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "warn", "ignored"),
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fatal", "ECC"),
        ("0x10001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fatal", "connection"),
        ("0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fatal", "signal"),
        ("0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fatal", "elsewhere"),
        ("0x0, 0x0, 0x2000, 0x0, 0x0, 0x0, 0x0", "fatal", "at once"),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "fatal", "repeats"),
        ("0x1, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "fatal", "repeats"),
        ("0x1, 0x0", "fatal", ""),
    ],
)
def test_74_by_its_registers(registers: str, severity: str, check: str) -> None:
    event = judged(f"74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6({registers})")
    assert event.severity == severity
    assert check in str(event.details.get("check", ""))
    assert event.details["link"] == 6
