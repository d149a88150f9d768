"""Sparse matrices in a device's memory: products, triangular systems, sampled products and conversions. Pure.

A matrix is a *checked structure*, which says where its elements stand, and a ref to its values. The worker has copied
and checked the structure when the matrix was made: in every request the indices are in range, sorted, and none comes
twice. The values stay the caller's: they may be written, and the same structure takes others. A transpose is a view:
that of a matrix in CSR is one in CSC.

Names and formats are SciPy's, and cuSPARSE's blocked ELL. What cuSPARSE does not have by format, element type or width
of indices is `Unsupported` on every backend, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.arguments import Sizes, declared, reads, writes
from atomr_mp.protocol.declaration.factors import Factor, Scalar
from atomr_mp.protocol.declaration.strides import matrix, packed, vector
from atomr_mp.protocol.layout import MAX_BYTES
from atomr_mp.protocol.libraries.base import FULL, HALF, LibraryRequest, Rest, Shape
from atomr_mp.protocol.refs import Operand

Format = Literal["csr", "csc", "coo", "bsr", "blocked_ell"]
Flat = Literal["csr", "csc", "coo"]
"""Formats of single elements."""
Index = Literal["int32", "int64"]
Triangle = Literal["L", "U"]
"""Lower, upper."""
Diagonal = Literal["N", "U"]
"""Not unit; unit: all ones, and not read."""
Extent = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]

BLOCKED: Final = ("bsr", "blocked_ell")
LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}
ELEMENTS: Final = (*HALF, *FULL)
TURNED: Final[Mapping[str, Format]] = {"csr": "csc", "csc": "csr", "coo": "coo"}

SERVED: Final[Mapping[str, tuple[Format, ...]]] = {
    "spmv": ("csr", "csc", "coo", "bsr"),
    "spmm": ("csr", "csc", "coo", "bsr", "blocked_ell"),
    "spgemm": ("csr", "csc"),
    "spsv": ("csr", "csc", "coo"),
    "spsm": ("csr", "csc", "coo"),
    "sddmm": ("csr", "csc"),
}
"""Formats by the request that takes them; a request that is missing takes all."""


class Pattern(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A checked structure, as `Sparse.csr` and its like make it."""

    structure: Annotated[Operand, reads("*_", dtype="_")]
    """A ref that names the structure, which is kept for as long as any ref to it is held. Its content means nothing."""
    stored: Format
    """The format in which it is kept."""
    rows: Extent
    """Rows of the stored matrix."""
    columns: Extent
    """Columns of the stored matrix."""
    count: Extent
    """Number of elements or, in blocked formats, of blocks. Blocks that only fill blocked ELL count."""
    blocksize: tuple[Extent, Extent]
    """Rows and columns of a block; (1, 1) if they are not blocked."""
    index: Index
    transposed: bool
    """Whether the transpose of the stored matrix is meant."""

    @property
    def described(self) -> tuple[object, ...]:
        """Facts that a worker compares with the structure that it keeps."""
        return self.stored, self.rows, self.columns, self.count, self.blocksize, self.index

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    @property
    def format(self) -> Format:
        """The format of the matrix that is meant."""
        return TURNED.get(self.stored, self.stored) if self.transposed else self.stored

    @property
    def nnz(self) -> int:
        """Stored elements, zeros in blocks included."""
        return self.count * self.blocksize[0] * self.blocksize[1]

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of the values: (nnz,); (blocks, r, c) for BSR; (rows, width · b) for blocked ELL."""
        if self.stored == "blocked_ell":
            return self.rows, self.nnz // self.rows if self.rows else 0
        return (self.count, *self.blocksize) if self.stored == "bsr" else (self.count,)

    @property
    def index_bytes(self) -> int:
        """Bytes of the structure."""
        offsets = {"csr": self.rows + 1, "csc": self.columns + 1, "coo": self.count}
        blocks = self.rows // max(self.blocksize[0], 1) + 1 if self.stored == "bsr" else 0
        return (self.count + offsets.get(self.stored, blocks)) * dtypes.ITEM_BYTES[self.index]


class Matrix(Pattern, frozen=True):
    """A sparse matrix, as `Sparse.csr` and its like make it."""

    data: Annotated[Operand, reads("*_", lies=packed, factor="alpha")]
    """Its values, in the order of the structure."""


# --- rules ------------------------------------------------------------------------------------------------------------


def _patterns(request: Any) -> Iterator[tuple[str, Pattern]]:
    kind: type[msgspec.Struct] = type(request)
    for name in declared(kind).structs:
        yield name, getattr(request, name)


def _is_served(request: Any, _sizes: Sizes) -> bool:
    """Formats, element types and widths of indices must be those that cuSPARSE has."""
    for name, pattern in _patterns(request):
        if pattern.transposed and pattern.stored in BLOCKED:
            raise errors.Unsupported(f"{name} is a transpose in {pattern.stored}, which none has: convert it to csr")
        served = SERVED.get(request.name, ())
        if served and pattern.format not in served:
            raise errors.Unsupported(
                f"sparse.{request.name} takes no {name} in {pattern.format}; convert it to {' or '.join(served)}"
            )
    return True


def _has_its_values(request: Any, _sizes: Sizes) -> bool:
    """A matrix has as many values as its structure says."""
    for name, pattern in _patterns(request):
        if isinstance(pattern, Matrix) and pattern.data.shape != pattern.data_shape:
            raise errors.InvalidRequest(
                f"{name}.data has the shape {pattern.data.shape}; its structure needs {pattern.data_shape}"
            )
    return True


def _fits_b(request: Any, sizes: Sizes) -> bool:
    """A must have as many columns as what it is multiplied by has rows."""
    return bool(request.a.shape[1] == sizes["k"])


def _is_narrow(request: Any, _sizes: Sizes) -> bool:
    """CuSPARSE multiplies blocked ELL with indices of 32 bits and real values only, halves not transposed."""
    a, dtype = request.a, request.b.dtype
    if a.format == "blocked_ell" and (a.index != "int32" or dtype.startswith("complex")):
        raise errors.Unsupported("sparse.spmm takes blocked_ell with int32 indices and real values; convert it to bsr")
    if dtype in HALF and (a.transposed or a.format == "csc"):
        raise errors.Unsupported(f"sparse.spmm takes a of {dtype} in csr, coo or a blocked format, not transposed")
    return True


def _is_triangular(request: Any, sizes: Sizes) -> bool:
    """A must be square, with as many rows as b."""
    return bool(request.a.shape == (sizes["n"], sizes["n"]))


def _multiplies(request: Any, _sizes: Sizes) -> bool:
    """A must have as many columns as b has rows."""
    a, b = request.a, request.b
    if "int64" in {a.index, b.index}:
        raise errors.Unsupported("sparse.spgemm takes int32 indices only: convert with index='int32'")
    return bool(a.shape[1] == b.shape[0])


def _samples_the_product(request: Any, sizes: Sizes) -> bool:
    """C must have the shape of the product of a and b."""
    return bool(request.c.shape == (sizes["m"], sizes["n"]))


def _has_blocks(request: Any, _sizes: Sizes) -> bool:
    """The blocksize must be two lengths that divide the shape, equal for blocked_ell; (1, 1) if nothing is blocked."""
    to, blocksize = request.to, request.blocksize
    if to not in BLOCKED:
        return bool(blocksize == (1, 1))
    shape = request.a.shape if hasattr(request, "a") else request.shape
    if len(blocksize) != 2 or 0 in blocksize or (to == "blocked_ell" and blocksize[0] != blocksize[1]):
        return False
    return all(length % size == 0 for length, size in zip(shape, blocksize, strict=True))


def _has_extents(request: Any, _sizes: Sizes) -> bool:
    """The shape must be two lengths, of at most 2⁴⁷."""
    return len(request.shape) == 2 and max(request.shape) <= MAX_BYTES


def _has_indices_enough(request: Any, _sizes: Sizes) -> bool:
    """Lengths and the number of elements must be less than 2³¹ with int32 indices; take int64."""
    wide = [*request.shape, request.indices.size] if hasattr(request, "shape") else []
    return max(wide, default=0) <= LARGEST[request.indices.dtype]


def _keeps_its_indices(request: Any, sizes: Sizes) -> bool:
    """Lengths and the number of elements must be less than 2³¹ with int32 indices; take int64."""
    if not hasattr(request, "a"):
        return bool(max(sizes["m"], sizes["n"]) <= LARGEST[request.index])
    return bool(max(*request.a.shape, request.a.nnz) <= LARGEST[request.index or request.a.index])


def _has_its_indices(request: Any, _sizes: Sizes) -> bool:
    """The arrays of indices must be as long as the format wants them."""
    (rows, columns), (r, c) = request.shape, request.blocksize
    indices, indptr, form = request.indices, request.indptr, request.to
    if form == "blocked_ell":
        if indptr is not None or indices.ndim != 2 or indices.shape[0] != rows // r or indices.shape[1] > columns // c:
            raise errors.InvalidRequest(
                f"indices has the shape {indices.shape}; blocked_ell needs ({rows // r}, at most {columns // c}), "
                "and no indptr"
            )
        return True
    lengths = {"csr": rows + 1, "csc": columns + 1, "bsr": rows // r + 1, "coo": indices.size}
    if indices.ndim != 1 or indptr is None or indptr.shape != (lengths[form],):
        names = ("col", "row") if form == "coo" else ("indices", "indptr")
        raise errors.InvalidRequest(
            f"{names[0]} has the shape {indices.shape}, {names[1]} {None if indptr is None else indptr.shape}; {form} "
            f"of {request.shape} needs one dimension, and {lengths[form]} elements of {names[1]}"
        )
    return True


COMMON: Final = (_is_served, _has_its_values)


def _rows_of_a(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The rows of a."""
    return (request.a.shape[0],)


