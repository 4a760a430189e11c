"""The fabric manager's own words, from its log or its service's journal. It is no part of the kernel.

    [Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33

The level in brackets is no severity: errors that are not fatal are logged as ERROR too.
"""  # noqa: E501

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import ADDRESS, function_address, named

WORDS = ("NVSwitch", "multicast team", "driver interface version")
STARTS = (  # as `journalctl -o cat` prints its messages, for a person
    *(b"detected NVSwitch ", b"detected number of NVSwitches ", b"failed to find the ", b"request to query NVSwitch "),
    b"fabric manager NVIDIA GPU driver ",
)
OWN_LOG = re.compile(
    r"\[[A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d\] \[(?:[A-Z]+)\] (?:\[tid \d+\] )?(?P<said>.*)", re.DOTALL
)

_SWITCH = re.compile(
    r"detected NVSwitch (?P<non>non-)?fatal error (?P<sxid>\d{1,9}) on fid \d+ "
    rf"on NVSwitch pci bus id (?P<pci>{ADDRESS})"
    r"(?: physical id (?P<physical>\d+))?(?: port (?P<port>\d+))?"
)
_HANDLE = re.compile(r"failed to find the (?:member )?GPU handle \d+ (?:in partition -?\d+ )?in the multicast team\b")
_TOPOLOGY = re.compile(r"detected number of NVSwitches don't match with any supported system topology")
_NOTHING = re.compile(r"request to query NVSwitch device information .*NV_WARN_NOTHING_TO_DO")
_VERSION = re.compile(
    r"fabric manager NVIDIA GPU driver interface version (?P<interface>[\d.]*\d) (?:don't|doesn't) match with driver "
    r"version (?P<driver>[\d.]*\d)"
)
ON_SWITCHES = "fatal: ask a person (contact_support), drain the node"


def read(said: str) -> Event | None:
    """The event of one of its messages, without date, level and thread."""
    found = _SWITCH.match(said)
    if found is not None:
        pci, number = function_address(found["pci"]), int(found["sxid"])
        return named(
            "fm_nvswitch_nonfatal" if found["non"] else "fm_nvswitch_fatal",
            said,
            pci=pci,
            sxid=number,
            subject=f"{pci} {number}",
            details={"port": int(found["port"]) if found["port"] else None},
        )
    found = _VERSION.match(said)
    if found is not None:
        return named("fm_version_mismatch", said, details=found.groupdict())
    if _HANDLE.match(said) is not None:
        return named("fm_gpu_handle_missing", said)
    if _TOPOLOGY.match(said) is not None:
        return named("fm_topology_mismatch", said)
    if _NOTHING.match(said) is not None:  # the words alone do not say which model this is
        return named("fm_nothing_to_do", said, details={"with_nvswitch": ON_SWITCHES})
    return None
