"""Reads the few protobuf messages we need without generated code: fields by number, as they lie on the wire."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | bytes


class NotProtobuf(ValueError):
    """These bytes are no message."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field, in order. Integers and fixed-width values as unsigned numbers."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            raw = message[at : at + width]
            if len(raw) < width:
                raise NotProtobuf("it ends within a number")
            at += width
            yield number, int.from_bytes(raw, "little")
        elif kind == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise NotProtobuf("it ends within a field")
            yield number, message[at : at + length]
            at += length
        else:
            raise NotProtobuf(f"field {number} is of kind {kind}")


def inner(message: bytes, number: int) -> Iterator[bytes]:
    """The messages (or texts) in every field of this number."""
    return (value for found, value in fields(message) if found == number and isinstance(value, bytes))


def last(message: bytes, number: int) -> Value | None:
    """The field of this number, of several the last one, as protobuf wants it; None where there is none."""
    found: Value | None = None
    for at, value in fields(message):
        if at == number:
            found = value
    return found


def as_double(bits: int) -> float:
    """A 64-bit field that is a floating-point number."""
    (value,) = struct.unpack("<d", bits.to_bytes(8, "little"))
    return float(value)


def text_field(number: int, text: str) -> bytes:
    """One field with a text, to be sent."""
    raw = text.encode()
    return bytes([number << 3 | 2]) + _as_varint(len(raw)) + raw


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if at >= len(message):
            raise NotProtobuf("it ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise NotProtobuf("a number is longer than 64 bits")


def _as_varint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)
    return bytes(raw)
