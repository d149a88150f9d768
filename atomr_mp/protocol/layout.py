"""Layouts of arrays in memory, by which refs, views and library requests are checked. Pure.

Offsets, strides and spans are bytes; an offset counts from the start of the slab.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Final, NamedTuple, SupportsIndex

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.words import counted

MAX_DIMENSIONS: Final = 32
"""Most dimensions of an array."""

MAX_BYTES: Final = 2**47
"""No extent is larger. All products of sizes below it fit into any language's signed 64-bit integer."""

Index = SupportsIndex | slice | EllipsisType | None


class Layout(NamedTuple):
    """Element type, shape, strides and offset of an array; any may be a view of a larger one."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from one element to the next, by dimension; may be negative, or 0."""
    offset: int
    """Offset of the element at index 0 in all dimensions."""

    @classmethod
    def contiguous(cls, dtype: str, shape: Sequence[int], offset: int = 0, *, order: str = "C") -> Layout:
        """Return the layout of an array without gaps, row-major ("C") or column-major ("F").

        Raises:
            InvalidRequest: No such element type, or a shape that is none.
        """
        shape = tuple(shape)
        stride = dtypes.item_bytes(dtype)
        check_shape(shape, stride)
        strides: list[int] = []
        for n in reversed(shape) if order == "C" else shape:
            strides.append(stride)
            stride *= max(n, 1)
        return cls(dtype, shape, tuple(reversed(strides) if order == "C" else strides), offset)

    def at(self, offset: int) -> Layout:
        """Return the same at another offset; `_replace` takes three times as long."""
        return Layout(self.dtype, self.shape, self.strides, offset)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return dtypes.ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def span_within(self, slab_bytes: int) -> tuple[int, int]:
        """Return the span, which lies in a slab of this size.

        Raises:
            GpuRefOutOfExtent: It does not.
        """
        low, high = self.span
        if low < 0 or high > slab_bytes:
            raise errors.GpuRefOutOfExtent(
                f"an array of {self.dtype}, shape {self.shape} and strides {self.strides} at byte {self.offset} "
                f"reaches from byte {low} to {high} of a slab of {slab_bytes}"
            )
        return low, high

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, gaps not counted."""
        return self.size * self.item_bytes

    @property
    def span(self) -> tuple[int, int]:
        """Offsets of the first byte of any element, and of the byte after the last; empty arrays have an empty span."""
        if 0 in self.shape:
            return self.offset, self.offset
        low = high = self.offset
        for n, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (n - 1) * stride
            else:
                high += (n - 1) * stride
        return low, high + self.item_bytes

    def is_contiguous(self, order: str = "C") -> bool:
        """Return whether there are no gaps, in row-major ("C") or column-major ("F") order."""
        expected = self.item_bytes
        dimensions = list(zip(self.shape, self.strides, strict=True))
        if 0 in self.shape:
            return True
        for n, stride in reversed(dimensions) if order == "C" else dimensions:
            if n != 1 and stride != expected:
                return False
            expected *= n
        return True

    def overlaps(self, other: Layout) -> bool:
        """Return whether the spans of two arrays of one slab have bytes in common."""
        low, high = self.span
        other_low, other_high = other.span
        return max(low, other_low) < min(high, other_high)

    def has_elements_of(self, other: Layout) -> bool:
        """Return whether another layout of the slab has the same elements, each in its place if broadcast to this.

        Strides of dimensions of length 1 say nothing.
        """
        if self == other:
            return True
        more = len(self.shape) - len(other.shape)
        strides = ((0,) * more + other.strides) if more >= 0 else ()
        return (
            (self.dtype, self.offset, self.shape) == (other.dtype, other.offset, (1,) * more + other.shape)
            and len(strides) == len(self.strides)
            and all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, strides, strict=True))
        )

    def indexed(self, index: Index | tuple[Index, ...]) -> Layout:
        """Return the view that basic indexing gives (integers, slices, `...`, None), as NumPy defines it.

        Raises:
            IndexError: Out of range, or not basic indexing.
        """
        items = index if isinstance(index, tuple) else (index,)
        taken = sum(item is not None and item is not Ellipsis for item in items)
        if taken > len(self.shape):
            raise IndexError(
                f"{counted(taken, 'index', 'indices')} for an array of {counted(len(self.shape), 'dimension')}"
            )
        if sum(item is Ellipsis for item in items) > 1:
            raise IndexError("an index can have one ellipsis only")
        if all(item is not Ellipsis for item in items):
            items = (*items, Ellipsis)
        shape: list[int] = []
        strides: list[int] = []
        offset, at = self.offset, 0
        for item in items:
            if item is None:
                shape.append(1)
                strides.append(0)
            elif item is Ellipsis:
                left = at + len(self.shape) - taken
                shape += self.shape[at:left]
                strides += self.strides[at:left]
                at = left
            else:
                n, stride = self.shape[at], self.strides[at]
                if isinstance(item, slice):
                    start, stop, step = item.indices(n)
                    count = len(range(start, stop, step))
                    offset += start * stride if count else 0
                    shape.append(count)
                    strides.append(stride * step)
                else:
                    offset += _checked(item, n, at) * stride
                at += 1
        check_shape(tuple(shape), self.item_bytes)
        # Without elements it lies nowhere, and would only seem to leave its memory.
        return Layout(self.dtype, tuple(shape), tuple(strides), self.offset if 0 in shape else offset)

    def transposed(self, axes: Sequence[int] | None = None) -> Layout:
        """Return the view with its dimensions in another order, by default reversed.

        Raises:
            ValueError: `axes` does not name each dimension once.
        """
        n = len(self.shape)
        order = [axis + n if axis < 0 else axis for axis in axes] if axes is not None else list(range(n))[::-1]
        if sorted(order) != list(range(n)):
            raise ValueError(f"axes {axes} do not name each of {counted(n, 'dimension')} once")
        return self._replace(
            shape=tuple(self.shape[axis] for axis in order), strides=tuple(self.strides[axis] for axis in order)
        )

    def squeezed(self, axes: Sequence[int] | None = None) -> Layout:
        """Return the view without its dimensions of length 1, or without the named ones.

        Raises:
            InvalidRequest: A named dimension does not exist, or has another length.
        """
        gone = {at for at, n in enumerate(self.shape) if n == 1} if axes is None else set(self.dimensions(axes))
        for at in gone:
            if self.shape[at] != 1:
                raise errors.InvalidRequest(f"dimension {at} has length {self.shape[at]}; it must be 1 to be squeezed")
        kept = [at for at in range(len(self.shape)) if at not in gone]
        return self._replace(shape=tuple(self.shape[at] for at in kept), strides=tuple(self.strides[at] for at in kept))

    def dimensions(self, axes: Sequence[int]) -> list[int]:
        """Return the numbers of dimensions that are counted from either end.

        Raises:
            InvalidRequest: One does not exist, or is named twice.
        """
        n = len(self.shape)
        found = [at + n if at < 0 else at for at in axes]
        for at, dimension in zip(axes, found, strict=True):
            if not 0 <= dimension < n:
                raise errors.InvalidRequest(f"axis {at} does not exist in an array of {counted(n, 'dimension')}")
        if len(set(found)) < len(found):
            raise errors.InvalidRequest(f"axes {tuple(axes)} name a dimension twice")
        return found

    def broadcast_to(self, shape: Sequence[int]) -> Layout:
        """Return the view of a larger shape that repeats elements, as NumPy defines it; it may only be read.

        Raises:
            InvalidRequest: The array cannot be broadcast to it.
        """
        more = len(shape) - len(self.shape)
        strides = [0] * len(shape)
        for at, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True), more):
            if more < 0 or n not in {1, shape[at]}:
                raise errors.InvalidRequest(f"an array of shape {self.shape} cannot be broadcast to {tuple(shape)}")
            strides[at] = stride if n == shape[at] else 0
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> Layout:
        """Return the view of another shape; one length may be -1. Elements keep their row-major order.

        Raises:
            ValueError: Another number of elements, or the elements do not lie so that no copy is needed.
        """
        wanted = list(shape)
        if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
            raise ValueError(f"{shape} is no shape: one length at most may be -1")
        if -1 in wanted:
            rest = math.prod(n for n in wanted if n != -1)
            wanted[wanted.index(-1)] = self.size // rest if rest else -1
        if -1 in wanted or math.prod(wanted) != self.size:
            raise ValueError(f"{counted(self.size, 'element')} cannot be reshaped to {shape}")
        check_shape(tuple(wanted), self.item_bytes)
        if self.size == 0:
            return Layout.contiguous(self.dtype, wanted, self.offset)
        strides = self._strides_of(wanted)
        if strides is None:
            raise ValueError(f"an array of shape {self.shape} and strides {self.strides} cannot be viewed as {shape}")
        return self._replace(shape=tuple(wanted), strides=tuple(strides))

    def strided(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Layout:
        """Return the view of any shape and strides that stays within this array's span.

        Args:
            shape: Its lengths.
            strides: In bytes, one for each length; may be 0 or negative.
            offset: Of its first element, in bytes from this array's first element.

        Raises:
            InvalidRequest: There can be no such array.
            GpuRefOutOfExtent: It would reach beyond the memory between this array's first and last byte.
        """
        shape, strides = tuple(shape), tuple(strides)
        check_shape(shape, self.item_bytes)
        if len(shape) != len(strides):
            raise errors.InvalidRequest(
                f"{counted(len(shape), 'dimension')} with {counted(len(strides), 'stride')}; give one for each"
            )
        if any(at % self.item_bytes for at in (offset, *strides)):
            raise errors.InvalidRequest(
                f"offset {offset} and strides {strides} must be multiples of the {self.item_bytes} bytes of a "
                f"{self.dtype}"
            )
        made = Layout(self.dtype, shape, strides, self.offset + offset)
        (low, high), (first, last) = made.span, self.span
        if low < first or high > last:
            raise errors.GpuRefOutOfExtent(
                f"an array of shape {shape} and strides {strides}, {offset} bytes from the first element, reaches from "
                f"byte {low - self.offset} to {high - self.offset}; the ref it is made from has the bytes from "
                f"{first - self.offset} to {last - self.offset}"
            )
        return made

    def _strides_of(self, wanted: list[int]) -> list[int] | None:
        """Return the strides of another shape, group by group of dimensions that hold the same elements."""
        old = [(n, stride) for n, stride in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = []
        at, begin = 0, 0
        while begin < len(wanted):
            if wanted[begin] == 1:
                strides.append(0)
                begin += 1
                continue
            end, first = begin + 1, at
            at += 1
            new_size, old_size = wanted[begin], old[first][0]
            while new_size != old_size:
                if new_size < old_size:
                    new_size *= wanted[end]
                    end += 1
                else:
                    old_size *= old[at][0]
                    at += 1
            for left, right in zip(old[first : at - 1], old[first + 1 : at], strict=True):
                if left[1] != right[0] * right[1]:
                    return None
            group, stride = [], old[at - 1][1]
            for n in reversed(wanted[begin:end]):
                group.append(stride)
                stride *= n
            strides += reversed(group)
            begin = end
        return strides


def check_shape(shape: tuple[int, ...], item_bytes: int) -> None:
    """Check that an array of this shape can exist.

    Raises:
        InvalidRequest: It cannot; the message says why.
    """
    if len(shape) > MAX_DIMENSIONS:  # first, for the product of a long list of large numbers takes minutes
        raise errors.InvalidRequest(f"an array of {len(shape)} dimensions; the limit is {MAX_DIMENSIONS}")
    if any(n < 0 for n in shape):
        raise errors.InvalidRequest(f"{shape} is no shape: it has a negative length")
    if math.prod(n for n in shape if n) * item_bytes > MAX_BYTES:
        raise errors.InvalidRequest(f"an array of shape {shape} is larger than any memory")


_BASIC: Final = "a ref is indexed with integers, slices, ... and None"
_ELSE: Final = (
    "`device.elementwise.where(mask, x, y)` chooses by a mask; an actor's method, or `ref.numpy()[…]`, takes elements "
    "by any index"
)


def _checked(item: SupportsIndex, n: int, dimension: int) -> int:
    try:
        at = operator.index(item)
    except TypeError as error:
        raise errors.GpuRefNoIndex(f"{_BASIC}, not with a {type(item).__name__}: {_ELSE}") from error
    if isinstance(item, bool):
        raise errors.GpuRefNoIndex(f"{_BASIC}; True and False are masks to NumPy: {_ELSE}")
    if not -n <= at < n:
        raise IndexError(f"index {at} is out of bounds for dimension {dimension} of length {n}")
    return at + n if at < 0 else at
