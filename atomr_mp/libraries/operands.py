"""What a library that speaks of sizes, increments and leading dimensions is told of an array. Pure."""

from __future__ import annotations

import operator
from typing import Final, NamedTuple, SupportsFloat, SupportsIndex

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import COMPLEX, Scalar
from atomr_mp.protocol.libraries.blas import Order, Trans
from atomr_mp.protocol.words import counted

Number = complex | SupportsFloat
"""A factor: Python's or NumPy's, or an array without dimensions."""


class Matrix(NamedTuple):
    """How a matrix A is passed in some order of elements."""

    rows: int
    """Of op(A), as are the columns."""
    columns: int
    leading: int
    trans: Trans
    """The op that gives op(A) from what is in memory."""
    flipped: bool
    """It is passed as its transpose, so that its triangles have changed places."""


def scalar(name: str, value: Number) -> Scalar:
    """Return a factor as messages hold it.

    Raises:
        InvalidRequest: It is no number.
    """
    try:
        if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
            number = complex(value)
            return number.real, number.imag
        return float(value)
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"{name} is {value!r}; it must be a number") from error


def given(order: Order | None = None, **sizes: SupportsIndex | None) -> dict[str, int]:
    """Return the sizes that a caller gives for flat memory; empty if none, then shapes and strides tell them.

    Raises:
        InvalidRequest: Only some are given, or an order without them.
    """
    found = {name: operator.index(size) for name, size in sizes.items() if size is not None}
    if len(found) < len(sizes) and (found or order is not None):
        missing = ", ".join(name for name in sizes if name not in found)
        raise errors.InvalidRequest(
            f"{missing} must be given too: for flat memory all of {', '.join(sizes)} are given, else none, and no order"
        )
    return found


def agreed(size: str, **lengths: int) -> int:
    """Return the length that operands have in common.

    Raises:
        InvalidRequest: They differ.
    """
    first, *others = lengths.values()
    if any(other != first for other in others):
        told = ", ".join(f"{length} for {name}" for name, length in lengths.items())
        raise errors.InvalidRequest(f"{size} must be the same for all arrays that have it; it is {told}")
    return first


def vector(name: str, layout: Layout) -> tuple[int, int]:
    """Return the number of elements, and the increment from one to the next.

    Raises:
        InvalidRequest: It is no vector, or its elements do not lie whole elements apart.
    """
    check_dimensions(name, layout, 1)
    (n,), (stride,) = layout.shape, layout.strides
    return n, in_elements(name, layout, stride) if n > 1 else 1


def common_order(name: str, written: Layout, **read: tuple[Layout, Trans]) -> Order:
    """Return the order of elements in which a request is made; row-major where there is a choice.

    That is the order of what is written. What is read in the other order is passed as its transpose, unless it is
    conjugated: libraries conjugate only what they transpose.

    Args:
        name: Of what is written.
        written: The matrix that is written.
        **read: The matrices that are read, each with its op.

    Raises:
        InvalidRequest: There is no such order.
    """
    fixed = orders(name, written)
    conjugated = {each: layout for each, (layout, trans) in read.items() if trans == "C" and layout.dtype in COMPLEX}
    for order in fixed:
        if all(order in orders(each, layout) for each, layout in conjugated.items()):
            return order
    raise errors.InvalidRequest(
        f"op 'C' of {' and '.join(conjugated)} cannot be expressed beside {name}, which is {fixed[0]}-major: passed as "
        f"a transpose it would have to be conjugated only; make {' and '.join(conjugated)} {fixed[0]}-major by a copy"
    )


def orders(name: str, layout: Layout) -> list[Order]:
    """Return the orders, at least one, in which a leading dimension tells how a matrix lies.

    Raises:
        InvalidRequest: It is no matrix, or there is none.
    """
    check_dimensions(name, layout, 2)
    found: list[Order] = [order for order in ORDERS if _leading(layout, order)]
    if not found:
        raise errors.InvalidRequest(
            f"{name} of shape {layout.shape} has strides of {layout.strides} bytes; one dimension must be contiguous "
            f"({layout.item_bytes} bytes), and the other's stride whole elements and not less than what it steps over: "
            "use a copy"
        )
    return found


def matrix(name: str, layout: Layout, order: Order, trans: Trans = "N") -> Matrix:
    """Return how a matrix is passed in an order of elements, see `common_order`.

    Raises:
        InvalidRequest: It is no matrix, or neither dimension is contiguous.
    """
    possible = orders(name, layout)
    flipped = order not in possible
    leading = _leading(layout, possible[0] if flipped else order)
    rows, columns = layout.shape if trans == "N" else layout.shape[::-1]
    return Matrix(rows, columns, leading, FLIPPED.get(trans, trans) if flipped else trans, flipped)


def check_dimensions(name: str, layout: Layout, *dimensions: int) -> None:
    """Check that an array has one of these numbers of dimensions.

    Raises:
        InvalidRequest: It has not.
    """
    if len(layout.shape) not in dimensions:
        wanted = " or ".join(map(str, dimensions))
        raise errors.InvalidRequest(
            f"{name} has {counted(len(layout.shape), 'dimension')}; it must have {wanted}, or all sizes must be given"
        )


def in_elements(name: str, layout: Layout, stride: int) -> int:
    """Return a stride in elements.

    Raises:
        InvalidRequest: It is not whole.
    """
    if stride % layout.item_bytes:
        raise errors.InvalidRequest(
            f"{name} has a stride of {stride} bytes; it must be a multiple of the {layout.item_bytes} of an element"
        )
    return stride // layout.item_bytes


ORDERS: Final[tuple[Order, ...]] = ("row", "column")
FLIPPED: Final[dict[Trans, Trans]] = {"N": "T", "T": "N", "C": "N"}
"""The op on the transpose of a matrix; for a "C" of reals."""


def _leading(layout: Layout, order: Order) -> int:
    """Return the leading dimension of a matrix in an order, 0 if it does not lie so."""
    lengths, strides = (layout.shape, layout.strides) if order == "row" else (layout.shape[::-1], layout.strides[::-1])
    (times, length), (step, stride), item = lengths, strides, layout.item_bytes
    least = max(1, length)
    if times and length > 1 and stride != item:
        return 0
    if times <= 1 or not length:
        return least
    return step // item if step % item == 0 and step >= least * item else 0
