"""Dense solvers and factorisations: LAPACK's names for what works in place, SciPy's for what keeps what it reads. Pure.

Requests with LAPACK's names (`getrf`, `potrs`) write their results over what they read. A matrix may lie in row or in
column order. cuSOLVER knows column order only: LU and QR factors, reflectors and eigenvectors in row order go through a
copy on the device; a Cholesky factor and what it solves never do. Pivots count from 0 and eigenvalues ascend.

Source of the rules: LAPACK's and cuSOLVER's documentation; SciPy's for what has its names.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from atomr_mp.protocol.declaration.arguments import Sizes, reads, updates, writes
from atomr_mp.protocol.declaration.strides import matrices, matrix, packed
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.base import COMPLEX, FULL, REAL, LibraryRequest, Rule
from atomr_mp.protocol.libraries.solver_shapes import (
    factored,
    generated,
    has_few_reflectors,
    is_counted,
    is_one_system,
    is_small,
    is_square,
    is_tall,
    left_of_all,
    left_vectors,
    multiplied,
    orthogonal,
    pivot_dtype,
    real_dtype,
    right_of_all,
    right_sides,
    right_vectors,
    shorter,
    shorter_batched,
    solutions,
    sparse_sides,
    stands_beside_c,
    trapezoid,
    values_and_vectors,
)
from atomr_mp.protocol.refs import Operand

Triangle = Literal["L", "U"]
"""Lower, upper."""
Transpose = Literal["N", "T", "C"]
"""As it is, transposed, conjugated and transposed."""
Transposed = Literal["N", "T"]
"""As it is, transposed."""
Adjoint = Literal["N", "C"]
"""As it is, conjugated and transposed."""
Side = Literal["L", "R"]
"""Left, right."""
Job = Literal["A", "S", "N"]
"""All vectors, those that belong to singular values, none."""
Vectors = Literal["V", "N"]
"""Values and vectors, values only."""
Kind = Literal[1, 2, 3]
"""Of a generalised problem: a·v = w·b·v, a·b·v = w·v, b·a·v = w·v."""
Factors = Literal["lu", "cholesky", "qr"]
"""Kinds of factors: of any matrix, of a positive definite one, of any matrix."""
Mode = Literal["full", "economic"]
"""All columns of q, or as many as a has independent ones."""


class _SolverRequest(LibraryRequest, frozen=True):
    """Base of most requests of this library."""

    types: ClassVar = {"T": FULL}
    rules: ClassVar[tuple[Rule, ...]] = (is_counted,)
    captured: ClassVar = False


# --- LU ---------------------------------------------------------------------------------------------------------------


class Getrf(_SolverRequest, frozen=True):
    """Factor a = p·l·u by exchanging rows; l, but for its diagonal of ones, and u overwrite a.

    In step i, row i was exchanged with row pivots[i], which counts from 0. In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf"
    captured: ClassVar = True
    undefined: ClassVar = "A pivot is 0: the matrix is singular. `row` is its place on the diagonal."
    a: Annotated[Operand, updates("m n", lies=matrix)]
    pivots: Annotated[Operand | None, writes(shorter, dtype=pivot_dtype, lies=packed)] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ for a square, and what LAPACK counts for others."""
        m, n, k = sizes["m"], sizes["n"], min(sizes["m"], sizes["n"])
        return int(2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3)


class Getrs(_SolverRequest, frozen=True):
    """Solve a·x = b, or the transpose of a, by the factors that getrf has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs"
    undefined: ClassVar = "A pivot is no row of the matrix; `row` is its place."
    a: Annotated[Operand, reads("n n", lies=matrix)]
    pivots: Annotated[Operand, reads("n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of a, or its conjugate, is in the place of a."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factors and right-hand side."""
        return int(2 * sizes["n"] ** 2 * sizes["nrhs"])


class GetrfBatched(_SolverRequest, frozen=True):
    """Factor each square matrix of a batch as getrf does; for many small ones.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf_batched"
    undefined: ClassVar = "A matrix is singular; `batch` and `row` tell the first."
    a: Annotated[Operand, updates("*batch n n", lies=matrices)]
    pivots: Annotated[Operand | None, writes("*batch n", dtype=pivot_dtype, lies=packed)] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ for each matrix."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 3 / 3)


class GetrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that getrf_batched has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs_batched"
    undefined: ClassVar = "A pivot is no row of its matrix; `batch` and `row` tell the first."
    a: Annotated[Operand, reads("*batch n n", lies=matrices)]
    pivots: Annotated[Operand, reads("*batch n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of each matrix, or its conjugate, is in the place of the matrix."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factors and right-hand side."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 2 * sizes["nrhs"])


# --- Cholesky ---------------------------------------------------------------------------------------------------------


class Potrf(_SolverRequest, frozen=True):
    """Factor a = l·lᴴ (uplo "L") or uᴴ·u ("U"); the factor overwrites its triangle of a.

    The other triangle is neither read nor written. Nothing is copied.
    """

    name: ClassVar = "potrf"
    captured: ClassVar = True
    undefined: ClassVar = "The matrix is not positive definite: its leading minor up to `row` is not."
    a: Annotated[Operand, updates("n n", lies=matrix, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of a, as a is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return n³/3."""
        return int(sizes["n"] ** 3 / 3)


class Potrs(_SolverRequest, frozen=True):
    """Solve a·x = b by the factor that potrf has left in a; x overwrites b. Nothing is copied.

    A zero on the factor's diagonal gives infinities and NaNs, not an error.
    """

    name: ClassVar = "potrs"
    captured: ClassVar = True
    a: Annotated[Operand, reads("n n", lies=matrix, triangle="uplo")]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    uplo: Triangle = "L"
    """The triangle of a that holds the factor, as a is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factor, twice, and right-hand side."""
        return int(2 * sizes["n"] ** 2 * sizes["nrhs"])


class PotrfBatched(_SolverRequest, frozen=True):
    """Factor each matrix of a batch as potrf does; for many small ones.

    On a GPU the batch is copied meanwhile, since cuSOLVER writes into the other triangle too.
    """

    name: ClassVar = "potrf_batched"
    captured: ClassVar = True
    undefined: ClassVar = "A matrix is not positive definite; `batch` and `row` tell the first."
    a: Annotated[Operand, updates("*batch n n", lies=matrices, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of each matrix, as it is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return n³/3 for each matrix."""
        return int(math.prod(sizes["batch"]) * sizes["n"] ** 3 / 3)


class PotrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that potrf_batched has left in a; x overwrites b.

    Nothing is copied.
    """

    name: ClassVar = "potrs_batched"
    a: Annotated[Operand, reads("*batch n n", lies=matrices, triangle="uplo")]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    uplo: Triangle = "L"
    """The triangle of each matrix that holds its factor, as the matrix is seen: "L" or "U"."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return a product and a sum for each element of the factor, twice, and right-hand side."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 2 * sizes["nrhs"])


# --- QR ---------------------------------------------------------------------------------------------------------------


class Geqrf(_SolverRequest, frozen=True):
    """Factor a = q·r; r overwrites the upper triangle of a, and what q is made of the rest and tau.

    q is a product of reflectors 1 - tau[i]·v·vᴴ: v is 0 above row i, 1 there, and below what is left in column
    i of a. In row order, a is copied on CUDA.
    """

    name: ClassVar = "geqrf"
    captured: ClassVar = True
    a: Annotated[Operand, updates("m n", lies=matrix)]
    tau: Annotated[Operand | None, writes(shorter, lies=packed)] = None

    work = staticmethod(factored)


class Orgqr(_SolverRequest, frozen=True):
    """Overwrite a, in whose first columns geqrf has left reflectors, with the first columns of q.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "orgqr"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = (is_counted, is_tall)
    a: Annotated[Operand, updates("m n", lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]

    work = staticmethod(generated)


class Ungqr(Orgqr, frozen=True):
    """Overwrite complex a, in whose first columns geqrf has left reflectors, with the first columns of q.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "ungqr"
    types: ClassVar = {"T": COMPLEX}


class Ormqr(_SolverRequest, frozen=True):
    """Compute c ← q·c, c·q, qᵀ·c or c·qᵀ; geqrf has left the reflectors of q in a.

    In row order, both are copied on CUDA.
    """

    name: ClassVar = "ormqr"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = (is_counted, has_few_reflectors)
    a: Annotated[Operand, reads(stands_beside_c, lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]
    c: Annotated[Operand, updates("m n", lies=matrix)]
    side: Side = "L"
    """The side of c on which q stands: "L" or "R"."""
    trans: Transposed = "N"
    """"T": the transpose of q."""

    work = staticmethod(multiplied)


class Unmqr(_SolverRequest, frozen=True):
    """Compute complex c ← q·c, c·q, qᴴ·c or c·qᴴ; geqrf has left the reflectors of q in a.

    In row order, both are copied on CUDA.
    """

    name: ClassVar = "unmqr"
    types: ClassVar = {"T": COMPLEX}
    rules: ClassVar = (is_counted, has_few_reflectors)
    a: Annotated[Operand, reads(stands_beside_c, lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]
    c: Annotated[Operand, updates("m n", lies=matrix)]
    side: Side = "L"
    """The side of c on which q stands: "L" or "R"."""
    trans: Adjoint = "N"
    """"C": the conjugate transpose of q."""

    work = staticmethod(multiplied)


# --- singular values and eigenvalues ----------------------------------------------------------------------------------

_NO_VALUES = "An element is a NaN or an infinity, or the iteration does not end."


class Gesvd(_SolverRequest, frozen=True):
    """Decompose a = u·diag(s)·vh; the singular values descend. a is overwritten.

    On CUDA, cuSOLVER waits for the device in between, and so does everybody else. A tall matrix in row order is
    copied there, and so is a wide one in column order.
    """

    name: ClassVar = "gesvd"
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, updates("m n", lies=matrix)]
    u: Annotated[Operand | None, writes(left_vectors, lies=matrix)] = None
    s: Annotated[Operand | None, writes(shorter, dtype=real_dtype, lies=packed)] = None
    vh: Annotated[Operand | None, writes(right_vectors, lies=matrix)] = None
    job: Job = "A"
    """"A" for all vectors, "S" for as many as there are singular values, "N" for none."""

    @staticmethod
    def work(request: Any, sizes: Sizes) -> int:
        """Return the usual operations for a tall matrix: 4·m·n² - 4/3·n³ for values, 14·m·n² + 8·n³ with vectors."""
        short, long = sorted((sizes["m"], sizes["n"]))
        vectors = 14 * long * short**2 + 8 * short**3
        return int(4 * long * short**2 - 4 * short**3 / 3 if request.job == "N" else vectors)


class GesvdjBatched(_SolverRequest, frozen=True):
    """Decompose each matrix of a batch, a = u·diag(s)·vᴴ, by Jacobi's method; the singular values descend.

    The matrices have up to 32 rows and columns. They stay as they are, and are copied on CUDA.
    """

    name: ClassVar = "gesvdj_batched"
    rules: ClassVar = (is_counted, is_small)
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, reads("*batch m n", lies=matrices)]
    u: Annotated[Operand | None, writes("*batch m m", lies=matrices)] = None
    s: Annotated[Operand | None, writes(shorter_batched, dtype=real_dtype, lies=packed)] = None
    v: Annotated[Operand | None, writes("*batch n n", lies=matrices)] = None


class Syevd(_SolverRequest, frozen=True):
    """Decompose symmetric a = v·diag(w)·vᵀ; v overwrites a, and the eigenvalues ascend.

    Only the named triangle of a is read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER
    waits for the device in between, and so does everybody else; in row order, a is copied.
    """

    name: ClassVar = "syevd"
    types: ClassVar = {"T": REAL}
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, updates("n n", lies=matrix)]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype, lies=packed)] = None
    uplo: Triangle = "L"
    """The triangle of a, as a is seen: "L" or "U"."""
    jobz: Vectors = "V"
    """"V" for values and vectors, "N" for values."""

    work = staticmethod(values_and_vectors)


class Heevd(Syevd, frozen=True):
    """Decompose Hermitian a = v·diag(w)·vᴴ; v overwrites a, and the eigenvalues ascend.

    Only the named triangle of a is read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER
    waits for the device in between, and so does everybody else; in row order, a is copied.
    """

    name: ClassVar = "heevd"
    types: ClassVar = {"T": COMPLEX}


class Sygvd(_SolverRequest, frozen=True):
    """Solve a·v = w·b·v, or what itype says, for symmetric a and positive definite b; the eigenvalues ascend.

    The vectors overwrite a, vᵀ·b·v = 1 (vᵀ·b⁻¹·v = 1 for itype 3), and b's Cholesky factor its triangle. Only
    the named triangles are read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER waits for
    the device in between, and so does everybody else; in row order, a and b are copied.
    """

    name: ClassVar = "sygvd"
    types: ClassVar = {"T": REAL}
    undefined: ClassVar = "The matrix b is not positive definite up to `row`; or `row` is -1, an element is no number."
    a: Annotated[Operand, updates("n n", lies=matrix)]
    b: Annotated[Operand, updates("n n", lies=matrix, triangle="uplo")]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype, lies=packed)] = None
    uplo: Triangle = "L"
    """The triangle of a and b, as they are seen: "L" or "U"."""
    jobz: Vectors = "V"
    """"V" for values and vectors, "N" for values."""
    itype: Kind = 1
    """1: a·v = w·b·v; 2: a·b·v = w·v; 3: b·a·v = w·v."""

    work = staticmethod(values_and_vectors)


