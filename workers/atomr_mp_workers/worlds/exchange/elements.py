"""Arrays that collectives take and give, and arithmetic on their elements in the order of ranks. With NumPy."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.dtypes import ITEM_BYTES, name_of
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.worlds.exchange.operators import HALVES, check_computes, check_operator, factor_of

Array = np.ndarray[Any, Any]
Make = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Makes a row-major array of a shape and type, its content undefined."""

BLOCK: Final = 64
"""Elements are computed in so many, or a multiple. NumPy takes other loops for one element, and for a vector's rest:
their products of complex numbers, and NaNs, have other bits."""

_FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)

_FUNCTIONS: Final = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}


def given(x: Any, make: Make = np.empty) -> tuple[Array, str]:
    """Return the array that a method gives, and its element type's name. Nothing is copied that need not be.

    The array is row-major, and in this machine's order of bytes: others are copied.

    Args:
        x: What the method gives.
        make: Makes the copy of an array that is not row-major.

    Raises:
        InvalidRequest: It is no array of an element type that crosses the wire, or a masked one.
    """
    if isinstance(x, Operand):
        x = getattr(x, "array", x)
    if type(x) is not np.ndarray:
        _check_unmasked(x, "a collective takes no masked array, for its mask would be lost; give `filled()`, or both")
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise errors.InvalidRequest(f"a collective takes arrays, not {type(x).__name__}: {error}") from error
    name = name_of(array.dtype)
    if name not in ITEM_BYTES:
        raise errors.InvalidRequest(
            f"a collective takes no elements of {name}; there are: {', '.join(sorted(ITEM_BYTES))}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = _copied(array, make)
    return array, name


def _copied(array: Array, make: Make) -> Array:
    """Return a row-major copy."""
    copy = make(array.shape, array.dtype)
    copy[...] = array
    return copy


class Target:
    """Where a collective's result goes: a new array, or the one that a method gives.

    Args:
        out: What the method gives, None for a new array.
        shape: Shape of the result.
        dtype: Its element type.
        make: Makes arrays in which elements wait.

    Raises:
        InvalidRequest: What is given has another shape or type, or cannot be written.
    """

    __slots__ = ("_make", "_out", "_room", "flat")

    def __init__(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], make: Make = np.empty) -> None:
        self._out = out
        self._make = make
        room = None if out is None else checked_out(out, shape, dtype)
        self._room = room
        # What is not aligned would be computed by other loops of NumPy than on other ranks.
        if room is None or not room.flags.carray:
            room = make(shape, dtype)
        self.flat: Array = room.reshape(-1)
        """The elements to be written, in order. With an `out` that has gaps they are copied at the end."""

    def apart(self, x: Array, *, same_places: bool) -> Array:
        """Return an input that stays as it is while the result is written: itself, or a copy.

        Args:
            x: The input.
            same_places: Whether an element of the result is written only after that of the input in its place was read.
        """
        flat = self.flat
        if self._out is None or not np.may_share_memory(x, flat):
            return x
        if same_places and x.nbytes == flat.nbytes and x.ctypes.data == flat.ctypes.data:
            return x
        return _copied(x, self._make)

    def result(self, shape: tuple[int, ...]) -> Any:
        """Return the result, all of whose elements were written: a new array, or what the method gave."""
        room = self._room
        if room is None:
            return self.flat.reshape(shape)
        if not room.flags.carray:
            room[...] = self.flat.reshape(shape)
        return self._out


def _check_unmasked(x: Any, why: str) -> None:
    """Refuse a masked array, alone or in a list: NumPy takes it for what lies below its mask."""
    if any(isinstance(each, np.ndarray) and hasattr(each, "mask") for each in (x if type(x) in {list, tuple} else [x])):
        raise errors.InvalidRequest(why)


def checked_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an output as an array of NumPy's own class."""
    if isinstance(out, Operand):
        out = getattr(out, "array", out)
    _check_unmasked(out, "`out` cannot be a masked array, for its mask would not be written; give its `data`")
    if not isinstance(out, np.ndarray):
        raise errors.InvalidRequest(f"`out` has to be an array, not {type(out).__name__}")
    if out.shape != shape:
        raise errors.InvalidRequest(f"`out` has shape {out.shape}, and the result {shape}")
    if out.dtype is not dtype and (name_of(out.dtype) != name_of(dtype) or not out.dtype.isnative):
        raise errors.InvalidRequest(f"`out` has elements of {out.dtype!r}, and the result of {dtype!r}")
    if not out.flags.writeable:
        raise errors.InvalidRequest(
            "`out` is read-only, as the arrays are that a method gets as arguments: give a copy, or leave `out` out"
        )
    return np.asarray(out)


