"""Which machine this is and since which boot, as agent and hands both must say it."""

from __future__ import annotations

import os
from pathlib import Path

NO_UUID = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "not settable", "")
SOURCES = ("/sys/class/dmi/id/product_uuid", "/etc/machine-id")  # the first needs root
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def machine_ids(sources: tuple[str, ...] = SOURCES) -> tuple[str, ...]:
    """What names this machine: the firmware, which root alone can read, and the system. The first is its id."""
    return tuple(found for path in sources if (found := _usable(path)))


def boot_id() -> str:
    """The kernel's. `GPUWATCH_BOOT_ID` stands in for it where several simulated nodes share one machine; nothing else
    may set it, since a boot id that does not change hides every reboot."""
    return os.environ.get("GPUWATCH_BOOT_ID") or Path(BOOT_ID).read_text().strip()


def _usable(path: str) -> str:
    try:
        text = Path(path).read_text().strip().lower()
    except OSError:
        return ""
    return "" if text in NO_UUID else text
