"""Rules for the layout of an array of a request: a rule is a function of a layout. Pure.

A rule returns "" for a layout that fits, else what it needs, for an error's message. Strides are bytes. The strides of
a dimension of length 1 do not count, and nothing counts in an array without elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from atomr_mp.protocol.layout import Layout

Rule = Callable[[Layout], str]

Order = Literal["row", "column"]
"""Which elements of a matrix lie side by side: those of a row, or those of a column."""


def anywhere(_layout: Layout) -> str:
    """Any strides."""
    return ""


def packed(layout: Layout) -> str:
    """Row-major, without gaps."""
    return "" if layout.is_contiguous() else "row-major and without gaps"


def vector(layout: Layout) -> str:
    """A stride that is not 0."""
    return "" if layout.size < 2 or layout.strides[-1] else "a stride that is not 0"


def forward(layout: Layout) -> str:
    """A positive stride."""
    return "" if layout.size < 2 or layout.strides[-1] > 0 else "a stride that is positive"


def matrix(layout: Layout) -> str:
    """One contiguous dimension of the last two, and the other's stride not less than what it steps over."""
    return "" if leading(layout, "row") or leading(layout, "column") else _MATRIX


def matrices(layout: Layout) -> str:
    """Each matrix with one contiguous dimension; all dimensions before these two as if they were one."""
    return matrix(layout) or ("" if batch_stride(layout) is not None else _MATRICES)


_MATRIX = "one of the last two dimensions contiguous, and the other's stride not less than what it steps over"
_MATRICES = "dimensions before the last two that lie as one, with a stride that is not negative"


def leading(layout: Layout, order: Order) -> int:
    """Return the leading dimension of a matrix in an order of elements, in elements; 0 if it does not lie so."""
    lengths, steps, item = layout.shape[-2:], layout.strides[-2:], layout.item_bytes
    if order == "column":
        lengths, steps = lengths[::-1], steps[::-1]
    (times, length), (step, stride) = lengths, steps
    least = max(1, length)
    if not layout.size:
        return least
    if length > 1 and stride != item:
        return 0
    if times == 1:
        return least
    return step // item if step % item == 0 and step >= least * item else 0


def batch_stride(layout: Layout) -> int | None:
    """Return the stride, in bytes, from one matrix to the next if the dimensions before the last two lie as one.

    None if they do not, or if it is negative.
    """
    if not layout.size:
        return 0
    stride, reach = 0, None
    for n, step in zip(reversed(layout.shape[:-2]), reversed(layout.strides[:-2]), strict=True):
        if n == 1:
            continue
        if reach is None:
            stride, reach = step, step * n
        elif step == reach:
            reach = step * n
        else:
            return None
    return stride if stride >= 0 else None


def is_apart(layout: Layout) -> bool:
    """Return whether no two elements of an array share bytes, judged dimension by dimension, the widest last."""
    reach = layout.item_bytes
    if not layout.size:
        return True
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n > 1):
        if stride < reach:
            return False
        reach = stride * (n - 1) + reach
    return True
