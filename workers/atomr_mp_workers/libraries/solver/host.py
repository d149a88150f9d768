"""Solvers on the host backend, with LAPACK by SciPy's wrappers.

These copy a matrix that is not in column order and without gaps. One in row order is passed transposed where that is as
good, and works in place then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from atomr_mp import errors
from atomr_mp.protocol.libraries import solver
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.solver import verdicts

Array = npt.NDArray[Any]

TRANS: Final = {"N": 0, "T": 1, "C": 2}


class HostSolver(Library):
    """Solvers of NumPy's arrays."""

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


def _getrf(a: Array, pivots: Array, batch: int = -1) -> None:
    if not a.size:
        return
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
    if not a.size:
        return
    turned = a.flags.c_contiguous  # in column order, l is uᵀ, and nothing has to be conjugated
    seen = a.T if turned else a
    factor, info = _routine("potrf", a)(seen, lower=(request.uplo == "L") != turned, clean=0, overwrite_a=1)
    if not np.shares_memory(factor, a):
        triangle = np.tri(len(a), dtype=np.bool)
        np.copyto(a, factor.T if turned else factor, where=triangle if request.uplo == "L" else triangle.T)
    if info > 0:
        raise verdicts.indefinite(info, batch)


def _potrs(request: solver.Potrs | solver.PotrsBatched, a: Array, b: Array) -> None:
    if b.size:
        b[...] = _routine("potrs", a)(a, b, lower=request.uplo == "L")[0]


def _each(*arrays: Array) -> Iterator[tuple[Any, ...]]:
    """Return the number of each matrix of a batch, in order, and what belongs to it."""
    depth = arrays[0].ndim - 2
    for number, at in enumerate(np.ndindex(arrays[0].shape[:depth])):
        yield (number, *(each[at] for each in arrays))


def _routine(name: str, values: Array) -> Callable[..., Any]:
    """Return LAPACK's routine for an array's type; what it says of its parameters is an error of ours."""
    (routine,) = lapack.get_lapack_funcs((name,), dtype=values.dtype)

    def call(*arguments: Any, **named: Any) -> Any:
        result = routine(*arguments, **named)
        if result[-1] < 0:
            raise errors.LibraryError(f"{name}: argument {-result[-1]} is wrong", library="lapack", status=result[-1])
        return result

    return call


Implementation: Final = HostSolver
