"""Structures of sparse matrices: their checks, and the places of their elements. For arrays of NumPy or CuPy.

Nothing here waits for the device: no array's length depends on the data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.libraries.sparse import Format, Pattern
from atomr_mp_workers.libraries.base import given

PLANS_KEPT: Final = 16
"""Most plans of one structure."""


class CheckedStructure:
    """A checked structure. The worker owns it, so it never changes.

    Args:
        stored: The format.
        shape: Rows and columns.
        blocksize: Rows and columns of a block.
        indices: Column of each element or block, of csc its row; of blocked_ell one row for each row of blocks.
        indptr: Where each row begins, of csc each column; of coo the row of each element; None for blocked_ell.
        filled: Number of padded blocks of blocked_ell, which do not exist.
    """

    def __init__(
        self,
        stored: Format,
        shape: tuple[int, int],
        blocksize: tuple[int, int],
        indices: Any,
        indptr: Any = None,
        filled: int = 0,
    ) -> None:
        self.stored: Final = stored
        self.shape: Final = shape
        self.blocksize: Final = blocksize
        self.indices: Final = indices
        self.indptr: Final = indptr
        self.filled = filled
        self.gap: int | None = None
        """The first element of the diagonal that is not there, as `first_zero` says it; None if it was not looked for.
        """
        self._plans: OrderedDict[object, Any] = OrderedDict()

    @property
    def count(self) -> int:
        """Number of elements, or of blocks if it is blocked."""
        return int(self.indices.size)

    @property
    def described(self) -> tuple[object, ...]:
        """The facts of it that a request has to state, see `Pattern.described`."""
        return self.stored, *self.shape, self.count, self.blocksize, str(self.indices.dtype)

    def plan(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the plan of this structure with this key; the least recently used ones are dropped."""
        plans = self._plans
        if key in plans:
            plans.move_to_end(key)
            return plans[key]
        made = plans[key] = make()
        if len(plans) > PLANS_KEPT:
            plans.popitem(last=False)
        return made


def found(pattern: Pattern) -> CheckedStructure:
    """Return the structure that a request names, after checking it against the request.

    Raises:
        InvalidRequest: It is another structure, or does not exist.
    """
    it = given(pattern.structure).attached
    if not isinstance(it, CheckedStructure):
        raise errors.InvalidRequest("a matrix names no checked structure: make it with device.sparse.csr or its like")
    if it.described != pattern.described:
        raise errors.InvalidRequest(f"a matrix says that it is {pattern.described}; its structure is {it.described}")
    return it


class Entries(NamedTuple):
    """The elements of a matrix."""

    rows: Any
    columns: Any
    at: Any
    """Index of each value among all values; None if all are in order."""


# --- checks -----------------------------------------------------------------------------------------------------------

BEGINS, ENDS, DESCENDS, ROW, COLUMN, ORDER, TWICE = range(7)
RULES: Final = 8


def check(xp: Any, it: CheckedStructure) -> Any:
    """Return [the first violation, or -1; the number of blocks] as an array of int64.

    Whatever the indices are, only they are read.
    """
    if it.stored == "blocked_ell":
        return _check_blocked_ell(xp, it)
    indices, indptr = it.indices.astype(xp.int64), it.indptr.astype(xp.int64)
    outer, inner = _extents(it)
    found = {COLUMN: _outside(indices, inner)}
    if it.stored == "coo":
        rows = indptr
        found[ROW] = _outside(rows, outer)
    else:
        rows = _expanded(xp, indptr, it.count)
        found |= {BEGINS: indptr[:1] != 0, ENDS: indptr[-1:] != it.count, DESCENDS: indptr[1:] < indptr[:-1]}
    same = rows[1:] == rows[:-1]
    found[ORDER] = (rows[1:] < rows[:-1]) | (same & (indices[1:] < indices[:-1]))
    found[TWICE] = same & (indices[1:] == indices[:-1])
    return xp.stack([_first(xp, found), xp.full((), it.count, xp.int64)])


def explain(code: int, it: CheckedStructure) -> errors.InvalidRequest:
    """Return the error for a violation that `check` has found."""
    at, rule = divmod(code, RULES)
    outer, inner = _extents(it)
    indices, indptr = ("col", "row") if it.stored == "coo" else ("indices", "indptr")
    pair = f"row[{at + 1}], col[{at + 1}]" if it.stored == "coo" else f"{indices}[{at + 1}]"
    words = {
        BEGINS: "indptr does not begin with 0",
        ENDS: f"indptr does not end with {it.count}, the number of indices",
        DESCENDS: f"indptr[{at + 1}] is less than the one before",
        ROW: f"{indptr}[{at}] is not in the range from 0 to {outer - 1}",
        COLUMN: f"{indices}[{at}] is not in the range from 0 to {inner - 1}",
        ORDER: f"{pair} must come before its predecessor: sort the indices, as SciPy's sort_indices does",
        TWICE: f"{pair} comes twice: add such elements up, as SciPy's sum_duplicates does",
    }
    return errors.InvalidRequest(f"{it.stored} of shape {it.shape}: {words[rule]}")


def is_order(code: int) -> bool:
    """Return whether sorting cures a violation."""
    return code % RULES == ORDER


