"""What disks, file systems and arrays say.

Forms: drivers/nvme/host/{pci,core,multipath}.c, block/blk-core.c, fs/buffer.c, fs/{ext4,xfs,btrfs}, drivers/md,
net/sunrpc/clnt.c of the Linux kernel. Virtual media of a management controller (sr, fd, loop) are no disks of the node.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import ADDRESS, function_address, named

HEADS = (
    "nvme",
    "block nvme",
    "critical ",
    "I/O error",
    "Buffer I/O error",
    "blk_update_request: ",
    "print_req_error: ",
    "end_request: ",
    "attempt to access",
    "EXT2-fs",
    "EXT3-fs",
    "EXT4-fs",
    "XFS (",
    "BTRFS",
    "F2FS-fs",
    "Aborting journal",
    "Remounting filesystem",
    "md/raid",
    "nfs: server",
)
WORDS = ("beyond end of device",)
_NVME = re.compile(rf"nvme (?:(?P<dev>nvme\d+)|(?P<pci>{ADDRESS})): (?P<said>.*)", re.DOTALL)
_NVME_GONE = (
    "Disabling device after reset failure: ",
    "Removing after probe failure",
    "Device not ready; aborting reset",
)
_NVME_LATE = re.compile(r"I/O (?:tag )?\d+\b.*\bQID \d+ timeout, |controller is down; will reset")
_NO_PATH = re.compile(r"block (nvme\d+n\d+): no available path - failing I/O")
_COMMAND = re.compile(r"(?P<dev>nvme\d+n\d+): (?:I/O|\w+)[ \w]*\(?[\w/]*\)? ?@ LBA .*I/O Error")
_SECTOR = re.compile(r"(?:[\w ]+: )?(?:critical \w+|I/O|[\w ]*medium) error, dev (?P<dev>[\w!/-]+), sector \d+")
_BUFFER = re.compile(r"Buffer I/O error on dev(?:ice)? (?P<dev>[\w!/-]+), logical block \d+")
_BEYOND = re.compile(r"(?:[^\s\"{}]{1,15}: )?attempt to access beyond end of device")
_NO_DISK = re.compile(r"(?:sr|fd|loop|zram|ram)\d")

_FS = re.compile(
    r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs)(?: \w+)?(?: \((?:device )?(?P<dev>[^\s:()]{1,64})[^)]{0,64}\))?: (?P<said>.*)",
    re.DOTALL,
)
_EXT_ERROR = re.compile(r"EXT[234]-fs (?:error|panic) \(device (?P<dev>[^)\s]+)\)")
_BTRFS_ERROR = re.compile(r"BTRFS:? error \(device (?P<dev>[^):\s]+)[^)]*\)(?: in |: )")
_JOURNAL = re.compile(r"Aborting journal on device (?P<dev>dm-\d+|[\w!/]+)(?:-\d+)?\.")
_DOWN = re.compile(r"[Ss]hutting down filesystem|xfs_do_force_shutdown\(|Filesystem has been shut down")
_ARRAY = re.compile(r"md/raid(?:linear|\d{0,2})(?=:|md):?(?P<array>md[\w/-]+): (?P<said>.*)", re.DOTALL)
_DISK = re.compile(r"Disk failure on (?P<dev>[\w!/-]+?)(?: detected, (?P<failed>failing array)|, disabling device)")
_NFS = re.compile(r"nfs: server (?P<server>\S+) not responding, ")


def read(message: str) -> Event | None:
    """The event of a disk's or file system's message, None if it is none."""
    found = _NVME.match(message)
    if found is not None:
        return _nvme(message, found)
    found = _NO_PATH.match(message)
    if found is not None:
        return named("nvme_no_path", message, subject=found[1], details={"dev": found[1]})
    found = _SECTOR.match(message) or _BUFFER.match(message) or _COMMAND.match(message)
    if found is not None:
        dev = found["dev"]
        if _NO_DISK.match(dev) is not None:
            return None
        return named("disk_io_error", message, subject=dev, details={"dev": dev})
    if _BEYOND.match(message) is not None:
        return named("disk_beyond_end", message)
    found = _ARRAY.match(message)
    if found is not None:
        return _array(message, found["array"], found["said"])
    found = _NFS.match(message)
    if found is not None:
        return named("nfs_not_responding", message, subject=found["server"], details={"server": found["server"]})
    return _file_system(message)


def _nvme(text: str, found: re.Match[str]) -> Event | None:
    dev, pci, said = found["dev"], function_address(found["pci"]), found["said"]
    if said.startswith(_NVME_GONE):
        kind = "nvme_lost"
    elif _NVME_LATE.match(said) is not None:
        kind = "nvme_timeout"
    else:
        return None
    return named(kind, text, pci=pci, subject=dev or pci or "", details={"dev": dev})


def _array(text: str, array: str, said: str) -> Event | None:
    disk = _DISK.match(said)
    if disk is not None:
        kind = "raid_failed" if disk["failed"] else "raid_degraded"
        return named(kind, text, subject=array, details={"dev": disk["dev"], "array": array})
    if said.startswith("Cannot continue operation"):
        return named("raid_failed", text, subject=array, details={"array": array})
    return None


def _file_system(text: str) -> Event | None:
    if text.startswith("Remounting filesystem read-only"):
        return named("fs_read_only", text)
    if text.startswith("I/O error while writing superblock"):
        return named("fs_error", text)
    found = _EXT_ERROR.match(text) or _BTRFS_ERROR.match(text) or _JOURNAL.match(text)
    if found is not None:
        return _of("fs_error", text, found["dev"])
    found = _FS.match(text)
    if found is None:
        return None
    said = found["said"]
    if said.startswith("Remounting filesystem read-only") or said.endswith("forced readonly"):
        return _of("fs_read_only", text, found["dev"])
    if _DOWN.search(said) is not None:
        return _of("fs_shutdown", text, found["dev"])
    if said.startswith(("metadata I/O error", "I/O error while writing superblock", "log I/O error")):
        return _of("fs_error", text, found["dev"])
    return None


def _of(kind: str, text: str, dev: str | None) -> Event | None:
    if dev is not None and _NO_DISK.match(dev) is not None:  # somebody's image
        return None
    return named(kind, text, subject=dev or "", details={"dev": dev})
