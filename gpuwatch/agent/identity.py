"""Which machine, in which slot, since which boot, and which agent this is."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec

from gpuwatch.agent.settings import AgentSettings, host_name
from gpuwatch.errors import ConfigError

NO_UUID = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "not settable", "")
SOURCES = ("/sys/class/dmi/id/product_uuid", "/etc/machine-id")  # the first needs root


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at the head of each report."""

    slot: str
    machine: str
    boot_id: str
    agent_id: str  # new at each start, so that sequence numbers may begin again


def identify(settings: AgentSettings, *, sources: tuple[str, ...] = SOURCES) -> Identity:
    """From the settings, else from the system. Raises `ConfigError` where nothing names this machine.

    `GPUWATCH_BOOT_ID` stands in for the kernel's boot id where several simulated nodes share one machine; nothing else
    may set it, since a boot id that does not change hides every reboot.
    """
    machine = settings.machine or next((found for path in sources if (found := _usable(path))), "")
    if not machine:
        raise ConfigError(
            "this machine has no id",
            why=f"`machine` is not set, and none of {', '.join(sources)} can be read or holds one",
            next_step="set `machine` to the provider's id of this machine",
        )
    boot_id = os.environ.get("GPUWATCH_BOOT_ID") or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Identity(slot=settings.slot or host_name(), machine=machine, boot_id=boot_id, agent_id=uuid.uuid4().hex)


def _usable(path: str) -> str:
    try:
        text = Path(path).read_text().strip().lower()
    except OSError:
        return ""
    return "" if text in NO_UUID else text
