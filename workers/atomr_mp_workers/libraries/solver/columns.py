"""Matrices in column order for cuSOLVER: in place, or as copies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cupy
import numpy as np

from atomr_mp.protocol.declaration.strides import batch_stride, leading
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.solver_shapes import COUNTED
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import address, array, given


class Columns(NamedTuple):
    """A matrix, or a batch, in column order."""

    matrix: Any
    """Its elements."""
    address: int
    leading: int
    stride_bytes: int
    """Bytes from one matrix to the next."""
    copied: bool

    def back(self, operand: Operand | None) -> None:
        """Copy the written elements back to an operand, if this was a copy."""
        if self.copied:
            array(operand)[...] = self.matrix


class Scratch(Operand):
    """A temporary in place of an operand.

    Args:
        values: Its elements.
    """

    def __init__(self, values: Any) -> None:
        self.array = values
        self.layout = Layout(str(values.dtype), values.shape, values.strides, 0)

    @property
    def address(self) -> int:
        """Address of the element of index zero."""
        found: int = self.array.data.ptr
        return found

    def transpose(self) -> Scratch:
        """Return a view with the dimensions exchanged."""
        return Scratch(self.array.T)


def columns(operand: Operand | None, *, filled: bool = True) -> Columns:
    """Return an operand in column order, copied unless it lies so; the copy has its content only if `filled`."""
    layout, values = given(operand).layout, array(operand)
    found = leading(layout, "column")
    if 0 < found < COUNTED:
        return Columns(values, address(operand), found, batch_stride(layout) or 0, copied=False)
    return in_columns(duplicate(values) if filled else empty(values.shape, values.dtype))


def in_columns(matrix: Any) -> Columns:
    """Return an array from `duplicate` or `empty` in the form of a library."""
    rows = matrix.shape[-2]
    return Columns(matrix, matrix.data.ptr, max(1, rows), rows * matrix.shape[-1] * matrix.itemsize, copied=True)


def leading_of(layout: Layout, rows: int) -> int:
    """Return the leading dimension that `columns` will find."""
    found = leading(layout, "column")
    return found if 0 < found < COUNTED else max(1, rows)


def duplicate(matrix: Any) -> Any:
    """Return a copy in column order."""
    return cupy.array(matrix.swapaxes(-1, -2), order="C", copy=True).swapaxes(-1, -2)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return memory for matrices in column order."""
    *batch, rows, columns = shape
    return cupy.empty((*batch, columns, rows), dtype).swapaxes(-1, -2)


def triangle(n: int, *, lower: bool) -> Any:
    """Return a mask of the elements that belong to a triangle."""
    below = cupy.tri(n, dtype=bool)
    return below if lower else below.T


def pointers(first: int, stride_bytes: int, batch: tuple[int, ...]) -> Any:
    """Return the addresses of a batch's matrices, as an array on the device."""
    return cupy.arange(math.prod(batch), dtype=np.int64) * stride_bytes + first
