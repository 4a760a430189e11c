"""What systemd says of the services that a GPU node needs."""

from __future__ import annotations

import msgspec


class Unit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unit that this node has."""

    name: str  # `slurmd.service`
    active_state: str  # active | activating | reloading | deactivating | inactive | failed
    sub_state: str = ""  # running | dead | auto-restart | ...
    result: str = ""  # success | exit-code | signal | timeout | start-limit-hit | ...
    enabled: bool = False
    was_active: bool = False  # in this boot
    since_unix_ns: int | None = None  # in this state
    restart_count: int | None = None  # by systemd, since the unit was started by hand or at boot
    recent_restart_count: int = 0  # within the window, as far as the agent has watched

    def must_run(self) -> bool:
        """Somebody wants it: it is enabled, or it ran in this boot."""
        return self.enabled or self.was_active


class ServicesFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All units of the settings that are installed here."""

    units: tuple[Unit, ...] = ()
    restart_window_s: float = 3600.0


FACTS = ServicesFacts
