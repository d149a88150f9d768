"""What every backend's BLAS must give for a request, from dense matrices in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from atomr_mp.client.reply import Reply
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import COMPLEX, LibraryRequest, scalar
from tests.pure.test_blas_checks import arrays, check, places
from tests.tolerances import assert_close

Array = npt.NDArray[Any]


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a request's operands random numbers, have it done, and check all of their memory.

    Args:
        request: A request as `tests.pure.test_blas_checks.requests` draws it: all of its memory is poisoned.
        random: Where the numbers are from.
        run: Does a request on `FakeArray`s, and returns its result.
    """
    check(request)
    dense = {operand: numbers(random, request, operand) for operand in arrays(request)}
    for operand, values in dense.items():
        array = getattr(request, operand)
        mask = read(request, operand, values.shape)
        array.elements[places(request, operand)[mask]] = values[mask]
    before = {operand: getattr(request, operand).slab.copy() for operand in dense}
    result = run(request)
    expected, length, magnitude = EXPECTED[request.name](request, dense)
    if not any(arrays(request).values()):
        assert type(result) is type(expected)
        assert_close(result, expected, request.x.dtype, length, magnitude)
        expected = {}
    else:
        assert result is None
    for operand, values in dense.items():
        array = getattr(request, operand)
        after = array.elements.copy()
        if operand in expected:
            where = written(request, values.shape)
            at = places(request, operand)[where]
            assert_close(after[at], expected[operand][where], array.dtype, length, magnitude)
            item = array.layout.item_bytes
            low = array.layout.span[0]
            touched = (low + at.reshape(-1)[:, None] * item + np.arange(item)).reshape(-1)
            before[operand][touched] = array.slab[touched]
        np.testing.assert_array_equal(array.slab, before[operand], f"around {operand}")


class DirectDevice:
    """A device for the reference that does requests at once.

    Args:
        run: Does one, and returns its result, which then stands for the reply.
    """

    def __init__(self, run: Callable[[LibraryRequest], Any]) -> None:
        self._run = run

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Reply:
        """Do a request."""
        assert (library, deadline_s) == ("blas", None)
        return cast("Reply", self._run(request))


def numbers(random: np.random.Generator, request: Any, operand: str) -> Array:
    """Return the dense numbers of an operand, exact in its type: float64, or complex128."""
    shape = places(request, operand).shape
    values: Array = random.uniform(-2, 2, shape)
    array = getattr(request, operand)
    if array.dtype in COMPLEX:
        values = values + 1j * random.uniform(-2, 2, shape)
    if request.name == "trsm" and operand == "a":  # well-conditioned, so that errors stay those of the arithmetic
        values = values * 0.2 + 2 * np.eye(*shape) * (request.diag == "N")
    if isinstance(request, blas.GemmStridedBatched) and operand != "c":  # matrices that are read may overlap
        flat = np.resize(values, int(places(request, operand).max(initial=-1)) + 1)
        values = flat[places(request, operand)] if flat.size else values
    exact: Array = values.astype(dtypes.to_numpy(array.dtype)).astype(values.dtype)
    return exact


def read(request: Any, operand: str, shape: tuple[int, ...]) -> Array:
    """Return which elements may be read; the others stay NaN."""
    factor = FACTORS.get((request.name, operand), "alpha")
    may = factor is None or getattr(request, factor, factor) not in {0, "nothing"}
    mask = triangle(request, shape) if (request.name, operand) in TRIANGLES else np.ones(shape, np.bool)
    if request.name == "trsm" and operand == "a" and request.diag == "U":
        mask = mask & ~np.eye(*shape, dtype=np.bool)
    return mask & may


def written(request: Any, shape: tuple[int, ...]) -> Array:
    """Return which elements of what is written are."""
    return triangle(request, shape) if request.name == "syrk" else np.ones(shape, np.bool)


def triangle(request: Any, shape: tuple[int, ...]) -> Array:
    """Return which elements are in the named triangle, with the diagonal."""
    lower: Array = np.tri(*shape, dtype=np.bool)
    return lower if request.uplo == "L" else lower.T


FACTORS: Final = {
    ("axpy", "y"): None,
    ("scal", "x"): None,
    ("ger", "a"): None,
    ("copy", "y"): "nothing",
    ("geam", "c"): "nothing",
    ("geam", "b"): "beta",
    ("gemv", "y"): "beta",
    ("syrk", "c"): "beta",
    ("gemm", "c"): "beta",
    ("gemm_strided_batched", "c"): "beta",
}
"""What multiplies an operand: "alpha" unless named here; None if it is read in any case."""

TRIANGLES: Final = {("syrk", "c"), ("trsm", "a")}
"""Operands of which only the named triangle is touched."""

Expected = tuple[Any, int, float]


def op(trans: blas.Trans, matrix: Array) -> Array:
    """Transpose as a request does, one matrix or many."""
    return {"N": matrix, "T": np.swapaxes(matrix, -1, -2), "C": np.swapaxes(matrix, -1, -2).conj()}[trans]


