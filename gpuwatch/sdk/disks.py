"""The local file systems of this node: how full they are, and which can no longer be written though they should."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gpuwatch.model.facts.host import Disk
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.kernel_lines import this_boot_id
from gpuwatch.sdk.mounts import Mount, Room, disk, meant_writable, once
from gpuwatch.sdk.remembered import Remembered
from gpuwatch.sdk.small_file import kernel_file

MOST_DISKS, MOST_REMEMBERED = 32, 1_000
MOST_FSTAB_BYTES = 1 << 20
PLACES = {"/": "root", "/var": "var", "/tmp": "tmp"}


class Writable(msgspec.Struct, kw_only=True):
    """File systems that could be written in this boot, kept over restarts of the agent."""

    boot_id: str = ""
    places: list[str] = []


class Disks:
    """Remembers what could be written."""

    def __init__(self, fstab: str, errands: Errands | None = None, deadline_s: float = 2.0) -> None:
        """`errands`: by which disks are asked whose place lies in a mount that somebody else serves; None: they are not
        asked."""
        self._fstab, self._errands, self._deadline_s = fstab, errands, deadline_s
        self._writable = Remembered("host", Writable)
        self._state_device: int | None = None

    def keep(self, folder: Path, *, ours: bool) -> None:
        """The agent's own folder, which may fill up too."""
        self._writable.keep(folder, ours)
        if not this_boot_id():  # who knows which boot that was
            self._writable.value = Writable()
        try:
            self._state_device = folder.stat().st_dev
        except OSError:
            self._state_device = None

    def look(self, local: list[Mount]) -> tuple[Disk, ...]:
        """Each local file system once."""
        was, boot_id = self._writable.value, this_boot_id()
        if was.boot_id != boot_id:
            was.boot_id, was.places = boot_id, []
        meant = meant_writable(self._read_fstab())
        by_place = {mount.place: mount for mount in local}
        found: list[Disk] = []
        shown = once(local)[:MOST_DISKS]
        rooms = {mount.place: _room(mount) for mount in shown if not mount.hidden and not mount.beneath}
        rooms |= self._asked([mount.place for mount in shown if not mount.hidden and mount.beneath])
        for mount in shown:
            if not mount.read_only and mount.place not in was.places and len(was.places) < MOST_REMEMBERED:
                was.places.append(mount.place)
            roles = [role for place, role in PLACES.items() if _lies_on(place, by_place) == mount.device_number]
            if self._state_device is not None and self._state_device == _number(mount.device_number):
                roles.append("state")
            by = _read_only_by(mount, was.places, meant)
            found.append(disk(mount, rooms.get(mount.place), read_only_by=by, roles=tuple(roles)))
        self._writable.save()
        return tuple(found)

    def _asked(self, places: list[str]) -> dict[str, Room | None]:
        if self._errands is None or not places:
            return {}
        wanted = {f"disk {place}": ["stat", "-f", "-c", "%b %f %a %c %d %S", "--", place] for place in places}
        said = self._errands.ask(wanted, deadline_s=self._deadline_s)
        return {place: _room_of(said[f"disk {place}"].out) for place in places}

    def _read_fstab(self) -> str:
        try:
            return kernel_file(self._fstab, MOST_FSTAB_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return ""


def _room(mount: Mount) -> Room | None:
    try:
        says = os.statvfs(mount.place)
    except (OSError, ValueError):
        return None
    return Room(says.f_blocks, says.f_bfree, says.f_bavail, says.f_files, says.f_ffree, says.f_frsize)


def _room_of(said: bytes) -> Room | None:
    words = said.split()
    if len(words) != 6 or not all(word.isdigit() and len(word) < 20 for word in words):
        return None
    return Room(*map(int, words))


def _read_only_by(mount: Mount, was_writable: list[str], meant: frozenset[str]) -> str:
    if mount.made_read_only:
        return "kernel"
    if mount.read_only and mount.place in was_writable:
        return "remounted"
    return "fstab" if mount.read_only and mount.place in meant else ""


def _lies_on(place: str, by_place: dict[str, Mount]) -> str:
    """The device number of the mount that holds this place, as far as it is a local one."""
    while place not in by_place and place != "/":
        place = place.rpartition("/")[0] or "/"
    return by_place[place].device_number if place in by_place else ""


def _number(device_number: str) -> int | None:
    major, _, minor = device_number.partition(":")
    if not (major.isdecimal() and minor.isdecimal() and len(device_number) < 20):
        return None
    return os.makedev(int(major), int(minor))
