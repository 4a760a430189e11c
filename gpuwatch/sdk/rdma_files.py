"""Which files of /sys/class/infiniband are worth reading, and what they say. A short list on purpose.

Each counter is a command to the card's firmware. On a function that may not read them every one is refused, and the
kernel prints a line each time (prometheus/node_exporter#3434, leptonai/gpud#1164: mlx5 ACCESS_REG): a file that gives
an error is never read again, and a card of which the kernel complained loses all its counters.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.sdk.file_look import Look

STATE_FILES = ("state", "phys_state", "rate", "link_layer", "lid")
COUNTERS = (
    # InfiniBand Architecture Specification, PortCounters; `link_downed` is what tells a flap
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "port_xmit_data",
    "port_rcv_data",
)
HW_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rx_drops", "tx_bytes", "rx_bytes")
ERRORS = (
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "packet_seq_err",
    "local_ack_timeout_err",
)
WORDS_OF_DATA = {"port_xmit_data", "port_rcv_data"}  # told in units of four bytes
MOST_DEVICES, MOST_PORTS = 64, 4
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")
_WORD = re.compile(r"\d{1,3}: ([A-Za-z_]{1,32})")
_COMPLAINT = re.compile(r"mlx5_core ([0-9a-f:.]{12}):.*ACCESS_REG\(0x[0-9a-f]+\).*failed", re.IGNORECASE)
_HOPELESS = {os.strerror(number) for number in (errno.EINVAL, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EIO,
                                                errno.EREMOTEIO, errno.EPROTO, errno.EISDIR)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """One RDMA device as its folder shows it; nothing here asks the driver."""

    name: str
    folder: str
    pci: str | None
    function_of: bool  # a virtual function of another device
    netdev: str | None
    ports: tuple[int, ...]

    def paths(self, refused: Iterable[str]) -> list[str]:
        """What to read of it, without what was refused before. The state first, then what may be refused."""
        found = [f"{self.folder}/node_guid", f"{self.folder}/board_id"]
        for port in self.ports:
            found += [f"{self.folder}/ports/{port}/{name}" for name in STATE_FILES]
        for port in self.ports:
            for group, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
                base = f"{self.folder}/ports/{port}/{group}"
                found += [f"{base}/{name}" for name in names if os.path.lexists(f"{base}/{name}")]
        without = set(refused)
        return [path for path in found if path not in without]


@dataclass(frozen=True, slots=True)
class PortSays:
    """One port's own words."""

    state: str | None
    phys_state: str | None
    rate_gbps: float | None
    link_layer: str | None
    lid: int | None
    board: str | None
    without_guid: bool
    counters: dict[str, int]


def devices(sys_root: str) -> list[Device] | None:
    """Every RDMA device, by name; None where the node has no such class."""
    base = f"{sys_root}/class/infiniband"
    try:
        names = sorted(os.listdir(base))[:MOST_DEVICES]  # noqa: PTH208
    except OSError:
        return None
    return [_device(f"{base}/{name}", name) for name in names if name.isprintable()]


def _device(folder: str, name: str) -> Device:
    card = f"{folder}/device"
    pci = Path(os.path.realpath(card)).name if Path(card).exists() else None
    netdevs = sorted(_listed(f"{card}/net"))
    ports = sorted(int(port) for port in _listed(f"{folder}/ports") if port.isdecimal() and len(port) < 4)
    return Device(
        name=name,
        folder=folder,
        pci=pci if pci is not None and re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", pci) else None,
        function_of=os.path.lexists(f"{card}/physfn"),
        netdev=netdevs[0] if netdevs else None,
        ports=tuple(ports[:MOST_PORTS]),
    )


def _listed(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isprintable()]  # noqa: PTH208
    except OSError:
        return []


def port_says(device: Device, port: int, look: Look) -> PortSays:
    """What was read of one port. A file that says something else than it should is as if it were not there."""
    base = f"{device.folder}/ports/{port}"
    layer = look.text(f"{base}/link_layer")
    guid = look.text(f"{device.folder}/node_guid")
    rate = _RATE.match(look.text(f"{base}/rate") or "")
    counters: dict[str, int] = {}
    for group, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        for name in names:
            value = look.number(f"{base}/{group}/{name}")
            if value is not None:
                counters[name] = value * 4 if name in WORDS_OF_DATA else value
    infiniband = layer == "InfiniBand"
    return PortSays(
        state=_word(look.text(f"{base}/state")),
        phys_state=_word(look.text(f"{base}/phys_state")),
        rate_gbps=float(rate[1]) if rate else None,
        link_layer=layer.lower() if layer is not None and layer.isalpha() and len(layer) < 32 else None,
        lid=_lid(look.text(f"{base}/lid")),
        board=(look.text(f"{device.folder}/board_id") or "")[:64] or None,
        without_guid=infiniband and guid is not None and not guid.strip("0:"),  # EFA has none and is real
        counters=counters,
    )


def _word(text: str | None) -> str | None:
    found = _WORD.fullmatch(text or "")
    return found[1].lower() if found else None


def _lid(text: str | None) -> int | None:
    found = re.fullmatch(r"0x([0-9a-fA-F]{1,6})", text or "")
    return int(found[1], 16) if found else None


def refused(look: Look) -> list[str]:
    """Counters that gave an error which no second try will cure."""
    return [path for path, why in look.errors.items() if "counters/" in path and why in _HOPELESS]


class Complaints:
    """What the kernel prints about cards while we read them, by PCI address. Deaf where the log cannot be read."""

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._file = -1

    def heard(self) -> set[str]:
        """Cards of which the kernel said since the beginning that a register may not be read. Ends the listening."""
        found: set[str] = set()
        if self._file < 0:
            return found
        for _ in range(500):
            try:
                piece = os.read(self._file, 8_192)
            except BrokenPipeError:
                continue  # the ring has overtaken us: go on with what is there
            except OSError:
                break
            if not piece:
                break
            found |= {pci.lower() for pci in _COMPLAINT.findall(piece.decode("utf-8", "replace"))}
        os.close(self._file)
        self._file = -1
        return found
