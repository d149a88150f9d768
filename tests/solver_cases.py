"""What every backend's solvers must give: factors by what they multiply to, solutions in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from atomr_mp import errors
from atomr_mp.protocol.libraries import requests_of, solver
from atomr_mp.protocol.libraries.base import LibraryRequest
from tests import declared
from tests.declared import Expected
from tests.fake_arrays import FakeArray
from tests.tolerances import assert_close

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("solver")


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory."""
    declared.assert_agrees(request, random, run, EXPECTED[request.name], numbers)


def numbers(request: Any, name: str, values: Array) -> Array:
    """Return numbers for which a result is as exact as the arithmetic."""
    kind = request.name.removesuffix("_batched")
    if name == "pivots":
        n = values.shape[-1]
        first = np.arange(n)
        values = first + np.floor(np.abs(values) / 2 * (n - first)).clip(max=n - 1 - first)
    if name == "a" and kind == "potrf":
        return definite(values)
    if name == "a" and kind in {"potrs", "getrs"}:
        return triangular(values)
    return values


def definite(values: Array) -> Array:
    """Return Hermitian matrices that are positive definite."""
    product = values @ adjoint(values) + values.shape[-1] * np.eye(values.shape[-1])
    made: Array = (product + adjoint(product)) / 2
    return made


def triangular(values: Array) -> Array:
    """Return matrices whose triangles are well conditioned and have real diagonals."""
    unit = np.eye(values.shape[-1])
    made: Array = values * 0.2 * (1 - unit) + 2 * unit
    return made


def adjoint(values: Array) -> Array:
    """Return the conjugate transpose of each matrix."""
    return values.swapaxes(-1, -2).conj()


def wide(operand: Any) -> Array:
    """Return what an operand holds, in double precision."""
    values: Array = operand.array
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def assert_same(request: Any, actual: Array, exact: Array, *factors: Array) -> None:
    """Check that a product is what it has to be, within the errors of its factors."""
    largest = float(np.prod([np.abs(factor).max(initial=0) for factor in factors]) or 1.0)
    length = 2 * max(1, *actual.shape[-2:], *(factor.shape[-1] for factor in factors))
    assert_close(actual, exact, request.a.dtype, length, max(largest, float(np.abs(exact).max(initial=0))))


def exchanged(values: Array, pivots: Array, *, back: bool = False) -> Array:
    """Return a matrix with its rows exchanged, one after the other."""
    values = values.copy()
    steps = list(enumerate(pivots))
    for row, other in reversed(steps) if back else steps:
        values[[row, other]] = values[[other, row]]
    return values


def _getrf(request: Any, dense: dict[str, Array]) -> Expected:
    for at in np.ndindex(request.a.shape[:-2]):
        factors, pivots, a = wide(request.a)[at], request.pivots.array[at], dense["a"][at]
        m, n = factors.shape
        k = min(m, n)
        assert all(step <= row < m for step, row in enumerate(pivots))
        lower, upper = np.tril(factors[:, :k], -1) + np.eye(m, k), np.triu(factors[:k])
        assert np.abs(lower).max(initial=0) <= 1.5  # of complex numbers |re| + |im| is what is compared
        assert_same(request, lower @ upper, exchanged(a, pivots), lower, upper)
    return Expected({"a": request.a.array, "pivots": request.pivots.array})


def _getrs(request: Any, dense: dict[str, Array]) -> Expected:
    x = np.empty_like(dense["b"])
    for at in np.ndindex(request.a.shape[:-2]):
        factors, pivots = dense["a"][at], dense["pivots"][at].real.astype(int)
        n = len(factors)
        product = (np.tril(factors, -1) + np.eye(n)) @ np.triu(factors)
        a = exchanged(product, pivots, back=True)
        x[at] = np.linalg.solve({"N": a, "T": a.T, "C": a.conj().T}[request.trans], dense["b"][at])
    return Expected({"b": x}, 8 * request.a.shape[-1], 4 * float(np.abs(x).max(initial=1)))


def _potrf(request: Any, dense: dict[str, Array]) -> Expected:
    factor = np.linalg.cholesky(dense["a"])
    n = request.a.shape[-1]
    return Expected({"a": factor if request.uplo == "L" else adjoint(factor)}, 2 * n, 8.0 * max(n, 1))


def _potrs(request: Any, dense: dict[str, Array]) -> Expected:
    lower = np.tril(dense["a"]) if request.uplo == "L" else adjoint(np.triu(dense["a"]))
    x = np.linalg.solve(lower @ adjoint(lower), dense["b"])
    return Expected({"b": x}, 8 * request.a.shape[-1], 4 * float(np.abs(x).max(initial=1)))


EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "getrf": _getrf,
    "getrf_batched": _getrf,
    "getrs": _getrs,
    "getrs_batched": _getrs,
    "potrf": _potrf,
    "potrf_batched": _potrf,
    "potrs": _potrs,
    "potrs_batched": _potrs,
}


# --- data without a result --------------------------------------------------------------------------------------------


def singular(batch: tuple[int, ...] = (), dtype: str = "float64", order: str = "C") -> FakeArray:
    """Return matrices of which the second of a batch, or the only one, has a pivot of 0 in row 2."""
    matrices = np.broadcast_to(np.eye(4), (*batch, 4, 4)).copy()
    matrices[(1,) * len(batch)][2, 2] = 0
    return FakeArray.of(matrices, dtype, order)


def rows(*values: Any) -> FakeArray:
    """Return pivots."""
    return FakeArray.of(np.array(values), "int64")


def ones(*shape: int, dtype: str = "float64") -> FakeArray:
    """Return ones."""
    return FakeArray.of(np.ones(shape), dtype)


FAILING: Final[list[tuple[Callable[[], LibraryRequest], int, int, str]]] = [
    (lambda: solver.Getrf(singular(), rows(0, 0, 0, 0)), -1, 2, ""),
    (lambda: solver.Getrf(singular(order="F", dtype="complex64"), rows(0, 0, 0, 0)), -1, 2, ""),
    (lambda: solver.GetrfBatched(singular((3,)), FakeArray.of(np.zeros((3, 4)), "int64")), 1, 2, ""),
    (lambda: solver.Potrf(singular()), -1, 2, ""),
    (lambda: solver.Potrf(singular(dtype="complex64"), "U"), -1, 2, ""),
    (lambda: solver.PotrfBatched(singular((2, 2))), 3, 2, ""),
    (lambda: solver.Getrs(ones(4, 4), rows(0, 1, 4, 3), ones(4, 2)), -1, 2, "b"),
    (lambda: solver.Getrs(ones(4, 4), rows(0, -1, 2, 3), ones(4, 2)), -1, 1, "b"),
    (lambda: solver.GetrsBatched(ones(2, 3, 3), rows([0, 1, 2], [0, 2**40, 2]), ones(2, 3, 1)), 1, 1, "b"),
]
"""Requests that fail, the matrix of the batch and the row that tell, and what is undefined then."""


def assert_fails(run: Callable[[LibraryRequest], Any], case: int) -> None:
    """Check that a request fails, and what its error says."""
    make, batch, row, undefined = FAILING[case]
    request = make()
    declared.check(request)
    with pytest.raises(errors.NumericalError) as failed:
        run(request)
    assert (failed.value.batch, failed.value.row, failed.value.undefined) == (batch, row, undefined)
    assert type(request).undefined
