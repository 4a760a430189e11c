"""Chips of a GCP TPU VM: how many are on the bus, and what the runtime's own metrics service says of them.

Unproven: nothing of this has met a TPU. Chips are PCI functions of vendor 1ae0. While a program has them, its runtime
(libtpu) serves gRPC on localhost:8431, `tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric`, one metric a
call; the message numbers and metric names are those of the public definition in google/cloud-accelerator-diagnostics
(tpu_metric_service.proto). With no program there is no service: then devices are None, which is no fault. Memory is
told by device, duty cycle by chip, and a chip of v2, v3 and 7x has two devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.errors import install_extra
from gpuwatch.model.facts.tpu import TpuDevice, TpuFacts
from gpuwatch.sdk.protobuf import NotProtobuf, as_double, inner, last, text_field

GOOGLE = "0x1ae0"
KINDS = {"0x005e": ("v4", 1), "0x0063": ("v5e", 1), "0x0062": ("v5p", 1), "0x006f": ("v6e", 1), "0x0076": ("7x", 2)}
V2_OR_V3 = "0x0027"
"""PCI device -> its name, and devices a chip."""
METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
MOST_DEVICES = 64  # of one machine; whoever listens on that port may name as many as it likes
USED, TOTAL, DUTY = (
    "tpu.runtime.hbm.memory.usage.bytes",
    "tpu.runtime.hbm.memory.total.bytes",
    "tpu.runtime.tensorcore.dutycycle.percent",
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and where the node's own view is."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # of one call
    address: str = "localhost:8431"
    pci_devices: str = "/sys/bus/pci/devices"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channel: Any = None

    def read(self) -> Reading:
        """One round."""
        kinds = _chips(self._settings.pci_devices)
        if not kinds:
            raise Unsupported("no TPU on this node")
        gaps: dict[str, str] = {}
        kind, devices_a_chip = kinds[0]
        return Reading(
            facts=TpuFacts(kind=kind, chip_count=len(kinds), devices=self._devices(devices_a_chip, gaps)), gaps=gaps
        )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _devices(self, devices_a_chip: int, gaps: dict[str, str]) -> tuple[TpuDevice, ...] | None:
        try:
            import grpc
        except ImportError:
            gaps["devices"] = f"grpcio is not installed: {install_extra('tpu')}"
            return None
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._settings.address)
        call = self._channel.unary_unary(METHOD)
        found: dict[str, dict[int, float]] = {}
        for name in (TOTAL, USED, DUTY):
            try:
                answer = call(text_field(1, name), timeout=self._settings.deadline_s)
                found[name] = _gauges(answer)
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code is grpc.StatusCode.UNAVAILABLE:
                    gaps["devices"] = "no runtime serves metrics: no program has the chips"
                    return None
                gaps[name] = f"the runtime answers {code.name if code is not None else error}"
            except NotProtobuf as error:
                gaps[name] = f"the runtime's answer cannot be read: {error}"
        indices = sorted({index for name in (TOTAL, USED) for index in found.get(name, {})})
        duty = found.get(DUTY, {})
        return tuple(
            TpuDevice(
                index=index,
                hbm_used_bytes=_whole(found.get(USED, {}).get(index)),
                hbm_total_bytes=_whole(found.get(TOTAL, {}).get(index)),
                duty_cycle_ratio=_ratio(duty.get(index // devices_a_chip if len(duty) < len(indices) else index)),
            )
            for index in indices
        )


def _chips(folder: str) -> list[tuple[str, int]]:
    """Name and devices of each chip on the bus."""
    found: list[tuple[str, int]] = []
    try:
        functions = sorted(Path(folder).iterdir())
    except OSError:
        return []
    for function in functions:
        if _word(function / "vendor") != GOOGLE:
            continue
        device = _word(function / "device")
        if device == V2_OR_V3:
            found.append(("v3" if _word(function / "subsystem_device") == "0x004f" else "v2", 2))
        elif device in KINDS:
            found.append(KINDS[device])
    return found


def _word(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(32).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _gauges(answer: bytes) -> dict[int, float]:
    """Device -> value, of a MetricResponse."""
    found: dict[int, float] = {}
    for metric in (metric for tpu_metric in inner(answer, 1) for metric in inner(tpu_metric, 3)):
        indices = [last(value, 3) for attribute in inner(metric, 1) for value in inner(attribute, 2)]
        index = indices[0] if indices and isinstance(indices[0], int) else 0  # a zero is not written
        for gauge in inner(metric, 3):
            double, whole = last(gauge, 1), last(gauge, 2)
            if not 0 <= index < MOST_DEVICES:
                continue
            if isinstance(double, int):
                found[index] = as_double(double)
            else:
                found[index] = float(whole) if isinstance(whole, int) else 0.0
    return found


def _whole(value: float | None) -> int | None:
    return None if value is None or not 0 <= value < 1 << 63 else int(value)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None or not 0 <= percent <= 100 else percent / 100


def metrics(facts: TpuFacts) -> Iterable[Sample]:
    """What is known, the device's index the only label."""
    if facts.chip_count is not None:
        labels = {"kind": facts.kind or ""}
        yield Sample(name="gpuwatch_tpu_chips", help="TPU chips on the PCI bus.", value=facts.chip_count, labels=labels)
    series = {
        "hbm_used_bytes": ("hbm_used_bytes", "High-bandwidth memory in use."),
        "hbm_total_bytes": ("hbm_total_bytes", "High-bandwidth memory."),
        "duty_cycle_ratio": ("duty_cycle_ratio", "Share of time in which the tensor core worked."),
    }
    for device in facts.devices or ():
        for field, (name, text) in series.items():
            value = getattr(device, field)
            if value is not None:
                labels = {"device": str(device.index)}
                yield Sample(name=f"gpuwatch_tpu_{name}", help=text, value=value, labels=labels)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=TpuFacts, settings=Settings, open=open_reader, metrics=metrics)
