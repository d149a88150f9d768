"""Sparse matrices in a device's memory: `device.sparse`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import check, lengths
from atomr_mp.libraries.generated.sparse import SparseRequests
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply

FORMATS: Final = {"csr": "tocsr", "csc": "tocsc", "coo": "tocoo", "bsr": "tobsr"}


_NOT_OF_SCIPY: Final = frozenset({"float16", "bfloat16"})
"""Element types of sparse matrices that SciPy does not have."""


class SparseMatrix(sparse.Matrix, frozen=True, dict=True):
    """A sparse matrix on a device: a checked, immutable structure, and `data`, a ref to its values.

    Requests of `device.sparse` and of programs take it. Its structure lives as long as the matrix or a view of it. When
    the device's worker ends, it is stale like a ref.
    """

    def __repr__(self) -> str:
        return f"<SparseMatrix {self.format} {self.data.dtype}{list(self.shape)}, {self.nnz} stored elements>"

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.data.dtype

    @property
    def T(self) -> Self:  # noqa: N802 - as in SciPy
        """The transpose, a view: of csr in csc, of csc in csr.

        Raises:
            Unsupported: Its elements lie in blocks.
        """
        if self.stored in sparse.BLOCKED:
            raise errors.Unsupported(f"a matrix in {self.stored} has no transpose: convert it to csr")
        return self._with(transposed=not self.transposed)

    def with_data(self, data: Operand) -> Self:
        """Return a matrix with the same structure and other values.

        Raises:
            InvalidRequest: The values do not have the shape of `data`.
        """
        if data.shape != self.data_shape:
            raise errors.InvalidRequest(f"data has the shape {data.shape}; the structure needs {self.data_shape}")
        return self._with(data=data)

    def to_scipy(self) -> Any:
        """Return a copy as a SciPy matrix; blocked ELL becomes BSR. Blocks; needs SciPy.

        Raises:
            Unsupported: SciPy has no sparse matrices of this element type.
        """
        import scipy.sparse

        if self.dtype in _NOT_OF_SCIPY:
            raise errors.Unsupported(
                f"SciPy has no sparse matrices of {self.dtype}; take `with_data` with values cast to float32"
            )
        answer = self._library._done(sparse.Arrays(self.pattern))  # noqa: SLF001 - a matrix is a part of the library
        indices, indptr = (None if each is None else each.numpy() for each in answer)
        data: Any = self.data
        values, shape = data.numpy(), (self.rows, self.columns)
        if self.stored == "coo":
            made = scipy.sparse.coo_array((values, (indptr, indices)), shape=shape)
        elif self.stored == "blocked_ell":
            made = _from_blocked_ell(values, indices, shape, self.blocksize[0])
        else:
            made = getattr(scipy.sparse, f"{self.stored}_array")((values, indices, indptr), shape=shape)
        return made.T if self.transposed else made

    @property
    def pattern(self) -> sparse.Pattern:
        """Its structure, without values."""
        return sparse.Pattern(
            self.structure,
            self.stored,
            self.rows,
            self.columns,
            self.count,
            self.blocksize,
            self.index,
            self.transposed,
        )

    @property
    def _library(self) -> Sparse:
        library: Sparse = self.__dict__["library"]
        return library

    def _with(self, **changes: Any) -> Self:
        made = msgspec.structs.replace(self, **changes)
        made.__dict__["library"] = self._library
        return made


class Sparse(SparseRequests):
    """Sparse linear algebra, with SciPy's formats and cuSPARSE's requests.

    `csr`, `csc`, `coo`, `bsr` or `blocked_ell` makes a matrix from a SciPy matrix, or from arrays as SciPy takes them:
    `device.sparse.csr((data, indices, indptr), shape)`, where each may be a ref. These methods wait until the worker
    has copied and checked the indices. `data` is not copied if it is a ref.
    """

    def csr(self, matrix: Any, shape: Sequence[int] | None = None) -> SparseMatrix:
        """Make a matrix in compressed rows from a SciPy matrix or (data, indices, indptr). Blocks.

        Args:
            matrix: A SciPy matrix in any format, or its arrays or refs. Indices that do not ascend in each row are
                sorted in a copy, and data with them.
            shape: Rows and columns; with arrays only.

        Raises:
            InvalidRequest: Indices are out of range, come twice, or do not fit each other.
        """
        return self._make("csr", matrix, shape)

    def csc(self, matrix: Any, shape: Sequence[int] | None = None) -> SparseMatrix:
        """Make a matrix in compressed columns from a SciPy matrix or (data, indices, indptr); see `csr`."""
        return self._make("csc", matrix, shape)

    def coo(self, matrix: Any, shape: Sequence[int] | None = None) -> SparseMatrix:
        """Make a matrix of coordinates from a SciPy matrix or (data, (row, col)); see `csr`."""
        return self._make("coo", matrix, shape)

    def bsr(
        self, matrix: Any, shape: Sequence[int] | None = None, *, blocksize: Sequence[int] | None = None
    ) -> SparseMatrix:
        """Make a matrix in compressed rows of blocks from a SciPy matrix or (data, indices, indptr); see `csr`.

        Args:
            matrix: A SciPy matrix, or its arrays or refs; data has the shape (blocks, r, c).
            shape: Rows and columns; with arrays only.
            blocksize: Rows and columns of a block. None takes those of data with arrays, and SciPy's choice otherwise.
        """
        return self._make("bsr", matrix, shape, blocksize)

    def blocked_ell(
        self, matrix: Any, shape: Sequence[int] | None = None, *, blocksize: SupportsIndex | None = None
    ) -> SparseMatrix:
        """Make a matrix with the same number of blocks in each row of blocks, in cuSPARSE's format; see `csr`.

        Args:
            matrix: A SciPy matrix, or (data, indices). data of the shape (rows, width · b) has the blocks of each row
                side by side; indices of the shape (rows / b, width) have their columns in blocks, ascending, then -1
                for no block.
            shape: Rows and columns; with arrays only.
            blocksize: b, rows and columns of a block.
        """
        size = None if blocksize is None else lengths("blocksize", blocksize) * 2
        return self._make("blocked_ell", matrix, shape, size)

    def _make(
        self, to: sparse.Format, matrix: Any, shape: Sequence[int] | None, blocksize: Sequence[int] | None = None
    ) -> SparseMatrix:
        put: Callable[[Any], Operand] | None = getattr(self._device, "put", self._operand)
        if put is None:
            raise errors.InvalidRequest("a matrix is made by a device, before the program that uses it")
        shape = None if shape is None else lengths("shape", shape)
        blocksize = None if blocksize is None else lengths("blocksize", blocksize)
        if not isinstance(matrix, tuple | list):
            matrix, shape, blocksize = _of_scipy(to, matrix, shape, blocksize)
        if shape is None:
            raise errors.InvalidRequest("arrays need a shape: its rows and columns")
        data, indices, indptr = (_placed(put, each) for each in _arrays(to, matrix))
        if blocksize is None and to == "bsr" and data.ndim == 3:
            blocksize = data.shape[1:]
        sorted_with = data if to not in sparse.BLOCKED and data.shape == indices.shape else None
        request = sparse.Structure(indices, indptr, sorted_with, to, tuple(shape), tuple(blocksize or (1, 1)))
        made: SparseMatrix = self._answered(self._done(request))
        return made.with_data(data) if getattr(made, "data", None) is None else made

    def _done(self, request: LibraryRequest) -> Any:
        """Make a request, and return its raw answer. Blocks."""
        request = self._taken(request)
        check(request)
        device: Any = self._device
        if self._operand is not None:  # in an actor, where nothing is sent
            return device.request(self.library, request, None)
        return device.request(self.library, request, None, blocking=True).result()

    def _request(self, request: LibraryRequest, deadline_s: float | None) -> Reply:
        if isinstance(request, sparse.Sddmm) and isinstance(request.c, SparseMatrix):
            request = msgspec.structs.replace(request, c=request.c.pattern)
        if isinstance(request, sparse.Arrays) and isinstance(request.a, SparseMatrix):
            request = msgspec.structs.replace(request, a=request.a.pattern)
        if isinstance(request, sparse.Convert):
            request = msgspec.structs.replace(request, blocksize=_block(request.blocksize))
        reply: Any = super()._request(request, deadline_s)
        if request.answers and not isinstance(request, sparse.Arrays):
            if self._operand is not None:
                return self._answered(reply)  # type: ignore[return-value]  # an actor has done it already
            reply.finish = self._answered
        return reply  # type: ignore[no-any-return]

    def _answered(self, answer: Any) -> SparseMatrix:
        """Return the matrix in a worker's answer."""
        structure, data, (stored, rows, columns, count, blocksize, index) = answer
        made = SparseMatrix(structure, stored, rows, columns, count, tuple(blocksize), index, False, data)
        made.__dict__["library"] = self
        return made


