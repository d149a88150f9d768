"""Expected results of BLAS requests on every backend, from dense matrices in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from atomr_mp.protocol.libraries import blas, requests_of
from atomr_mp.protocol.libraries.base import HALF, LibraryRequest, element_types
from tests import declared
from tests.declared import Expected, factor
from tests.fakes.fake_arrays import FakeArray

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("blas")


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a request's operands random numbers, have it done, and check all of their memory."""
    declared.assert_agrees(request, random, run, EXPECTED[request.name], well_conditioned)


def well_conditioned(request: Any, operand: str, values: Array) -> Array:
    """Return numbers for which a triangle's solution is as exact as the arithmetic."""
    if request.name == "trsm" and operand == "a":
        values = values * 0.2 + 2 * np.eye(*values.shape) * (request.diag == "N")
    return values


def conjugated(values: Array, *, wanted: bool) -> Array:
    """Return an array, or its conjugate."""
    return values.conj() if wanted else values


def product(request: Any, left: Array, right: Array, target: Array) -> tuple[Array, int, float]:
    """Compute alpha·left·right + beta·target, and the bounds of its error."""
    alpha, beta = factor(request.alpha), factor(request.beta)
    total = alpha * np.einsum("...ij,...jk->...ik", left, right) + beta * target
    return total, left.shape[-1] + 1, 8.0 * abs(alpha) + 3.0 * abs(beta)


def _axpy(request: blas.Axpy, dense: dict[str, Array]) -> Expected:
    return Expected({"y": factor(request.alpha) * dense["x"] + dense["y"]}, 2, 8.0)


def _scal(request: blas.Scal, dense: dict[str, Array]) -> Expected:
    return Expected({"x": factor(request.alpha) * dense["x"]}, 1, 8.0)


def _nrm2(_request: blas.Nrm2, dense: dict[str, Array]) -> Expected:
    return Expected(float(np.sqrt(np.sum(np.abs(dense["x"]) ** 2))), 4, 1.0)


def _dot(request: blas.Dot, dense: dict[str, Array]) -> Expected:
    x = conjugated(dense["x"], wanted=request.conjugate)
    return Expected(np.sum(x * dense["y"]).item(), x.size, 8.0)


def _inner(request: blas.Inner, dense: dict[str, Array]) -> Expected:
    x = conjugated(dense["x"], wanted=request.conjugate)
    return Expected({"out": np.sum(x * dense["y"])}, x.size, 8.0)


def _asum(_request: blas.Asum, dense: dict[str, Array]) -> Expected:
    return Expected(float(np.sum(absolute(dense["x"]))), dense["x"].size, 3.0)


def _found(sign: int, _request: blas.Iamax | blas.Iamin, dense: dict[str, Array]) -> Expected:
    sizes = absolute(dense["x"])
    return Expected(min(range(sizes.size), key=lambda i: (sign * sizes[i], i)), 1, 0.0)


def absolute(x: Array) -> Array:
    """Return BLAS' cheap absolute value."""
    total: Array = abs(x.real) + abs(x.imag)
    return total


def _copy(_request: blas.VectorCopy, dense: dict[str, Array]) -> Expected:
    return Expected({"y": dense["x"]}, 1, 0.0)


def _swap(_request: blas.Swap, dense: dict[str, Array]) -> Expected:
    return Expected({"x": dense["y"], "y": dense["x"]}, 1, 0.0)


def _rot(request: blas.Rot, dense: dict[str, Array]) -> Expected:
    c, s = request.c, factor(request.s)
    x, y = dense["x"], dense["y"]
    return Expected({"x": c * x + s * y, "y": c * y - np.conj(s) * x}, 2, 8.0)


def _gemv(request: blas.Gemv, dense: dict[str, Array]) -> Expected:
    a = conjugated(dense["a"], wanted=request.conj_a)
    total, length, magnitude = product(request, a, dense["x"][:, None], dense["y"][:, None])
    return Expected({"y": total[:, 0]}, length, magnitude)


def _ger(request: blas.Ger, dense: dict[str, Array]) -> Expected:
    y = conjugated(dense["y"], wanted=request.conjugate)
    return Expected({"a": factor(request.alpha) * dense["x"][:, None] * y + dense["a"]}, 2, 20.0)


def _geam(request: blas.Geam, dense: dict[str, Array]) -> Expected:
    a = conjugated(dense["a"], wanted=request.conj_a)
    b = conjugated(dense["b"], wanted=request.conj_b)
    return Expected({"c": factor(request.alpha) * a + factor(request.beta) * b}, 2, 8.0)


