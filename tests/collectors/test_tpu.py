"""The TPU source against a real gRPC server that speaks the runtime's metrics service. Nothing here has met a TPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.collectors import Unsupported
from gpuwatch.collectors.tpu import COLLECTOR, DUTY, METHOD, TOTAL, USED, Settings, metrics
from gpuwatch.model.facts.tpu import TpuDevice
from gpuwatch.sdk.protobuf import NotProtobuf, as_double, fields, inner, last, text_field

GIB = 1 << 30


def varint(value: int) -> bytes:
    raw = b""
    while value > 0x7F:
        raw += bytes([value & 0x7F | 0x80])
        value >>= 7
    return raw + bytes([value])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def response(name: str, values: dict[int, int | float]) -> bytes:
    """As the public definition has it: MetricResponse{1: TPUMetric{1: name, 3: Metric{1: attribute, 3: gauge}}}."""
    points = b""
    for index, value in values.items():
        number = varint(3 << 3) + varint(index) if index else b""  # proto3 does not write a zero
        attribute = part(1, b"device-id") + part(2, number)
        gauge = varint(1 << 3 | 1) + struct.pack("<d", value) if isinstance(value, float) else b""
        gauge = varint(2 << 3) + varint(value) if isinstance(value, int) else gauge
        points += part(3, part(1, attribute) + part(2, varint(1 << 3) + varint(1_790_000_000)) + part(3, gauge))
    return part(1, part(1, name.encode()) + points)


class Runtime:
    """libtpu's metrics service."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.server = grpc.server(ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details: Any) -> Any:
        assert details.method == METHOD
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: Any) -> bytes:
        name = last(request, 1)
        assert isinstance(name, bytes)
        found = self.answers.get(name.decode())
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such metric")
        assert isinstance(found, bytes)
        return found


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime()
    yield made
    made.server.stop(None)


def chips(folder: Path, count: int, device: str, subsystem: str = "0x0000") -> str:
    for number in range(count):
        function = folder / f"0000:{number:02x}:00.0"
        function.mkdir(parents=True)
        for name, word in (("vendor", "0x1ae0"), ("device", device), ("subsystem_device", subsystem)):
            (function / name).write_text(f"{word}\n")
    other = folder / "0000:ff:00.0"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x8086\n")
    return str(folder)


def reader(pci: str, port: int) -> Any:
    return COLLECTOR.open(Settings(pci_devices=pci, address=f"127.0.0.1:{port}", deadline_s=2.0))


def test_memory_by_device_and_duty_cycle_by_chip(tmp_path: Path, runtime: Runtime) -> None:
    runtime.answers = {
        TOTAL: response(TOTAL, dict.fromkeys(range(4), 96 * GIB)),
        USED: response(USED, {0: 10 * GIB, 1: 0, 2: 20 * GIB, 3: 5}),
        DUTY: response(DUTY, {0: 97.5, 1: 0.0}),
    }
    reading = reader(chips(tmp_path, 2, "0x0076"), runtime.port).read()
    assert (reading.facts.kind, reading.facts.chip_count, reading.gaps) == ("7x", 2, {})
    assert reading.facts.devices == (
        TpuDevice(0, 10 * GIB, 96 * GIB, 0.975),
        TpuDevice(1, 0, 96 * GIB, 0.975),
        TpuDevice(2, 20 * GIB, 96 * GIB, 0.0),
        TpuDevice(3, 5, 96 * GIB, 0.0),
    )
    names = [sample.name for sample in metrics(reading.facts)]
    assert names.count("gpuwatch_tpu_duty_cycle_ratio") == 4


def test_no_program_has_the_chips(tmp_path: Path) -> None:
    reading = reader(chips(tmp_path, 4, "0x0063"), 1).read()
    assert (reading.facts.kind, reading.facts.chip_count, reading.facts.devices) == ("v5e", 4, None)
    assert "no program has the chips" in reading.gaps["devices"]


def test_a_metric_that_is_not_there_and_one_that_is_garbage_are_gaps(tmp_path: Path, runtime: Runtime) -> None:
    runtime.answers = {TOTAL: response(TOTAL, {0: 5}), USED: b"\xff\xff\xff"}
    reading = reader(chips(tmp_path, 1, "0x0027", "0x004f"), runtime.port).read()
    assert reading.facts.kind == "v3"
    assert reading.facts.devices == (TpuDevice(0, None, 5, None),)
    assert reading.gaps[DUTY] == "the runtime answers NOT_FOUND"
    assert "cannot be read" in reading.gaps[USED]


def test_a_node_without_a_tpu(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        reader(str(tmp_path), 1).read()
    with pytest.raises(Unsupported):
        reader(str(tmp_path / "absent"), 1).read()


@given(st.binary(max_size=60))
def test_no_bytes_are_too_strange(message: bytes) -> None:
    try:
        found = list(fields(message))
    except NotProtobuf:
        return
    assert all(number >= 0 for number, _ in found)


@given(st.text(max_size=300), st.floats(allow_nan=False))
def test_what_is_written_is_read(text: str, number: float) -> None:
    assert list(inner(text_field(1, text), 1)) == [text.encode()]
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    assert as_double(bits) == number


def test_whoever_listens_there_names_no_more_devices_than_a_machine_has(runtime: Runtime, tmp_path: Path) -> None:
    indices = [*range(5_000), (1 << 64) - 1]
    runtime.answers = {name: response(name, dict.fromkeys(indices, 5)) for name in (TOTAL, USED)}
    folder = chips(tmp_path, 4, "0x0062")
    reader: Any = COLLECTOR.open(Settings(address=f"127.0.0.1:{runtime.port}", pci_devices=folder))
    facts = reader.read().facts
    reader.close()
    assert len(facts.devices) == 64
    msgspec.msgpack.encode(facts)
