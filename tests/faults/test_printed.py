"""Other forms in which people save a kernel log; and messages that interleave."""

from __future__ import annotations

import json

import pytest

from tests.faults_table import check, told

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ABORT = "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"

DMESG = """\
{
   "dmesg": [
      {
         "pri": 6,
         "time":     0.000000,
         "msg": "Linux version 6.8.0"
      },{
         "pri": %s,
         "time":  7161.348124,
         "msg": %s
      }
   ]
}"""


def test_dmesg_as_json() -> None:
    check("event=xid; xid=79; pci=0000:05:00; pid=-", DMESG % (4, json.dumps(XID)))
    check("event=fs_read_only; dev=md0", DMESG % (2, json.dumps("EXT4-fs (md0): Remounting filesystem read-only")))
    check("", DMESG % (12, json.dumps(XID)))  # facility 1: a user wrote it
    check('event=segfault; name=a"b', DMESG % (6, json.dumps('a"b[7]: segfault at 0 ip 0 sp 0 error 4')))


EXPORT = """\
__CURSOR=s=1;i=1
__REALTIME_TIMESTAMP=1789999000000000
_BOOT_ID=11111111222233334444555555555555
PRIORITY=4
_TRANSPORT={transport}
SYSLOG_IDENTIFIER={tag}
MESSAGE={message}
_SOURCE_MONOTONIC_TIMESTAMP=49000000000
{more}

__CURSOR=s=1;i=2
MESSAGE=usb 1-1: new device
_TRANSPORT=kernel
"""
VERBOSE = """\
Mon 2026-11-30 10:00:00.000000 UTC [s=1f;i=2a;b=11111111222233334444555555555555;m=1;t=2;x=3]
    _TRANSPORT={transport}
    SYSLOG_IDENTIFIER={tag}
    MESSAGE={message}
    {more}
"""


@pytest.mark.parametrize("form", [EXPORT, VERBOSE], ids=["export", "verbose"])
def test_the_journal_field_by_field(form: str) -> None:
    check("event=xid; xid=79", form.format(transport="kernel", tag="kernel", message=XID, more="_HOSTNAME=host1"))
    check("", form.format(transport="syslog", tag="kernel", message=XID, more="_UID=1000"))
    check("", form.format(transport="kernel", tag="systemd", message=XID, more="_PID=1"))
    fabric = "_SYSTEMD_UNIT=nvidia-fabricmanager.service"
    check("event=fm_topology_mismatch", form.format(transport="stdout", tag="x", message=ABORT, more=fabric))
    check("", form.format(transport="stdout", tag="nv-fabricmanager", message=ABORT, more="_SYSTEMD_UNIT=a.service"))


def test_after_the_journals_entries_a_plain_line_is_a_plain_line() -> None:
    text = EXPORT.format(transport="kernel", tag="kernel", message="usb", more="A=b") + f"\nhello\n[1.5] {XID}"
    check("event=xid; xid=79", text)


def test_the_journal_as_json_without_its_transport() -> None:
    check("event=xid; xid=79", json.dumps({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "kernel"}))
    check("event=xid; xid=79", json.dumps({"MESSAGE": XID}))
    check("", json.dumps({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "gpud"}))
    check("", json.dumps({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "kernel", "_PID": "7", "_UID": "1000"}))
    check("", json.dumps({"MESSAGE": XID, "_COMM": "logger"}))


def test_a_domain_of_five_digits() -> None:
    check("event=xid; xid=79; pci=10000:05:00", XID.replace("0000:05", "10000:05"))
    check(
        "event=xid; xid=79; pci=10000:05:00 || event=xid; xid=79; pci=0000:05:00",
        XID.replace("0000:05", "10000:05") + "\n" + XID,
    )


NAMED = "NVRM: The NVIDIA GPU {pci}"
ID = "NVRM: (PCI ID: 10de:2330) installed in this system has"
LOST = "NVRM: fallen off the bus and is not responding to commands."


@pytest.mark.parametrize(
    "order",
    [
        pytest.param("aAA bBB", id="one-after-the-other"),
        pytest.param("ab AB AB", id="in-step"),
        pytest.param("aA b A B B", id="shifted"),
    ],
)
def test_two_gpus_that_are_lost_at_once_are_two(order: str) -> None:
    lines: list[str] = []
    seen = {"a": 0, "b": 0}
    for letter in order.replace(" ", ""):
        which = letter.lower()
        pci = "0000:05:00.0" if which == "a" else "0000:06:00.0"
        lines.append((NAMED.format(pci=pci), ID, LOST)[seen[which]])
        seen[which] += 1
    events = told("\n".join(lines))
    assert sorted(event.pci or "" for event in events) == ["0000:05:00", "0000:06:00"]
    assert all(event.xid == 79 and event.inferred for event in events)


def test_a_gpu_that_is_not_supported_is_not_lost() -> None:
    check(
        "",
        NAMED.format(pci="0000:05:00.0") + "\nNVRM: (PCI ID: 10de:1180)\n"
        "NVRM: installed in this system is not supported by the NVIDIA 570 driver release.\n" + LOST,
    )
