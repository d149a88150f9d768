"""A ref on the wire: the incarnation, its memory, and how the array lies in it. Pure."""

from __future__ import annotations

import functools
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.codec import U32, U64, Message
from atomr_mp.protocol.decoders import decoder
from atomr_mp.protocol.layout import MAX_BYTES, MAX_DIMENSIONS, Layout, check_shape
from atomr_mp.protocol.token import TOKEN_BYTES
from atomr_mp.protocol.words import counted

BufferId = U64
"""Names a buffer for as long as its incarnation lives: a counter above 24 random bits, so it is not guessed."""

SlabNumber = U32

REF: Final = 2
"""msgpack extension type of a `WireRef`."""

CLIENT_ARRAY: Final = 3
"""msgpack extension type of a `ClientArray`."""

KNOWN: Final = 1024
"""Refs that are recognised by their bytes when they come again: to decode one and find its layout takes several times
as long, and the same ones come with call after call."""

_Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Stride = Annotated[int, msgspec.Meta(ge=-MAX_BYTES, le=MAX_BYTES)]
_Dtype = Annotated[str, msgspec.Meta(max_length=64)]
_Lengths = Annotated[tuple[_Length, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
_Strides = Annotated[tuple[_Stride, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class WireRef(Message, frozen=True, dict=True, gc=True):
    """An array in a worker's memory. What follows from its fields is kept with it."""

    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    """The incarnation that made the memory."""
    buffer: BufferId
    """Names the buffer as long as the incarnation lives."""
    slab: SlabNumber
    """The slab that holds the buffer."""
    dtype: _Dtype
    """Element type, as in extension type 1."""
    shape: _Lengths
    strides: _Strides
    """In bytes, one for each dimension; may be 0 or negative."""
    offset: _Offset
    """In bytes, from the start of the slab."""
    value: bool = False
    """The receiver sees an array of its own, not the ref."""

    @functools.cached_property
    def layout(self) -> Layout:
        """Its layout in its slab.

        Raises:
            InvalidRequest: There is no such element type, shape and strides do not belong together, or elements would
                lie where a GPU cannot read them: such an access ends its process.
        """
        item_bytes = dtypes.item_bytes(self.dtype)
        check_shape(self.shape, item_bytes)
        if len(self.shape) != len(self.strides):
            raise errors.InvalidRequest(
                f"a ref of {counted(len(self.shape), 'dimension')} with {counted(len(self.strides), 'stride')}"
            )
        if any(at % item_bytes for at in (self.offset, *self.strides)):
            raise errors.InvalidRequest(
                f"offset {self.offset} and strides {self.strides} must be multiples of the {item_bytes} bytes of "
                f"{self.dtype}"
            )
        return Layout(self.dtype, self.shape, self.strides, self.offset)

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """The first byte of any element in its slab, and the one after the last."""
        return self.layout.span

    @functools.cached_property
    def extension(self) -> msgspec.msgpack.Ext:
        """Its form inside a body."""
        return msgspec.msgpack.Ext(REF, msgspec.msgpack.encode(self))


class ClientArray(Message, frozen=True):
    """An array in memory of the client that sends it, row-major and without gaps.

    The memory is the worker's to read until it returns it (`data.Replies.returned`): an actor may have kept the array.
    What never got to an actor is not returned; the client knows that from the answer, or the end of the incarnation.
    """

    id: U64
    """Names this use of the memory; unique in the session."""
    slab: SlabNumber
    """One that the client has registered, see `session.RegisterSlab`."""
    dtype: _Dtype
    shape: _Lengths
    offset: _Offset

    @property
    def layout(self) -> Layout:
        """Its layout in its slab.

        Raises:
            InvalidRequest: There is no such element type, or the shape is none.
        """
        return Layout.contiguous(self.dtype, self.shape, self.offset)

    @property
    def extension(self) -> msgspec.msgpack.Ext:
        """Its form inside a body."""
        return msgspec.msgpack.Ext(CLIENT_ARRAY, msgspec.msgpack.encode(self))


decode_ref: Final = functools.lru_cache(KNOWN)(decoder(WireRef).decode)
decode_client_array: Final = decoder(ClientArray).decode


class Operand:
    """An array in a device's memory, as far as both sides know it: a client's ref, or what it means in the worker.

    The messages of libraries hold operands, and check them here before any library sees them.
    """

    # No ABC: whether something is an operand is asked in every call with a ref, and it would take five times as long.

    layout: Layout

    @property
    def memory(self) -> object:
        """A name for the memory: operands of the same buffer have the same."""
        raise NotImplementedError

    def to_wire(self) -> WireRef:
        """Return the wire form."""
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return self.layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, by dimension."""
        return self.layout.strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.layout.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.layout.nbytes

    def overlaps(self, other: Operand) -> bool:
        """Return whether two operands have bytes in common; judged by their spans, so gaps count."""
        return self.memory == other.memory and self.layout.overlaps(other.layout)


class PassedRef(Operand):
    """A ref that is passed on as it came; nothing of it may be used but its wire form.

    Args:
        wire: Its wire form.
    """

    def __init__(self, wire: WireRef) -> None:
        self._wire: Final = wire

    def to_wire(self) -> WireRef:
        """Return the same wire form."""
        return self._wire
