"""How the arrays of drawn requests lie: what every library's tests share, on every backend.

Arrays have gaps, any order of dimensions, negative strides and strides of 0 where their declaration admits these. An
output is often an input itself, or lies in the gaps of one. All memory is poisoned, with guards around the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration import strides
from atomr_mp.protocol.declaration.arguments import Argument
from atomr_mp.protocol.declaration.overlap import share_elements
from atomr_mp.protocol.layout import Layout
from tests.fakes.fake_arrays import GUARD_BYTES, FakeArray

POISON: Final = 0xFF
"""A byte of memory that nothing has written: NaN in every floating type."""

STEPS: Final = (1, 2, 3, 4, 8)
"""Strides of vectors, in elements: libraries have loops of their own for powers of two."""

GAPS: Final = (1, 1, 1, 2, 3)
"""By how much a stride is more than what it steps over; one of an array's may be `WIDE` instead."""

WIDE: Final = (1, 2, 4, 8, 16)

LARGEST_BYTES: Final = 2**18
"""Arrays with gaps are not larger than this; larger ones are drawn without."""


@st.composite
def placed(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    dtype: str,
    argument: Argument,
    wanted: strides.Order | None = None,
    lines: int = 1,
    solid: int = 0,
) -> FakeArray:
    """Draw an array that lies as its declaration admits, with gaps and guards.

    Args:
        draw: Hypothesis'.
        shape: Its shape.
        dtype: Its element type.
        argument: Its declaration.
        wanted: The order of a matrix; drawn by default.
        lines: It begins at a multiple of so many bytes, and so do the rows of a matrix.
        solid: How many of its last dimensions must not have a stride of 0.
    """
    item = dtypes.item_bytes(dtype)
    unit = max(item, lines)
    if argument.lies is strides.packed:
        return poisoned(Layout.contiguous(dtype, shape, GUARD_BYTES))
    begin = GUARD_BYTES + unit * draw(st.sampled_from([0, 0, 1, 2]))
    if argument.lies in {strides.vector, strides.forward}:
        backwards = () if argument.lies is strides.forward else tuple(-step for step in STEPS)
        return poisoned(_turned(dtype, shape, (draw(st.sampled_from(STEPS + backwards)) * item,), begin))
    if argument.lies in {strides.matrix, strides.matrices}:
        steps = draw(_of_matrices(shape, item, unit, argument, wanted))
    else:
        steps = draw(_anywhere(shape, item, argument, solid))
    for at, n in enumerate(shape):
        if n == 1 and draw(st.integers(0, 3)) == 0:
            steps[at] = 0
    return poisoned(_turned(dtype, shape, tuple(steps), begin))


@st.composite
def _of_matrices(
    draw: st.DrawFn, shape: tuple[int, ...], item: int, unit: int, argument: Argument, wanted: strides.Order | None
) -> list[int]:
    """Draw the strides of a matrix, or of a batch of them that lies as one dimension."""
    order = list(range(len(shape)))
    if draw(st.booleans()) if wanted is None else wanted == "column":
        order[-2:] = order[-1], order[-2]
    if len(shape) > 2 and draw(st.integers(0, 2)) == 0:  # side by side within the rows, as heads of an attention
        order = [order[-2], *order[:-2], order[-1]]
    gaps = {order[-2]} if order[-2] >= len(shape) - 2 else {order[0]}
    step, found = item, dict[int, int]()
    for at in reversed(order):
        found[at] = step + (unit * draw(st.sampled_from([0, 1, 2, 4])) if at in gaps and at != order[-1] else 0)
        step = found[at] * max(shape[at], 1)
    if argument.lies is strides.matrices and len(shape) > 2 and not argument.writes and draw(st.integers(0, 3)) == 0:
        found |= dict.fromkeys(range(len(shape) - 2), 0)  # the same matrix for all of the batch
    return [found[at] for at in range(len(shape))]


@st.composite
def _anywhere(draw: st.DrawFn, shape: tuple[int, ...], item: int, argument: Argument, solid: int) -> list[int]:
    """Draw any strides; elements of an output have memory of their own."""
    order, wide = draw(st.permutations(range(len(shape)))), draw(st.integers(0, len(shape)))
    step, found = item, [0] * len(shape)
    for at in reversed(order):
        gap = draw(st.sampled_from(WIDE if at == wide else GAPS))
        found[at] = step * gap if step * gap * shape[at] <= LARGEST_BYTES else step
        step = found[at] * max(shape[at], 1)
    for at in range(len(shape)):
        way = draw(st.sampled_from(["forward", "forward", "backwards", "broadcast"]))
        if way == "backwards":
            found[at] = -found[at]
        elif way == "broadcast" and not argument.writes and at < len(shape) - solid:
            found[at] = 0
    return found


def vector(dtype: str, n: int, step: int) -> FakeArray:
    """Return a vector with a stride of so many elements."""
    return poisoned(_turned(dtype, (n,), (step * dtypes.item_bytes(dtype),), GUARD_BYTES))


def _turned(dtype: str, shape: tuple[int, ...], steps: tuple[int, ...], begin: int) -> Layout:
    """Return a layout whose lowest byte is at `begin`, also where strides are negative."""
    below = sum(-step * (n - 1) for step, n in zip(steps, shape, strict=True) if step < 0 and n)
    return Layout(dtype, shape, steps, begin + below)


def beside(array: FakeArray, argument: Argument) -> Iterator[FakeArray]:
    """Return arrays as an argument admits them that lie in the gaps of an array, an element or more behind its own."""
    layout = array.layout
    for count in (1, 2, 3):
        moved = layout._replace(offset=layout.offset + count * layout.item_bytes)
        if (
            moved.span[1] <= array.slab.nbytes
            and strides.is_apart(moved)
            and not argument.lies(moved)
            and not share_elements(layout, moved)
        ):
            view = FakeArray(moved, array.slab)
            view.number = array.number
            yield view


def poisoned(layout: Layout) -> FakeArray:
    """Return an array whose memory, guards included, nothing has written."""
    array = FakeArray(layout)
    array.slab[:] = POISON
    return array


def shared(draw: Any, named: dict[str, Any], arguments: dict[str, Argument], name: str) -> FakeArray:
    """Draw whether an output is an input itself, or lies in the gaps of one; return the array that it then is.

    Args:
        draw: Hypothesis'.
        named: The arrays of the request, and its parameters, by name.
        arguments: The arrays' declarations.
        name: The output.
    """
    argument, own = arguments[name], named[name]
    found: list[FakeArray] = []
    for other in arguments:
        theirs = named[other]
        if other == name or theirs is None or theirs.layout[:2] != own.layout[:2] or type(theirs) is not FakeArray:
            continue
        rest = [named[each] for each in arguments if each not in {name, other} and named[each] is not None]
        if other in argument.alias and strides.is_apart(theirs.layout) and not argument.lies(theirs.layout):
            found += [theirs] if not _meets(theirs, [each for each in rest if each.layout != theirs.layout]) else []
        if argument.lies is not strides.packed and theirs.size:
            found += [view for view in beside(theirs, argument) if not _meets(view, rest)]
    chosen: FakeArray = draw(st.sampled_from(found)) if found and draw(st.booleans()) else own
    return chosen


def _meets(array: FakeArray, others: list[Any]) -> bool:
    """Return whether an array shares elements with one of others."""
    return any(each.number == array.number and share_elements(each.layout, array.layout) for each in others)
