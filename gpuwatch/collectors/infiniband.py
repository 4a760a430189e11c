"""The RDMA network as sysfs shows it: InfiniBand, RoCE and EFA ports, their links, losses and errors.

Every file is read by a small program with a deadline: a card whose firmware stopped answers nobody. One program for all
cards; where that does not come back, one for each.
Few counters are read, see `sdk/rdma_files.py`. Which ports the node must have is what `expected` says, else what it
learns: a port that was active once. Virtual functions are shown and not expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Hung, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.file_look import Look, look_together
from gpuwatch.sdk.rdma_files import Complaints, Device, devices, port_says, refused
from gpuwatch.sdk.rdma_history import History

LISTENS_EVERY = 60  # looks; at the first three too, the kernel log is watched for complaints about our reading


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and which ports the node must have."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=4)] = 4.0  # of one look
    expected: tuple[str, ...] = ()  # `mlx5_0`, `mlx5_0/1`; empty: learned. If given, no other port is expected
    ignored: tuple[str, ...] = ()  # never expected
    flap_window_s: Annotated[float, msgspec.Meta(gt=0)] = 3_600.0
    rise_window_s: Annotated[float, msgspec.Meta(gt=0)] = 3_600.0
    boot_grace_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # a link that comes up in that time has not flapped
    sys_root: str = "/sys"
    kernel_log: str = "/dev/kmsg"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._errands = Errands("infiniband")
        self._clock = SystemClock()
        self._history = History(
            flap_window_s=settings.flap_window_s,
            rise_window_s=settings.rise_window_s,
            boot_grace_s=settings.boot_grace_s,
        )
        self._round = -1
        self._hung_since: dict[str, int] = {}

    def keep(self, folder: Path, ours: bool) -> None:
        self._errands.keep(folder, ours=ours)
        self._history.keep(folder, ours)

    def read(self) -> Reading:
        """One look at every port."""
        self._round += 1
        found = devices(self._settings.sys_root)
        if not found and not self._settings.expected and not self._history.absent(set(), self._clock.unix_ns()):
            raise Unsupported("no RDMA device on this node")
        looks = self._look(found or [])
        if found and (why := next(iter(looks.values())).unasked) and all(seen.unasked for seen in looks.values()):
            raise ProbeError("no RDMA device could be looked at", why=why)
        gaps: dict[str, str] = {}
        ports: list[RdmaPort] = []
        keys: set[str] = set()
        for device in found or []:
            seen = looks[device.name]
            if seen.hung:
                gaps[f"ports.{device.name}"] = seen.hung
            elif seen.errors:
                gaps |= _why(device, seen)
            for port in device.ports:
                key = self._history.key(device.pci, device.name, port)
                keys.add(key)
                ports.append(self._port(key, device, port, seen))
        ports += self._gone(keys)
        self._history.save()
        abandoned_count = self._errands.abandoned_count
        if found and all(looks[device.name].hung for device in found):
            reason = f"no RDMA device answers: {next(iter(looks.values())).hung}"
            since_unix_ns = min(self._hung_since.values())
            raise Hung(reason, since_unix_ns=since_unix_ns, abandoned_count=abandoned_count)
        settings = self._settings
        facts = InfinibandFacts(tuple(ports), settings.flap_window_s, settings.rise_window_s)
        return Reading(facts, gaps, abandoned_count=abandoned_count)

    def close(self) -> None:
        pass

    def _look(self, found: list[Device]) -> dict[str, Look]:
        listens = self._round < 3 or self._round % LISTENS_EVERY == 0
        complaints = Complaints(self._settings.kernel_log) if listens and found else None
        refused_before = self._history.refused
        wanted = {device.name: device.paths(refused_before) for device in found}
        looks = look_together(self._errands, wanted, deadline_s=self._settings.deadline_s)
        for device in found:
            seen = looks[device.name]
            self._history.refuse(refused(seen))
            if seen.hung:
                self._hung_since.setdefault(device.name, seen.since_unix_ns or self._clock.unix_ns())
            else:
                self._hung_since.pop(device.name, None)
        for pci in complaints.heard() if complaints is not None else ():
            for device in found:
                if device.pci is not None and device.pci.lower() == pci:
                    self._history.refuse([path for path in wanted[device.name] if "counters/" in path])
        return looks

    def _port(self, key: str, device: Device, port: int, seen: Look) -> RdmaPort:
        says = port_says(device, port, seen)
        before = self._history.see(key, device.name, port, says, self._clock.unix_ns())
        virtual = device.function_of or says.without_guid
        configured = self._configured(device.name, port)
        learned = before.active_day > 0 and not virtual and not self._settings.expected
        return RdmaPort(
            device=device.name,
            port=port,
            pci=device.pci,
            link_layer=says.link_layer or (before.layer if seen.hung else None),
            state=says.state,
            phys_state=says.phys_state,
            rate_gbps=says.rate_gbps,
            best_rate_gbps=before.best_rate_gbps,
            lid=says.lid,
            netdev=device.netdev,
            board=says.board,
            virtual=virtual,
            expected=(configured or learned) and not self._listed(self._settings.ignored, device.name, port),
            configured=configured,
            not_active_since_unix_ns=before.not_active_since_unix_ns,
            flap_count=len(before.flaps_s),
            counters=says.counters,
            rises=self._history.rises(key, says.counters),
            hung=seen.hung[:300],
        )

    def _gone(self, here: set[str]) -> Iterable[RdmaPort]:
        """Ports that must be there and are not: learned ones, and those that the settings name."""
        now_unix_ns = self._clock.unix_ns()
        named = set(self._settings.expected)
        for key, before in self._history.absent(here, now_unix_ns):
            if self._listed(self._settings.ignored, before.device, before.port):
                continue
            configured = self._configured(before.device, before.port)
            if named and not configured:
                continue
            self._history.miss(key, now_unix_ns)
            named -= {before.device, f"{before.device}/{before.port}"}
            yield RdmaPort(
                device=before.device,
                port=before.port,
                pci=key.partition("/")[0] if ":" in key else None,
                link_layer=before.layer,
                best_rate_gbps=before.best_rate_gbps,
                expected=True,
                configured=configured,
                gone=True,
                not_active_since_unix_ns=before.not_active_since_unix_ns,
            )
        known = {device.name: device.ports for device in devices(self._settings.sys_root) or []}
        for name in sorted(named):
            device, _, port = name.partition("/")
            number = int(port) if port.isdecimal() else 1
            if number not in known.get(device, ()):
                yield RdmaPort(device=device, port=number, expected=True, configured=True, gone=True)

    def _configured(self, device: str, port: int) -> bool:
        return self._listed(self._settings.expected, device, port)

    @staticmethod
    def _listed(names: tuple[str, ...], device: str, port: int) -> bool:
        return device in names or f"{device}/{port}" in names


def _why(device: Device, seen: Look) -> dict[str, str]:
    """State files that could not be read, and how many counters; those that just vanished are the device's leaving."""
    gaps: dict[str, str] = {}
    lost = [path for path in seen.errors if "counters/" in path]
    for path, why in seen.errors.items():
        name = path.rpartition("/")[2]
        if path not in lost and name not in ("board_id", "node_guid", "lid"):
            gaps[f"ports.{device.name}.{name}"] = why
    if lost:
        why = seen.errors[lost[0]]
        gaps[f"ports.{device.name}.counters"] = f"{len(lost)} not readable, {lost[0].rpartition('/')[2]}: {why}"
    return gaps


