"""Matrices in column order, as cuSOLVER takes them: where they lie, or as copies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cupy
import numpy as np

from atomr_mp.protocol.declaration.strides import batch_stride, leading
from atomr_mp.protocol.libraries.solver import COUNTED
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import address, array, given


class Columns(NamedTuple):
    """A matrix, or a batch, in column order."""

    address: int
    leading: int
    stride_bytes: int
    """From one matrix to the next."""
    copy: Any
    """The matrices, if they are a copy."""

    def back(self, operand: Operand | None) -> None:
        """Bring back to an operand what was written to its copy."""
        if self.copy is not None:
            array(operand)[...] = self.copy


def columns(operand: Operand | None) -> Columns:
    """Return an operand in column order, copied unless it lies so."""
    layout = given(operand).layout
    found = leading(layout, "column")
    if 0 < found < COUNTED:
        return Columns(address(operand), found, batch_stride(layout) or 0, None)
    return in_columns(copied(array(operand)))


def in_columns(matrix: Any) -> Columns:
    """Return what `copied` or `empty` has made as a library takes it."""
    rows = matrix.shape[-2]
    return Columns(matrix.data.ptr, max(1, rows), rows * matrix.shape[-1] * matrix.itemsize, matrix)


def copied(matrix: Any) -> Any:
    """Return a copy in column order."""
    return cupy.array(matrix.swapaxes(-1, -2), order="C", copy=True).swapaxes(-1, -2)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return memory for matrices in column order."""
    *batch, rows, columns = shape
    return cupy.empty((*batch, columns, rows), dtype).swapaxes(-1, -2)


def pointers(first: int, stride_bytes: int, batch: tuple[int, ...]) -> Any:
    """Return where the matrices of a batch lie, as an array on the device."""
    return cupy.arange(math.prod(batch), dtype=np.int64) * stride_bytes + first
