"""Solvers on the host backend, with LAPACK.

Whatever takes long is done by NumPy, by those wrappers of SciPy's that release the interpreter's lock (`getrf`,
`getrs`, `geqrf`, `orgqr` and `ormqr`), or by `unlocked`. A matrix that is not in column order without gaps is copied;
but `potrf` works in place in row order, too: it is given the transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy import linalg
from scipy.linalg import lapack
from scipy.sparse.linalg import splu

from atomr_mp import errors
from atomr_mp.protocol.libraries import solver
from atomr_mp_workers.libraries import unlocked
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.sparse import structures

Array = npt.NDArray[Any]

TRANS: Final = {"N": 0, "T": 1, "C": 2}


class HostSolver(Library):
    """Solvers of NumPy's arrays."""

    xp: ClassVar = np

    # --- LU -----------------------------------------------------------------------------------------------------------

    def getrf(self, request: solver.Getrf) -> None:
        """Factor a = p·l·u in place."""
        _getrf(array(request.a), array(request.pivots))

    def getrf_batched(self, request: solver.GetrfBatched) -> None:
        """Factor each matrix of a batch in place."""
        for batch, a, pivots in _each(array(request.a), array(request.pivots)):
            _getrf(a, pivots, batch)

    def getrs(self, request: solver.Getrs) -> None:
        """Solve by the factors of getrf; x overwrites b."""
        _getrs(request, array(request.a), array(request.pivots), array(request.b))

    def getrs_batched(self, request: solver.GetrsBatched) -> None:
        """Solve by the factors of getrf_batched; x overwrites b."""
        for batch, a, pivots, b in _each(array(request.a), array(request.pivots), array(request.b)):
            _getrs(request, a, pivots, b, batch)

    # --- Cholesky -----------------------------------------------------------------------------------------------------

    def potrf(self, request: solver.Potrf) -> None:
        """Factor a = l·lᴴ or uᴴ·u in place."""
        _potrf(request, array(request.a))

    def potrf_batched(self, request: solver.PotrfBatched) -> None:
        """Factor each matrix of a batch in place."""
        for batch, a in _each(array(request.a)):
            _potrf(request, a, batch)

    def potrs(self, request: solver.Potrs) -> None:
        """Solve by the factor of potrf; x overwrites b."""
        _potrs(request, array(request.a), array(request.b))

    def potrs_batched(self, request: solver.PotrsBatched) -> None:
        """Solve by the factors of potrf_batched; x overwrites b."""
        for _, a, b in _each(array(request.a), array(request.b)):
            _potrs(request, a, b)

    # --- QR -----------------------------------------------------------------------------------------------------------

    def geqrf(self, request: solver.Geqrf) -> None:
        """Factor a = q·r in place."""
        a = array(request.a)
        a[...], array(request.tau)[...], _, _ = _routine("geqrf", a)(a)

    def orgqr(self, request: solver.Orgqr | solver.Ungqr) -> None:
        """Overwrite reflectors with the first columns of q."""
        a, tau = array(request.a), array(request.tau)
        a[...] = _routine(request.name, a)(a, tau)[0]

    ungqr = orgqr

    def ormqr(self, request: solver.Ormqr | solver.Unmqr) -> None:
        """Multiply c by q or its adjoint."""
        a, tau, c = array(request.a), array(request.tau), array(request.c)
        call = _routine(request.name, a)
        _, work, _ = call(request.side, request.trans, a, tau, c, -1)
        c[...] = call(request.side, request.trans, a, tau, c, int(work[0].real))[0]

    unmqr = ormqr

    # --- singular values and eigenvalues ------------------------------------------------------------------------------

    def gesvd(self, request: solver.Gesvd) -> None:
        """Decompose a = u·diag(s)·vh."""
        a = array(request.a)
        found = _svd(a, full=request.job == "A", vectors=request.job != "N")
        for operand, made in zip((request.u, request.s, request.vh), found, strict=True):
            if made is not None:
                array(operand)[...] = made

    def gesvdj_batched(self, request: solver.GesvdjBatched) -> None:
        """Decompose each matrix of a batch, a = u·diag(s)·vᴴ."""
        for batch, a, *outputs in _each(*map(array, (request.a, request.u, request.s, request.v))):
            u, s, vh = _svd(a, full=True, vectors=True, batch=batch)
            for out, made in zip(outputs, (u, s, vh.conj().T), strict=True):
                out[...] = made

    def syevd(self, request: solver.Syevd | solver.Heevd) -> None:
        """Decompose a = v·diag(w)·vᴴ; v overwrites a."""
        a, vectors = array(request.a), request.jobz == "V"
        array(request.w)[...], found = _eigh(a, lower=request.uplo == "L", vectors=vectors)
        if vectors:
            a[...] = found

    heevd = syevd

    def sygvd(self, request: solver.Sygvd | solver.Hegvd) -> None:
        """Solve a·v = w·b·v, or the problem that itype names; v overwrites a, and b's factor its triangle."""
        a, b, lower = array(request.a), array(request.b), request.uplo == "L"
        _check_finite(_part(a, lower=lower), _part(b, lower=lower))
        v, factor = np.array(a, order="F"), np.array(b, order="F")
        w, info = unlocked.generalised(v, factor, itype=request.itype, jobz=request.jobz, lower=lower)
        if info:
            raise verdicts.without_pairs(info, len(a))
        array(request.w)[...] = w
        np.copyto(b, factor, where=_triangle(len(b), lower=lower))
        if request.jobz == "V":
            a[...] = v

    hegvd = sygvd

    # --- with SciPy's names -------------------------------------------------------------------------------------------

    def solve(self, request: solver.Solve) -> None:
        """Solve a·x = b."""
        b, x = array(request.b), array(request.x)
        if b.ndim == 1:
            b, x = b[:, None], x[:, None]
        for batch, a, right, out in _each(array(request.a), b, x):
            out[...] = _solved(a, right, batch)

    def inv(self, request: solver.Inv) -> None:
        """Invert each matrix."""
        for batch, a, out in _each(array(request.a), array(request.out)):
            rows = np.arange(len(a))
            out[...] = _solved(a, np.equal.outer(rows, rows).astype(a.dtype), batch)  # `np.eye` keeps the lock

    def det(self, request: solver.Det) -> None:
        """Compute determinants."""
        out = array(request.out)
        for at in np.ndindex(out.shape):
            out[at] = _det(array(request.a)[at])

    def cholesky(self, request: solver.Cholesky) -> None:
        """Factor a = uᴴ·u or l·lᴴ."""
        for batch, a, out in _each(array(request.a), array(request.out)):
            factor = np.array(a, order="F")
            if info := unlocked.potrf(factor, lower=request.lower):
                raise verdicts.indefinite(info, batch)
            out[...] = np.tril(factor) if request.lower else np.triu(factor)

    def qr(self, request: solver.Qr) -> None:
        """Factor a = q·r."""
        made = linalg.qr(array(request.a), mode=request.mode, check_finite=False)
        array(request.q)[...], array(request.r)[...] = made

    def svd(self, request: solver.Svd) -> None:
        """Decompose a = u·diag(s)·vh."""
        found = _svd(array(request.a), full=request.full_matrices, vectors=True)
        array(request.u)[...], array(request.s)[...], array(request.vh)[...] = found

    def svdvals(self, request: solver.Svdvals) -> None:
        """Compute singular values."""
        array(request.s)[...] = _svd(array(request.a), full=False, vectors=False)[1]

    def eigh(self, request: solver.Eigh) -> None:
        """Decompose a = v·diag(w)·vᴴ."""
        array(request.w)[...], array(request.v)[...] = _eigh(array(request.a), lower=request.lower, vectors=True)

    def eigvalsh(self, request: solver.Eigvalsh) -> None:
        """Compute eigenvalues."""
        array(request.w)[...] = _eigh(array(request.a), lower=request.lower, vectors=False)[0]

    def lstsq(self, request: solver.Lstsq) -> None:
        """Find the shortest x for which a·x is nearest to b."""
        a, b, x = array(request.a), array(request.b), array(request.x)
        if b.ndim == 1:
            b, x = b[:, None], x[:, None]
        tall = a.shape[0] >= a.shape[1]
        q, r = linalg.qr(a if tall else a.conj().T, mode="economic", check_finite=False)
        sizes = np.abs(np.diag(r))
        weak = ~(sizes > np.finfo(a.dtype).eps * max(a.shape) * sizes.max())
        if weak.any():
            raise verdicts.dependent(int(weak.argmax()))
        if tall:
            x[...] = unlocked.trsm(1, r, q.conj().T @ b, lower=False)
        else:
            x[...] = q @ unlocked.trsm(1, r, b, lower=False, trans="C")

    # --- sparse -------------------------------------------------------------------------------------------------------

    def spsolve(self, request: solver.Spsolve) -> None:
        """Solve a·x = b for a sparse matrix."""
        it, b, x = structures.found(request.a), array(request.b), array(request.x)
        if not b.size:
            return
        values = array(request.a.data)
        a = scipy.sparse.csr_array((values, it.indices, it.indptr), shape=request.a.shape)
        x[...] = _sparse_cholesky(a, b) if request.method == "cholesky" else _sparse_lu(a.tocsc(), b)
        if not np.isfinite(x).all():
            raise verdicts.unsolved()


