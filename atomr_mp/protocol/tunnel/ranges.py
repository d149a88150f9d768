"""Requests to copy ranges of memory, and their answers, on a memory channel. Pure.

A request is a head, and what it writes. The answers come in the order of the requests: a head, and what was read, or
why nothing was. A range that was copied twice is as if copied once, so a request may simply be repeated.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64

MAX_RANGE: Final = 2**20
"""Most bytes of one request: more go in several, between which those of others have their turn."""

MAX_REFUSAL: Final = 65536
"""Most bytes of an error in an answer."""


class RangeOp(IntEnum):
    """What to do."""

    WRITE = 1
    READ = 2
    CLOSE = 3
    """Unmap the whole slab of a worker; offset and length say nothing."""


class SlabKey(NamedTuple):
    """The slab of a range."""

    slab: int
    device: int = 0
    generation: int = 0
    """The incarnation whose slab it is; generation 0: the client's own, which it has registered."""


class RangeRequest(NamedTuple):
    """A request."""

    op: RangeOp
    key: SlabKey
    offset: int
    nbytes: int

    def pack(self) -> bytes:
        """Return its head."""
        return REQUEST.pack(self.op, *self.key, self.offset, self.nbytes)

    @property
    def brings(self) -> int:
        """Bytes that follow its head."""
        return self.nbytes if self.op is RangeOp.WRITE else 0


class RangeAnswer(NamedTuple):
    """The head of an answer."""

    refused: bool
    nbytes: int
    """Bytes that follow: what was read, or the error (`ErrorInfo`, msgpack)."""

    def pack(self) -> bytes:
        """Return it as it travels."""
        return ANSWER.pack(self.refused, self.nbytes)


def unpack_request(head: bytes | memoryview) -> RangeRequest:
    """Return the request of a head.

    Raises:
        ProtocolError: The bytes are not a request.
    """
    op, slab, device, generation, offset, nbytes = REQUEST.unpack(head)
    if op not in _OPS or max(offset, nbytes) > MAX_U64 or nbytes > MAX_RANGE:
        raise errors.ProtocolError(f"a request for memory with operation {op} and {nbytes} bytes at {offset}")
    return RangeRequest(_OPS[op], SlabKey(slab, device, generation), offset, nbytes)


def unpack_answer(head: bytes | memoryview, wanted: int) -> RangeAnswer:
    """Return the head of the answer to a request that reads so many bytes.

    Raises:
        ProtocolError: The bytes are not such an answer.
    """
    refused, nbytes = ANSWER.unpack(head)
    if refused not in {0, 1} or nbytes > (MAX_REFUSAL if refused else wanted) or (not refused and nbytes != wanted):
        raise errors.ProtocolError(f"an answer of {nbytes} bytes to a request for {wanted}")
    return RangeAnswer(bool(refused), nbytes)


REQUEST: Final = struct.Struct(">BIHIQQ")
ANSWER: Final = struct.Struct(">BQ")
_OPS: Final = {int(op): op for op in RangeOp}
