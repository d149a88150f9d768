"""Sparse matrices on every backend: makes, checks and finds structures, and converts formats.

A checked structure lies in this process's own memory, so that no client has a ref to it or has mapped it. A client
holds a buffer that names it (`Block.attached`): the structure lives as long as that buffer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.libraries import sparse
from atomr_mp_workers.device.base import Stream
from atomr_mp_workers.libraries.base import Library, LibraryContext, array
from atomr_mp_workers.libraries.sparse import structures
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import OURS, Holder
from atomr_mp_workers.requests.request import Elsewhere, Next


class MatrixForm(NamedTuple):
    """The form of a matrix that is made."""

    to: sparse.Format
    shape: tuple[int, int]
    blocksize: tuple[int, int]
    index_dtype: str


class SparseLibrary(Library):
    """Requests for sparse matrices. The backend does products and triangular systems."""

    xp: ClassVar[Any]
    """NumPy or CuPy."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._holder: Final = Holder(OURS)
        """Holds the structures; its slabs hold nothing else."""

    @abstractmethod
    def _numbers(self, pair: Any) -> Callable[[], list[int]]:
        """Return a function that returns two whole numbers once the device has computed them."""

    # --- structures ---------------------------------------------------------------------------------------------------

    def structure(self, request: sparse.Structure) -> Next:
        """Copy the structure, check the copy, and answer with a buffer that names it."""
        indptr = None if request.indptr is None else array(request.indptr)
        shape, blocksize = (request.shape[0], request.shape[1]), (request.blocksize[0], request.blocksize[1])
        it = CheckedStructure(request.to, shape, blocksize, self._kept(array(request.indices)), self._kept(indptr))
        return self._checked(it, None if request.data is None else array(request.data))

    def arrays(self, request: sparse.Arrays) -> list[DeviceArray | None]:
        """Return copies of the indices."""
        it, holder = self.found(request.a), self.context.holder()
        return [None if each is None else self._copied(each, holder) for each in (it.indices, it.indptr)]

    def rest(self, request: Any) -> None:
        """Multiply by beta; the matrix is checked nevertheless."""
        self.found(request.c if request.name == sparse.Sddmm.name else request.a)
        super().rest(request)

    @staticmethod
    def found(pattern: sparse.Pattern) -> CheckedStructure:
        """Return the structure that a request names, see `structures.found`."""
        return structures.found(pattern)

    def _checked(self, it: CheckedStructure, data: Any = None, *, answered: bool = False) -> Next:
        """Return the `Next` that answers with a structure once it has been checked.

        Args:
            it: The structure, in memory of our own.
            data: Its values, to be sorted along with it if its order is wrong.
            answered: Whether the values are part of the answer even if they are in order.
        """
        found = self._numbers(structures.check(self.xp, it))

        def read() -> Any:
            code, there = found()
            if code < 0:
                it.filled = it.count - there
                return self._answer(it, data if answered else None)
            if data is not None and structures.is_order(code):
                return self._sorted(it, data)
            raise structures.explain(code, it)

        return Next(read)

    def _sorted(self, it: CheckedStructure, data: Any) -> Next:
        """Sort a structure of single elements and its values, and check it again."""
        rows, columns, _ = structures.entries(self.xp, it)
        turned = it.stored == "csc"
        order = structures.by_rows(self.xp, *((columns, rows) if turned else (rows, columns)))
        it.indices[...] = it.indices[order]
        if it.stored == "coo":
            it.indptr[...] = it.indptr[order]
        return self._checked(it, bits(data)[order].view(data.dtype), answered=True)

    def _answer(self, it: CheckedStructure, data: Any = None) -> list[Any]:
        """Return the buffer that names a structure, its values, and its description."""
        holder = self.context.holder()
        name = self.context.store.buffers.allocate(holder, "uint8", (1,))
        name.attached = it
        if data is not None and not isinstance(data, DeviceArray):
            data = self._copied(data, holder)
        return [name, data, it.described]

    def _room(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return memory of our own.

        It is taken before its content is computed: a shape may be large with few elements.

        Raises:
            OutOfMemory: There is no memory.
        """
        return self.context.store.buffers.allocate(self._holder, dtype, shape).array

    def _kept(self, values: Any) -> Any:
        """Return a copy in memory of our own."""
        if values is None:
            return None
        made = self._room(str(values.dtype), values.shape)
        made[...] = values
        return made

    def _copied(self, values: Any, holder: Holder) -> DeviceArray:
        made = self.context.store.buffers.allocate(holder, str(values.dtype), values.shape)
        made.array[...] = values
        return made

    # --- conversions --------------------------------------------------------------------------------------------------

    def convert(self, request: sparse.Convert) -> Any:
        """Answer with the matrix in another format."""
        it, a = self.found(request.a), request.a
        rows, columns, at = structures.entries(self.xp, it)
        values = array(a.data).reshape(-1)
        values = values if at is None else bits(values)[at].view(values.dtype)
        if a.transposed:
            rows, columns = columns, rows
        blocksize = (request.blocksize[0], request.blocksize[1])
        form = MatrixForm(request.to, a.shape, blocksize, request.index or a.index)
        return self._built(form, rows, columns, values)

    def dense_to_sparse(self, request: sparse.DenseToSparse) -> Next | list[Any]:
        """Count the elements that are not 0, and answer with a matrix of them."""
        xp, x = self.xp, array(request.x)
        m, n = x.shape
        mask = (x != 0).reshape(-1)
        found = self._numbers(xp.stack([mask.sum(dtype=xp.int64), xp.full((), 0, xp.int64)]))

        def take() -> Any:
            count, _ = found()
            if count > sparse.LARGEST[request.index]:
                raise errors.InvalidRequest(f"x has {count} elements that are not 0: take index='int64'")
            at = structures.chosen(xp, mask, count)
            rows, columns = at // max(n, 1), at % max(n, 1)
            values = bits(x)[rows, columns].view(x.dtype)
            return self._built(MatrixForm(request.to, (m, n), (1, 1), request.index), rows, columns, values)

        return Next(take)

    def sparse_to_dense(self, request: sparse.SparseToDense) -> None:
        """Write all elements into a dense matrix."""
        it, out = self.found(request.a), array(request.out)
        rows, columns, at = structures.entries(self.xp, it)
        values = bits(array(request.a.data).reshape(-1))
        out[...] = 0
        if rows.size:
            target = bits(out).T if request.a.transposed else bits(out)
            target[rows, columns] = values if at is None else values[at]

    def _built(self, form: MatrixForm, rows: Any, columns: Any, values: Any) -> Any:
        """Answer with a matrix in a format, from its elements in any order."""
        to, shape, _, index = form
        if to in sparse.BLOCKED:
            return self._blocked(form, rows, columns, values)
        outer, inner, length = (columns, rows, shape[1]) if to == "csc" else (rows, columns, shape[0])
        indptr = self._room(index, outer.shape if to == "coo" else (length + 1,))
        order = structures.by_rows(self.xp, outer, inner)
        outer, inner = outer[order], inner[order]
        if to == "coo":
            indptr[...] = outer
        else:
            self._write_offsets(indptr, outer)
        it = CheckedStructure(to, shape, (1, 1), self._kept(inner.astype(index)), indptr)
        return self._answer(it, bits(values)[order].view(values.dtype))

    def _blocked(self, form: MatrixForm, rows: Any, columns: Any, values: Any) -> Next:
        """Count the blocks that have an element, and answer with a matrix of them."""
        to, shape, blocksize, index = form
        xp, (r, c), height = self.xp, blocksize, shape[0] // blocksize[0]
        indptr = self._room(index, (height + 1,))
        order = structures.by_rows(xp, rows // r, columns // c)
        rows, columns, values = rows[order], columns[order], bits(values)[order].view(values.dtype)
        outer, inner = rows // r, columns // c
        begins = xp.ones(rows.size, bool)
        begins[1:] = (outer[1:] != outer[:-1]) | (inner[1:] != inner[:-1])
        block = xp.cumsum(begins, dtype=xp.int64) - 1
        in_row = structures.offsets(xp, outer, height)
        of_row = xp.concatenate([block, xp.full(1, 0, xp.int64) + begins.sum()])[in_row]
        width = (of_row[1:] - of_row[:-1]).max() if height else xp.full((), 0, xp.int64)
        found = self._numbers(xp.stack([begins.sum(dtype=xp.int64), width]))

        def fill() -> list[Any]:
            count, width = found()
            first = structures.chosen(xp, begins, count)
            outer_of, inner_of = outer[first], inner[first]
            lengths = (count, r, c) if to == "bsr" else (shape[0], width * c)
            data = self.context.store.buffers.allocate(self.context.holder(), str(values.dtype), lengths)
            target = bits(data.array)
            target[...] = 0
            if to == "bsr":
                target[block, rows % r, columns % c] = bits(values)
                self._write_offsets(indptr, outer_of)
                it = CheckedStructure(to, shape, blocksize, self._kept(inner_of.astype(index)), indptr)
            else:
                place = xp.arange(count) - of_row[outer_of]
                target[rows, place[block] * c + columns % c] = bits(values)
                indices = self._room(index, (height, width))
                indices[...] = -1
                indices[outer_of, place] = inner_of
                it = CheckedStructure(to, shape, blocksize, indices, filled=height * width - count)
            return self._answer(it, data)

        return Next(fill)

    def _write_offsets(self, indptr: Any, outer: Any) -> None:
        """Write the offset of each row, from the sorted rows of the elements."""
        indptr[...] = structures.offsets(self.xp, outer, indptr.size - 1)

    # --- products and triangular systems ------------------------------------------------------------------------------

    def spgemm(self, request: sparse.Spgemm) -> Any:
        """Answer with alpha·a·b, which has no elements if alpha is 0."""
        counts = self.found(request.a).count, self.found(request.b).count
        indptr = self._room("int32", ((request.a.shape[0], request.b.shape[1])[request.a.format == "csc"] + 1,))
        if not is_zero(request.alpha) and all(counts):
            return self._product(request)
        indptr[...] = 0
        nothing = self.xp.zeros(0, "int32")
        return self._multiplied(request, nothing, indptr, nothing.astype(request.a.data.dtype))

    def _multiplied(self, request: sparse.Spgemm, indices: Any, indptr: Any, data: Any) -> Next:
        """Return the answer with a product."""
        shape = request.a.shape[0], request.b.shape[1]
        indices, indptr = (self._kept(each.astype("int32")) for each in (indices, indptr))
        return self._checked(CheckedStructure(request.a.format, shape, (1, 1), indices, indptr), data, answered=True)

    def spsv(self, request: sparse.Spsv) -> Any:
        """Solve a·x = alpha·b."""
        return self._solve(request, lambda: self._solve_vector(request))

    def spsm(self, request: sparse.Spsm) -> Any:
        """Solve a·x = alpha·b for the columns of x."""
        return self._solve(request, lambda: self._solve_matrix(request))

    def _solve(self, request: sparse.Spsv | sparse.Spsm, solve: Callable[[], None]) -> Any:
        """Solve a system whose diagonal has no gaps, and report zeros in it."""
        it, xp, x = self.found(request.a), self.xp, array(request.x)
        if is_zero(request.alpha) or not x.size:
            x[...] = 0
            return None
        if request.diag == "U":
            solve()
            return None
        at = it.plan("diagonal", lambda: self._kept(structures.diagonal(xp, it)))
        if it.gap is None:
            seen = self._numbers(structures.first_zero(xp, at, None))

            def go_on() -> Any:
                it.gap = seen()[0]
                return self._solve(request, solve)

            return Next(go_on)
        if it.gap >= 0:
            raise _zero(it.gap)
        found = self._numbers(structures.first_zero(xp, at, array(request.a.data)))

        def read() -> None:
            if (code := found()[0]) >= 0:
                raise _zero(code)

        return self._solved(read, solve)

    @abstractmethod
    def _product(self, request: sparse.Spgemm) -> Next | Elsewhere:
        """Multiply two sparse matrices."""

    @abstractmethod
    def _solve_vector(self, request: sparse.Spsv) -> None:
        """Solve for a vector."""

    @abstractmethod
    def _solve_matrix(self, request: sparse.Spsm) -> None:
        """Solve for the columns of a matrix."""

    @abstractmethod
    def _solved(self, checked: Callable[[], None], solve: Callable[[], None]) -> Any:
        """Have a system solved, and `checked` called when the device has checked its diagonal."""


def _zero(code: int) -> errors.NumericalError:
    row = code // structures.RULES
    return errors.NumericalError(f"the diagonal of a is 0 or missing in row {row}", row=row, undefined="x")


def bits(values: Any) -> Any:
    """Return elements that are only moved as whole numbers, since CuPy may not know their type."""
    return values.view("u2") if values.dtype.itemsize == 2 else values
