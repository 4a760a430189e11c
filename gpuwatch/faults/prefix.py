"""What stands before a kernel message, and whether the line is the kernel's at all.

A fault is believed only where the kernel itself speaks: the message must begin right after a prefix that a kernel log
writes. Other programs quote kernel lines (monitors, health checks, `sudo` logs), and an old fault must not be raised
again by a quotation, nor a user be able to fake one (NVIDIA/NVSentinel#1475). So nothing is searched for in the middle
of a line: what is not a known prefix is part of the message, and the message then does not begin with `NVRM:`.
"""

from __future__ import annotations

import re

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One kernel message with what its prefix told."""

    message: str
    stamp: str = ""  # the line's own time, as printed; empty: none
    wall: str = ""  # its wall clock, where it has one beside the time since boot
    uptime_us: int | None = None  # since boot, where the prefix says so
    level: int | None = None  # 0 emergency … 7 debug; the driver's choice, no measure of how bad a fault is
    sequence: int | None = None  # of the kernel's ring buffer
    repeats: int = 1  # `message repeated N times`
    line: int = 0  # in its file, from 1


MAX_LINE = 8192  # characters; the kernel's own limit is 1024 a record

_LEVELS = {
    "emerg": 0,
    "emergency": 0,
    "alert": 1,
    "crit": 2,
    "critical": 2,
    "err": 3,
    "error": 3,
    "warn": 4,
    "warning": 4,
    "notice": 5,
    "info": 6,
    "debug": 7,
}

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00\x07\ufeff]")
_TERMINAL_GAP = re.compile(r"(?<=\S) {32,}(?=\S)")  # a serial console pads a wrapped line to the terminal's width
_KMSG = re.compile(r"\s*(\d{1,4}),(\d{1,20}),(\d{1,20})(?:,[^;]{0,200})?;")
_PRIORITY = re.compile(r"\s*<(\d{1,3})>")
_COLUMNS = re.compile(r"\s*([a-z]+\d?)\s*:\s*([a-z]+)\s*:\s+")  # dmesg -x
_TALOS = re.compile(r"\s*\S+:\s+([a-z]+\d?):\s+([a-z]+):\s+(?=\[\d{4}-)")
_ISO = re.compile(r"\s*(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+")
_STAMP = re.compile(
    r"""\s*\[(?P<all>\s*(?:
        (?P<seconds>\d{1,12})(?:\.(?P<fraction>\d+))?                          # uptime
      | [+-]\d+(?:\.\d+)? | (?=<)                                             # difference, dmesg -e; -t -d
      | [TC]\d+                                                               # which task or processor printed it
      | \.{2,3} | …                                                           # as NVIDIA's own document writes it
      | (?=[^\[\]]*(?<![0-9a-fA-F:])\d{1,2}:\d\d(?![0-9a-fA-F]))[\w .,:+-]{5,60}   # wall clock, in any language
    )\s*)(?:<\s*[+-]?\d+\.\d+\s*>\s*)?\]:?                                     # difference, dmesg -d
    """,
    re.VERBOSE,
)
_WORDS_OF_TIME = re.compile(r"(?![TC]\d+$)[^.+…-]")  # not which task printed it, nor a difference
_VMKERNEL = re.compile(r"\s*(?:\d{4}-\d\d-\d\dT\S+\s+)?(?:\w+\(\d+\)\s+)?(?:vmkernel:\s+)?cpu\d+:\d+\)\s*")  # ESXi
_GREPPED = re.compile(
    r"(?:[\w.+@-]*/)*(?:syslog|messages|kern|kern\.log|dmesg)(?:[.-]\d[\w.-]*)?:(?:\d+:)?"
    r"|\d{1,7}[:-](?!\d\d[:\s-])"  # `grep -n`, of its context with a dash; not a clock, not a date
)
_KERNEL_TAG = re.compile(r"kernel(?:\[0*\])?: ?")
_NO_HEAD = re.compile(r"[\"'`{}|=;()\[\]<>]")  # never in a date or a host, often in another program's words
_PLAIN_HEAD = re.compile(
    r"(?:\w{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.+-]+Z?) [\w.-]+ "
)  # by far the most usual
_USUAL = re.compile(
    rf"(?:(?P<head>{_PLAIN_HEAD.pattern})kernel: )?"
    r"(?:\[ *(?P<uptime>(?P<seconds>\d{1,12})\.(?P<micros>\d{6}))\] )?(?=NVRM:)"
)  # a storm's lines: one match in place of a dozen
_RFC5424 = re.compile(r"\s*(?:1 )?(\d{4}-\d\d-\d\dT\S+) (\S+) kernel (?:-|0) \S+ (?:-|\[[^\]]*\]) \ufeff?")
_CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?|\d{4}-\d\d-\d\d[T_]\d\d:\d\d:\d\d\S*|\d{9,}\.\d+")
_AFTER_CLOCK = re.compile(r"[+-]\d\d:?\d\d|[A-Z]{1,5}|[AaPp]\.?[Mm]\.?|\d{4}")
_FACILITY = re.compile(r"(kern|user|daemon|auth|authpriv|mail|syslog|cron|local\d|lpr|news|uucp|ftp)\.[a-z]+")
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[\s?(.*?)\s*\]?\s*$", re.DOTALL)
_LAST_REPEATED = re.compile(r"(?:^|\s)last message repeated (\d{1,9}) times?\s*$")


def split(line: str, number: int = 0) -> list[Record]:
    """The kernel messages of one line of a log, none if it is not the kernel's; several if newlines are folded."""
    text = clean(line)
    kmsg = _KMSG.match(text)
    if kmsg is not None:
        return split_kmsg(text, number)
    record = _strip(text, number)
    if record is None:
        return []
    if "#012" not in record.message and "\n" not in record.message:
        return [record]
    head = text[: len(text) - len(record.message)]
    if "kernel" not in head and not record.message.startswith("NVRM:"):
        return [record]  # another program's message with a newline in it: its second line is not the kernel's either
    return _parts(record, re.split(r"#012|\n", record.message))


