"""The methods that refs have in common with NumPy's arrays: copies, conversions, reductions, assignment."""

from __future__ import annotations

import math
import string
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, SupportsIndex, cast

from atomr_mp import errors
from atomr_mp.client.memory.operands import assigned, is_number, shown
from atomr_mp.client.memory.operators import ArrayOperators
from atomr_mp.protocol import amounts, dtypes
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Index, Layout
from atomr_mp.protocol.libraries import memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

Axis = SupportsIndex | Sequence[SupportsIndex] | None

ASSIGNMENT: Final = "ref[…] = x"

SHOWN: Final = 1000
"""Most elements that `show` reads by default."""


@checks_names
class ArrayMethods(ArrayOperators):
    """The methods of a ref that compute or move elements. Each waits for its answer, as an operator does."""

    def numpy(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return a copy of the elements."""
        raise NotImplementedError

    def fill(self, value: complex) -> None:
        """Write a value into all elements, of bool True for all but 0, as in NumPy."""
        raise NotImplementedError

    def item(self, *index: int) -> bool | complex:
        """Read one element, and return it as a number of Python's. Blocks, as `numpy` does.

        Args:
            index: The element's place in each dimension; none for that of an array of one element.

        Raises:
            InvalidRequest: The ref has more elements than one, or none.
            IndexError: There is no such place.
        """
        layout = self.layout.indexed(index) if index else self.layout
        if layout.size != 1:
            raise errors.InvalidRequest(
                f"item() of an array of shape {layout.shape}, which has {layout.size} elements: it returns one; name "
                "its place in each dimension, `ref.item(i, j)`"
            )
        found = self.of_layout(layout).numpy()
        return cast("complex", found.item() if found.dtype.kind in "biufc" else float(found.reshape(())))

    def show(self, most: int = SHOWN) -> str:
        """Read the elements, and return a text with them. Blocks, as `numpy` does; `repr` reads nothing.

        Args:
            most: Number of elements up to which an array is read; a larger one is described only.
        """
        if self.size > amounts.whole("most", most, 0):
            return f"{self!r}: {self.size:,} elements, which are more than {most:,}"
        return f"{self!r}:\n{self.numpy()}"

    # --- on the device ---------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """Return a new array with the same elements, row-major and without gaps."""
        if self.layout.dtype not in dtypes.FLOAT8:
            return self._alone("copy()", "copy")
        self.refuse_in_loop("copy()", "memory.copy")
        made: Self = self._buffers.request(memory.Empty(list(self.shape), self.layout.dtype), self.device)
        self._buffers.copy_on_device(self, made)
        return made

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> Self:
        """Return a new array with the elements converted to another type; of complex numbers the real parts.

        Real parts come with NumPy's `ComplexWarning`, since the imaginary parts are lost.

        Args:
            dtype: The type, or its name.
            copy: Whether an array that has the type already is copied, too.

        Raises:
            InvalidRequest: There is no such type, or none of the two converts to the other.
        """
        name = dtypes.name_for(dtype)
        if name == self.layout.dtype:
            return self.copy() if copy else self
        if dtypes.FLOAT8 & {name, self.layout.dtype}:
            raise errors.InvalidRequest(
                f"astype() of {self.dtype} to {name}: no request converts float8; put an array that was converted with "
                "ml-dtypes, or let `device.blas_lt.matmul` make it"
            )
        if self.layout.dtype.startswith("complex") and not name.startswith(("complex", "bool")):
            _warn_of_lost_parts()
        return self._alone("astype()", "cast", dtype=name)

    def ravel(self) -> Self:
        """Return the elements in one dimension, in row-major order: as a view where they lie so, else as a copy."""
        try:
            return self.of_layout(self.layout.reshaped([-1]))
        except ValueError:
            made = self.copy()
            return made.of_layout(made.layout.reshaped([-1]))

    def squeeze(self, axis: Axis = None) -> Self:
        """Return a view without its dimensions of length 1, or without the named ones.

        Raises:
            InvalidRequest: A named dimension does not exist, or has another length.
        """
        return self.of_layout(self.layout.squeezed(_axes(axis)))

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Return the sums over some dimensions, by default over all. Half precision is added up in float32.

        Args:
            axis: The dimension, or several; None for all.
            keepdims: Whether these dimensions stay, with length 1.

        Raises:
            InvalidRequest: The elements are integers or truth values; or there is no such dimension.
        """
        return self._reduced("sum()", "add", axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Return the products over some dimensions; see `sum`."""
        return self._reduced("prod()", "mul", axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Return the means over some dimensions, NaN for those of no elements; see `sum`."""
        return self._reduced("mean()", "add", axis, keepdims=keepdims, of_count=True)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Return the largest elements along some dimensions; see `sum`.

        Raises:
            InvalidRequest: There are no elements to choose from, or they are complex.
        """
        return self._reduced("max()", "max", axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Return the smallest elements along some dimensions; see `max`."""
        return self._reduced("min()", "min", axis, keepdims=keepdims)

    def __setitem__(self, index: Index | tuple[Index, ...], value: Any) -> None:
        target = self.of_layout(self.layout.indexed(index))
        if is_number(value):
            number = assigned(self.layout.dtype, value)
            self.refuse_in_loop(ASSIGNMENT, "memory.fill")
            self._buffers.fill(target, number)
            return
        here = isinstance(value, ArrayMethods)
        if not here and (not hasattr(value, "__array_interface__") or hasattr(value, "mask")):
            raise errors.GpuRefNoValue(
                f"{ASSIGNMENT} takes a number, a ref or an array, not {shown(value)}: make an array of it"
            )
        dtype = value.layout.dtype if here else dtypes.name_of(value.dtype)
        if dtype != self.layout.dtype:
            raise errors.InvalidRequest(
                f"{ASSIGNMENT} with a ref of {self.dtype} and x of {dtype}: convert x first, `x.astype(…)`"
            )
        layout = _assigned(value.layout if here else Layout.contiguous(dtype, value.shape), target.shape)
        if here:
            value.to_wire()
        self.refuse_in_loop(ASSIGNMENT, "memory.copy")
        if not here:
            value = self._buffers.put(value, dtype, self.device)
            layout = _assigned(value.layout, target.shape)
        # `ref[i] += x` assigns what is there.
        if value.memory != target.memory or not target.layout.has_elements_of(layout):
            self._buffers.copy_on_device(value.of_layout(layout), target)

    def __delitem__(self, _index: object) -> NoReturn:
        raise errors.Unsupported("elements of a ref cannot be deleted: take a view of the others, or a copy of views")

    # --- inside ----------------------------------------------------------------------------------------------------

    def _reduced(self, what: str, operator: str, axis: Axis, *, keepdims: bool, of_count: bool = False) -> Self:
        request = self.defined(what, "tensor", "reduction")
        axes = _axes(axis)
        gone = set(range(self.ndim) if axes is None else self.layout.dimensions(axes))
        modes = string.ascii_letters[: self.ndim]
        kept = "".join(mode for at, mode in enumerate(modes) if at not in gone)
        count = math.prod(self.shape[at] for at in gone)
        if operator in {"max", "min"} and self.layout.dtype.startswith("complex"):
            raise errors.InvalidRequest(f"{what} of {self.dtype} is not defined: complex numbers have no order")
        if not count and operator in {"max", "min"}:
            raise errors.InvalidRequest(f"{what} of no elements: the array has the shape {self.shape}")
        alpha = (1 / count if count else math.nan) if of_count else 1.0
        asked = request(a=self, modes_a=modes, modes_c=kept, alpha=alpha, op_reduce=operator)
        made = self.answered(what, asked, "tensor", "tensor.reduction")
        if not keepdims:
            return made
        index = tuple(None if at in gone else slice(None) for at in range(self.ndim))
        return made.of_layout(made.layout.indexed(index))


def _assigned(source: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout by which elements are assigned to a shape: broadcast, without leading lengths of 1 too many.

    Raises:
        InvalidRequest: They cannot be.
    """
    if source.shape and not shape:
        raise errors.InvalidRequest(
            f"one element takes a number, or an array without dimensions; got one of shape {source.shape}: index it"
        )
    more = len(source.shape) - len(shape)
    if more > 0 and set(source.shape[:more]) == {1}:
        source = source.squeezed(range(more))
    return source.broadcast_to(shape)


def _warn_of_lost_parts() -> None:
    from numpy.exceptions import ComplexWarning

    warnings.warn("astype() to a type of real numbers discards the imaginary parts", ComplexWarning, stacklevel=4)


def _axes(axis: Axis) -> list[int] | None:
    """Return dimensions that are named by one number or several; None for none.

    Raises:
        InvalidRequest: One is no whole number.
    """
    if axis is None:
        return None
    several = axis if isinstance(axis, Sequence) else [axis]
    return [amounts.whole(f"axis[{at}]", each, -amounts.MOST) for at, each in enumerate(several)]
