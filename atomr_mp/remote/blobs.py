"""Calls and answers too large for a message: each is one blob, which travels in chunks. Without sockets.

A blob is a header (how many payload frames are its body's, and the body) and frames (`framing.pack`). The receiver
pulls it: it asks for no more than it has room for, and after a cut it asks for the rest.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.flow.limits import MAX_BODY_BYTES, MAX_FRAMES
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.values import ARRAY, Buffer
from atomr_mp.protocol.zmtp.framing import ALIGNMENT, PACKED, pack, unpack

if TYPE_CHECKING:
    import numpy as np

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of a chunk; one message carries one chunk."""

CREDIT: Final = 16
"""Most chunks of a blob that were asked for and have not come."""

LARGE: Final = 256
"""Index of the first large array among a body's frames; ordinary frames have lower indices."""


class LargeArray:
    """An array that travels in a blob, whatever its size.

    Args:
        index: Its number among the blob's large arrays.
        array: The array.
        copied: Whether to copy it now; else do not write it as long as the blob is needed.
    """

    def __init__(self, index: int, array: np.ndarray[Any, Any], *, copied: bool) -> None:
        import numpy as np

        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        content = (dtypes.name_of(array.dtype), array.shape, LARGE + index)
        self.extension: Final = msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(content))
        as_sent = np.array(array, order="C", copy=True if copied else None)
        self.frame: Final = as_sent.reshape(-1).view(np.uint8).data

    def to_wire(self) -> Any:
        """Return the object that has its `extension`."""
        return self


class Encoded(msgspec.Struct, eq=False):
    """A value, ready to travel in a message or in a blob."""

    body: bytes
    frames: Sequence[Buffer]
    large: list[LargeArray]
    refs: list[Operand]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole value."""
        nbytes = len(self.body)
        if self.frames or self.large:
            nbytes += sum(map(len, self.frames)) + sum(len(each.frame) for each in self.large)
        return nbytes

    def blob(self) -> EncodedBlob:
        """Return the value as a blob."""
        header = msgspec.msgpack.encode((len(self.frames), self.body))
        return EncodedBlob(pack(header, [*self.frames, *(each.frame for each in self.large)]))


def encode(value: object, *, copied: bool = True) -> Encoded:
    """Return a value's wire form, with large arrays apart.

    Args:
        value: What to send.
        copied: Whether to copy large arrays: whoever made the value may then write to them at once.

    Raises:
        InvalidRequest: It holds an object that cannot cross the wire.
    """
    large: list[LargeArray] = []
    body, frames, placed = values.encode(value, functools.partial(_place, large, copied=copied))
    refs = [each for each in placed if isinstance(each, Operand)] if placed else []
    return Encoded(body, frames, large, refs)


def _place(large: list[LargeArray], array: Any, *, copied: bool) -> LargeArray | None:
    if not hasattr(array, "__array_interface__"):
        return None
    if len(large) == MAX_FRAMES:
        raise errors.InvalidRequest(f"more than {MAX_FRAMES} large arrays in one call")
    large.append(LargeArray(len(large), array, copied=copied))
    return large[-1]


class EncodedBlob:
    """A blob to be read in chunks.

    Args:
        parts: Its bytes, in pieces.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts]
        self._ends = list(itertools.accumulate(map(len, self._parts)))
        self.nbytes: Final = self._ends[-1]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a range of its bytes; see `pieces`."""
        return b"".join(self.pieces(offset, nbytes))

    def pieces(self, offset: int, nbytes: int) -> list[memoryview]:
        """Return a range of its bytes as pieces, which lie in the blob's own memory.

        Raises:
            ValueError: The blob has no such range.
        """
        if not (0 < nbytes <= CHUNK_BYTES and 0 <= offset <= self.nbytes - nbytes):
            raise ValueError(f"bytes {offset} to {offset + nbytes} of {self.nbytes}")
        pieces = []
        at = bisect.bisect_right(self._ends, offset)
        while nbytes:
            begin = offset - (self._ends[at] - len(self._parts[at]))
            piece = self._parts[at][begin : begin + nbytes]
            pieces.append(piece)
            offset, nbytes, at = offset + len(piece), nbytes - len(piece), at + 1
        return pieces


def chunk_message(header: bytes, pieces: Sequence[Buffer]) -> list[Buffer]:
    """Return a message with one payload frame, given in pieces, which are copied once."""
    table = struct.pack("<BxHII", PACKED, 1, len(header), sum(map(len, pieces)))
    return [table, header, bytes(-(len(table) + len(header)) % ALIGNMENT), *pieces]


class Frames(Sequence[Buffer]):
    """The frames of a blob's body: ordinary ones from 0, large ones from `LARGE` on.

    Args:
        ordinary: How many are ordinary.
        frames: All of them.
    """

    def __init__(self, ordinary: int, frames: Sequence[memoryview]) -> None:
        self._ordinary = frames[:ordinary]
        self._large = frames[ordinary:]

    @property
    def last_ordinary(self) -> memoryview | None:
        """The last ordinary frame, None if there is none."""
        return self._ordinary[-1] if self._ordinary else None

    def __len__(self) -> int:
        return LARGE + len(self._large) if self._large else len(self._ordinary)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            raise TypeError("frames are taken one by one")
        if index >= LARGE:
            return self._large[index - LARGE]
        if index >= len(self._ordinary):
            raise ValueError(f"payload frame {index} of {len(self._ordinary)}")
        return self._ordinary[index]


def opened(blob: memoryview) -> tuple[bytes, Frames]:
    """Return a blob's body and frames, which lie in the blob's memory.

    Raises:
        InvalidRequest: It is not a call or an answer.
    """
    try:
        header, frames = unpack(blob)
        ordinary, body = _HEADER.decode(header)
        if not 0 <= ordinary <= len(frames) or len(body) > MAX_BODY_BYTES:
            raise errors.ProtocolError(f"{ordinary} of {len(frames)} frames, and a body of {len(body)} bytes")
    except (errors.ProtocolError, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise errors.InvalidRequest(f"not a large call or answer: {error}") from error
    return body, Frames(ordinary, frames)


class Pull:
    """A blob that comes in chunks.

    Args:
        buffer: Memory for the blob, exactly of its size.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.buffer: Final = buffer
        self._next = 0
        """Every byte before this offset was asked for at least once."""
        self._missing: dict[int, int] = {}
        """Chunks that were asked for and have not come: sizes by offset."""
        self._again: list[int] = []
        """Offsets of chunks to ask for again, after a cut."""
        self._left = len(buffer)

    @property
    def whole(self) -> bool:
        """Whether all bytes have come."""
        return not self._left

    def wants(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of each chunk to ask for now."""
        while self._again:
            offset = self._again.pop()
            yield offset, self._missing[offset]
        while self._next < len(self.buffer) and len(self._missing) < CREDIT:
            offset, size = self._next, min(CHUNK_BYTES, len(self.buffer) - self._next)
            self._next += size
            self._missing[offset] = size
            yield offset, size

    def take(self, offset: int, data: memoryview) -> None:
        """Take a chunk.

        Raises:
            ValueError: It was not asked for, or came before, or has another size.
        """
        size = self._missing.get(offset)
        if size is None or size != len(data):
            raise ValueError(f"a chunk of {len(data)} bytes at {offset} that was not asked for")
        del self._missing[offset]
        self.buffer[offset : offset + size] = data
        self._left -= size

    def restart(self) -> None:
        """Ask again for the chunks that have not come."""
        self._again = sorted(self._missing, reverse=True)


_HEADER: Final = msgspec.msgpack.Decoder(tuple[int, bytes])