class Arithmetic:
    """An operator on elements of a type. One thread at a time.

    Args:
        operator: Name of the operator.
        dtype: The element type.
        name: Its name.
        factor: What this rank's elements are multiplied by first; None for nothing.

    Raises:
        InvalidRequest: There is no such operator, or not for this type, or the factor is none of this type.
    """

    __slots__ = ("_computed", "_dtype", "_factor", "_function", "_is_average", "_quiet", "_spare", "wire")

    def __init__(self, operator: str, dtype: np.dtype[Any], name: str, factor: Any) -> None:
        check_operator(operator)
        check_computes(operator, name)
        self._function: Final = _FUNCTIONS[operator]
        self._is_average: Final = operator == "avg"
        self._dtype: Final = dtype
        self._computed: Final = _FLOAT32 if name in HALVES else dtype
        self._factor: Final = None if factor is None else factor_of(factor, operator, name)
        self.wire: Final = dtype if factor is None else self._computed
        """Type of the elements in the mailboxes. Products are rounded to halves with the sum, not before."""
        self._spare: Final[list[Array]] = []
        """Blocks for sources that are shorter."""
        self._quiet: Final = contextvars.copy_context()
        """In it NumPy does not warn of infinities and NaNs. Entering it takes a sixth of `numpy.errstate`."""
        self._quiet.run(np.seterr, all="ignore")

    def fill(self, place: Array, elements: Array) -> None:
        """Write this rank's elements, or rows of them, multiplied by its factor, to a place in its mailbox."""
        if self._factor is None:
            place[...] = elements
        else:
            for row, each in zip(np.atleast_2d(place), np.atleast_2d(elements), strict=True):
                self._quiet.run(self._in_blocks, self._multiply, [each], row)

    def reduce(self, sources: Sequence[Array], out: Array) -> None:
        """Compute elements from those of all ranks, in the order of ranks, and round them once.

        Args:
            sources: Each rank's elements; of type `wire`.
            out: The result's elements; of the element type.
        """
        self._quiet.run(self._in_blocks, self._compute, sources, out)

    def _in_blocks(
        self, compute: Callable[[Sequence[Array], Array], object], sources: Sequence[Array], out: Array
    ) -> None:
        """Compute whole blocks in their places, and the rest in a block that ends with it. Integers need none.

        Args:
            compute: Computes elements from sources, to a place.
            sources: They do not lie over the place.
            out: The place.
        """
        rest = out.size % BLOCK
        if not rest or self._dtype.kind in "iu":
            compute(sources, out)
            return
        last = np.empty(BLOCK, out.dtype)
        if out.size > BLOCK:
            compute([each[:-rest] for each in sources], out[:-rest])
            compute([each[-BLOCK:] for each in sources], last)
        else:
            while len(self._spare) < len(sources):
                self._spare.append(np.zeros(BLOCK, self.wire))
            spare = self._spare[: len(sources)]
            for block, each in zip(spare, sources, strict=True):
                block[-rest:] = each
            compute(spare, last)
        out[-rest:] = last[-rest:]

    def _multiply(self, sources: Sequence[Array], out: Array) -> None:
        assert self._factor is not None
        np.multiply(sources[0].astype(self._computed, copy=False), self._factor, out=out)

    def _compute(self, sources: Sequence[Array], out: Array) -> None:
        function, computed = self._function, self._computed
        first, *others = sources
        if computed is not self._dtype:
            total = first.astype(computed)
            for each in others:
                function(total, each.astype(computed, copy=False), out=total)
        elif others:
            total = function(first, others[0], out=out)
            for each in others[1:]:
                function(total, each, out=total)
        else:
            total = out
            total[...] = first
        if self._is_average:
            np.divide(total, len(sources), out=total)
        if total is not out:
            out[...] = total