def metrics(facts: InfinibandFacts) -> Iterable[Sample]:
    """One series a number of a port that is known. Bytes and errors count since the driver was loaded."""
    for port in facts.ports:
        labels = {"device": port.device, "port": str(port.port)}

        def sample(
            name: str, text: str, value: float, *, counter: bool = False, labels: dict[str, str] = labels
        ) -> Sample:
            return Sample(name=f"gpuwatch_rdma_{name}", help=text, value=value, labels=labels, counter=counter)

        if port.state is not None or port.gone:
            yield sample("port_active", "Whether the port is active.", float(port.state == "active"))
        yield sample("port_expected", "Whether the node must have this port active.", float(port.expected))
        if port.rate_gbps is not None:
            yield sample("port_rate_bytes_per_second", "Rate of the link.", port.rate_gbps * 1e9 / 8)
        yield sample("port_recent_flaps", "Losses of the link within the window of the settings.", port.flap_count)
        for name, (series, text) in _BYTES.items():
            if name in port.counters:
                yield sample(series, text, port.counters[name], counter=True)
        for name, value in port.counters.items():
            if name not in _BYTES:
                kind = labels | {"kind": name}
                yield sample("port_errors_total", "Errors and losses by kind.", value, counter=True, labels=kind)


_BYTES = {
    "port_xmit_data": ("port_sent_bytes_total", "Bytes sent."),
    "port_rcv_data": ("port_received_bytes_total", "Bytes received."),
    "tx_bytes": ("port_hw_sent_bytes_total", "Bytes sent, as the device counts them."),
    "rx_bytes": ("port_hw_received_bytes_total", "Bytes received, as the device counts them."),
}


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=InfinibandFacts, settings=Settings, open=open_reader, metrics=metrics)
