"""`gpuwatch decode FILE|-`: explain a kernel log, for people or as JSON."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.faults import sentences
from gpuwatch.faults.incidents import Decision, Told
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story
from gpuwatch.wiring import decode_text, decode_word

KMSG = os.makedev(1, 11)  # the kernel's own ring: a reader of it waits for ever
MAX_LINE_BYTES = 1 << 16  # a longer line is no log line; what follows is taken as its own line

_COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
_UNREADABLE = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "zstdcat {path} | gpuwatch decode -"),
    (b"LPKSHHRH", "is a binary journal", "journalctl --file {path} -k -o short-iso | gpuwatch decode -"),
)
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def run(
    files: Sequence[str],
    *,
    as_json: bool = False,
    summary: bool = False,
    out: TextIO | None = None,
    stdin: BinaryIO | None = None,
) -> int:
    """Explain each log. 0 whenever the logs could be read, whatever they say. `-` is standard input.

    A word that names no file but a fault (`79`, `sxid 20034`, `nvme_lost`) is looked up in the catalogue.

    JSON: one object an event, nothing else; `summary` adds a last object with the decision (kind `decision`).
    """
    page = out if out is not None else sys.stdout
    if not files:
        raise UsageError("no log named", next_step="name a file, or `-` for standard input: dmesg | gpuwatch decode -")
    words = {path: word for path in files if path != "-" and (word := decode_word.known(path)) is not None}
    for path in files:  # a name that cannot be read is said before anything is printed
        if path != "-" and path not in words:
            _check(path)
    for place, path in enumerate(files):
        if path in words:
            decode_word.write(words[path], page, as_json=as_json, first=place == 0)
            continue
        story = Story()
        reader = LogReader(story)
        try:
            for raw in _lines(path, stdin):
                reader.feed(raw)
        except KeyboardInterrupt:  # `dmesg -w | gpuwatch decode -`: what was heard so far
            pass
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise GpuwatchError(
                f"{path} cannot be read to its end", why=str(error), next_step="check the file, or copy it first"
            ) from error
        reader.finish()
        verdict = story.ending()
        told = sorted(
            story.told, key=lambda one: (one.event.kind != "xid", one.first.line)
        )  # as a program expects them
        if as_json:
            _print_json(told, reader, verdict, page, path if len(files) > 1 else None, summary=summary)
        else:
            decode_text.write(story.told, reader, verdict, page, path, first=place == 0)
    page.flush()
    return 0


def as_object(one: Told, reader: LogReader) -> dict[str, Any]:
    """One event as `--json` prints it: the eight keys of every event, then what this one has beyond them."""
    event, interpreter = one.event, reader.interpreter
    pci = ",".join(sorted(one.ports)) if one.ports else event.pci
    keys: dict[str, Any] = {
        "kind": "gpu_lost" if event.inferred else event.kind,  # the number is ours, so the kind says what was said
        "xid": event.xid,
        "pci": pci,
        "pid": event.pid,
        "name": event.name,
        "severity": event.severity,
        "action": event.action,
        "drain": event.drain,
        "fault": event.title,
        "lines": one.lines,
    }
    if event.kind != "xid":
        keys |= {"event": event.kind, "count": one.lines}
    if event.kind == "no_value":
        keys["value"] = None  # unknown: not zero
    optional: dict[str, Any] = {
        "sxid": event.sxid,
        "gpu_instance": event.gpu_instance,
        "compute_instance": event.compute_instance,
        "inferred": event.inferred or None,
        "clears": event.clears or None,
        "cleared": one.cleared or None,
        "caused_by": event.caused_by,
        "suspect_peer": event.suspect_peer or None,
        "pids": list(one.pids) if len(one.pids) > 1 else None,
        "uuid": interpreter.uuids.get(event.pci or ""),
        "serial": interpreter.serials.get(event.pci or ""),
        "level": one.first.level,
        "seq": one.first.sequence,
        "uptime_us": one.first.uptime_us,
        "stamp": one.first.stamp or None,
    }
    keys |= {key: value for key, value in optional.items() if value is not None}
    for key, value in event.details.items():
        keys.setdefault(key, ",".join(map(str, value)) if isinstance(value, tuple) else value)
    keys |= {"incident": one.incident, "root": one.root, "line": one.first.line}
    return keys | {"text": event.text, "meaning": event.meaning}


def _print_json(
    told: list[Told], reader: LogReader, verdict: Decision, page: TextIO, path: str | None, *, summary: bool
) -> None:
    named = {} if path is None else {"file": path}
    for one in told:
        page.write(json.dumps(as_object(one, reader) | named) + "\n")
    if summary:
        root = verdict.root
        last = {
            "kind": "decision",
            "action": verdict.action,
            "drain": verdict.drain,
            "xid": root.xid if root else None,
            "root": root.pci if root else None,
            "because": sentences.headline(root) if root else None,
            "incidents": verdict.incidents,
            "suspect_peer": verdict.suspect_peer,
            "lines_read": reader.lines,
            "quoted_lines": reader.quoted_count,
        }
        page.write(json.dumps(last | named) + "\n")


def _check(path: str) -> None:
    """A file that cannot be read, and why. A pipe (`<(journalctl -k)`) can be opened only once, so it is not tried."""
    head = b""
    try:
        status = Path(path).stat()
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == KMSG:
            raise GpuwatchError(f"{path} never ends", next_step="dmesg | gpuwatch decode -")
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            with Path(path).open("rb") as file:
                head = file.read(8)
    except FileNotFoundError:
        raise GpuwatchError(
            f"{path} does not exist", next_step="name a kernel log, or pipe one in: dmesg | gpuwatch decode -"
        ) from None
    except IsADirectoryError:
        raise GpuwatchError(f"{path} is a folder", next_step="name the log files in it") from None
    except OSError as error:
        raise GpuwatchError(
            f"{path} cannot be read", why=str(error), next_step=f"sudo cat {path} | gpuwatch decode -"
        ) from None
    for magic, what, command in _UNREADABLE:
        if head.startswith(magic):
            raise GpuwatchError(f"{path} {what}", next_step=command.format(path=path))


def _lines(path: str, stdin: BinaryIO | None) -> Iterator[bytes]:
    if path == "-":
        source = stdin if stdin is not None else sys.stdin.buffer
        yield from _split(source)
        return
    with Path(path).open("rb") as plain:
        head = plain.peek(8)
        if head[:2] in _UTF16:
            text = plain.read()[2:].decode(_UTF16[head[:2]], "replace")
            yield from (line.encode() for line in text.splitlines())
            return
        for magic, opener in _COMPRESSED:
            if head.startswith(magic):
                with cast(IO[bytes], opener(plain, "rb")) as inner:
                    yield from _split(inner)
                return
        yield from _split(plain)


def _split(source: IO[bytes]) -> Iterator[bytes]:
    while line := source.readline(MAX_LINE_BYTES):
        yield line
