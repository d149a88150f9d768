"""A ref on the wire: which memory of which incarnation, and how the array lies in it. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.codec import U32, U64, Message
from atomr_mp.protocol.layout import MAX_BYTES, MAX_DIMENSIONS, Layout, check_shape
from atomr_mp.protocol.token import TOKEN_BYTES

BufferId = U64
"""Names a buffer for as long as its incarnation lives: a counter above 24 random bits, so it is not guessed."""

SlabNumber = U32

_Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Stride = Annotated[int, msgspec.Meta(ge=-MAX_BYTES, le=MAX_BYTES)]
_Lengths = Annotated[list[_Length], msgspec.Meta(max_length=MAX_DIMENSIONS)]
_Strides = Annotated[list[_Stride], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class WireRef(Message, frozen=True):
    """An array in a worker's memory."""

    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    """The generation token of the incarnation that made the memory, see `token`."""
    buffer: BufferId
    slab: SlabNumber
    dtype: str
    shape: _Lengths
    strides: _Strides
    """In bytes."""
    offset: _Offset
    """In bytes, from the start of the slab."""
    value: bool = False
    """The array is meant, not the ref: the receiver sees an array of its own, see `values`."""


class ClientArray(Message, frozen=True):
    """An array in memory of the client that sends it, row-major and without gaps.

    The memory is the worker's to read until it returns it (`data.Replies.returned`): an actor may have kept the array.
    What never got to an actor is not returned; the client knows that from the answer, or the end of the incarnation.
    """

    id: U64
    """Names this use of the memory; unique in the session."""
    slab: SlabNumber
    """One that the client has registered, see `session.RegisterSlab`."""
    dtype: str
    shape: _Lengths
    offset: _Offset

    @property
    def layout(self) -> Layout:
        """How it lies in its slab.

        Raises:
            InvalidRequest: There is no such element type, or the shape is none.
        """
        return Layout.contiguous(self.dtype, self.shape, self.offset)


def layout_of(ref: WireRef) -> Layout:
    """Return how the array of a ref lies in its slab.

    Raises:
        InvalidRequest: There is no such element type, shape and strides do not belong together, or elements would lie
            where a GPU cannot read them: such an access ends its process.
    """
    item_bytes = dtypes.item_bytes(ref.dtype)
    check_shape(tuple(ref.shape), item_bytes)
    if len(ref.shape) != len(ref.strides):
        raise errors.InvalidRequest(f"a ref of {len(ref.shape)} dimensions with {len(ref.strides)} strides")
    if any(at % item_bytes for at in (ref.offset, *ref.strides)):
        raise errors.InvalidRequest(
            f"offset {ref.offset} and strides {ref.strides} must be multiples of the {item_bytes} bytes of {ref.dtype}"
        )
    return Layout(ref.dtype, tuple(ref.shape), tuple(ref.strides), ref.offset)
