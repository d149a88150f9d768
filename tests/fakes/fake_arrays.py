"""Arrays in a buffer of NumPy's, in place of those in a device's memory: libraries can be tested without processes."""

from __future__ import annotations

import itertools
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.token import TOKEN_BYTES
from atomr_mp.protocol.views import ArrayViews

Array = npt.NDArray[Any]

GUARD_BYTES: Final = 64
"""In front of and behind an array that is placed; keeps it aligned to every element type."""


class FakeArray(ArrayViews):
    """An array in a slab that is one NumPy buffer of bytes.

    Args:
        layout: How it lies there.
        slab: The buffer; a new one that just holds it unless given.
    """

    def __init__(self, layout: Layout, slab: Array | None = None) -> None:
        self.layout = layout
        self.slab = np.zeros(max(layout.span[1], layout.offset) + GUARD_BYTES, np.uint8) if slab is None else slab
        self.number = next(_numbers)
        """Of the buffer; that of a view is the same."""

    @classmethod
    def of(cls, values: npt.ArrayLike, dtype: str, order: str = "C") -> Self:
        """Return an array without gaps that holds these values."""
        values = np.asarray(values)
        made = cls(Layout.contiguous(dtype, values.shape, GUARD_BYTES, order=order))
        made.array[...] = values
        return made

    def __repr__(self) -> str:
        """Tell how the array lies there, for a test that failed."""
        layout = self.layout
        return f"<{layout.dtype} {layout.shape} strides {layout.strides} at {layout.offset} of {self.number}>"

    @property
    def memory(self) -> object:
        """Name of the memory."""
        return self.number

    @property
    def array(self) -> Array:
        """The array itself, zero-copy."""
        layout = self.layout
        array: Array = np.ndarray(
            layout.shape, dtypes.to_numpy(layout.dtype), self.slab.data, layout.offset, layout.strides
        )
        return array

    @property
    def elements(self) -> Array:
        """All elements of the span, gaps included."""
        low, high = self.layout.span
        return self.slab[low:high].view(dtypes.to_numpy(self.layout.dtype))

    def to_wire(self) -> WireRef:
        """Return the ref that means this array."""
        layout = self.layout
        return WireRef(
            bytes(TOKEN_BYTES),
            self.number,
            0,
            layout.dtype,
            layout.shape,
            layout.strides,
            layout.offset,
        )

    def from_wire(self, wire: WireRef | ClientArray) -> Self:
        """Return the array of a ref to this array's memory."""
        assert isinstance(wire, WireRef)
        assert wire.buffer == self.number
        return self.of_layout(wire.layout)

    def of_layout(self, layout: Layout) -> Self:
        """Return a view with another layout in the slab."""
        view = type(self)(layout, self.slab)
        view.number = self.number
        return view


_numbers: Final = itertools.count(1)
