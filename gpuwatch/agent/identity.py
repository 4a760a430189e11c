"""Which machine, in which slot, since which boot, and which agent this is."""

from __future__ import annotations

import uuid

import msgspec

from gpuwatch.agent.settings import AgentSettings, host_name
from gpuwatch.errors import ConfigError
from gpuwatch.sdk.machine_id import SOURCES, boot_id, machine_ids


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at the head of each report."""

    slot: str
    machine: str
    boot_id: str
    agent_id: str  # new at each start, so that sequence numbers may begin again


def identify(settings: AgentSettings, *, sources: tuple[str, ...] = SOURCES) -> Identity:
    """From the settings, else from the system. Raises `ConfigError` where nothing names this machine."""
    machine = settings.machine or next(iter(machine_ids(sources)), "")
    if not machine:
        raise ConfigError(
            "this machine has no id",
            why=f"`machine` is not set, and none of {', '.join(sources)} can be read or holds one",
            next_step="set `machine` to the provider's id of this machine",
        )
    return Identity(slot=settings.slot or host_name(), machine=machine, boot_id=boot_id(), agent_id=uuid.uuid4().hex)
