"""Dense solvers and factorisations: LAPACK's names for what works in place, SciPy's for what keeps what it reads. Pure.

Requests with LAPACK's names (`getrf`, `potrs`) write their results over what they read. A matrix may lie in row or in
column order. cuSOLVER knows column order only: LU and QR factors, reflectors and eigenvectors in row order go through a
copy on the device; a Cholesky factor and what it solves never do. Pivots count from 0 and eigenvalues ascend.

Source of the rules: LAPACK's and cuSOLVER's documentation; SciPy's for what has its names.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from atomr_mp.protocol.declaration.arguments import reads, updates, writes
from atomr_mp.protocol.declaration.shapes import ByParameter
from atomr_mp.protocol.declaration.strides import matrices, matrix, packed
from atomr_mp.protocol.libraries import sparse
from atomr_mp.protocol.libraries.base import COMPLEX, FULL, REAL, LibraryRequest, Rest, Rule
from atomr_mp.protocol.libraries.solver_shapes import (
    has_few_reflectors,
    is_counted,
    is_one_system,
    is_small,
    is_square,
    is_tall,
    left_of_all,
    left_vectors,
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

FACTORED = "2 short² long - 2/3 short³"
"""LAPACK's count for QR factors."""
MULTIPLIED = ByParameter("side", {"L": "4 m n k - 2 n k²", "R": "4 m n k - 2 m k²"})
"""LAPACK's count for a product with k reflectors."""
VALUES = ByParameter("jobz", {"V": "9 n³", "N": "4/3 n³"})
"""The usual count for eigenvalues, with vectors or without."""


class _SolverRequest(LibraryRequest, frozen=True):
    """Base of most requests of this library."""

    types: ClassVar = {"T": FULL}
    rules: ClassVar[tuple[Rule, ...]] = (is_counted,)
    captured: ClassVar = False
    rest: ClassVar[Rest | None] = Rest.UNCHANGED


# --- LU ---------------------------------------------------------------------------------------------------------------


