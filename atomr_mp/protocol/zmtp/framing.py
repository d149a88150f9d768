"""A message's header and payload frames as one ZeroMQ frame, and back. Pure.

Messages of several ZeroMQ frames are not used: where a connection breaks while its socket is being closed, and libzmq
has handed on some frames of a message and not the others, it ends the whole process (an assertion of
`session_base_t::clean_pipes`, libzmq 4.3.5).

A header alone is sent as it is. Before payload frames it is in a table: `PACKED`, a byte of zero, the number of payload
frames (2 bytes), the length of the header and of each of them (4 bytes each), all little-endian; then the header; then
the frames, each from the next multiple of `ALIGNMENT` bytes, counted from the message's beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream

PACKED: Final = 0xC1
"""The one byte with which nothing in msgpack begins."""

ALIGNMENT: Final = 8
"""Of payload frames: that of the largest element's parts, and of what messages are received into."""

MAX_MESSAGE_FRAMES: Final = 2**16 - 1
"""Most payload frames of one message. More than fit: a frame of this package is larger than `values.INLINE_BYTES`, and
messages are sent before that."""

JOIN_BELOW_BYTES: Final = 16384
"""Below this, a header is copied behind its frame's head: that is faster than to send two pieces."""


def pieces(header: bytes, frames: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the pieces of a message to send in order, if it is more than a small header."""
    if frames:
        return (stream.frame_of(pack(header, frames)),)
    return stream.frame_head(len(header)), header


def pack(header: bytes, frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the message, in parts."""
    table = struct.pack(f"<BxH{1 + len(frames)}I", PACKED, len(frames), len(header), *map(len, frames))
    parts: list[Buffer] = [table, header]
    at = len(table) + len(header)
    for frame in frames:
        gap = -at % ALIGNMENT
        parts += (_GAPS[gap], frame)
        at += gap + len(frame)
    return parts


def unpack(message: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the header and the payload frames, which lie in the message's own memory.

    Raises:
        ProtocolError: The table and the message do not fit each other.
    """
    size = len(message)
    if not size or message[0] != PACKED:
        return message, []
    try:
        (count,) = _COUNT.unpack_from(message)
        lengths = struct.unpack_from(f"<{1 + count}I", message, _COUNT.size)
    except struct.error as error:
        raise errors.ProtocolError(f"a message of {size} bytes, shorter than its table") from error
    at = _COUNT.size + 4 * len(lengths)
    end = at + lengths[0]
    header = message[at:end]
    frames = []
    for length in lengths[1:]:
        at = end + -end % ALIGNMENT
        end = at + length
        frames.append(message[at:end])
    if end != size:
        raise errors.ProtocolError(f"a message of {size} bytes, and a table of {end}")
    return header, frames


_COUNT: Final = struct.Struct("<xxH")
_GAPS: Final = tuple(bytes(gap) for gap in range(ALIGNMENT))
