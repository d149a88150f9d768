"""Passes matrices to libraries that only have column order: cuBLAS, cuSOLVER. Pure.

Such a library takes a matrix in row order for its transpose. So a product whose result lies in row order is requested
transposed, and each matrix is passed by its order relative to the result.
"""

from __future__ import annotations

from typing import NamedTuple

from atomr_mp.protocol.declaration.strides import Order, batch_stride, leading
from atomr_mp.protocol.layout import Layout


class BlasView(NamedTuple):
    """A matrix, passed beside a result of some order."""

    op: str
    """"N" if it lies in the same order as the result, else "T"; "C" to conjugate it as well."""
    leading: int
    copied: bool
    """Whether it has to be conjugated without a transpose, which no op expresses: then a conjugated copy is used,
    packed in the order of the result."""
    stride: int
    """Elements from one matrix of a batch to the next."""


def told(layout: Layout, order: Order, *, conjugated: bool = False, in_place: bool = False) -> BlasView:
    """Return how a matrix is passed.

    Args:
        layout: Layout of the matrix, or of a batch.
        order: The order of the result.
        conjugated: Whether its conjugate is meant.
        in_place: Whether it may be the result itself, so that it must not be transposed if it lies in both orders.
    """
    same, other = leading(layout, order), leading(layout, "column" if order == "row" else "row")
    stride = (batch_stride(layout) or 0) // layout.item_bytes
    if not conjugated:
        return BlasView("N", same, False, stride) if same else BlasView("T", other, False, stride)
    if other and not (same and in_place):
        return BlasView("C", other, False, stride)
    rows, columns = layout.shape[-2:]
    return BlasView("N", max(1, columns if order == "row" else rows), True, rows * columns)


def orders(layout: Layout) -> list[Order]:
    """Return the orders in which a matrix lies: one, or both if it has a single row or column."""
    candidates: tuple[Order, Order] = ("row", "column")
    return [order for order in candidates if leading(layout, order)]
