"""An event that has a name instead of a number, with the catalogue's verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuwatch.faults.catalogue import events
from gpuwatch.faults.event import Detail, Event
from gpuwatch.model.identity import pci_address

ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_MAX_PID = 1 << 31
GPU_DRIVERS = frozenset({"nvidia", "vfio-pci-nvgrace", "nouveau"})


def named(
    kind: str,
    text: str,
    *,
    pci: str | None = None,
    sxid: int | None = None,
    pid: int | None = None,
    name: str | None = None,
    subject: str = "",
    verdict: tuple[str, str, str] | None = None,
    details: Mapping[str, Detail | None] | None = None,
) -> Event:
    """`verdict`: severity, action, drain, where this line says another than the table. Details of None are left out."""
    known = events()[kind]
    severity, action, drain = verdict or (known.row.severity, known.row.action, known.row.drain)
    return Event(
        kind=kind,
        title=known.row.name,
        meaning=known.row.meaning,
        severity=severity,
        action=action,
        drain=drain,
        text=text,
        sxid=sxid,
        pci=pci,
        pid=pid if pid is not None and 0 < pid < _MAX_PID else None,
        name=name,
        subject=subject,
        family=known.family,
        details={key: value for key, value in (details or {}).items() if value is not None},
    )


def function_address(text: str | None) -> str | None:
    """`0000:5c:00.0`: devices other than GPUs keep their function, ports of one card differ only there."""
    if text is None or re.fullmatch(ADDRESS, text) is None:
        return None
    device, _, function = text.partition(".")
    return f"{pci_address(device)}.{function}"


def address_of(driver: str, text: str | None) -> str | None:
    """A GPU's without its function, as everywhere; any other device's with it."""
    if driver in GPU_DRIVERS:
        return pci_address(text) if text is not None else None
    return function_address(text)