class Hegvd(Sygvd, frozen=True):
    """Solve a·v = w·b·v, or what itype says, for Hermitian a and positive definite b; the eigenvalues ascend.

    The vectors overwrite a, vᴴ·b·v = 1 (vᴴ·b⁻¹·v = 1 for itype 3), and b's Cholesky factor its triangle. Only
    the named triangles are read; all of a is lost where no vectors are asked for. On CUDA, cuSOLVER waits for
    the device in between, and so does everybody else; in row order, a and b are copied.
    """

    name: ClassVar = "hegvd"
    types: ClassVar = {"T": COMPLEX}


# --- with SciPy's names -----------------------------------------------------------------------------------------------


class Solve(_SolverRequest, frozen=True):
    """Solve a·x = b by LU factors, for one matrix or for each of a batch. All is copied first: a and b stay."""

    name: ClassVar = "solve"
    rules: ClassVar = (is_counted, is_one_system)
    undefined: ClassVar = "A matrix is singular; `row` is the place of its pivot of 0, and `batch` tells which."
    a: Annotated[Operand, reads("*batch n n")]
    b: Annotated[Operand, reads(right_sides)]
    x: Annotated[Operand | None, writes(solutions)] = None

    @staticmethod
    def work(request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ + 2·n² for each right-hand side, for each matrix."""
        n, nrhs = sizes["n"], 1 if request.b.ndim < 2 else request.b.shape[-1]
        return int(math.prod(sizes["batch"]) * (2 * n**3 / 3 + 2 * n**2 * nrhs))


class Lstsq(_SolverRequest, frozen=True):
    """Find the x for which a·x is nearest to b; if there are many, the shortest. By QR factors, so a has full rank.

    SciPy's returns residues, rank and singular values too. All is copied first: a and b stay.
    """

    name: ClassVar = "lstsq"
    undefined: ClassVar = "Column `row` of a, or row where a has fewer rows, depends on those before it."
    a: Annotated[Operand, reads("m n")]
    b: Annotated[Operand, reads(right_sides)]
    x: Annotated[Operand | None, writes(solutions)] = None

    work = staticmethod(factored)


class Inv(_SolverRequest, frozen=True):
    """Invert a matrix, or each of a batch. All is copied first: a stays."""

    name: ClassVar = "inv"
    undefined: ClassVar = "A matrix is singular; `row` is the place of its pivot of 0, and `batch` tells which."
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch n n")] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2·n³ for each matrix."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 3)


class Det(_SolverRequest, frozen=True):
    """Compute the determinant of a matrix, or of each of a batch. All is copied first: a stays.

    The output has the dimensions of the batch: none for a single matrix.
    """

    name: ClassVar = "det"
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch")] = None

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return 2/3·n³ for each matrix."""
        return int(math.prod(sizes["batch"]) * 2 * sizes["n"] ** 3 / 3)


class Cholesky(_SolverRequest, frozen=True):
    """Factor a = uᴴ·u, or l·lᴴ if `lower`, for one matrix or each of a batch.

    The other triangle of the result is 0. Only the triangle of a is read in which the factor lies. All is copied
    first: a stays.
    """

    name: ClassVar = "cholesky"
    undefined: ClassVar = (
        "A matrix is not positive definite: `row` is where its leading minor ends, `batch` tells which."
    )
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch n n")] = None
    lower: bool = False
    """The factor is the lower triangle."""

    @staticmethod
    def work(_request: Any, sizes: Sizes) -> int:
        """Return n³/3 for each matrix."""
        return int(math.prod(sizes["batch"]) * sizes["n"] ** 3 / 3)


class Qr(_SolverRequest, frozen=True):
    """Factor a = q·r, q with orthonormal columns and r an upper triangle. All is copied first: a stays."""

    name: ClassVar = "qr"
    a: Annotated[Operand, reads("m n")]
    q: Annotated[Operand | None, writes(orthogonal)] = None
    r: Annotated[Operand | None, writes(trapezoid)] = None
    mode: Mode = "full"
    """"full", or "economic": q has no more columns than a has rows and columns."""

    work = staticmethod(factored)


class Svd(_SolverRequest, frozen=True):
    """Decompose a = u·diag(s)·vh; the singular values descend. All is copied first: a stays.

    On CUDA, cuSOLVER waits for the device in between, and so does everybody else.
    """

    name: ClassVar = "svd"
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, reads("m n")]
    u: Annotated[Operand | None, writes(left_of_all)] = None
    s: Annotated[Operand | None, writes(shorter, dtype=real_dtype)] = None
    vh: Annotated[Operand | None, writes(right_of_all)] = None
    full_matrices: bool = True
    """u and vh are square; else they have no more vectors than there are singular values."""


