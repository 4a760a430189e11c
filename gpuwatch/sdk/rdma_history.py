"""What a port was before: active or not, how fast, how often its link was lost, how fast its errors rise.

Kept over restarts of the agent. Times are of the clock that runs since boot, so that a step of the wall clock makes no
flap; they end with the boot. That a port was active outlives the boot: one that does not come up after it is missing.
A loss is dated at the look before it, so that what came while nobody looked, or what an earlier agent told and could
not write down, is never told as fresh; of what was between two looks further apart than the window nothing is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuwatch.sdk.kernel_lines import this_boot_id
from gpuwatch.sdk.rdma_files import ERRORS, PortSays
from gpuwatch.sdk.remembered import Remembered, floored

NS = 10**9
DAY_S = 86_400
FORGOTTEN_AFTER_DAYS = 30  # a card that was taken out for good
MOST_FLAPS = 1_000  # kept of one port
MOST_PORTS = 256


class PortBefore(msgspec.Struct, kw_only=True):
    """One port as it is remembered."""

    device: str = ""
    port: int = 0
    layer: str | None = None
    active_day: int = 0  # the last day since 1970 on which it was active; 0: never
    best_rate_gbps: float | None = None
    not_active_since_unix_ns: int | None = None
    # of this boot only
    link_downed: int | None = None
    ahead: int = 0  # losses that its state told and its counter has not counted yet
    was_active: bool = False
    flaps_s: list[float] = []  # since boot
    looked_s: float | None = None  # since boot, a little early: the last look at its state …
    counted_s: float | None = None  # … and at its counter


class Learned(msgspec.Struct, kw_only=True):
    """The file."""

    boot_id: str = ""
    ports: dict[str, PortBefore] = {}
    refused: list[str] = []  # files that the driver does not let us read, of this boot


class History:
    """All ports. `key`: the port's PCI address or device, and its number."""

    def __init__(
        self,
        *,
        flap_window_s: float,
        rise_window_s: float,
        boot_grace_s: float,
        since_boot_s: Callable[[], float] | None = None,
    ) -> None:
        """Losses within `boot_grace_s` of the boot are the link coming up: INIT then ACTIVE is no flap."""
        self._memory = Remembered("infiniband", Learned)
        self._flap_window_s, self._rise_window_s, self._boot_grace_s = flap_window_s, rise_window_s, boot_grace_s
        self._since_boot_s = since_boot_s or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._errors: dict[str, list[tuple[float, dict[str, int]]]] = {}
        self._looked_s: dict[str, float] = {}  # of this agent's own looks
        self._counted_s: dict[str, float] = {}
        self._begin()

    def keep(self, folder: Path, ours: bool) -> None:
        """Take up what an earlier agent learned."""
        self._memory.keep(folder, ours)
        self._begin()

    def _begin(self) -> None:
        learned, boot_id, now_s = self._memory.value, this_boot_id(), self._since_boot_s()
        if learned.boot_id != boot_id or not boot_id:
            learned.boot_id, learned.refused = boot_id, []
            for port in learned.ports.values():
                port.looked_s = port.counted_s = None
                port.flaps_s = []
        for port in learned.ports.values():
            if not self._is_near(port.looked_s, now_s):
                port.was_active, port.not_active_since_unix_ns = False, None
            if not self._is_near(port.counted_s, now_s):
                port.link_downed, port.ahead = None, 0

    def _is_near(self, at_s: float | None, now_s: float) -> bool:
        return at_s is not None and 0 <= now_s - at_s <= self._flap_window_s

    @property
    def refused(self) -> list[str]:
        """Files never to be read again in this boot."""
        return self._memory.value.refused

    def refuse(self, paths: list[str]) -> None:
        """These too."""
        self._memory.value.refused += [path for path in paths if path not in self.refused]

    def key(self, pci: str | None, device: str, port: int) -> str:
        """What this port is remembered under: where it sits, which outlives a new name. A device that just comes or
        goes may not say where: it is the one of its name, not another one beside it that would be missed for weeks."""
        ports, bare = self._memory.value.ports, f"{device}/{port}"
        if pci is None:
            same = (key for key, before in ports.items() if (before.device, before.port) == (device, port))
            return next(same, bare)
        seated = f"{pci}/{port}"
        if bare in ports:
            before = ports.pop(bare)
            ports.setdefault(seated, before)
        return seated

    def see(self, key: str, device: str, port: int, says: PortSays, now_unix_ns: int) -> PortBefore:
        """Add what a port says now."""
        ports = self._memory.value.ports
        if key not in ports and len(ports) >= MOST_PORTS:
            return PortBefore(device=device, port=port)
        before = ports.setdefault(key, PortBefore())
        before.device, before.port = device, port
        before.layer = says.link_layer or before.layer
        if says.state is None:
            return before
        lost = self._count_flaps(key, before, says)
        if lost and key not in self._looked_s:
            before.not_active_since_unix_ns = None  # it was active while nobody looked
        self._looks(key, before)
        active = says.state == "active"
        before.was_active = active
        if active:
            before.active_day = max(before.active_day, now_unix_ns // NS // DAY_S)
            before.not_active_since_unix_ns = None
            if says.rate_gbps is not None:
                before.best_rate_gbps = max(before.best_rate_gbps or 0.0, says.rate_gbps)
        elif before.not_active_since_unix_ns is None:
            before.not_active_since_unix_ns = now_unix_ns
        return before

    def miss(self, key: str, now_unix_ns: int) -> None:
        """It is not in sysfs."""
        before = self._memory.value.ports[key]
        self._looks(key, before)
        before.was_active = False
        if before.not_active_since_unix_ns is None:
            before.not_active_since_unix_ns = now_unix_ns

    def _looks(self, key: str, before: PortBefore) -> None:
        now_s = self._looked_s[key] = self._since_boot_s()
        before.looked_s = floored(now_s, self._flap_window_s)

    def _count_flaps(self, key: str, before: PortBefore, says: PortSays) -> int:
        """Adds what was lost since the last look, and tells how much the card's own counter says."""
        now_s = self._since_boot_s()
        counted, lost, since_s = says.counters.get("link_downed"), 0, self._counted_s.get(key, before.counted_s)
        if counted is not None:
            if before.link_downed is not None and counted >= before.link_downed:
                lost = counted - before.link_downed
                before.ahead, lost = max(0, before.ahead - lost), max(0, lost - before.ahead)
            before.link_downed = counted  # fewer than before: the driver was loaded anew
            self._counted_s[key], before.counted_s = now_s, floored(now_s, self._flap_window_s)
        told = lost
        if lost == 0 and before.was_active and says.state not in ("active", "active_defer"):
            lost, since_s = 1, self._looked_s.get(key, before.looked_s)
            before.ahead += counted is not None
        if since_s is not None and since_s >= self._boot_grace_s:
            before.flaps_s += [since_s] * min(lost, MOST_FLAPS)
        before.flaps_s = [at_s for at_s in before.flaps_s if self._is_near(at_s, now_s)][-MOST_FLAPS:]
        return told

    def rises(self, key: str, counters: dict[str, int]) -> dict[str, int]:
        """By how much each error counter rose within the window. One that fell was set back and begins anew."""
        now_s = self._since_boot_s()
        seen = self._errors.setdefault(key, [])
        now = {name: counters[name] for name in ERRORS if name in counters}
        if not now:
            return {}
        if seen and any(value < seen[-1][1].get(name, 0) for name, value in now.items()):
            seen.clear()
        seen.append((now_s, now))
        while len(seen) > 2 and now_s - seen[1][0] >= self._rise_window_s:
            seen.pop(0)
        first = seen[0][1]
        return {name: value - first[name] for name, value in now.items() if name in first and value > first[name]}

    def absent(self, here: set[str], now_unix_ns: int) -> list[tuple[str, PortBefore]]:
        """Ports that were active once and are not here now; those that nobody has seen for long are forgotten."""
        ports = self._memory.value.ports
        today = now_unix_ns // NS // DAY_S
        for key in [key for key, port in ports.items() if key not in here]:
            if ports[key].active_day < today - FORGOTTEN_AFTER_DAYS:
                del ports[key]
                self._errors.pop(key, None)
        return [(key, port) for key, port in ports.items() if key not in here]

    def save(self) -> None:
        """Keep it over restarts."""
        self._memory.save()