def product(request: Any, left: Array, right: Array, target: Array) -> tuple[Array, int, float]:
    """Compute alpha·left·right + beta·target, and the bounds of its error."""
    alpha, beta = scalar(request.alpha), scalar(request.beta)
    total = alpha * np.einsum("...ij,...jk->...ik", left, right) + beta * target
    return total, left.shape[-1] + 1, 8.0 * abs(alpha) + 3.0 * abs(beta)


def _axpy(request: blas.Axpy, dense: dict[str, Array]) -> Expected:
    return {"y": scalar(request.alpha) * dense["x"] + dense["y"]}, 2, 8.0


def _scal(request: blas.Scal, dense: dict[str, Array]) -> Expected:
    return {"x": scalar(request.alpha) * dense["x"]}, 1, 8.0


def _nrm2(_request: blas.Nrm2, dense: dict[str, Array]) -> Expected:
    return float(np.sqrt(np.sum(np.abs(dense["x"]) ** 2))), 4, 1.0


def _dot(request: blas.Dot, dense: dict[str, Array]) -> Expected:
    x = dense["x"].conj() if request.conjugate else dense["x"]
    return np.sum(x * dense["y"]).item(), request.n, 8.0


def _asum(request: blas.Asum, dense: dict[str, Array]) -> Expected:
    return float(np.sum(absolute(dense["x"]))), request.n, 3.0


def _iamax(_request: blas.Iamax, dense: dict[str, Array]) -> Expected:
    return max(range(dense["x"].size), key=lambda i: (absolute(dense["x"])[i], -i), default=-1) + 1, 1, 0.0


def _iamin(_request: blas.Iamin, dense: dict[str, Array]) -> Expected:
    return min(range(dense["x"].size), key=lambda i: (absolute(dense["x"])[i], i), default=-1) + 1, 1, 0.0


def absolute(x: Array) -> Array:
    """Return BLAS' cheap absolute value."""
    total: Array = abs(x.real) + abs(x.imag)
    return total


def _copy(_request: blas.Copy, dense: dict[str, Array]) -> Expected:
    return {"y": dense["x"]}, 1, 0.0


def _swap(_request: blas.Swap, dense: dict[str, Array]) -> Expected:
    return {"x": dense["y"], "y": dense["x"]}, 1, 0.0


def _rot(request: blas.Rot, dense: dict[str, Array]) -> Expected:
    c, s = request.c, scalar(request.s)
    x, y = dense["x"], dense["y"]
    return {"x": c * x + s * y, "y": c * y - np.conj(s) * x}, 2, 8.0


def _gemv(request: blas.Gemv, dense: dict[str, Array]) -> Expected:
    total, length, magnitude = product(request, op(request.trans, dense["a"]), dense["x"][:, None], dense["y"][:, None])
    return {"y": total[:, 0]}, length, magnitude


def _ger(request: blas.Ger, dense: dict[str, Array]) -> Expected:
    y = dense["y"].conj() if request.conjugate else dense["y"]
    return {"a": scalar(request.alpha) * dense["x"][:, None] * y + dense["a"]}, 2, 20.0


def _geam(request: blas.Geam, dense: dict[str, Array]) -> Expected:
    first, second = op(request.trans_a, dense["a"]), op(request.trans_b, dense["b"])
    return {"c": scalar(request.alpha) * first + scalar(request.beta) * second}, 2, 8.0


def _syrk(request: blas.Syrk, dense: dict[str, Array]) -> Expected:
    a = op(request.trans, dense["a"])
    total, length, magnitude = product(request, a, a.T, dense["c"])
    return {"c": total}, length, magnitude


def _trsm(request: blas.Trsm, dense: dict[str, Array]) -> Expected:
    half = np.tril(dense["a"]) if request.uplo == "L" else np.triu(dense["a"])
    if request.diag == "U":
        half = half - np.diag(np.diag(half)) + np.eye(len(half))
    a, b = op(request.trans, half), scalar(request.alpha) * dense["b"]
    x = np.linalg.solve(a, b) if request.side == "L" else np.linalg.solve(a.T, b.T).T
    return {"b": x}, request.k + 1, 8.0


def _gemm(request: blas.Gemm | blas.GemmStridedBatched, dense: dict[str, Array]) -> Expected:
    total, length, magnitude = product(
        request, op(request.trans_a, dense["a"]), op(request.trans_b, dense["b"]), dense["c"]
    )
    return {"c": total}, length, magnitude


EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "axpy": _axpy,
    "scal": _scal,
    "nrm2": _nrm2,
    "dot": _dot,
    "asum": _asum,
    "iamax": _iamax,
    "iamin": _iamin,
    "copy": _copy,
    "swap": _swap,
    "rot": _rot,
    "gemv": _gemv,
    "ger": _ger,
    "geam": _geam,
    "syrk": _syrk,
    "trsm": _trsm,
    "gemm": _gemm,
    "gemm_strided_batched": _gemm,
}
"""What is written, or returned; the number of terms of each element, and a bound of them."""
