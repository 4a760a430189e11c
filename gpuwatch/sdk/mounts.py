"""The mounts of this node, from mountinfo: which are local, which somebody else serves, and who made one read-only.

A hardened unit has mounts of its own: it sees all of them read-only, and some places empty. So the node's are read as
its first process sees them, and what we do not see beside that is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuwatch.model.facts.host import Disk
from gpuwatch.sdk.small_file import kernel_file

LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"})
IN_MEMORY = ("/dev/shm", "/tmp", "/run")  # a full one stops NCCL and the system
SERVED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "orangefs"}
    | {"pvfs2", "wekafs", "panfs", "ocfs2", "gfs2", "virtiofs", "vastnfs", "daos", "pxd"}
)
OWN_FUSE = frozenset({"fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse", "fuseblk"})
MOST_LINES = 20_000
MOST_BYTES = 8 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, proc_pid_mountinfo(5)."""

    place: str
    source: str
    kind: str
    device_number: str
    options: frozenset[str]  # of this mount
    super_options: frozenset[str]  # of the file system behind it
    hidden: bool = False  # we see something else at this place: what is asked there says nothing of it
    beneath: bool = False  # the way to it leads through what somebody else serves: whoever goes there may wait for ever

    @property
    def served(self) -> bool:
        """Somebody else answers for it, and may not. What a user mounts for himself (fuse(8): `user_id`) is his own
        affair: his program may stand still as it likes, and no node is sick of that."""
        fuse = self.kind.startswith("fuse.") and self.kind not in OWN_FUSE
        return self.kind in SERVED or (fuse and _owner(self.super_options) in ("", "0"))

    @property
    def local(self) -> bool:
        """A disk of this node, or memory that the system needs."""
        return self.kind in LOCAL or (self.kind == "tmpfs" and self.place in IN_MEMORY)

    @property
    def made_read_only(self) -> bool:
        """The kernel stopped writing after an error: the file system is read-only, though this mount is not."""
        return "emergency_ro" in self.super_options or ("ro" in self.super_options and "rw" in self.options)

    @property
    def read_only(self) -> bool:
        """Nothing can be written here."""
        return "ro" in self.options or self.made_read_only


def parsed(text: str) -> list[Mount]:
    """The lines that can be read; of several on one place the last, which is the one that is seen."""
    found: dict[str, Mount] = {}
    for line in text.splitlines()[:MOST_LINES]:
        left, dash, right = line.partition(" - ")
        words, after = left.split(" "), right.split(" ")
        if dash and len(words) >= 6 and len(after) >= 3:
            place = _unescaped(words[4])
            found.pop(place, None)
            own, behind = frozenset(words[5].split(",")), frozenset(after[2].split(","))
            found[place] = Mount(place, _unescaped(after[1]), after[0], words[2], own, behind)
    return list(found.values())


def texts(proc_root: str) -> tuple[str, str]:
    """Our own mountinfo and the node's. Raises `OSError`. The second is empty where only our own can be read."""
    own = _text(f"{proc_root}/self/mountinfo")
    try:
        return own, _text(f"{proc_root}/1/mountinfo")
    except OSError:
        return own, ""


def read(proc_root: str) -> list[Mount]:
    """The node's mounts. Raises `OSError`."""
    return joined(*texts(proc_root))


def joined(own_text: str, nodes_text: str) -> list[Mount]:
    """The node's mounts by both texts. Where only our own can be read, their options are not the node's: what the file
    system behind says is taken for both."""
    own = parsed(own_text)
    doubtful = {mount.place for mount in own if mount.kind in SERVED or mount.kind.startswith("fuse.")}
    own = [replace(mount, beneath=_leads_through(mount.place, doubtful)) for mount in own]
    nodes = parsed(nodes_text)
    if not nodes:
        return [replace(mount, options=mount.super_options & {"ro", "rw"}) for mount in own]
    seen = {mount.place: mount for mount in own}
    return [
        replace(
            mount,
            hidden=mount.place not in seen or seen[mount.place].device_number != mount.device_number,
            beneath=mount.place in seen and seen[mount.place].beneath,
        )
        for mount in nodes
    ]


def _leads_through(place: str, doubtful: set[str]) -> bool:
    parts = place.split("/")
    return any("/".join(parts[:end]) in doubtful for end in range(2, len(parts)))


def _owner(options: frozenset[str]) -> str:
    return next((word.removeprefix("user_id=") for word in options if word.startswith("user_id=")), "")


def _text(path: str) -> str:
    return kernel_file(path, MOST_BYTES).decode("utf-8", "surrogateescape")


def once(mounts: Iterable[Mount]) -> list[Mount]:
    """Each file system once, at the shortest place where we see it: bind mounts of it are the same disk."""
    found: dict[str, Mount] = {}
    for mount in sorted(mounts, key=lambda mount: (mount.hidden, len(mount.place), mount.place)):
        found.setdefault(f"{mount.device_number} {mount.kind}", mount)
    return list(found.values())


def meant_writable(fstab: str) -> frozenset[str]:
    """Places that fstab mounts for writing."""
    found: set[str] = set()
    for line in fstab.splitlines()[:MOST_LINES]:
        words = line.split()
        if len(words) >= 4 and not words[0].startswith("#") and "ro" not in words[3].split(","):
            found.add(_unescaped(words[1]))
    return frozenset(found)


class Room(NamedTuple):
    """What statvfs(3) says, in blocks of `block_bytes`."""

    blocks: int
    free: int
    available: int  # to others than root
    files: int
    files_free: int
    block_bytes: int


def disk(mount: Mount, room: Room | None, *, read_only_by: str, roles: tuple[str, ...]) -> Disk:
    """Its fill, as `df` counts: what root alone may use is not free. What could not be asked is None."""
    used_ratio = inode_ratio = free_bytes = total_bytes = None
    if room is not None:
        used = room.blocks - room.free
        used_ratio = used / (used + room.available) if used + room.available > 0 else None
        taken = room.files - room.files_free
        inode_ratio = taken / room.files if room.files > 0 and taken >= 0 else None
        free_bytes, total_bytes = room.available * room.block_bytes, room.blocks * room.block_bytes
    return Disk(
        mount=shown(mount.place),
        device=shown(mount.source),
        kind=shown(mount.kind),
        used_ratio=used_ratio,
        inode_used_ratio=inode_ratio,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        read_only=mount.read_only,
        read_only_by=read_only_by,
        roles=roles,
    )


def shown(text: str) -> str:
    """A name that can travel and be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