def split_kmsg(text: str, number: int = 0) -> list[Record]:
    """The messages of a `/dev/kmsg` record `priority,sequence,microseconds,flags[,…];text`; none if not facility 0."""
    found = _KMSG.match(text)
    if found is None or int(found[1]) >> 3:
        return []
    body = text[found.end() :].split("\n", 1)[0]  # further lines are the record's dictionary
    micros = int(found[3])
    record = Record(
        message=_unescape(body),
        stamp=f"{micros // 1_000_000}.{micros % 1_000_000:06d}",
        uptime_us=micros,
        level=int(found[1]) & 7,
        sequence=int(found[2]),
        line=number,
    )
    return _parts(record, record.message.split("\n")) if "\n" in record.message else [record]


def last_repeated(line: str) -> int:
    """How often the line before this one came again, in the old syslog's words; 0 if the line does not say so."""
    text = clean(line)
    found = _LAST_REPEATED.search(text)
    return int(found[1]) if found is not None and is_syslog_head(text[: found.start()]) else 0


def clean(line: str) -> str:
    """Without colour codes, control characters, carriage returns and a terminal's padding."""
    text = line.rstrip("\r\n")[:MAX_LINE]
    if "\x1b" in text or "\x00" in text or "\ufeff" in text or "\x07" in text:
        text = _ESCAPES.sub("", text)
    if "                                " in text:
        text = _TERMINAL_GAP.sub("", text)
    return text


def is_bare(line: str) -> bool:
    """Whether the line has no prefix and no driver's name: then it may be the rest of a wrapped line before it."""
    text = clean(line)
    if not text.strip() or "NVRM" in text or "kernel" in text or _KMSG.match(text):
        return False
    return not any(pattern.match(text) for pattern in (_STAMP, _PRIORITY, _COLUMNS, _TALOS, _ISO))


def _strip(text: str, number: int) -> Record | None:
    """Take off prefix after prefix. None: another facility than the kernel's."""
    usual = _USUAL.match(text)
    if usual is not None:
        head, seconds, micros, uptime = usual.group("head", "seconds", "micros", "uptime")
        wall = wall_clock(head) if head else ""
        return Record(
            message=text[usual.end() :],
            stamp=uptime or wall,
            wall=wall,
            uptime_us=int(seconds) * 1_000_000 + int(micros) if seconds else None,
            line=number,
        )
    return _strip_all(text, number)