def _syrk(request: blas.Syrk, dense: dict[str, Array]) -> Expected:
    total, length, magnitude = product(request, dense["a"], dense["a"].T, dense["c"])
    return Expected({"c": total}, length, magnitude)


def _trsm(request: blas.Trsm, dense: dict[str, Array]) -> Expected:
    half = np.tril(dense["a"]) if request.uplo == "L" else np.triu(dense["a"])
    if request.diag == "U":
        half = half - np.diag(np.diag(half)) + np.eye(len(half))
    a, b = conjugated(half, wanted=request.conj_a), factor(request.alpha) * dense["b"]
    x = np.linalg.solve(a, b) if request.side == "L" else np.linalg.solve(a.T, b.T).T
    return Expected({"b": x}, len(a) + 1, 8.0)


def _gemm(request: blas.Gemm | blas.GemmStridedBatched, dense: dict[str, Array]) -> Expected:
    a = conjugated(dense["a"], wanted=request.conj_a)
    b = conjugated(dense["b"], wanted=request.conj_b)
    total, length, magnitude = product(request, a, b, dense["c"])
    rounded = {}
    if request.a.dtype in HALF and factor(request.beta):  # as cuBLAS does for some shapes (H100, cuBLAS 13.1)
        rounded["c"] = total - factor(request.beta) * dense["c"]
    return Expected({"c": total}, length, magnitude, rounded=rounded)


EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "axpy": _axpy,
    "scal": _scal,
    "nrm2": _nrm2,
    "dot": _dot,
    "inner": _inner,
    "asum": _asum,
    "iamax": functools.partial(_found, -1),
    "iamin": functools.partial(_found, 1),
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


def half_precision_is_rounded_once(of: Any) -> None:
    """Terms that would be lost one by one are kept: the sum is float32."""
    for dtype in HALF:
        ones = FakeArray.of(np.ones((1, 4096)), dtype)
        small = FakeArray.of(np.full((4096, 1), 2.0**-12), dtype)
        total = FakeArray.of([[1.0]], dtype)
        of.gemm(ones, small, total, beta=1.0)
        assert total.array == 2.0
        of.axpy(FakeArray.of([3.0], dtype), vector := FakeArray.of([1.0], dtype), alpha=1 / 3)
        assert vector.array == 2.0


def nrm2_does_not_overflow(of: Any) -> None:
    """Their squares would."""
    assert of.nrm2(FakeArray.of([3e300, 4e300], "float64")) == pytest.approx(5e300)
    assert of.nrm2(FakeArray.of([3e-30, 4e-30], "float32")) == pytest.approx(5e-30)


def a_nan_stays_with_scal_by_zero_and_goes_elsewhere(of: Any) -> None:
    """A factor of 0 leaves unread what it multiplies, but for scal, as BLAS defines it; for every type."""
    for dtype in element_types(REQUESTS["scal"]):
        x = FakeArray.of([np.nan, 1.0], dtype)
        of.scal(x, alpha=0.0)
        assert np.isnan(x.array[0])
        assert x.array[1] == 0
        c = FakeArray.of([[np.nan, 1.0]], dtype)
        of.gemm(FakeArray.of([[np.nan]], dtype), FakeArray.of([[1.0, 1.0]], dtype), c, alpha=0.0, beta=0.0)
        assert (c.array == 0).all()
    c = FakeArray.of([[np.nan]], "float32")
    of.gemm(FakeArray.of([[1.0]], "float32"), FakeArray.of([[2.0]], "float32"), c)
    assert c.array == 2


def geam_works_in_place(of: Any) -> None:
    """C may be A or B, or both."""
    c = FakeArray.of(np.arange(12.0).reshape(3, 4), "float64")
    b = FakeArray.of(np.ones((3, 4)), "float64")
    of.geam(c, b, c, alpha=2.0, beta=1.0)
    np.testing.assert_array_equal(c.array, np.arange(12.0).reshape(3, 4) * 2 + 1)
    of.geam(c, c, c, alpha=2.0, beta=-1.0)
    np.testing.assert_array_equal(c.array, np.arange(12.0).reshape(3, 4) * 2 + 1)
    of.geam(b, c, c, alpha=np.nan, beta=0.0)
    assert np.isnan(c.array).all()
    of.geam(b, c, c, alpha=0.0, beta=0.0)
    assert (c.array == 0).all()


FACTS: Final = (
    half_precision_is_rounded_once,
    nrm2_does_not_overflow,
    a_nan_stays_with_scal_by_zero_and_goes_elsewhere,
    geam_works_in_place,
)
"""What is promised of numbers; each is called with the reference of a backend."""