def _product(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """The rows of a, the columns of b."""
    return request.a.shape[0], sizes["n"]


def _shape_of_a(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of a."""
    shape: tuple[int, int] = request.a.shape
    return shape


def _values_of_c(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of the values of c."""
    shape: tuple[int, ...] = request.c.data_shape
    return shape


# --- requests ---------------------------------------------------------------------------------------------------------


class SparseRequest(LibraryRequest, frozen=True):
    """Base of the requests of this library."""

    def moved_bytes(self) -> int:
        """Return how many bytes are read and written at least."""
        return super().moved_bytes() + sum(pattern.index_bytes for _, pattern in _patterns(self))


class Structure(SparseRequest, frozen=True):
    """Copy and check the indices of a matrix; answer with a ref that names them. For `Sparse.csr` and its like.

    Indices must be in range, ascend in each row (of csc in each column), and none may come twice. If `data` is
    given, indices of csr, csc and coo that do not ascend are sorted, and so is a copy of data in the answer.
    """

    name: ClassVar = "structure"
    captured: ClassVar = False
    answers: ClassVar = True
    types: ClassVar = {"I": ("int32", "int64"), "T": ELEMENTS}
    rules: ClassVar = (_has_extents, _has_blocks, _has_indices_enough, _has_its_indices)
    indices: Annotated[Operand, reads("*_", dtype="I", lies=packed)]
    indptr: Annotated[Operand | None, reads("_", dtype="I", lies=packed)] = None
    data: Annotated[Operand | None, reads("_", lies=packed)] = None
    to: Format = "csr"
    """The format. For coo, indices are the columns and indptr the rows; blocked_ell has no indptr, and -1 fills the end
    of a row of its indices."""
    shape: Shape = ()
    """Rows and columns."""
    blocksize: Shape = (1, 1)
    """Rows and columns of a block, for bsr and blocked_ell."""

    def check(self) -> None:
        """Check the request, and that data has an element for each index."""
        super().check()
        if self.data is not None and (self.to in BLOCKED or self.data.shape != self.indices.shape):
            raise errors.InvalidRequest(
                f"data has the shape {self.data.shape}; to be sorted, csr, csc and coo need one value for each index"
            )


class Arrays(SparseRequest, frozen=True):
    """Answer with refs to copies of the indices of a matrix: [indices, indptr], for coo [col, row]; as stored."""

    name: ClassVar = "arrays"
    captured: ClassVar = False
    answers: ClassVar = True
    a: Pattern


class Spmv(SparseRequest, frozen=True):
    """Compute y ← alpha·a·x + beta·y."""

    name: ClassVar = "spmv"
    types: ClassVar = {"T": ELEMENTS}
    rules: ClassVar = (*COMMON, _fits_b)
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 a.nnz"
    a: Matrix
    x: Annotated[Operand, reads("k", lies=vector, factor="alpha")]
    y: Annotated[Operand | None, writes(_rows_of_a, lies=vector, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0
    conj_a: bool = False
    """Take the conjugate of a."""


class Spmm(SparseRequest, frozen=True):
    """Compute c ← alpha·a·b + beta·c for a dense b."""

    name: ClassVar = "spmm"
    types: ClassVar = {"T": ELEMENTS}
    rules: ClassVar = (*COMMON, _fits_b, _is_narrow)
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 a.nnz n"
    a: Matrix
    b: Annotated[Operand, reads("k n", lies=matrix, factor="alpha")]
    c: Annotated[Operand | None, writes(_product, lies=matrix, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0
    conj_a: bool = False
    """Take the conjugate of a."""


class Spgemm(SparseRequest, frozen=True):
    """Compute alpha·a·b for sparse a and b in csr or csc; answers with a matrix in the format of a.

    On a GPU the result is made on a thread of its own, since cuSPARSE has to know its size. Other requests go on
    meanwhile; those that write a or b wait.
    """

    name: ClassVar = "spgemm"
    captured: ClassVar = False
    answers: ClassVar = True
    types: ClassVar = {"T": FULL}
    rules: ClassVar = (*COMMON, _multiplies)
    a: Matrix
    b: Matrix
    alpha: Scalar = 1.0


class Spsv(SparseRequest, frozen=True):
    """Solve a·x = alpha·b for x, with a the named triangle of a matrix; the other one is not read."""

    name: ClassVar = "spsv"
    captured: ClassVar = False
    types: ClassVar = {"T": FULL}
    undefined: ClassVar = "An element of the diagonal is 0, or is not there."
    rules: ClassVar = (*COMMON, _is_triangular)
    work: ClassVar = "2 a.nnz"
    a: Matrix
    b: Annotated[Operand, reads("n", lies=vector, factor="alpha")]
    uplo: Triangle
    """The triangle of a: "L" or "U"."""
    x: Annotated[Operand | None, writes("n", lies=vector, alias=("b",))] = None
    alpha: Factor = 1.0
    conj_a: bool = False
    """Take the conjugate of a."""
    diag: Diagonal = "N"
    """"U": the diagonal of a is all ones, and is not read."""


class Spsm(SparseRequest, frozen=True):
    """Solve a·x = alpha·b for the columns of x, with a the named triangle of a matrix; the other one is not read."""

    name: ClassVar = "spsm"
    captured: ClassVar = False
    types: ClassVar = {"T": FULL}
    undefined: ClassVar = "An element of the diagonal is 0, or is not there."
    rules: ClassVar = (*COMMON, _is_triangular)
    work: ClassVar = "2 a.nnz m"
    a: Matrix
    b: Annotated[Operand, reads("n m", lies=matrix, factor="alpha")]
    uplo: Triangle
    """The triangle of a: "L" or "U"."""
    x: Annotated[Operand | None, writes("n m", lies=matrix, alias=("b",))] = None
    alpha: Factor = 1.0
    conj_a: bool = False
    """Take the conjugate of a."""
    diag: Diagonal = "N"
    """"U": the diagonal of a is all ones, and is not read."""


class Sddmm(SparseRequest, frozen=True):
    """Compute out ← alpha·(a·b) + beta·out where c has elements: the values of a matrix with the structure of c."""

    name: ClassVar = "sddmm"
    types: ClassVar = {"T": ("float16", *FULL)}
    rules: ClassVar = (*COMMON, _samples_the_product)
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 c.nnz k"
    a: Annotated[Operand, reads("m k", lies=matrix, factor="alpha")]
    b: Annotated[Operand, reads("k n", lies=matrix, factor="alpha")]
    c: Pattern
    out: Annotated[Operand | None, writes(_values_of_c, lies=packed, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0


class Convert(SparseRequest, frozen=True):
    """Answer with a matrix of the same elements in another format; zeros that are stored stay, or fill blocks."""

    name: ClassVar = "convert"
    captured: ClassVar = False
    answers: ClassVar = True
    types: ClassVar = {"T": ELEMENTS}
    rules: ClassVar = (*COMMON, _has_blocks, _keeps_its_indices)
    a: Matrix
    to: Format
    """The format."""
    blocksize: Shape = (1, 1)
    """Rows and columns of a block, for bsr and blocked_ell."""
    index: Index | None = None
    """The type of the indices; that of a if it is left out."""


class DenseToSparse(SparseRequest, frozen=True):
    """Answer with a sparse matrix of the elements of x that are not 0."""

    name: ClassVar = "dense_to_sparse"
    captured: ClassVar = False
    answers: ClassVar = True
    types: ClassVar = {"T": ELEMENTS}
    rules: ClassVar = (_keeps_its_indices,)
    x: Annotated[Operand, reads("m n")]
    to: Flat = "csr"
    """The format."""
    index: Index = "int32"
    """The type of the indices."""


class SparseToDense(SparseRequest, frozen=True):
    """Write all elements of a into a dense matrix."""

    name: ClassVar = "sparse_to_dense"
    types: ClassVar = {"T": ELEMENTS}
    rules: ClassVar = COMMON
    a: Matrix
    out: Annotated[Operand | None, writes(_shape_of_a)] = None
