"""Dense linear algebra as BLAS defines it, level 1 to 3, and cuBLAS' geam and batched gemm. Pure.

The messages are BLAS' raw calls. An array is the memory that begins at the lowest byte of its operand's span; its own
shape and strides do not count, only sizes, increments and leading dimensions do, in elements.

A vector of `n` elements with increment `inc` takes 1 + (n - 1)·|inc| elements; with a negative one it begins at
the far end. A matrix of r rows and c columns in order "column" takes ld·(c - 1) + r elements, ld >= max(1, r); in
order "row" with r and c exchanged. What is empty takes none.

op(A) is A ("N"), its transpose ("T") or its conjugate transpose ("C", which on reals is "T"). What an alpha or beta
of 0 multiplies is not read, but by scal: a NaN in it is gone. Half precision is computed in float32, and rounded
once.

Source of the rules: the BLAS Technical Forum's standard, CBLAS for `order`, cuBLAS for geam and batches.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.libraries.base import COMPLEX, HALF, REAL, LibraryRequest, Read, Scalar, Write, check_dtypes
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted

FULL: Final = (*REAL, *COMPLEX)
"""Element types of most requests."""

Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Increment = Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)]
Forward = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""An increment where BLAS gives a negative one no meaning: requests of one vector."""
Leading = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Stride = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""From one matrix of a batch to the next; 0 where all read the same."""
Order = Literal["row", "column"]
Trans = Literal["N", "T", "C"]
Side = Literal["L", "R"]
Triangle = Literal["L", "U"]
"""Lower, upper."""
Diagonal = Literal["N", "U"]
"""Not unit; unit: all ones, and not read."""


class Axpy(LibraryRequest, frozen=True):
    """y ← alpha·x + y."""

    name: ClassVar[str] = "axpy"
    dtypes: ClassVar[tuple[str, ...]] = (*HALF, *FULL)
    x: Read
    y: Write
    n: Size
    incx: Increment
    incy: Increment
    alpha: Scalar = 1.0

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, x=self.x, y=self.y)
        _check_scalars(dtype, alpha=self.alpha)
        _check_memory(_vector("y", self.y, self.n, self.incy), _vector("x", self.x, self.n, self.incx))


class Scal(LibraryRequest, frozen=True):
    """x ← alpha·x; also with alpha = 0, so a NaN stays one."""

    name: ClassVar[str] = "scal"
    dtypes: ClassVar[tuple[str, ...]] = (*HALF, *FULL)
    x: Write
    n: Size
    incx: Forward
    alpha: Scalar = 1.0

    def check(self) -> None:
        """Check types and room."""
        _check_scalars(check_dtypes(self, x=self.x), alpha=self.alpha)
        _check_room(_vector("x", self.x, self.n, self.incx))


class Nrm2(LibraryRequest, frozen=True):
    """Return √Σ|x_i|², a float."""

    name: ClassVar[str] = "nrm2"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    n: Size
    incx: Forward

    def check(self) -> None:
        """Check types and room."""
        check_dtypes(self, x=self.x)
        _check_room(_vector("x", self.x, self.n, self.incx))


class Dot(LibraryRequest, frozen=True):
    """Return Σ x_i·y_i, of reals a float, of complex numbers a complex one."""

    name: ClassVar[str] = "dot"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    y: Read
    n: Size
    incx: Increment
    incy: Increment
    conjugate: bool = False
    """Take the conjugate of x_i; nothing changes for reals."""

    def check(self) -> None:
        """Check types and room."""
        check_dtypes(self, x=self.x, y=self.y)
        _check_room(_vector("x", self.x, self.n, self.incx), _vector("y", self.y, self.n, self.incy))


class Asum(LibraryRequest, frozen=True):
    """Return Σ|x_i|, a float; of complex numbers Σ(|re x_i| + |im x_i|)."""

    name: ClassVar[str] = "asum"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    n: Size
    incx: Forward

    def check(self) -> None:
        """Check types and room."""
        check_dtypes(self, x=self.x)
        _check_room(_vector("x", self.x, self.n, self.incx))


class Iamax(LibraryRequest, frozen=True):
    """Return the smallest 1-based index of the largest |x_i|, for complex |re x_i| + |im x_i|; 0 if there is none.

    Which one it is where there are NaNs is undefined.
    """

    name: ClassVar[str] = "iamax"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    n: Size
    incx: Forward

    def check(self) -> None:
        """Check types and room."""
        check_dtypes(self, x=self.x)
        _check_room(_vector("x", self.x, self.n, self.incx))


class Iamin(LibraryRequest, frozen=True):
    """Return the smallest 1-based index of the smallest |x_i|, for complex |re x_i| + |im x_i|; 0 if there is none.

    Which one it is where there are NaNs is undefined.
    """

    name: ClassVar[str] = "iamin"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    n: Size
    incx: Forward

    def check(self) -> None:
        """Check types and room."""
        check_dtypes(self, x=self.x)
        _check_room(_vector("x", self.x, self.n, self.incx))


class Copy(LibraryRequest, frozen=True):
    """y ← x."""

    name: ClassVar[str] = "copy"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Read
    y: Write
    n: Size
    incx: Increment
    incy: Increment

    def check(self) -> None:
        """Check types, room and overlaps."""
        check_dtypes(self, x=self.x, y=self.y)
        _check_memory(_vector("y", self.y, self.n, self.incy), _vector("x", self.x, self.n, self.incx))


class Swap(LibraryRequest, frozen=True):
    """Exchange x and y."""

    name: ClassVar[str] = "swap"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Write
    y: Write
    n: Size
    incx: Increment
    incy: Increment

    def check(self) -> None:
        """Check types, room and overlaps."""
        check_dtypes(self, x=self.x, y=self.y)
        _check_memory(_vector("x", self.x, self.n, self.incx), _vector("y", self.y, self.n, self.incy))


class Rot(LibraryRequest, frozen=True):
    """(x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i)."""

    name: ClassVar[str] = "rot"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    x: Write
    y: Write
    n: Size
    incx: Increment
    incy: Increment
    c: float
    s: Scalar

    def check(self) -> None:
        """Check types, room and overlaps."""
        _check_scalars(check_dtypes(self, x=self.x, y=self.y), s=self.s)
        _check_memory(_vector("x", self.x, self.n, self.incx), _vector("y", self.y, self.n, self.incy))


class Gemv(LibraryRequest, frozen=True):
    """y ← alpha·op(A)·x + beta·y, where A is m by n."""

    name: ClassVar[str] = "gemv"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    a: Read
    x: Read
    y: Write
    m: Size
    n: Size
    lda: Leading
    incx: Increment
    incy: Increment
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    trans: Trans = "N"
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, a=self.a, x=self.x, y=self.y)
        _check_scalars(dtype, alpha=self.alpha, beta=self.beta)
        rows, columns = stored(self.trans, self.m, self.n)
        a = _matrix("a", self.a, self.lda, self.order, self.m, self.n)
        _check_memory(_vector("y", self.y, rows, self.incy), a, _vector("x", self.x, columns, self.incx))


class Ger(LibraryRequest, frozen=True):
    """A ← alpha·x·yᵀ + A, where A is m by n."""

    name: ClassVar[str] = "ger"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    a: Write
    x: Read
    y: Read
    m: Size
    n: Size
    lda: Leading
    incx: Increment
    incy: Increment
    alpha: Scalar = 1.0
    conjugate: bool = False
    """Take the conjugate transpose of y; nothing changes for reals."""
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        _check_scalars(check_dtypes(self, a=self.a, x=self.x, y=self.y), alpha=self.alpha)
        _check_memory(
            _matrix("a", self.a, self.lda, self.order, self.m, self.n),
            _vector("x", self.x, self.m, self.incx),
            _vector("y", self.y, self.n, self.incy),
        )


class Geam(LibraryRequest, frozen=True):
    """C ← alpha·op(A) + beta·op(B), where C is m by n; also in place, C = A or C = B, with op "N" and the same ld."""

    name: ClassVar[str] = "geam"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    a: Read
    b: Read
    c: Write
    m: Size
    n: Size
    lda: Leading
    ldb: Leading
    ldc: Leading
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    trans_a: Trans = "N"
    trans_b: Trans = "N"
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, a=self.a, b=self.b, c=self.c)
        _check_scalars(dtype, alpha=self.alpha, beta=self.beta)
        a = _matrix("a", self.a, self.lda, self.order, *stored(self.trans_a, self.m, self.n))
        b = _matrix("b", self.b, self.ldb, self.order, *stored(self.trans_b, self.m, self.n))
        c = _matrix("c", self.c, self.ldc, self.order, self.m, self.n)
        _check_room(a, b, c)
        terms = ((a, self.trans_a), (b, self.trans_b))
        _check_apart(c, *(term for term, trans in terms if trans != "N" or not term.same_as(c)))


class Syrk(LibraryRequest, frozen=True):
    """C ← alpha·op(A)·op(A)ᵀ + beta·C, where C is n by n and op(A) n by k; only the named triangle of C is touched."""

    name: ClassVar[str] = "syrk"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    a: Read
    c: Write
    n: Size
    k: Size
    lda: Leading
    ldc: Leading
    uplo: Triangle
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    trans: Trans = "N"
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, a=self.a, c=self.c)
        _check_scalars(dtype, alpha=self.alpha, beta=self.beta)
        if self.trans == "C" and dtype in COMPLEX:
            raise errors.InvalidRequest(
                "trans is 'C' with complex numbers: that is herk, another routine; syrk takes 'N' and 'T', and gemm "
                "computes the whole of herk's matrix"
            )
        a = _matrix("a", self.a, self.lda, self.order, *stored(self.trans, self.n, self.k))
        _check_memory(_matrix("c", self.c, self.ldc, self.order, self.n, self.n), a)


class Trsm(LibraryRequest, frozen=True):
    """Solve op(A)·X = alpha·B (side "L") or X·op(A) = alpha·B ("R"); X overwrites B, which is m by n.

    Only the named triangle of A is read. A zero on the diagonal gives infinities and NaNs, not an error.
    """

    name: ClassVar[str] = "trsm"
    dtypes: ClassVar[tuple[str, ...]] = FULL
    a: Read
    b: Write
    m: Size
    n: Size
    lda: Leading
    ldb: Leading
    side: Side
    uplo: Triangle
    alpha: Scalar = 1.0
    trans: Trans = "N"
    diag: Diagonal = "N"
    order: Order = "column"

    @property
    def k(self) -> int:
        """Number of rows, and of columns, of A."""
        return self.m if self.side == "L" else self.n

    def check(self) -> None:
        """Check types, room and overlaps."""
        _check_scalars(check_dtypes(self, a=self.a, b=self.b), alpha=self.alpha)
        _check_memory(
            _matrix("b", self.b, self.ldb, self.order, self.m, self.n),
            _matrix("a", self.a, self.lda, self.order, self.k, self.k),
        )


class Gemm(LibraryRequest, frozen=True):
    """C ← alpha·op(A)·op(B) + beta·C, where op(A) is m by k, op(B) k by n, C m by n."""

    name: ClassVar[str] = "gemm"
    dtypes: ClassVar[tuple[str, ...]] = (*HALF, *FULL)
    a: Read
    b: Read
    c: Write
    m: Size
    n: Size
    k: Size
    lda: Leading
    ldb: Leading
    ldc: Leading
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    trans_a: Trans = "N"
    trans_b: Trans = "N"
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, a=self.a, b=self.b, c=self.c)
        _check_scalars(dtype, alpha=self.alpha, beta=self.beta)
        a = _matrix("a", self.a, self.lda, self.order, *stored(self.trans_a, self.m, self.k))
        b = _matrix("b", self.b, self.ldb, self.order, *stored(self.trans_b, self.k, self.n))
        _check_memory(_matrix("c", self.c, self.ldc, self.order, self.m, self.n), a, b)


class GemmStridedBatched(LibraryRequest, frozen=True):
    """C_i ← alpha·op(A_i)·op(B_i) + beta·C_i for each i of a batch; X_i begins i·stride_x elements after X_0.

    The matrices of C lie one after the other, or side by side within ldc, as the heads of an attention do.
    """

    name: ClassVar[str] = "gemm_strided_batched"
    dtypes: ClassVar[tuple[str, ...]] = (*HALF, *FULL)
    a: Read
    b: Read
    c: Write
    m: Size
    n: Size
    k: Size
    lda: Leading
    ldb: Leading
    ldc: Leading
    stride_a: Stride
    stride_b: Stride
    stride_c: Stride
    batch_size: Size
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    trans_a: Trans = "N"
    trans_b: Trans = "N"
    order: Order = "column"

    def check(self) -> None:
        """Check types, room and overlaps."""
        dtype = check_dtypes(self, a=self.a, b=self.b, c=self.c)
        _check_scalars(dtype, alpha=self.alpha, beta=self.beta)
        a = _matrix("a", self.a, self.lda, self.order, *stored(self.trans_a, self.m, self.k))
        b = _matrix("b", self.b, self.ldb, self.order, *stored(self.trans_b, self.k, self.n))
        c = _matrix("c", self.c, self.ldc, self.order, self.m, self.n)
        _check_matrices_apart(c, self.stride_c, self.batch_size)
        _check_memory(
            _batch(c, self.stride_c, self.batch_size),
            _batch(a, self.stride_a, self.batch_size),
            _batch(b, self.stride_b, self.batch_size),
        )


def stored(trans: Trans, rows: int, columns: int) -> tuple[int, int]:
    """Return the shape in memory of a matrix A whose op(A) has this one; and the other way round."""
    return (rows, columns) if trans == "N" else (columns, rows)


def elements_in(name: str, operand: Operand) -> int:
    """Return how many elements there are from the lowest of an operand's span to its end.

    Raises:
        InvalidRequest: The span does not begin and end between elements.
    """
    low, high = operand.layout.span
    item = operand.layout.item_bytes
    if low % item or high % item:
        raise errors.InvalidRequest(
            f"{name} lies from byte {low} to {high}; both must be multiples of the {item} bytes of a {operand.dtype}"
        )
    return (high - low) // item


class _Use(NamedTuple):
    """The elements of an operand that a request uses: a matrix' columns or rows, a vector's single elements."""

    name: str
    operand: Operand
    length: int
    """Of a run of elements without gaps."""
    times: int
    """How many runs."""
    step: int
    """From the start of one run to that of the next, in elements."""
    words: str
    """What asks for them, for an error's message."""

    @property
    def extent(self) -> int:
        """Elements from the first to the last."""
        return self.step * (self.times - 1) + self.length if self.length and self.times else 0

    def same_as(self, other: _Use) -> bool:
        """Return whether both begin at the same element and go on alike."""
        return (
            self.operand.memory == other.operand.memory
            and self.operand.layout.span[0] == other.operand.layout.span[0]
            and self.step == other.step
        )

    def meets(self, other: _Use) -> bool:
        """Return whether an element is in both, exactly where the steps agree: blocks of one matrix are apart."""
        if not self.extent or not other.extent or self.operand.memory != other.operand.memory:
            return False
        distance = (other.operand.layout.span[0] - self.operand.layout.span[0]) // self.operand.layout.item_bytes
        if self.step != other.step and self.times > 1 and other.times > 1:
            return -other.extent < distance < self.extent
        # Element i of run j is i + step·j here and distance + i + step·j there, so they are the same where
        # distance + step·t is a difference of two i, and t of two j.
        step = self.step if self.times > 1 else other.step
        first = max(1 - self.times, -((other.length - 1 + distance) // step))
        last = min(other.times - 1, (self.length - 1 - distance) // step)
        return first <= last


def _vector(name: str, operand: Operand, n: int, increment: int) -> _Use:
    """Return the elements of a vector."""
    if increment == 0:
        raise errors.InvalidRequest(f"inc{name} is 0; a vector's elements are at least 1 apart")
    words = f"{counted(n, 'element')} with inc{name}={increment}"
    step = abs(increment)
    return _Use(name, operand, n, 1, step, words) if step == 1 else _Use(name, operand, 1, n, step, words)


def _matrix(name: str, operand: Operand, leading: int, order: Order, rows: int, columns: int) -> _Use:
    """Return the elements of a matrix; rows and columns are those in memory."""
    length, times = (rows, columns) if order == "column" else (columns, rows)
    words = f"{rows} by {columns} in {order} order with ld{name}={leading}"
    if leading < max(1, length):
        raise errors.InvalidRequest(f"{name} is {words}; ld{name} must be at least {max(1, length)}")
    return _Use(name, operand, length, times, leading, words)


def _batch(one: _Use, stride: int, batch_size: int) -> _Use:
    """Return the elements of all matrices of a batch, gaps taken for elements."""
    length = stride * (batch_size - 1) + one.extent if one.extent and batch_size else 0
    words = f"{batch_size} times {one.words}, stride_{one.name}={stride}"
    return one._replace(length=length, times=1, words=words)


def _check_matrices_apart(one: _Use, stride: int, batch_size: int) -> None:
    """Check that no element is in two matrices of a batch that is written."""
    one_by_one = stride >= one.extent
    side_by_side = stride >= one.length and stride * (batch_size - 1) + one.length <= one.step
    if batch_size > 1 and one.extent and not one_by_one and not side_by_side:
        raise errors.InvalidRequest(
            f"the matrices of {one.name} overlap: {batch_size} times {one.words}, stride_{one.name}={stride}; the "
            f"stride must be at least {one.extent}, or from {one.length} to what leaves all within ld{one.name}"
        )


def _check_memory(written: _Use, *others: _Use) -> None:
    """Check that all elements are there, and that none which is written is another operand's too."""
    _check_room(written, *others)
    _check_apart(written, *others)


def _check_room(*operands: _Use) -> None:
    """Check that all elements are there."""
    for use in operands:
        there = elements_in(use.name, use.operand)
        if use.extent > there:
            raise errors.InvalidRequest(
                f"{use.name} has {counted(there, 'element')} and needs {use.extent}: {use.words}"
            )


def _check_apart(written: _Use, *others: _Use) -> None:
    """Check that no element of `written` is one of the others'."""
    for other in others:
        if written.meets(other):
            raise errors.BorrowConflict(
                f"{written.name} is written and overlaps {other.name}; give them memory of their own"
            )


def _check_scalars(dtype: str, **scalars: Scalar) -> None:
    """Check that no factor of real arrays is complex."""
    for name, value in scalars.items():
        if isinstance(value, tuple) and dtype not in COMPLEX:
            raise errors.InvalidRequest(f"{name} is complex and the arrays are {dtype}; it must be real")