class Getrf(_SolverRequest, frozen=True):
    """Factor a = p·l·u by exchanging rows; l, but for its diagonal of ones, and u overwrite a.

    In step i, row i was exchanged with row pivots[i], which counts from 0. In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf"
    captured: ClassVar = True
    undefined: ClassVar = "A pivot is 0: the matrix is singular. `row` is its place on the diagonal."
    work: ClassVar = "short² long - 1/3 short³"
    a: Annotated[Operand, updates("m n", lies=matrix)]
    pivots: Annotated[Operand | None, writes(shorter, dtype=pivot_dtype, lies=packed)] = None


class Getrs(_SolverRequest, frozen=True):
    """Solve a·x = b, or the transpose of a, by the factors that getrf has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs"
    undefined: ClassVar = "A pivot is no row of the matrix; `row` is its place."
    rest: ClassVar = None
    work: ClassVar = "2 n² nrhs"
    a: Annotated[Operand, reads("n n", lies=matrix)]
    pivots: Annotated[Operand, reads("n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of a, or its conjugate, is in the place of a."""


class GetrfBatched(_SolverRequest, frozen=True):
    """Factor each square matrix of a batch as getrf does; for many small ones.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "getrf_batched"
    undefined: ClassVar = "A matrix is singular; `batch` and `row` tell the first."
    work: ClassVar = "2/3 batch n³"
    a: Annotated[Operand, updates("*batch n n", lies=matrices)]
    pivots: Annotated[Operand | None, writes("*batch n", dtype=pivot_dtype, lies=packed)] = None


class GetrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that getrf_batched has left in a; x overwrites b.

    In row order, a is copied on CUDA, and so is b.
    """

    name: ClassVar = "getrs_batched"
    undefined: ClassVar = "A pivot is no row of its matrix; `batch` and `row` tell the first."
    rest: ClassVar = None
    work: ClassVar = "2 batch n² nrhs"
    a: Annotated[Operand, reads("*batch n n", lies=matrices)]
    pivots: Annotated[Operand, reads("*batch n", dtype=pivot_dtype, lies=packed)]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    trans: Transpose = "N"
    """"T" or "C": the transpose of each matrix, or its conjugate, is in the place of the matrix."""


# --- Cholesky ---------------------------------------------------------------------------------------------------------


class Potrf(_SolverRequest, frozen=True):
    """Factor a = l·lᴴ (uplo "L") or uᴴ·u ("U"); the factor overwrites its triangle of a.

    The other triangle is neither read nor written. Nothing is copied.
    """

    name: ClassVar = "potrf"
    captured: ClassVar = True
    undefined: ClassVar = "The matrix is not positive definite: its leading minor up to `row` is not."
    work: ClassVar = "1/3 n³"
    a: Annotated[Operand, updates("n n", lies=matrix, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of a, as a is seen: "L" or "U"."""


class Potrs(_SolverRequest, frozen=True):
    """Solve a·x = b by the factor that potrf has left in a; x overwrites b. Nothing is copied.

    A zero on the factor's diagonal gives infinities and NaNs, not an error.
    """

    name: ClassVar = "potrs"
    captured: ClassVar = True
    work: ClassVar = "2 n² nrhs"
    a: Annotated[Operand, reads("n n", lies=matrix, triangle="uplo")]
    b: Annotated[Operand, updates("n nrhs", lies=matrix)]
    uplo: Triangle = "L"
    """The triangle of a that holds the factor, as a is seen: "L" or "U"."""


class PotrfBatched(_SolverRequest, frozen=True):
    """Factor each matrix of a batch as potrf does; for many small ones.

    On a GPU the batch is copied meanwhile, since cuSOLVER writes into the other triangle too.
    """

    name: ClassVar = "potrf_batched"
    captured: ClassVar = True
    undefined: ClassVar = "A matrix is not positive definite; `batch` and `row` tell the first."
    work: ClassVar = "1/3 batch n³"
    a: Annotated[Operand, updates("*batch n n", lies=matrices, triangle="uplo")]
    uplo: Triangle = "L"
    """The triangle of each matrix, as it is seen: "L" or "U"."""


class PotrsBatched(_SolverRequest, frozen=True):
    """Solve a·x = b for each matrix of a batch, by the factors that potrf_batched has left in a; x overwrites b.

    Nothing is copied.
    """

    name: ClassVar = "potrs_batched"
    work: ClassVar = "2 batch n² nrhs"
    a: Annotated[Operand, reads("*batch n n", lies=matrices, triangle="uplo")]
    b: Annotated[Operand, updates("*batch n nrhs", lies=matrices)]
    uplo: Triangle = "L"
    """The triangle of each matrix that holds its factor, as the matrix is seen: "L" or "U"."""


# --- QR ---------------------------------------------------------------------------------------------------------------


class Geqrf(_SolverRequest, frozen=True):
    """Factor a = q·r; r overwrites the upper triangle of a, and what q is made of the rest and tau.

    q is a product of reflectors 1 - tau[i]·v·vᴴ: v is 0 above row i, 1 there, and below what is left in column
    i of a. In row order, a is copied on CUDA.
    """

    name: ClassVar = "geqrf"
    captured: ClassVar = True
    work: ClassVar = FACTORED
    a: Annotated[Operand, updates("m n", lies=matrix)]
    tau: Annotated[Operand | None, writes(shorter, lies=packed)] = None


class Orgqr(_SolverRequest, frozen=True):
    """Overwrite a, in whose first columns geqrf has left reflectors, with the first columns of q.

    In row order, a is copied on CUDA.
    """

    name: ClassVar = "orgqr"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = (is_counted, is_tall)
    rest: ClassVar = Rest.UNIT
    work: ClassVar = "4 m n k - 2 m k² - 2 n k² + 4/3 k³"
    a: Annotated[Operand, updates("m n", lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]


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
    work: ClassVar = MULTIPLIED
    a: Annotated[Operand, reads(stands_beside_c, lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]
    c: Annotated[Operand, updates("m n", lies=matrix)]
    side: Side = "L"
    """The side of c on which q stands: "L" or "R"."""
    trans: Transposed = "N"
    """"T": the transpose of q."""


class Unmqr(_SolverRequest, frozen=True):
    """Compute complex c ← q·c, c·q, qᴴ·c or c·qᴴ; geqrf has left the reflectors of q in a.

    In row order, both are copied on CUDA.
    """

    name: ClassVar = "unmqr"
    types: ClassVar = {"T": COMPLEX}
    rules: ClassVar = (is_counted, has_few_reflectors)
    work: ClassVar = MULTIPLIED
    a: Annotated[Operand, reads(stands_beside_c, lies=matrix)]
    tau: Annotated[Operand, reads("k", lies=packed)]
    c: Annotated[Operand, updates("m n", lies=matrix)]
    side: Side = "L"
    """The side of c on which q stands: "L" or "R"."""
    trans: Adjoint = "N"
    """"C": the conjugate transpose of q."""


# --- singular values and eigenvalues ----------------------------------------------------------------------------------

_NO_VALUES = "An element is a NaN or an infinity, or the iteration does not end."


class Gesvd(_SolverRequest, frozen=True):
    """Decompose a = u·diag(s)·vh; the singular values descend. a is overwritten.

    On CUDA, cuSOLVER waits for the device in between, and so does everybody else. A tall matrix in row order is
    copied there, and so is a wide one in column order.
    """

    name: ClassVar = "gesvd"
    undefined: ClassVar = _NO_VALUES
    rest: ClassVar = Rest.UNIT
    work: ClassVar = ByParameter(
        "job", {"N": "4 short² long - 4/3 short³", **dict.fromkeys("AS", "14 short² long + 8 short³")}
    )
    a: Annotated[Operand, updates("m n", lies=matrix)]
    u: Annotated[Operand | None, writes(left_vectors, lies=matrix)] = None
    s: Annotated[Operand | None, writes(shorter, dtype=real_dtype, lies=packed)] = None
    vh: Annotated[Operand | None, writes(right_vectors, lies=matrix)] = None
    job: Job = "A"
    """"A" for all vectors, "S" for as many as there are singular values, "N" for none."""


class GesvdjBatched(_SolverRequest, frozen=True):
    """Decompose each matrix of a batch, a = u·diag(s)·vᴴ, by Jacobi's method; the singular values descend.

    The matrices have up to 32 rows and columns. They stay as they are, and are copied on CUDA.
    """

    name: ClassVar = "gesvdj_batched"
    rules: ClassVar = (is_counted, is_small)
    undefined: ClassVar = _NO_VALUES
    rest: ClassVar = Rest.UNIT
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
    work: ClassVar = VALUES
    a: Annotated[Operand, updates("n n", lies=matrix)]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype, lies=packed)] = None
    uplo: Triangle = "L"
    """The triangle of a, as a is seen: "L" or "U"."""
    jobz: Vectors = "V"
    """"V" for values and vectors, "N" for values."""


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
    work: ClassVar = VALUES
    a: Annotated[Operand, updates("n n", lies=matrix)]
    b: Annotated[Operand, updates("n n", lies=matrix, triangle="uplo")]
    w: Annotated[Operand | None, writes("n", dtype=real_dtype, lies=packed)] = None
    uplo: Triangle = "L"
    """The triangle of a and b, as they are seen: "L" or "U"."""
    jobz: Vectors = "V"
    """"V" for values and vectors, "N" for values."""
    itype: Kind = 1
    """1: a·v = w·b·v; 2: a·b·v = w·v; 3: b·a·v = w·v."""


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
    work: ClassVar = "2/3 batch n³ + 2 n b.size"
    a: Annotated[Operand, reads("*batch n n")]
    b: Annotated[Operand, reads(right_sides)]
    x: Annotated[Operand | None, writes(solutions)] = None


class Lstsq(_SolverRequest, frozen=True):
    """Find the x for which a·x is nearest to b; if there are many, the shortest. By QR factors, so a has full rank.

    SciPy's returns residues, rank and singular values too. All is copied first: a and b stay.
    """

    name: ClassVar = "lstsq"
    undefined: ClassVar = "Column `row` of a, or row where a has fewer rows, depends on those before it."
    rest: ClassVar = Rest.ZEROS
    work: ClassVar = FACTORED
    a: Annotated[Operand, reads("m n")]
    b: Annotated[Operand, reads(right_sides)]
    x: Annotated[Operand | None, writes(solutions)] = None


class Inv(_SolverRequest, frozen=True):
    """Invert a matrix, or each of a batch. All is copied first: a stays."""

    name: ClassVar = "inv"
    undefined: ClassVar = "A matrix is singular; `row` is the place of its pivot of 0, and `batch` tells which."
    work: ClassVar = "2 batch n³"
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch n n")] = None


class Det(_SolverRequest, frozen=True):
    """Compute the determinant of a matrix, or of each of a batch. All is copied first: a stays.

    The output has the dimensions of the batch: none for a single matrix.
    """

    name: ClassVar = "det"
    rest: ClassVar = Rest.ONES
    work: ClassVar = "2/3 batch n³"
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch")] = None


class Cholesky(_SolverRequest, frozen=True):
    """Factor a = uᴴ·u, or l·lᴴ if `lower`, for one matrix or each of a batch.

    The other triangle of the result is 0. Only the triangle of a is read in which the factor lies. All is copied
    first: a stays.
    """

    name: ClassVar = "cholesky"
    undefined: ClassVar = (
        "A matrix is not positive definite: `row` is where its leading minor ends, `batch` tells which."
    )
    work: ClassVar = "1/3 batch n³"
    a: Annotated[Operand, reads("*batch n n")]
    out: Annotated[Operand | None, writes("*batch n n")] = None
    lower: bool = False
    """The factor is the lower triangle."""


class Qr(_SolverRequest, frozen=True):
    """Factor a = q·r, q with orthonormal columns and r an upper triangle. All is copied first: a stays."""

    name: ClassVar = "qr"
    rest: ClassVar = Rest.UNIT
    work: ClassVar = FACTORED
    a: Annotated[Operand, reads("m n")]
    q: Annotated[Operand | None, writes(orthogonal)] = None
    r: Annotated[Operand | None, writes(trapezoid)] = None
    mode: Mode = "full"
    """"full", or "economic": q has no more columns than a has rows and columns."""


class Svd(_SolverRequest, frozen=True):
    """Decompose a = u·diag(s)·vh; the singular values descend. All is copied first: a stays.

    On CUDA, cuSOLVER waits for the device in between, and so does everybody else.
    """

    name: ClassVar = "svd"
    undefined: ClassVar = _NO_VALUES
    rest: ClassVar = Rest.UNIT
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
    rest: ClassVar = None
    a: sparse.Matrix
    b: Annotated[Operand, reads(sparse_sides)]
    x: Annotated[Operand | None, writes(sparse_sides)] = None
    method: Factors = "lu"
    """"lu", or "cholesky" for a symmetric or Hermitian a that is positive definite; "qr" is `Unsupported`."""

    def plan_key(self) -> tuple[object, ...]:
        """Return everything that a plan may depend on: also which structure it is."""
        return *super().plan_key(), self.a.structure.memory
