"""Header and payload frames as one message."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.zmtp.framing import ALIGNMENT, MAX_MESSAGE_FRAMES, PACKED, pack, unpack

HEADERS = st.binary(max_size=100)
FRAMES = st.lists(st.binary(max_size=40), max_size=20)


@given(header=HEADERS, frames=FRAMES)
def test_what_was_packed_is_found_again_and_where_it_can_be_used(header: bytes, frames: list[bytes]) -> None:
    """Every frame begins at a multiple of the alignment, in the message's own memory, which can be written."""
    message = bytearray(b"".join(pack(header, [memoryview(frame) for frame in frames])))
    found, parts = unpack(memoryview(message))
    assert bytes(found) == header
    assert [bytes(part) for part in parts] == frames
    table_bytes = 4 + 4 * (1 + len(frames))
    at = table_bytes + len(header)
    for frame, part in zip(frames, parts, strict=True):
        at += -at % ALIGNMENT
        if frame:
            message[at] ^= 0xFF
            assert part[0] == frame[0] ^ 0xFF
        at += len(frame)
    assert at == len(message)


@given(header=HEADERS)
def test_a_header_alone_is_the_message(header: bytes) -> None:
    """Unless it begins as no msgpack does."""
    if header[:1] == bytes([PACKED]):
        header = b"\x93" + header
    found, frames = unpack(memoryview(header))
    assert bytes(found) == header
    assert not frames


@given(header=HEADERS, frames=FRAMES, data=st.data())
def test_a_message_cut_short_or_with_more_behind_it_is_refused(
    header: bytes, frames: list[bytes], data: st.DataObject
) -> None:
    """Wherever it was cut; an empty one is no header either, which whoever decodes that finds."""
    message = b"".join(pack(header, frames))
    cut = data.draw(st.integers(1, len(message) - 1))
    for wrong in (message[:cut], message + b"\x00"):
        with pytest.raises(errors.ProtocolError):
            unpack(memoryview(wrong))


@given(message=st.binary(max_size=200) | st.binary(max_size=200).map(bytes([PACKED, 0]).__add__))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    """The reader never finds more than there was."""
    try:
        header, frames = unpack(memoryview(message))
    except errors.ProtocolError:
        return
    assert len(header) + sum(map(len, frames)) <= len(message)


def test_as_many_frames_as_there_can_be() -> None:
    """One more is not packed wrongly, but not at all."""
    message = b"".join(pack(b"header", [b"x"] * MAX_MESSAGE_FRAMES))
    assert len(unpack(memoryview(message))[1]) == MAX_MESSAGE_FRAMES
    with pytest.raises(struct.error):
        pack(b"header", [b""] * (MAX_MESSAGE_FRAMES + 1))
