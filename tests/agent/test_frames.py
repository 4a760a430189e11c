"""Frames survive a pipe that cuts them anywhere, and nonsense is told from a frame."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.agent.frames import MAX_FRAME_BYTES, Frame, Unpacker, packed
from gpuwatch.errors import ProbeError

FRAMES = st.builds(
    Frame,
    at_unix_ns=st.integers(0, 2**62),
    took_s=st.floats(0, 60),
    status=st.sampled_from(["ok", "failed", "hung", "unsupported"]),
    next_in_s=st.floats(0, 60),
    reason=st.none() | st.text(max_size=30),
    facts=st.binary(max_size=50).map(lambda data: msgspec.Raw(msgspec.msgpack.encode(data))),
    gaps=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    urgent=st.booleans(),
)


@given(frames=st.lists(FRAMES, max_size=4), size=st.integers(1, 40))
def test_any_cut_gives_the_same_frames(frames: list[Frame], size: int) -> None:
    whole = b"".join(map(packed, frames))
    unpacker = Unpacker()
    got = [frame for at in range(0, len(whole), size) for frame in unpacker.feed(whole[at : at + size])]
    assert got == frames


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), id="a-huge-length"),
        pytest.param(b"\0\0\0\x05hello", id="no-msgpack"),
        pytest.param(b"\0\0\0\x01\xc0", id="another-record"),
    ],
)
def test_what_is_no_frame_is_refused(noise: bytes) -> None:
    with pytest.raises(ProbeError, match="no frame"):
        Unpacker().feed(noise)
