"""The PCI bus as sysfs shows it: which functions matter to a GPU node, and what each says of its link.

`vendor`, `device` and `class` come from the kernel's memory and tell nothing of a device that died since; the first
bytes of `config` are read from the device itself (pciutils: `rev ff` is such a read, lyulyul/shine-cluster#171).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.sdk.file_look import Look

NVIDIA = "0x10de"
KIND_OF_CLASS = {
    "0x0300": "gpu",  # VGA; of NVIDIA and AMD only, a server's own console is none
    "0x0302": "gpu",  # 3D controller
    "0x1200": "gpu",  # processing accelerator
    "0x0680": "switch",  # of NVIDIA only: NVSwitch
    "0x0207": "infiniband",
    "0x0200": "ethernet",
    "0x0108": "nvme",
    "0x0604": "pcie_switch",  # of bridges only the upstream port of a switch: nobody else tells of that link
}
MAKERS = {"gpu": (NVIDIA, "0x1002"), "switch": (NVIDIA,)}
MOST_FUNCTIONS = 4_096
MOST_WATCHED = 128
MOST_BYTES_A_FILE = 1_024
LINK_FILES = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
AER_FILES = {"aer_dev_correctable": "correctable", "aer_dev_nonfatal": "nonfatal", "aer_dev_fatal": "fatal"}
ALL_ONES = b"\xff\xff\xff\xff"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEX = re.compile(r"0x[0-9a-f]{4,6}")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")
_TOTAL = re.compile(rb"^TOTAL_ERR_\w+ (\d{1,18})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Function:
    """One function that is watched."""

    pci: str
    kind: str
    model: str
    folder: str

    def paths(self) -> list[str]:
        """What to read of it; nothing while it sleeps, because reading would wake it."""
        if _first_bytes(f"{self.folder}/power/runtime_status") in (b"suspended", b"suspending"):
            return []
        names = (*LINK_FILES, *AER_FILES)  # a virtual device has none of them
        return [f"{self.folder}/config", *(path for name in names if os.path.lexists(path := f"{self.folder}/{name}"))]

    def driver(self) -> str | None:
        """The module that has it; None: nobody."""
        try:
            return Path(f"{self.folder}/driver").readlink().name[:64]
        except OSError:
            return None


class Bus:
    """Looks at each new function once: a node has hundreds that do not matter."""

    def __init__(self, sys_root: str) -> None:
        self._folder = f"{sys_root}/bus/pci/devices"
        self._known: dict[str, Function | None] = {}
        self.listed: frozenset[str] = frozenset()  # addresses at the last look
        self.unreadable: list[str] = []  # those of them that did not say what they are

    def functions(self) -> list[Function] | None:
        """Those that are watched, by address; None where there is no bus."""
        try:
            names = os.listdir(self._folder)[:MOST_FUNCTIONS]  # noqa: PTH208
        except OSError:
            return None
        for name in self._known.keys() - set(names):
            del self._known[name]  # it may come back as something else
        self.listed, self.unreadable = frozenset(names), []
        for name in names:
            if name in self._known:
                continue
            try:
                self._known[name] = self._function(name)
            except ValueError:  # it is coming or going: it is looked at again, and it is not gone
                self.unreadable.append(name)
        return [found for name in sorted(names) if (found := self._known.get(name)) is not None][:MOST_WATCHED]

    def _function(self, name: str) -> Function | None:
        folder = f"{self._folder}/{name}"
        if not _ADDRESS.fullmatch(name) or os.path.lexists(f"{folder}/physfn"):
            return None  # a virtual function comes and goes as its owner likes
        class_, vendor, device = (_hex(f"{folder}/{file}") for file in ("class", "vendor", "device"))
        kind = KIND_OF_CLASS.get(class_[:6])
        if kind == "pcie_switch" and not _is_upstream_port(folder):
            return None
        if kind is None or vendor not in MAKERS.get(kind, (vendor,)):
            return None
        return Function(name, kind, f"{vendor[2:]}:{device[2:]}", folder)


def _is_upstream_port(folder: str) -> bool:
    """A bridge below a bridge, with bridges of its own. A root port's or downstream port's link has another end that
    is watched."""
    try:
        place = os.path.realpath(folder)
        inside = os.listdir(place)  # noqa: PTH208
    except OSError:
        return False

    def bridge(where: str) -> bool:
        return _first_bytes(f"{where}/class").startswith(b"0x0604")

    below = [name for name in inside if _ADDRESS.fullmatch(name)]
    return bridge(str(Path(place).parent)) and any(bridge(f"{place}/{name}") for name in below)


def _hex(path: str) -> str:
    """`0x10de`. Raises `ValueError` for anything else."""
    text = _first_bytes(path).decode("ascii", "replace")
    if not _HEX.fullmatch(text):
        raise ValueError(f"{path} holds no number")
    return text


def _first_bytes(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(file, 64).strip()
    except OSError:
        return b""
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class Says:
    """What one function said."""

    all_ones: bool | None
    width: int | None
    width_max: int | None
    speed_gts: float | None
    speed_max_gts: float | None
    aer: dict[str, int]


def says(function: Function, look: Look) -> Says:
    """A width of 63 and a speed of "Unknown" are what a device that is gone says; a virtual link says 0."""
    base = function.folder
    first = look.contents.get(f"{base}/config", b"")[:4]
    aer: dict[str, int] = {}
    for name, kind in AER_FILES.items():
        total = _TOTAL.search(look.contents.get(f"{base}/{name}", b""))
        if total:
            aer[kind] = int(total[1])
    return Says(
        all_ones=first == ALL_ONES if len(first) == 4 else None,
        width=_width(look.number(f"{base}/current_link_width")),
        width_max=_width(look.number(f"{base}/max_link_width")),
        speed_gts=_speed(look.text(f"{base}/current_link_speed")),
        speed_max_gts=_speed(look.text(f"{base}/max_link_speed")),
        aer=aer,
    )


def _width(number: int | None) -> int | None:
    return number if number in (1, 2, 4, 8, 12, 16, 32) else None


def _speed(text: str | None) -> float | None:
    found = _SPEED.fullmatch(text or "")
    return float(found[1]) if found else None