def _check_blocked_ell(xp: Any, it: CheckedStructure) -> Any:
    indices = it.indices.astype(xp.int64)
    there, flat = indices >= 0, indices.reshape(-1)
    before, after = indices[:, :-1], indices[:, 1:]
    edge = xp.zeros((indices.shape[0], 1), bool)
    found = {
        COLUMN: (flat < -1) | (flat >= it.shape[1] // it.blocksize[1]),
        ORDER: xp.concatenate([(after >= 0) & (after < before) | (there[:, 1:] & ~there[:, :-1]), edge], 1).reshape(-1),
        TWICE: xp.concatenate([there[:, 1:] & (after == before), edge], 1).reshape(-1),
    }
    return xp.stack([_first(xp, found), there.sum(dtype=xp.int64)])


def _first(xp: Any, found: dict[int, Any]) -> Any:
    """Return the first violation of the first violated rule: its place times `RULES`, plus the rule; or -1."""
    code = xp.full((), -1, xp.int64)
    for rule in sorted(found, reverse=True):
        bad = found[rule]
        if bad.size:
            code = xp.where(bad.any(), bad.argmax() * RULES + rule, code)
    return code.astype(xp.int64)


def _outside(indices: Any, length: int) -> Any:
    return (indices < 0) | (indices >= length)


def _extents(it: CheckedStructure) -> tuple[int, int]:
    """Return the number of rows with indices, and the bound of the indices, in blocks; for csc, of columns."""
    (rows, columns), (r, c) = it.shape, it.blocksize
    outer, inner = rows // r, columns // c
    return (inner, outer) if it.stored == "csc" else (outer, inner)


# --- elements ---------------------------------------------------------------------------------------------------------


def entries(xp: Any, it: CheckedStructure) -> Entries:
    """Return the elements of a checked structure, in the order of its values."""
    if it.stored == "coo":
        return Entries(it.indptr, it.indices, None)
    if it.stored == "blocked_ell":
        return _entries_blocked_ell(xp, it)
    outer = _expanded(xp, it.indptr, it.count)
    if it.stored == "bsr":
        (r, c) = it.blocksize
        return Entries(*_in_blocks(xp, outer, it.indices, r, c), None)
    return Entries(it.indices, outer, None) if it.stored == "csc" else Entries(outer, it.indices, None)


def _entries_blocked_ell(xp: Any, it: CheckedStructure) -> Entries:
    size, width = it.blocksize[0], it.indices.shape[1]
    flat = it.indices.reshape(-1)
    blocks = chosen(xp, flat >= 0, it.count - it.filled)
    outer = blocks // max(width, 1)
    rows, columns = _in_blocks(xp, outer, flat[blocks], size, size)
    _, within = _in_blocks(xp, outer, blocks % max(width, 1), size, size)
    return Entries(rows, columns, rows * (width * size) + within)


def _in_blocks(xp: Any, outer: Any, inner: Any, r: int, c: int) -> tuple[Any, Any]:
    """Return rows and columns of each element of blocks, block by block, in row order."""
    shape = (outer.size, r, c)
    rows = outer.astype(xp.int64)[:, None, None] * r + xp.arange(r)[None, :, None]
    columns = inner.astype(xp.int64)[:, None, None] * c + xp.arange(c)[None, None, :]
    return xp.broadcast_to(rows, shape).reshape(-1), xp.broadcast_to(columns, shape).reshape(-1)


def _expanded(xp: Any, indptr: Any, count: int) -> Any:
    """Return the row of each element, from the offsets of rows."""
    return xp.searchsorted(indptr, xp.arange(count, dtype=indptr.dtype), side="right") - 1


def chosen(xp: Any, mask: Any, count: int) -> Any:
    """Return the places where a mask is True; `count` is their number."""
    return xp.searchsorted(xp.cumsum(mask, dtype=xp.int64), xp.arange(1, count + 1))


def by_rows(xp: Any, rows: Any, columns: Any) -> Any:
    """Return the order that sorts elements by row, then by column."""
    if rows.size < 2:
        return xp.arange(rows.size)
    return xp.lexsort(xp.stack([columns, rows]))


def offsets(xp: Any, outer: Any, length: int) -> Any:
    """Return the offset of each row, from the sorted rows of the elements."""
    if not outer.size:
        return xp.zeros(length + 1, xp.int64)
    return xp.searchsorted(outer, xp.arange(length + 1), side="left")


def diagonal(xp: Any, it: CheckedStructure) -> Any:
    """Return the place of each diagonal element's value; -1 if it is missing."""
    rows, columns, _ = entries(xp, it)
    size = min(it.shape)
    at = xp.full(size + 1, -1, xp.int64)
    at[xp.where(rows == columns, rows, size)] = xp.arange(it.count)
    return at[:size]


def first_zero(xp: Any, at: Any, values: Any) -> Any:
    """Return [the first row whose element of the diagonal is not there, or 0 if values are given, times `RULES`; 0].

    It is -1 if there is no such row.
    """
    bad = at < 0 if values is None or not values.size else (at < 0) | (values[xp.maximum(at, 0)] == 0)
    return xp.stack([_first(xp, {0: bad}), xp.full((), 0, xp.int64)])
