"""Dense linear algebra as BLAS defines it, level 1 to 3, and cuBLAS' geam and batched gemm. Pure.

Sizes, increments and leading dimensions follow from the layouts of the arrays. A transpose is a view: a matrix may lie
in row or column order. An array with a factor of 0 is not read, except by scal: a NaN in it is gone. Half precision
is computed in float32, and rounded once.

Source of the rules: the BLAS Technical Forum's standard; cuBLAS' documentation for geam and batches.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from atomr_mp.protocol.declaration.arguments import Sizes, reads, updates, writes
from atomr_mp.protocol.declaration.factors import Factor, RealFactor
from atomr_mp.protocol.declaration.shapes import ByParameter
from atomr_mp.protocol.declaration.strides import forward, matrices, matrix, vector
from atomr_mp.protocol.libraries.base import FULL, HALF, LibraryRequest, Rest
from atomr_mp.protocol.refs import Operand

Side = Literal["L", "R"]
"""Left, right."""
Triangle = Literal["L", "U"]
"""Lower, upper."""
Diagonal = Literal["N", "U"]
"""Not unit; unit: all ones, and not read."""


def _is_not_empty(_request: Any, sizes: Sizes) -> bool:
    """There must be an element in x."""
    return bool(sizes["n"])


def _stands_beside_b(request: Any, sizes: Sizes) -> tuple[int, int]:
    """(m, m) where side is L, (n, n) where it is R."""
    size = sizes["m"] if request.side == "L" else sizes["n"]
    return size, size


class Axpy(LibraryRequest, frozen=True):
    """Compute y ← alpha·x + y."""

    name: ClassVar = "axpy"
    types: ClassVar = {"T": (*HALF, *FULL)}
    rest: ClassVar = Rest.UNCHANGED
    work: ClassVar = "2 n"
    x: Annotated[Operand, reads("n", lies=vector, factor="alpha")]
    y: Annotated[Operand, updates("n", lies=vector)]
    alpha: Factor = 1.0


class Scal(LibraryRequest, frozen=True):
    """Compute x ← alpha·x. An alpha of 0 multiplies too, so a NaN stays a NaN."""

    name: ClassVar = "scal"
    types: ClassVar = {"T": (*HALF, *FULL)}
    work: ClassVar = "n"
    x: Annotated[Operand, updates("n", lies=vector)]
    alpha: Factor


class Nrm2(LibraryRequest, frozen=True):
    """Compute √Σ|x_i|² without overflow on the way. The result is a float."""

    name: ClassVar = "nrm2"
    types: ClassVar = {"T": FULL}
    captured: ClassVar = False
    answers: ClassVar = True
    rest: ClassVar = Rest.REAL_ZERO
    work: ClassVar = "2 n"
    x: Annotated[Operand, reads("n", lies=vector)]


class Dot(LibraryRequest, frozen=True):
    """Compute Σ x_i·y_i. The result is a float; for complex arrays, a complex number.

    A complex result arrives as a NumPy array without dimensions, for msgpack has no complex numbers.
    """

    name: ClassVar = "dot"
    types: ClassVar = {"T": FULL}
    captured: ClassVar = False
    answers: ClassVar = True
    rest: ClassVar = Rest.ZEROS
    work: ClassVar = "2 n"
    x: Annotated[Operand, reads("n", lies=vector)]
    y: Annotated[Operand, reads("n", lies=vector)]
    conjugate: bool = False
    """Take the conjugate of x_i; nothing changes for reals."""


class Inner(LibraryRequest, frozen=True):
    """Compute out ← Σ x_i·y_i, an array without dimensions: for a program, whose numbers stay on the device."""

    name: ClassVar = "inner"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.ZEROS
    work: ClassVar = "2 n"
    x: Annotated[Operand, reads("n", lies=vector)]
    y: Annotated[Operand, reads("n", lies=vector)]
    out: Annotated[Operand | None, writes("")] = None
    conjugate: bool = False
    """Take the conjugate of x_i; nothing changes for reals."""


class Asum(LibraryRequest, frozen=True):
    """Compute Σ|x_i|, for complex arrays Σ(|re x_i| + |im x_i|). The result is a float."""

    name: ClassVar = "asum"
    types: ClassVar = {"T": FULL}
    captured: ClassVar = False
    answers: ClassVar = True
    rest: ClassVar = Rest.REAL_ZERO
    work: ClassVar = "n"
    x: Annotated[Operand, reads("n", lies=vector)]


class Iamax(LibraryRequest, frozen=True):
    """Find the largest |x_i|, for complex arrays |re x_i| + |im x_i|.

    The result is its index, an int that counts from 0; the smallest if there are several. Undefined where there are
    NaNs.
    """

    name: ClassVar = "iamax"
    types: ClassVar = {"T": FULL}
    captured: ClassVar = False
    answers: ClassVar = True
    rules: ClassVar = (_is_not_empty,)
    x: Annotated[Operand, reads("n", lies=forward)]


class Iamin(LibraryRequest, frozen=True):
    """Find the smallest |x_i|, for complex arrays |re x_i| + |im x_i|.

    The result is its index, an int that counts from 0; the smallest if there are several. Undefined where there are
    NaNs.
    """

    name: ClassVar = "iamin"
    types: ClassVar = {"T": FULL}
    captured: ClassVar = False
    answers: ClassVar = True
    rules: ClassVar = (_is_not_empty,)
    x: Annotated[Operand, reads("n", lies=forward)]


class VectorCopy(LibraryRequest, frozen=True):
    """Compute y ← x."""

    name: ClassVar = "copy"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.UNCHANGED
    x: Annotated[Operand, reads("n", lies=vector)]
    y: Annotated[Operand | None, writes("n", lies=vector)] = None


class Swap(LibraryRequest, frozen=True):
    """Exchange x and y."""

    name: ClassVar = "swap"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.UNCHANGED
    x: Annotated[Operand, updates("n", lies=vector)]
    y: Annotated[Operand, updates("n", lies=vector)]


class Rot(LibraryRequest, frozen=True):
    """Rotate: (x_i, y_i) ← (c·x_i + s·y_i, c·y_i - conj(s)·x_i). The factor c is real."""

    name: ClassVar = "rot"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.UNCHANGED
    work: ClassVar = "6 n"
    x: Annotated[Operand, updates("n", lies=vector)]
    y: Annotated[Operand, updates("n", lies=vector)]
    c: RealFactor
    """A real factor; for a rotation, the cosine."""
    s: Factor
    """A factor; for a rotation, the sine. Complex only for complex arrays."""


class Gemv(LibraryRequest, frozen=True):
    """Compute y ← alpha·a·x + beta·y."""

    name: ClassVar = "gemv"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 m n"
    a: Annotated[Operand, reads("m n", lies=matrix, factor="alpha")]
    x: Annotated[Operand, reads("n", lies=vector, factor="alpha")]
    y: Annotated[Operand | None, writes("m", lies=vector, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0
    conj_a: bool = False
    """Take the conjugate of a."""


class Ger(LibraryRequest, frozen=True):
    """Compute a ← alpha·x·yᵀ + a."""

    name: ClassVar = "ger"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.UNCHANGED
    work: ClassVar = "2 m n"
    a: Annotated[Operand, updates("m n", lies=matrix)]
    x: Annotated[Operand, reads("m", lies=vector, factor="alpha")]
    y: Annotated[Operand, reads("n", lies=vector, factor="alpha")]
    alpha: Factor = 1.0
    conjugate: bool = False
    """Take the conjugate of y."""


class Geam(LibraryRequest, frozen=True):
    """Compute c ← alpha·a + beta·b. With beta 0 this transposes, scales and copies."""

    name: ClassVar = "geam"
    types: ClassVar = {"T": FULL}
    work: ClassVar = "3 m n"
    a: Annotated[Operand, reads("m n", lies=matrix, factor="alpha")]
    b: Annotated[Operand, reads("m n", lies=matrix, factor="beta")]
    c: Annotated[Operand | None, writes("m n", lies=matrix, alias=("a", "b"))] = None
    alpha: Factor = 1.0
    beta: Factor = 1.0
    conj_a: bool = False
    """Take the conjugate of a."""
    conj_b: bool = False
    """Take the conjugate of b."""


class Syrk(LibraryRequest, frozen=True):
    """Compute c ← alpha·a·aᵀ + beta·c in the named triangle of c; nothing is conjugated.

    The other triangle is neither read nor written; it is undefined if c was left out.
    """

    name: ClassVar = "syrk"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "n² k + n k"
    a: Annotated[Operand, reads("n k", lies=matrix, factor="alpha")]
    uplo: Triangle
    """The triangle of c, as c is seen: "L" or "U"."""
    c: Annotated[Operand | None, writes("n n", lies=matrix, factor="beta", triangle="uplo")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0


class Trsm(LibraryRequest, frozen=True):
    """Solve a·x = alpha·b (side "L") or x·a = alpha·b ("R") for x, which overwrites b.

    Only the named triangle of a is read. A zero on its diagonal gives infinities and NaNs, not an error.
    """

    name: ClassVar = "trsm"
    types: ClassVar = {"T": FULL}
    rest: ClassVar = Rest.ZEROS
    work: ClassVar = ByParameter("side", {"L": "m² n", "R": "m n²"})
    a: Annotated[Operand, reads(_stands_beside_b, lies=matrix, factor="alpha", triangle="uplo")]
    b: Annotated[Operand, updates("m n", lies=matrix)]
    uplo: Triangle
    """The triangle of a, as a is seen: "L" or "U"."""
    side: Side = "L"
    """The side of x on which a stands: "L" or "R"."""
    alpha: Factor = 1.0
    conj_a: bool = False
    """Take the conjugate of a."""
    diag: Diagonal = "N"
    """"U": the diagonal of a is all ones, and is not read."""


class Gemm(LibraryRequest, frozen=True):
    """Compute c ← alpha·a·b + beta·c."""

    name: ClassVar = "gemm"
    types: ClassVar = {"T": (*HALF, *FULL)}
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 m n k"
    a: Annotated[Operand, reads("m k", lies=matrix, factor="alpha")]
    b: Annotated[Operand, reads("k n", lies=matrix, factor="alpha")]
    c: Annotated[Operand | None, writes("m n", lies=matrix, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0
    conj_a: bool = False
    """Take the conjugate of a."""
    conj_b: bool = False
    """Take the conjugate of b."""


class GemmStridedBatched(LibraryRequest, frozen=True):
    """Compute c_i ← alpha·a_i·b_i + beta·c_i for each matrix i of a batch.

    Matrices that are read may overlap, and may be the same for all of the batch: a stride of 0.
    """

    name: ClassVar = "gemm_strided_batched"
    types: ClassVar = {"T": (*HALF, *FULL)}
    rest: ClassVar = Rest.SCALED
    work: ClassVar = "2 batch m n k"
    a: Annotated[Operand, reads("*batch m k", lies=matrices, factor="alpha")]
    b: Annotated[Operand, reads("*batch k n", lies=matrices, factor="alpha")]
    c: Annotated[Operand | None, writes("*batch m n", lies=matrices, factor="beta")] = None
    alpha: Factor = 1.0
    beta: Factor = 0.0
    conj_a: bool = False
    """Take the conjugate of a."""
    conj_b: bool = False
    """Take the conjugate of b."""
