"""`gpuwatch decode` as a person and as a program use it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.wiring import decode

XID = "[100.5] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
APP = "[101.5] NVRM: Xid (PCI:0000:06:00): 31, pid=7, name=python3, Ch 00000008\n"


def text(log: str) -> str:
    page = io.StringIO()
    assert decode.run(["-"], out=page, stdin=io.BytesIO(log.encode())) == 0
    return page.getvalue()


def objects(log: str | bytes, *, summary: bool = False) -> list[dict[str, Any]]:
    page = io.StringIO()
    raw = log if isinstance(log, bytes) else log.encode()
    assert decode.run(["-"], as_json=True, summary=summary, out=page, stdin=io.BytesIO(raw)) == 0
    return [json.loads(line) for line in page.getvalue().splitlines()]


def test_the_human_form_says_what_where_how_bad_and_what_to_do() -> None:
    said = text(XID + APP)
    for words in (
        "2 events in 2 lines",
        "Xid 79: GPU fell off the bus",
        "GPU 0000:05:00",
        "none named",
        "fatal: do not use this GPU",
        "replace the machine",
        "Xid 31: GPU memory page fault",
        "python3, pid 7",
        "restart the job",
        "only if it repeats",
    ):
        assert words in said
    last = said.splitlines()[-1]
    assert last.startswith("Decision: drain the node, then replace the machine")
    assert "Xid 79" in last
    assert "0000:05:00" in last


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (APP, "no drain; restart the job (restart_app); drain only if it repeats"),
        ("NVRM: Xid (PCI:0000:05:00): 43, pid=7, x", "no drain; check the program"),
        ("NVRM: Xid (PCI:0000:05:00): 45, pid=7, x", "no drain, and nothing needs to be done now. Because: "),
        ("NVRM: Xid (PCI:0000:05:00): 45, pid=7, x caused by previous Xid 79", "follow Xid 79 (GPU fell off the bus"),
        ("NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (x) to 0x0 (None)", "healthy again"),
        (
            "NVRM: Xid (PCI:0000:05:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x0)",
            "other end of the link",
        ),
    ],
)
def test_the_decision(log: str, words: str) -> None:
    assert words in text(log).splitlines()[-1]


def test_notes_for_a_person() -> None:
    said = text("NVRM: Xid (PCI:0000:05:00): 45, pid=7, name=a, Ch 1 caused by previous Xid 149\n")
    assert "Xid 149 as the cause (it is not in this log" in " ".join(said.split())
    said = text("NVRM: Xid (PCI:0000:05:00 GPU-I:05 GPU-CI:01): 94, pid=7, Contained. RST: No, D-RST: No\n")
    assert "MIG instance 5, compute instance 1" in said
    said = text("NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.\n")
    assert "No Xid was printed" in said
    said = text("NVRM: Xid (PCI:0000:05:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040)\n")
    assert "the worse was taken" in " ".join(said.split())


def test_notes_are_words_and_repeat_nothing() -> None:
    page = text(
        "Out of memory: Killed process 9 (java) total-vm:1kB\n"
        "mlx5_core 0000:5e:00.0 ens1np0: Link down\n"
        "INFO: task python3:4432 blocked for more than 120 seconds.\n"
    )
    notes = [line.strip().removeprefix("note").strip() for line in page.splitlines() if line.startswith("  note")]
    assert notes == ["The memory of the node ran out.", "For 120 s."]


def test_nothing_found_says_so_plainly() -> None:
    said = text("hello\nworld\n")
    assert "no fault in 2 lines" in said
    assert "Looked for" in said
    assert "Decision" not in said
    assert "no fault in 0 lines" in text("")
    assert objects("hello\nworld\n") == []


def test_a_quotation_is_named_so_that_its_absence_is_no_riddle() -> None:
    said = " ".join(text('[XID found] (32 minutes ago) "NVRM: Xid (PCI:0000:9b:00): 119, pid=28098"\n').split())
    assert "no fault" in said
    assert "not written by the kernel" in said
    assert "line 1" in said


def test_a_lost_gpu_without_an_address_is_named() -> None:
    said = " ".join(text("NVRM: fallen off the bus and is not responding to commands.\n").split())
    assert "no fault" in said
    assert "Line 1 says that a GPU fell off the bus" in said


def test_json_is_one_object_an_event_and_nothing_else() -> None:
    first, second = objects(XID + APP)
    assert list(first)[:8] == ["kind", "xid", "pci", "pid", "name", "severity", "action", "drain"]
    assert (first["xid"], first["pid"], first["name"]) == (79, None, None)
    assert (second["xid"], second["pid"], second["name"]) == (31, 7, "python3")
    *_, last = objects(XID + APP, summary=True)
    assert (last["kind"], last["action"], last["drain"], last["root"]) == (
        "decision",
        "drain_replace",
        "yes",
        "0000:05:00",
    )
    assert objects("hello", summary=True)[0]["because"] is None


def test_the_kind_says_whether_a_number_was_printed() -> None:
    words = "[100.6] NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.\n"
    (lost,) = objects(words)
    assert (lost["kind"], lost["xid"], lost["inferred"]) == ("gpu_lost", 79, True)
    for log in (XID + words, words + XID):
        (printed,) = objects(log)
        assert (printed["kind"], printed["xid"], "inferred" in printed) == ("xid", 79, False)


def test_a_log_cannot_write_to_the_terminal() -> None:
    said = text("NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=a\x1b]0;owned\x07b\x08\x9b31m, Ch \x1b[2J8\n")
    assert all(letter.isprintable() or letter == "\n" for letter in said)


def test_a_terminal_without_unicode() -> None:
    page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    log = "NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=naïve, Ch 8\n".encode()
    assert decode.run(["-"], out=page, stdin=io.BytesIO(log)) == 0
    assert decode.run(["-"], as_json=True, out=page, stdin=io.BytesIO(log)) == 0
    assert decode.run(["-"], out=page, stdin=io.BytesIO(b"")) == 0


def test_binary_garbage() -> None:
    assert objects(bytes(range(256)) * 500) == []
    assert [event["xid"] for event in objects(b"\x00\xff\xfe" + b"\n" + XID.encode() + b"\xff" * 100_000)] == [79]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda raw: raw])
def test_rotated_logs_may_be_compressed(tmp_path: Path, pack: Any) -> None:
    log = tmp_path / "kern.log.2"
    log.write_bytes(pack(XID.encode()))
    page = io.StringIO()
    assert decode.run([str(log)], as_json=True, out=page) == 0
    assert json.loads(page.getvalue())["xid"] == 79


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_saved_on_another_system(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "log.txt"
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    log.write_bytes((mark + XID.replace("\n", "\r\n") + APP).encode(encoding))
    page = io.StringIO()
    assert decode.run([str(log)], as_json=True, out=page) == 0
    assert [json.loads(line)["xid"] for line in page.getvalue().splitlines()] == [79, 31]


def test_a_pipe_in_place_of_a_file() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gpuwatch decode --json <(cat)"],
        input=XID.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["xid"] == 79


def test_several_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(XID)
    (tmp_path / "b").write_text(XID)
    page = io.StringIO()
    assert decode.run([str(tmp_path / "a"), str(tmp_path / "b")], as_json=True, out=page) == 0
    assert [json.loads(line)["file"] for line in page.getvalue().splitlines()] == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]


def test_errors_have_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "broken.gz").write_bytes(gzip.compress(XID.encode() * 100)[:-20])
    (tmp_path / "old.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    (tmp_path / "system.journal").write_bytes(b"LPKSHHRH....")
    for name, words in (
        ("none", "does not exist"),
        (".", "is a folder"),
        ("broken.gz", "cannot be read to its end"),
        ("old.zst", "zstd"),
        ("system.journal", "binary journal"),
    ):
        with pytest.raises(GpuwatchError, match=words) as error:
            decode.run([str(tmp_path / name)], out=io.StringIO())
        assert error.value.next_step
    with pytest.raises(UsageError):
        decode.run([], out=io.StringIO())


def test_nothing_is_printed_if_one_of_the_files_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(XID)
    page = io.StringIO()
    with pytest.raises(GpuwatchError):
        decode.run([str(tmp_path / "a"), str(tmp_path / "b")], out=page)
    assert page.getvalue() == ""


def test_what_was_heard_is_told_when_a_person_interrupts() -> None:
    class Endless(io.RawIOBase):
        lines = iter([XID.encode()])

        def readline(self, size: int | None = -1, /) -> bytes:
            line = next(self.lines, None)
            if line is None:
                raise KeyboardInterrupt
            return line

    page = io.StringIO()
    assert decode.run(["-"], out=page, stdin=Endless()) == 0  # type: ignore[arg-type]
    assert "Xid 79" in page.getvalue()


@pytest.mark.parametrize("names", [("-",), ()], ids=["a-dash", "a-pipe-alone"])
def test_the_command_itself(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "decode", "--json", *names],
        input=XID.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["pci"] == "0000:05:00"
    assert done.stderr == b""
    missing = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "decode", "/no/such/log"], capture_output=True, timeout=60, check=False
    )
    assert missing.returncode == 1
    assert b"next:" in missing.stderr


def test_a_number_or_a_name_in_place_of_a_file_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = io.StringIO()
    assert decode.run(["79", "SXid 20034", "nvme_lost"], out=page) == 0
    said = page.getvalue()
    for words in (
        "Xid 79: GPU fell off the bus",
        "SXid 20034: LTSSM Fault Up",
        "NVMe disk lost (nvme_lost)",
        "dmesg |",
    ):
        assert words in said
    page = io.StringIO()
    assert decode.run(["xid31"], as_json=True, out=page) == 0
    assert json.loads(page.getvalue())["action"] == "restart_app"
    with pytest.raises(UsageError, match="no published list"):
        decode.run(["987654"], out=io.StringIO())
    (tmp_path / "79").write_text(APP)
    page = io.StringIO()
    assert decode.run(["79"], as_json=True, out=page) == 0
    assert json.loads(page.getvalue())["xid"] == 31, "a file of that name is a log"


def test_incidents_are_told_one_after_the_other_with_their_root() -> None:
    said = text(
        XID
        + "[100.6] NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)\n"
        "[101.0] nvme nvme4: Disabling device after reset failure: -19\n"
    )
    assert "3 events in 3 lines, 2 incidents" in said
    assert "Incident 1 of 2: Xid 79: GPU fell off the bus, GPU 0000:05:00 (2 events, the root first)" in said
    assert "Incident 2 of 2: NVMe disk lost (nvme_lost), device nvme4 (1 event)" in said
    assert said.index("Incident 1") < said.index("Xid 154") < said.index("Incident 2")
    assert "Incident" not in text(XID)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("EXT4-fs (md0): Remounting filesystem read-only", ["where    device md0", "do not use it before"]),
        ("[1.0] watchdog: BUG: soft lockup - CPU#6 stuck for 22s! [VM Thread:9]", ["processor 6", "VM Thread, pid 9"]),
        ("nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=x, (Receiver ID)", ["PCI device 0000:03:00.0"]),
        ("nfs: server 10.0.0.5 not responding, still trying", ["file server 10.0.0.5"]),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error", ["where    GPU 0000:0b:00"]),
        ("mlx5_core 0000:d2:00.0: poll_health:8: Fatal error 3 detected", ["replace the machine"]),
    ],
)
def test_a_fault_of_the_node_in_words(log: str, words: list[str]) -> None:
    said = text(log + "\n")
    assert all(word in said for word in words), said


def test_a_file_below_sys_without_a_value_is_unknown_and_not_zero() -> None:
    (event,) = objects("N/A (no PMA)\n")
    assert (event["event"], event["value"], event["severity"]) == ("no_value", None, "info")
