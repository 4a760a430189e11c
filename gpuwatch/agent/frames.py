"""What a probe child says to the agent: msgpack frames with a length before each, over a pipe."""

from __future__ import annotations

import msgspec

from gpuwatch.errors import ProbeError
from gpuwatch.model.wire import NO_FACTS, Status

MAX_FRAME_BYTES = 4 << 20
_LENGTH_BYTES = 4


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One reading. Facts are encoded once, in the child, and travel as they are to the aggregator."""

    at_unix_ns: int
    took_s: float
    status: Status
    next_in_s: float  # when the next reading begins; silence is measured from then
    reason: str | None = None
    facts: msgspec.Raw = NO_FACTS
    gaps: dict[str, str] = {}
    urgent: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def packed(frame: Frame) -> bytes:
    """The bytes of one frame."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Unpacker:
    """Takes pieces as the pipe gives them, and gives whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """Every frame that is complete now. Raises `ProbeError` for what is no frame."""
        self._held += piece
        frames: list[Frame] = []
        while len(self._held) >= _LENGTH_BYTES:
            size = int.from_bytes(self._held[:_LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise ProbeError("the probe wrote something that is no frame", why=f"a length of {size} bytes")
            if len(self._held) < _LENGTH_BYTES + size:
                break
            body = bytes(self._held[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self._held[: _LENGTH_BYTES + size]
            try:
                frames.append(_decoder.decode(body))
            except msgspec.DecodeError as error:
                raise ProbeError("the probe wrote something that is no frame", why=str(error)) from error
        return frames