def _block(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rows and columns of a block; one length stands for both.

    Raises:
        InvalidRequest: One is less than 1.
    """
    if len(lengths) not in {1, 2} or min(lengths) < 1:
        raise errors.InvalidRequest(f"blocksize is {lengths}; it must be one or two lengths of at least 1")
    return lengths * 2 if len(lengths) == 1 else lengths


def _placed(put: Callable[[Any], Operand], array: Any) -> Any:
    """Return a ref itself, an array put on the device, and None for None."""
    return array if array is None or isinstance(array, Operand) else put(array)


def _arrays(to: str, matrix: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return data, indices and indptr, for coo data, col and row, from SciPy's arguments.

    Raises:
        InvalidRequest: Their number is wrong.
    """
    try:
        if to == "coo":
            data, (row, col) = matrix
            return data, col, row
        if to == "blocked_ell":
            data, indices = matrix
            return data, indices, None
        data, indices, indptr = matrix
    except (TypeError, ValueError) as error:
        wanted = {"coo": "(data, (row, col))", "blocked_ell": "(data, indices)"}.get(to, "(data, indices, indptr)")
        raise errors.InvalidRequest(f"{to} is made of {wanted}, or of a matrix of SciPy's") from error
    return data, indices, indptr


def _of_scipy(
    to: str, matrix: Any, shape: Sequence[int] | None, blocksize: Sequence[int] | None
) -> tuple[tuple[Any, ...], Sequence[int], Sequence[int] | None]:
    """Return a SciPy matrix's arrays in a format, ordered and without duplicates, its shape, and its blocks' shape.

    Indices have 32 bits if these suffice, as in SciPy itself.

    Raises:
        InvalidRequest: It is not a sparse matrix.
    """
    if not hasattr(matrix, "tocsr") or not hasattr(matrix, "nnz"):
        raise errors.InvalidRequest(
            f"a {type(matrix).__name__} is neither a SciPy matrix nor a tuple of its arrays; dense_to_sparse "
            "makes one of a dense ref"
        )
    if shape is not None and tuple(shape) != matrix.shape:
        raise errors.InvalidRequest(f"shape is {tuple(shape)}; the matrix has {matrix.shape}")
    if len(matrix.shape) != 2:
        raise errors.InvalidRequest(f"the matrix has {counted(len(matrix.shape), 'dimension')}; it must have 2")
    if blocksize is not None and not _divides(blocksize, matrix.shape):
        raise errors.InvalidRequest(
            f"blocksize is {tuple(blocksize)}; it must be two numbers that divide the shape, {matrix.shape}"
        )
    blocked = to in sparse.BLOCKED
    if matrix.format != to or not getattr(matrix, "has_canonical_format", False) or blocked:
        matrix = matrix.tocsr(copy=True)
        matrix.sum_duplicates()
        if blocked:
            matrix = matrix.tobsr(blocksize=tuple(blocksize) if blocksize else None)
            matrix.sort_indices()
        else:
            matrix = getattr(matrix, FORMATS[to])()
    narrow = max(*matrix.shape, matrix.nnz) <= sparse.LARGEST["int32"]
    if to == "coo":
        data, *indices = matrix.data, matrix.row, matrix.col
    elif to == "blocked_ell":
        data, *indices = _to_blocked_ell(matrix)
    else:
        data, *indices = matrix.data, matrix.indices, matrix.indptr
    indices = [each.astype("int32" if narrow else "int64", copy=False) for each in indices]
    arrays = (data, tuple(indices)) if to == "coo" else (data, *indices)
    return arrays, matrix.shape, matrix.blocksize if blocked else None


def _divides(blocksize: Sequence[int], shape: tuple[int, int]) -> bool:
    """Return whether blocks of a shape fill a matrix."""
    return len(blocksize) == len(shape) and all(b > 0 and n % b == 0 for b, n in zip(blocksize, shape, strict=True))


def _to_blocked_ell(matrix: Any) -> tuple[Any, Any]:
    """Return data and indices of a matrix in BSR."""
    import numpy as np

    size, count = matrix.blocksize[0], np.diff(matrix.indptr)
    height, width = count.size, int(count.max(initial=0))
    row = np.repeat(np.arange(height), count)
    place = np.arange(matrix.indices.size) - matrix.indptr[row]
    indices = np.full((height, width), -1, matrix.indices.dtype)
    indices[row, place] = matrix.indices
    data = np.zeros((height, size, width, size), matrix.data.dtype)
    data[row, :, place] = matrix.data
    return data.reshape(height * size, width * size), indices


def _from_blocked_ell(values: Any, indices: Any, shape: tuple[int, int], size: int) -> Any:
    """Return a matrix in BSR."""
    import numpy as np
    import scipy.sparse

    height, width = indices.shape
    blocks = values.reshape(height, size, width, size).transpose(0, 2, 1, 3)[indices >= 0]
    indptr = np.concatenate([[0], np.cumsum((indices >= 0).sum(1))])
    return scipy.sparse.bsr_array((blocks, indices[indices >= 0], indptr), shape=shape, blocksize=(size, size))


Reference: Final = Sparse