def _sparse_lu(a: Any, b: Array) -> Array:
    x: Array = _superlu(a).solve(b)
    return x


def _sparse_cholesky(a: Any, b: Array) -> Array:
    """Solve by the LU factors of a Hermitian matrix with the same order of rows and columns: then u is d·lᴴ."""
    factors = _superlu(a.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    pivots = factors.U.diagonal()
    if not _is_hermitian(a) or (factors.perm_r != factors.perm_c).any() or not (pivots.real > 0).all():
        raise verdicts.unsolved()
    x: Array = factors.solve(b)
    return x


def _is_hermitian(a: Any) -> bool:
    """Return whether a sparse matrix is Hermitian up to rounding.

    No element of a positive definite matrix is larger than the root of its two diagonal elements' product, so that
    measures what counts as rounding.
    """
    sizes = np.sqrt(np.abs(a.diagonal()))
    apart, rounding = (a - a.conj().T).tocoo(), np.finfo(a.dtype).eps ** 0.5
    return bool((np.abs(apart.data) <= rounding * sizes[apart.row] * sizes[apart.col]).all())


def _superlu(a: Any, **options: Any) -> Any:
    try:
        return splu(a, **options)
    except RuntimeError as error:  # "Factor is exactly singular"
        raise verdicts.unsolved() from error


def _getrf(a: Array, pivots: Array, batch: int = -1) -> None:
    factors, found, info = _routine("getrf", a)(a)
    a[...], pivots[...] = factors, found
    if info > 0:
        raise verdicts.singular(info, batch)


def _getrs(request: solver.Getrs | solver.GetrsBatched, a: Array, pivots: Array, b: Array, batch: int = -1) -> None:
    wrong = (pivots < 0) | (pivots >= len(a))
    if wrong.any():
        raise verdicts.outside(int(wrong.argmax()), batch)
    if b.size:
        b[...] = _routine("getrs", a)(a, pivots.astype(np.int32), b, trans=TRANS[request.trans])[0]


def _potrf(request: solver.Potrf | solver.PotrfBatched, a: Array, batch: int = -1) -> None:
    turned = a.flags.c_contiguous  # in column order, l is uᵀ, and nothing has to be conjugated
    seen = a.T if turned else a
    factor = np.asfortranarray(seen)
    info = unlocked.potrf(factor, lower=(request.uplo == "L") != turned)
    if factor is not seen:
        np.copyto(seen, factor, where=_triangle(len(a), lower=request.uplo == "L"))
    if info:
        raise verdicts.indefinite(info, batch)


def _potrs(request: solver.Potrs | solver.PotrsBatched, a: Array, b: Array) -> None:
    b[...] = unlocked.potrs(a, b, lower=request.uplo == "L")


def _solved(a: Array, b: Array, batch: int) -> Array:
    """Return the solution of a·x = b."""
    factors, pivots, info = _routine("getrf", a)(a)
    if info:
        raise verdicts.singular(info, batch)
    x: Array = _routine("getrs", a)(factors, pivots, b)[0]
    return x


def _det(a: Array) -> Any:
    factors, pivots, _ = _routine("getrf", a)(a)
    swaps = np.count_nonzero(pivots != np.arange(len(a)))
    return np.diag(factors).prod() * (-1) ** swaps


def _svd(a: Array, *, full: bool, vectors: bool, batch: int = -1) -> tuple[Array | None, Array, Any]:
    """Return u, s and vh; u and vh are None without vectors."""
    _check_finite(a, batch=batch)
    try:
        return np.linalg.svd(a, full_matrices=full) if vectors else (None, np.linalg.svd(a, compute_uv=False), None)
    except np.linalg.LinAlgError as error:
        raise verdicts.without_values(1, batch) from error


def _eigh(a: Array, *, lower: bool, vectors: bool) -> tuple[Array, Any]:
    """Return eigenvalues and eigenvectors."""
    _check_finite(_part(a, lower=lower))
    uplo: Literal["L", "U"] = "L" if lower else "U"
    try:
        return np.linalg.eigh(a, uplo) if vectors else (np.linalg.eigvalsh(a, uplo), None)
    except np.linalg.LinAlgError as error:
        raise verdicts.without_values(1) from error


def _part(a: Array, *, lower: bool) -> Array:
    """Return the elements of a triangle."""
    return a[_triangle(len(a), lower=lower)]


def _triangle(n: int, *, lower: bool) -> Array:
    """Return a mask of the elements that belong to a triangle."""
    below = np.tri(n, dtype=np.bool)
    return below if lower else below.T


def _check_finite(*parts: Array, batch: int = -1) -> None:
    """Refuse NaNs and infinities: LAPACK's results for them are arbitrary."""
    if not all(np.isfinite(part).all() for part in parts):
        raise verdicts.without_values(verdicts.NOT_FINITE, batch)


def _each(*arrays: Array) -> Iterator[tuple[Any, ...]]:
    """Return the number of each matrix of a batch, in order, and its parts."""
    batch = arrays[0].shape[:-2]
    for number, at in enumerate(np.ndindex(batch)):
        yield (number if batch else -1, *(each[at] for each in arrays))


def _routine(name: str, values: Array) -> Callable[..., Any]:
    """Return LAPACK's routine for an array's type; an invalid parameter is a bug of ours."""
    (routine,) = lapack.get_lapack_funcs((name,), dtype=values.dtype)

    def call(*arguments: Any, **named: Any) -> Any:
        result = routine(*arguments, **named)
        if result[-1] < 0:
            raise errors.LibraryError(f"{name}: argument {-result[-1]} is wrong", library="lapack", status=result[-1])
        return result

    return call


Implementation: Final = HostSolver