def _strip_all(text: str, number: int) -> Record | None:
    """The same for every form."""
    at = 0
    level: int | None = None
    wall = ""
    uptime_us: int | None = None
    uptime = ""
    sure = False  # a prefix named the kernel as the source; after it only stamps may follow
    grepped = _GREPPED.match(text)
    if grepped is not None and _log_follows(text, grepped.end()):
        at = grepped.end()
    while True:
        found = _STAMP.match(text, at)
        if found is not None:
            inside = found["all"].strip()
            if found["seconds"] is not None and uptime_us is None:
                uptime_us = int(found["seconds"]) * 1_000_000 + int((found["fraction"] or "0")[:6].ljust(6, "0"))
                uptime = inside
            elif not wall and _WORDS_OF_TIME.match(inside):
                wall = inside
            at = found.end()
            continue
        found = _PRIORITY.match(text, at)
        if found is not None:
            if int(found[1]) >> 3:
                return None
            level = int(found[1]) & 7
            at = found.end()
            continue
        if sure:
            break
        tag = _kernel_tag(text, at)
        if tag is not None:
            wall = wall or wall_clock(tag[0])
            sure, at = True, tag[1]
            continue
        found = _TALOS.match(text, at) or _COLUMNS.match(text, at)
        if found is not None and found[2] in _LEVELS:
            if found[1] != "kern":
                return None
            level = _LEVELS[found[2]]
            sure = True
            at = found.end()
            iso = _ISO.match(text, at)
            if iso is not None:
                wall, at = iso[1], iso.end()
            continue
        found = _VMKERNEL.match(text, at)
        if found is not None:
            sure, at = True, found.end()
            continue
        found = _RFC5424.match(text, at)
        if found is not None:
            wall = wall or found[1]
            sure = True
            at = found.end()
            continue
        found = _ISO.match(text, at)
        if found is not None and not wall:
            wall, at = found[1], found.end()
            sure = True
            continue
        break
    message = text[at:].lstrip()
    repeated = _REPEATED.match(message) if message.startswith("message repeated") else None
    if repeated is None:
        return Record(message=message, stamp=uptime or wall, wall=wall, uptime_us=uptime_us, level=level, line=number)
    inner = _strip(repeated[2], number)
    if inner is None:
        return None
    return Record(
        message=inner.message,
        stamp=uptime or wall or inner.stamp,
        wall=wall or inner.wall,
        uptime_us=uptime_us if uptime_us is not None else inner.uptime_us,
        level=level if level is not None else inner.level,
        repeats=max(1, int(repeated[1])),
        line=number,
    )


def _kernel_tag(text: str, at: int) -> tuple[str, int] | None:
    """`(date and host, where the message begins)` of a syslog line that the kernel wrote."""
    place = text.find("kernel", at)
    while place >= 0:
        tag = _KERNEL_TAG.match(text, place)
        if tag is not None and (place == at or text[place - 1] in " \t]>"):
            head = text[at:place]
            return (head, tag.end()) if is_syslog_head(head) else None
        place = text.find("kernel", place + 6)
    return None


def is_syslog_head(head: str) -> bool:
    """Whether the words before `kernel:` are a date and a host, in any language, and not a sentence or another tag."""
    if _PLAIN_HEAD.fullmatch(head) is not None:
        return True
    words = head.split()
    if (
        len(head) > 200
        or _NO_HEAD.search(head) is not None
        or len(words) > 8
        or any(word.endswith(":") for word in words)
    ):
        return False
    facilities = [word for word in words if _FACILITY.fullmatch(word)]
    if any(not word.startswith("kern.") for word in facilities):
        return False
    words = [word for word in words if word not in facilities]
    clocks = [place for place, word in enumerate(words) if _CLOCK.fullmatch(word)]
    if not clocks:
        dated = any(re.fullmatch(r"\d{1,2}[.日일]?", word) for word in words[:2])
        return len(words) <= (3 if dated else 1)
    before, after = words[: clocks[0]], words[clocks[0] + 1 :]
    if any("/" in word for word in before):  # 2026/08/10: programs write dates so, kernel logs do not
        return False
    while after and len(after) > 1 and _AFTER_CLOCK.fullmatch(after[0]):
        after = after[1:]
    return len(before) <= 4 and len(after) <= 1


def wall_clock(head: str) -> str:
    """The date and time of a syslog head, without the host."""
    plain = _PLAIN_HEAD.fullmatch(head)
    if plain is not None:
        return head.rsplit(" ", 2)[0]
    words = head.split()
    for place, word in enumerate(words):
        if _CLOCK.fullmatch(word):
            return " ".join(words[: place + 1])
    return ""


def _log_follows(text: str, at: int) -> bool:
    """After a file name as `grep` prints it a whole log line must begin; else the name was a program's tag."""
    if _STAMP.match(text, at) or _PRIORITY.match(text, at) or _ISO.match(text, at):
        return True
    tag = _kernel_tag(text, at)
    return tag is not None and bool(tag[0].strip())


def _unescape(text: str) -> str:
    """`/dev/kmsg` writes what is not printable as `\\xNN`."""
    if "\\x" not in text:
        return text
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


def _parts(record: Record, messages: list[str]) -> list[Record]:
    return [msgspec.structs.replace(record, message=part.strip()) for part in messages if part.strip()]
