"""A device's memory as a library: buffers are made, filled, copied, viewed and handed on by requests. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.codec import U64, Bytes16
from atomr_mp.protocol.declaration.arguments import reads
from atomr_mp.protocol.declaration.checks import check_apart
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest, Read, Write, scalar
from atomr_mp.protocol.refs import BufferId, Operand, WireRef

MAX_SHARE_S = 3600.0
"""Longest that a shared buffer waits for its claim."""


class Empty(LibraryRequest, frozen=True):
    """Make a buffer; its content is undefined. Returns a ref, row-major and without gaps."""

    name: ClassVar[str] = "empty"
    shape: list[int]
    dtype: str

    def check(self) -> None:
        """Check that such an array can exist."""
        Layout.contiguous(self.dtype, self.shape)

    @property
    def made_bytes(self) -> int:
        """Size of the array."""
        return Layout.contiguous(self.dtype, self.shape).nbytes


class Full(LibraryRequest, frozen=True):
    """Make a buffer filled with a value. Returns a ref, row-major and without gaps."""

    name: ClassVar[str] = "full"
    shape: list[int]
    dtype: str
    value: Scalar

    def check(self) -> None:
        """Check that such an array can exist, and can hold the value."""
        Layout.contiguous(self.dtype, self.shape)
        dtypes.check_holds(self.dtype, scalar(self.value))

    @property
    def made_bytes(self) -> int:
        """Size of the array."""
        return Layout.contiguous(self.dtype, self.shape).nbytes

    def moved_bytes(self) -> int:
        """Return the size of the array, which is written."""
        return self.made_bytes


class Put(LibraryRequest, frozen=True):
    """Make a buffer with a copy of an array that the request carries. Returns a ref, row-major and without gaps."""

    name: ClassVar[str] = "put"
    content: Any
    """The array; a large one travels in memory of the client."""

    def check(self) -> None:
        """Check that it is an array."""
        if not hasattr(self.content, "__array_interface__"):
            raise errors.InvalidRequest(f"content is a {type(self.content).__name__}, not an array")

    @property
    def made_bytes(self) -> int:
        """Size of the array."""
        return int(self.content.nbytes)

    def moved_bytes(self) -> int:
        """Return the size of the array, which is written."""
        return self.made_bytes


class PutPart(LibraryRequest, frozen=True):
    """Write an array that the request carries into a buffer: a part of a large copy to the device."""

    name: ClassVar[str] = "put_part"
    content: Any
    """The array, of the target's shape and element type."""
    target: Write

    def check(self) -> None:
        """Check that the elements fit."""
        _check_like("content", self.content, "target", self.target)
        super().check()


class Get(LibraryRequest, frozen=True):
    """Return an array's elements as an array of the host's, row-major and without gaps; or write them into one."""

    name: ClassVar[str] = "get"
    array: Read
    into: Any = None
    """An array of the same shape and element type in memory of the client; then nothing is returned."""

    def check(self) -> None:
        """Check that the elements fit."""
        if self.into is not None:
            _check_like("into", self.into, "array", self.array)


class GetPart(LibraryRequest, frozen=True):
    """Return elements that the client reads under a passing borrow, or write them into its memory: a part of a copy.

    It waits for no writer: those before the borrow have ended, and later ones wait for the borrow.
    """

    name: ClassVar[str] = "get_part"
    borrow: U64
    """The session's borrow, which has been answered and not released."""
    part: WireRef
    """The elements. No operand, which would wait for writers: those that wait for the borrow too."""
    into: Any = None
    """An array of the same shape and element type in memory of the client; then nothing is returned."""

    def check(self) -> None:
        """Check that the elements fit."""
        if self.into is not None:
            _check_like("into", self.into, "part", self.part.layout)

    def moved_bytes(self) -> int:
        """Return the size of the part, which is read."""
        return self.part.layout.nbytes


class Fill(LibraryRequest, frozen=True):
    """Write one value into every element."""

    name: ClassVar[str] = "fill"
    array: Write
    value: Scalar

    def check(self) -> None:
        """Check that the elements can hold the value."""
        super().check()
        dtypes.check_holds(self.array.dtype, scalar(self.value))


class Copy(LibraryRequest, frozen=True):
    """Copy elements; strides may differ. The source may be another device's."""

    name: ClassVar[str] = "copy"
    source: Read
    target: Write

    def check(self) -> None:
        """Check that shapes and element types agree, and that neither the arrays nor written elements overlap."""
        source, target = self.source, self.target
        if source.shape != target.shape or source.dtype != target.dtype:
            raise errors.InvalidRequest(
                f"the source is {source.dtype} of shape {source.shape}, the target {target.dtype} of shape "
                f"{target.shape}; they must be the same"
            )
        if source.overlaps(target):
            raise errors.BorrowConflict("the source and the target overlap; copy through a third buffer")
        super().check()


class Borrow(LibraryRequest, frozen=True):
    """Take a borrow that lasts until it is released: answered once the data is there.

    Borrows for views exclude later requests that conflict. For those of copies (`passing`) later writers wait.
    """

    name: ClassVar[str] = "borrow"
    moves: ClassVar = False
    array: Read
    borrow: U64
    """Id by which it is released; unique in the session."""
    write: bool = False
    passing: bool = False
    """Whether it ends by itself, soon: later writers wait for it, for a second and one more for each GiB."""
    others: Annotated[list[Operand], reads("*_")] = msgspec.field(default_factory=list)
    """Arrays that it reads besides, if it is passing. One request takes them all, so that no two can wait for each
    other."""

    def check(self) -> None:
        """Check that what is asked for can be had."""
        if self.passing and self.write:
            raise errors.InvalidRequest("a passing borrow is for reading")
        if self.others and not self.passing:
            raise errors.InvalidRequest("a view is of one array")
        if self.write:
            check_apart("the view", self.array.layout)

    def written(self) -> list[Any]:
        """Return the array, if it may be written."""
        return [self.array] if self.write else []


class Accept(LibraryRequest, frozen=True):
    """Take a buffer's content as it is, once requests that write it have ended: all of it counts as defined."""

    name: ClassVar[str] = "accept"
    moves: ClassVar = False
    array: Read

    def read(self) -> list[Any]:
        """Return nothing: undefined content does not keep it from being accepted."""
        return []


class Share(LibraryRequest, frozen=True):
    """Keep a buffer for another session that will claim it, once."""

    name: ClassVar[str] = "share"
    moves: ClassVar = False
    array: Read
    claim: Bytes16
    """Secret that the claim shows."""
    for_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_SHARE_S)] = 60.0


class Claim(LibraryRequest, frozen=True):
    """Take a lease of a buffer that another session has shared. Returns a ref to the shared array."""

    name: ClassVar[str] = "claim"
    buffer: BufferId
    claim: Bytes16


class Statistics(LibraryRequest, frozen=True):
    """Return the memory's figures, a map from name to number; bytes where a name ends in `_bytes`."""

    name: ClassVar[str] = "statistics"


def _check_like(name: str, given: Any, other_name: str, other: Operand | Layout) -> None:
    """Check that an array of the host's has the shape and element type of another.

    Raises:
        InvalidRequest: It has not, or is none.
    """
    if not hasattr(given, "__array_interface__"):
        raise errors.InvalidRequest(f"{name} is a {type(given).__name__}, not an array")
    if tuple(given.shape) != other.shape or dtypes.name_of(given.dtype) != other.dtype:
        raise errors.InvalidRequest(
            f"{name} is {given.dtype} of shape {given.shape}, the {other_name} {other.dtype} of shape {other.shape}; "
            "they must be the same"
        )