class Svdvals(_SolverRequest, frozen=True):
    """Compute the singular values of a, which descend. All is copied first: a stays.

    On CUDA, cuSOLVER waits for the device in between, and so does everybody else.
    """

    name: ClassVar = "svdvals"
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, reads("m n")]
    s: Annotated[Operand | None, writes(shorter, dtype=real_dtype)] = None


class Eigh(_SolverRequest, frozen=True):
    """Decompose symmetric or Hermitian a = v·diag(w)·vᴴ; the eigenvalues ascend. All is copied first: a stays.

    Only the triangle that `lower` names is read. For a·v = w·b·v there are sygvd and hegvd. On CUDA, cuSOLVER
    waits for the device in between, and so does everybody else.
    """

    name: ClassVar = "eigh"
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, reads("n n")]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype)] = None
    v: Annotated[Operand | None, writes("n n")] = None
    lower: bool = True
    """The lower triangle of a is read, not the upper one."""


class Eigvalsh(_SolverRequest, frozen=True):
    """Compute the eigenvalues of symmetric or Hermitian a, which ascend. All is copied first: a stays.

    Only the triangle that `lower` names is read. On CUDA, cuSOLVER waits for the device in between, and so does
    everybody else.
    """

    name: ClassVar = "eigvalsh"
    undefined: ClassVar = _NO_VALUES
    a: Annotated[Operand, reads("n n")]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype)] = None
    lower: bool = True
    """The lower triangle of a is read, not the upper one."""


class Spsolve(_SolverRequest, frozen=True):
    """Solve a·x = b for a sparse matrix, by LU factors, or by Cholesky factors if it is positive definite.

    The matrix is one of `device.sparse`, in csr with int32 indices; all of it is given for Cholesky factors too. On
    CUDA this needs cuDSS, which allocates device memory by itself. The order in which it eliminates is found by the
    first request of a structure, on a thread of its own, and kept.
    """

    name: ClassVar = "spsolve"
    rules: ClassVar = (is_counted, *sparse.COMMON, is_square)
    undefined: ClassVar = "The matrix is singular, or so nearly that x is wrong; or it is not positive definite."
    a: sparse.Matrix
    b: Annotated[Operand, reads(sparse_sides)]
    x: Annotated[Operand | None, writes(sparse_sides)] = None
    method: Factors = "lu"
    """"lu", or "cholesky" for a symmetric or Hermitian a that is positive definite; "qr" is `Unsupported`."""

    def plan_key(self) -> tuple[object, ...]:
        """Return everything that a plan may depend on: also which structure it is."""
        return *super().plan_key(), self.a.structure.memory
