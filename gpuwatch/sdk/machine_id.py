"""Which machine this is and since which boot, as agent and hands both must say it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

NO_UUID = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "not settable", "")
HANDED = "/run/gpuwatch-machine/product_uuid"  # the agent's unit lets root copy the firmware's word there
SOURCES = ("/sys/class/dmi/id/product_uuid", HANDED, "/etc/machine-id")  # the first needs root
MOST_BYTES = 256
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def machine_ids(sources: tuple[str, ...] = SOURCES, *, roots_alone: str = HANDED) -> tuple[str, ...]:
    """What names this machine: the firmware, which root alone can read, and the system. The first is its id.

    `roots_alone`: of the sources, the one that is believed only where root wrote it.
    """
    return tuple(dict.fromkeys(found for path in sources if (found := _usable(path, by_root=path == roots_alone))))


def boot_id() -> str:
    """The kernel's. `GPUWATCH_BOOT_ID` stands in for it where several simulated nodes share one machine; nothing else
    may set it, since a boot id that does not change hides every reboot."""
    return os.environ.get("GPUWATCH_BOOT_ID") or Path(BOOT_ID).read_text().strip()


def _usable(path: str, *, by_root: bool) -> str:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if by_root and (status.st_uid != 0 or not stat.S_ISREG(status.st_mode)):
                return ""
            text = file.read(MOST_BYTES).decode().strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if text in NO_UUID else text
