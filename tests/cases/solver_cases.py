"""Expected results of solvers on every backend: factors by their product, solutions in double precision."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.declaration import arguments
from atomr_mp.protocol.libraries import requests_of, solver
from atomr_mp.protocol.libraries.base import FULL, LibraryRequest
from atomr_mp.protocol.libraries.solver_shapes import JACOBI
from tests import declared
from tests.cases import sparse_cases
from tests.declared import Expected
from tests.fakes.fake_arrays import FakeArray
from tests.tolerances import assert_close, tolerance

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("solver")


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest], lengths: Sequence[int] = declared.LENGTHS) -> Any:
    """Draw a request whose lengths fit each other."""
    name, fixed, sizes, shapes = cls.name, dict[str, Any](), dict[str, Any](), dict[str, tuple[int, ...]]()
    if name == "spsolve":
        return draw(sparse_systems(lengths))
    if name == "gesvdj_batched":
        lengths = [n for n in lengths if n <= JACOBI]
    m, n, k = (draw(st.sampled_from(lengths)) for _ in "mnk")
    if name in {"orgqr", "ungqr"}:
        k, n, m = sorted((m, n, k))
        sizes = {"m": m, "n": n, "k": k}
    elif name in {"ormqr", "unmqr"}:
        fixed["side"] = draw(st.sampled_from("LR"))
        sizes = {"m": m, "n": n, "k": min(k, m if fixed["side"] == "L" else n)}
    elif name in {"solve", "lstsq"}:
        batch = draw(st.sampled_from([(), (), (2,), (2, 3)])) if name == "solve" else ()
        sizes = {"batch": batch, "m": m, "n": n}
        rows = n if name == "solve" else m
        one = not batch and draw(st.booleans())
        shapes["b"] = (rows,) if one else (*batch, rows, k)
    else:
        sizes = {"m": m, "n": n}
    named = {key: sizes[key] for key in sizes if _names(cls, key)}
    return draw(declared.requests(cls, lengths, fixed, named, None, shapes, solid=2))


@st.composite
def sparse_systems(draw: st.DrawFn, lengths: Sequence[int]) -> Any:
    """Draw a sparse system: stored as rows, or as the columns of the transpose, symmetric for Cholesky factors."""
    n, m = draw(st.sampled_from(lengths)), draw(st.sampled_from(lengths))
    density = draw(st.sampled_from([0.0, 0.2, 0.7]))
    mask = np.random.default_rng(draw(st.integers(0, 99))).random((n, n)) < density
    factors, dtype = draw(st.sampled_from(["lu", "cholesky"])), draw(st.sampled_from(FULL))
    mask = mask | np.eye(n, dtype=bool) | (mask.T & (factors == "cholesky"))
    transposed = draw(st.booleans())
    it = sparse_cases.of_mask("csc" if transposed else "csr", mask)
    a = sparse_cases.matrix_of(it, dtype, transposed=transposed)
    b = {"b": (n, m) if draw(st.booleans()) else (n,)}
    fixed = {"a": a, "method": factors}
    return draw(declared.requests(solver.Spsolve, lengths, fixed, letters={"T": dtype}, shapes=b))


def _names(cls: type[LibraryRequest], size: str) -> bool:
    """Return whether some array of a request names a length."""
    return any(size in str(each.shape).replace("*", "").split() for each in arguments.declared(cls).arrays.values())


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory."""
    declared.assert_agrees(request, random, run, EXPECTED[request.name], numbers)


def numbers(request: Any, name: str, values: Array) -> Array:
    """Return numbers for which a result is as exact as the arithmetic; NaNs where a triangle is not read."""
    kind = request.name.removesuffix("_batched")
    if name == "pivots":
        n = values.shape[-1]
        first = np.arange(n)
        values = first + np.floor(np.abs(values) / 2 * (n - first)).clip(max=n - 1 - first)
    elif name == "tau":
        values = taus(request.a.array, values)
    elif name == "b" and kind in {"sygvd", "hegvd"}:
        values = definite(values)
    elif name == "a.structure":
        values = np.zeros(values.shape)
    elif name == "a.data":
        values = sparse_values(request, values)
    elif name == "a":
        values = matrices_of(request, kind, values)
    return values


def matrices_of(request: Any, kind: str, values: Array) -> Array:
    """Return the numbers of a."""
    if kind == "potrf":
        return definite(values)
    if kind in {"potrs", "getrs", "solve", "inv", "det"}:
        return triangular(values) / (2 if kind == "det" else 1)  # of many rows it would overflow
    if kind == "lstsq":
        return values * 0.2 * small(values) + 2 * np.eye(*values.shape)
    if kind == "cholesky":
        return half_of(definite(values), lower=request.lower)
    if kind in {"eigh", "eigvalsh", "syevd", "heevd", "sygvd", "hegvd"}:
        return half_of(values + adjoint(values), lower=is_lower(request))
    return values


def sparse_values(request: Any, values: Array) -> Array:
    """Return values of a matrix whose diagonal outweighs what is beside it, Hermitian up to rounding for Cholesky."""
    a = sparse_cases.dense(request.a, values) / max(4, 2 * request.a.shape[0])
    a = a - np.diag(np.diag(a)) + 3 * np.eye(len(a))
    if request.method == "cholesky":
        rounding = 8 * np.finfo(request.b.dtype).eps  # as products have that are computed
        a = np.tril(a) + adjoint(np.tril(a, -1)) * (1 + rounding)
    kept = a.T if request.a.transposed else a
    found = [kept[row, column] for row, column, _ in sparse_cases.elements(request.a.structure.attached, values)]
    return np.array(found, values.dtype)


def is_lower(request: Any) -> bool:
    """Return which triangle is read."""
    return bool(request.lower) if hasattr(request, "lower") else request.uplo == "L"


def half_of(values: Array, *, lower: bool) -> Array:
    """Return matrices with NaNs in the triangle that is not read."""
    below = np.tri(values.shape[-1], dtype=np.bool)
    made: Array = np.where(below if lower else below.T, values, np.nan)
    return made


def whole_of(values: Array, *, lower: bool) -> Array:
    """Return Hermitian matrices by one of their triangles."""
    half = np.tril(values) if lower else np.triu(values)
    strict = half - half * np.eye(half.shape[-1])
    made: Array = half + adjoint(strict)
    return made


def reflectors(a: Array, k: int) -> Array:
    """Return the vectors of reflectors, as geqrf leaves them, in columns."""
    made: Array = np.tril(a[:, :k], -1) + np.eye(len(a), k)
    return made


def taus(a: Array, values: Array) -> Array:
    """Return factors with which reflectors are unitary, and of complex numbers not Hermitian."""
    squares = (np.abs(reflectors(wide_of(a), len(values))) ** 2).sum(0)
    made: Array = (1 - np.exp(1j * np.angle(values))) / squares if np.iscomplexobj(values) else 2 / squares
    return made


def product_of(a: Array, tau: Array) -> Array:
    """Return q, one reflector after the other."""
    q: Array = np.eye(len(a), dtype=np.result_type(a, tau))
    for v, factor in zip(reflectors(a, len(tau)).T, tau, strict=True):
        q = q @ (np.eye(len(a)) - factor * np.outer(v, v.conj()))
    return q


def small(values: Array) -> float:
    """Return by what random numbers are multiplied to be well conditioned on a diagonal, however many there are."""
    return float(np.sqrt(8 / max(8, *values.shape[-2:])))


def definite(values: Array) -> Array:
    """Return Hermitian matrices that are positive definite."""
    product = values @ adjoint(values) + values.shape[-1] * np.eye(values.shape[-1])
    made: Array = (product + adjoint(product)) / 2
    return made


def triangular(values: Array) -> Array:
    """Return matrices whose triangles are well conditioned and have real diagonals."""
    unit = np.eye(values.shape[-1])
    made: Array = values * 0.2 * small(values) * (1 - unit) + 2 * unit
    return made


def adjoint(values: Array) -> Array:
    """Return the conjugate transpose of each matrix."""
    return values.swapaxes(-1, -2).conj()


def wide(operand: Any) -> Array:
    """Return what an operand holds, in double precision."""
    return wide_of(operand.array)


def wide_of(values: Array) -> Array:
    """Return numbers in double precision."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def assert_same(request: Any, actual: Array, exact: Array, *factors: Array) -> None:
    """Check that a product is what it has to be, within the errors of its factors."""
    largest = float(np.prod([np.abs(factor).max(initial=0) for factor in factors]) or 1.0)
    length = 2 * max(1, *actual.shape[-2:], *(factor.shape[-1] for factor in factors))
    length *= 4 if request.name == "gesvdj_batched" else 1  # Jacobi's rotations, one sweep after the other
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
    largest = float(np.abs(factor).max(initial=1))
    return Expected({"a": factor if request.uplo == "L" else adjoint(factor)}, 2 * n + 2, largest)


def _potrs(request: Any, dense: dict[str, Array]) -> Expected:
    lower = np.tril(dense["a"]) if request.uplo == "L" else adjoint(np.triu(dense["a"]))
    x = np.linalg.solve(lower @ adjoint(lower), dense["b"])
    return Expected({"b": x}, 8 * request.a.shape[-1], 4 * float(np.abs(x).max(initial=1)))


def assert_orthonormal(request: Any, columns: Array) -> None:
    """Check that columns are orthogonal and of length 1."""
    product = adjoint(columns) @ columns
    assert_same(request, product, np.broadcast_to(np.eye(columns.shape[-1]), product.shape), columns, columns)


def _geqrf(request: Any, dense: dict[str, Array]) -> Expected:
    a, tau = wide(request.a), wide(request.tau)
    q = product_of(a, tau)
    assert_orthonormal(request, q)
    assert_same(request, q @ np.triu(a), dense["a"], q, np.triu(a))
    return Expected({"a": request.a.array, "tau": request.tau.array})


def _orgqr(request: Any, dense: dict[str, Array]) -> Expected:
    q = product_of(dense["a"], dense["tau"])[:, : request.a.shape[1]]
    return Expected({"a": q}, 8 * max(1, len(q)), 1.0)


def _ormqr(request: Any, dense: dict[str, Array]) -> Expected:
    q, c = product_of(dense["a"], dense["tau"]), dense["c"]
    q = q if request.trans == "N" else adjoint(q)
    return Expected({"c": q @ c if request.side == "L" else c @ q}, 8 * max(1, len(q)), 3.0)


def _svd(request: Any, dense: dict[str, Array]) -> Expected:
    a, s = dense["a"], wide(request.s)
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    exact = np.linalg.svd(a, compute_uv=False)
    assert_close(s, exact, request.s.dtype, 4 * max(1, *a.shape[-2:]), float(exact.max(initial=1)))
    outputs = {"s": request.s.array}
    if request.name == "gesvd":
        outputs["a"] = request.a.array
    if request.name != "svdvals" and getattr(request, "job", "A") != "N":
        u = wide(request.u)
        right = "v" if hasattr(request, "v") else "vh"
        vh = adjoint(wide(request.v)) if right == "v" else wide(request.vh)
        k = s.shape[-1]
        for columns in (u, adjoint(vh)):
            assert_orthonormal(request, columns)
        scaled = u[..., :k] * s[..., None, :]
        assert_same(request, scaled @ vh[..., :k, :], a, scaled, vh)
        outputs |= {"u": request.u.array, right: getattr(request, right).array}
    elif request.name == "gesvd":
        outputs |= {"u": request.u.array, "vh": request.vh.array}
    return Expected(outputs)


def _eigh(request: Any, dense: dict[str, Array]) -> Expected:
    a, w = whole_of(dense["a"], lower=is_lower(request)), wide(request.w)
    outputs = {"w": request.w.array}
    if request.name in {"syevd", "heevd"}:
        outputs["a"] = request.a.array
    elif request.name == "eigh":
        outputs["v"] = request.v.array
    assert (np.diff(w) >= 0).all()
    exact = np.linalg.eigvalsh(a)
    assert_close(w, exact, request.w.dtype, 4 * max(1, len(a)), float(np.abs(exact).max(initial=1)))
    if getattr(request, "jobz", "V") == "V" and request.name != "eigvalsh":
        v = wide(request.v if request.name == "eigh" else request.a)
        assert_orthonormal(request, v)
        assert_same(request, a @ v, v * w, a, v)
    return Expected(outputs)


def _sygvd(request: Any, dense: dict[str, Array]) -> Expected:
    lower = is_lower(request)
    a, b, w = whole_of(dense["a"], lower=lower), dense["b"], wide(request.w)
    assert (np.diff(w) >= 0).all()
    factor = np.linalg.cholesky(b)
    if request.itype == 1:
        inverse = np.linalg.inv(factor)
        exact = np.linalg.eigvalsh(inverse @ a @ adjoint(inverse))
    else:
        exact = np.linalg.eigvalsh(adjoint(factor) @ a @ factor)
    largest = float(np.abs(exact).max(initial=1))
    assert_close(w, exact, request.w.dtype, 16 * max(1, len(a)), largest)
    if request.jobz == "V":
        v = wide(request.a)
        left, right = {1: (a @ v, b @ v * w), 2: (a @ b @ v, v * w), 3: (b @ a @ v, v * w)}[request.itype]
        assert_same(request, left, right, a, b, v)
        normal = adjoint(v) @ (np.linalg.solve(b, v) if request.itype == 3 else b @ v)
        assert_same(request, normal, np.eye(len(a)), b, v, v)
    here = factor if lower else adjoint(factor)
    close = tolerance(request.a.dtype, 2 * len(a) + 2, float(np.abs(factor).max(initial=1)))
    mask = np.tri(len(b), dtype=np.bool) if lower else np.tri(len(b), dtype=np.bool).T
    np.testing.assert_allclose(wide(request.b)[mask], here[mask], close.rtol, close.atol)
    return Expected({"a": request.a.array, "b": request.b.array, "w": request.w.array})


def _solve(request: Any, dense: dict[str, Array]) -> Expected:
    b = dense["b"][..., None] if dense["b"].ndim == 1 else dense["b"]
    x = np.linalg.solve(dense["a"], b).reshape(request.x.shape)
    return Expected({"x": x}, 8 * max(1, request.a.shape[-1]), 4 * float(np.abs(x).max(initial=1)))


def _lstsq(request: Any, dense: dict[str, Array]) -> Expected:
    x = np.linalg.lstsq(dense["a"], dense["b"])[0] if dense["a"].size else np.zeros(request.x.shape)
    return Expected({"x": x}, 16 * max(1, *request.a.shape), 8 * float(np.abs(x).max(initial=1)))


def _inv(request: Any, dense: dict[str, Array]) -> Expected:
    return Expected({"out": np.linalg.inv(dense["a"])}, 16 * max(1, request.a.shape[-1]), 4.0)


def _det(request: Any, dense: dict[str, Array]) -> Expected:
    exact = np.linalg.det(dense["a"])
    return Expected({"out": exact}, 8 * max(1, request.a.shape[-1]), float(np.abs(exact).max(initial=0)))


def _cholesky(request: Any, dense: dict[str, Array]) -> Expected:
    n = request.a.shape[-1]
    factor = np.linalg.cholesky(whole_of(dense["a"], lower=request.lower))
    largest = float(np.abs(factor).max(initial=1))
    return Expected({"out": factor if request.lower else adjoint(factor)}, 2 * n + 2, largest)


def _qr(request: Any, dense: dict[str, Array]) -> Expected:
    q, r = wide(request.q), wide(request.r)
    assert_orthonormal(request, q)
    assert (np.tril(r, -1) == 0).all()
    assert_same(request, q @ r, dense["a"], q, r)
    return Expected({"q": request.q.array, "r": request.r.array})


def _spsolve(request: Any, dense: dict[str, Array]) -> Expected:
    x = np.linalg.solve(sparse_cases.dense(request.a, dense["a.data"]), dense["b"])
    return Expected({"x": x}, 8 * max(1, request.a.shape[0]), 4 * float(np.abs(x).max(initial=1)))


EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "getrf": _getrf,
    "getrf_batched": _getrf,
    "getrs": _getrs,
    "getrs_batched": _getrs,
    "potrf": _potrf,
    "potrf_batched": _potrf,
    "potrs": _potrs,
    "potrs_batched": _potrs,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "ungqr": _orgqr,
    "ormqr": _ormqr,
    "unmqr": _ormqr,
    "gesvd": _svd,
    "gesvdj_batched": _svd,
    "syevd": _eigh,
    "heevd": _eigh,
    "sygvd": _sygvd,
    "hegvd": _sygvd,
    "solve": _solve,
    "lstsq": _lstsq,
    "inv": _inv,
    "det": _det,
    "cholesky": _cholesky,
    "qr": _qr,
    "svd": _svd,
    "svdvals": _svd,
    "eigh": _eigh,
    "eigvalsh": _eigh,
    "spsolve": _spsolve,
}


# --- data without a result --------------------------------------------------------------------------------------------


def singular(batch: tuple[int, ...] = (), dtype: str = "float64", order: str = "C") -> FakeArray:
    """Return matrices; the second of a batch, or the only one, has a pivot of 0 in row 2."""
    matrices = np.broadcast_to(np.eye(4), (*batch, 4, 4)).copy()
    matrices[(1,) * len(batch)][2, 2] = 0
    return FakeArray.of(matrices, dtype, order)


def rows(*values: Any) -> FakeArray:
    """Return pivots."""
    return FakeArray.of(np.array(values), "int64")


def ones(*shape: int, dtype: str = "float64") -> FakeArray:
    """Return ones."""
    return FakeArray.of(np.ones(shape), dtype)


def spoiled(*shape: int, dtype: str = "float64") -> FakeArray:
    """Return matrices with an infinity, or a NaN, in the last place of all."""
    matrices = np.ones(shape)
    matrices[(-1,) * len(shape)] = np.inf if shape[-1] % 2 else np.nan
    return FakeArray.of(matrices, dtype)


def sparse_system(*rows_of: list[float], method: solver.Factors = "lu") -> solver.Spsolve:
    """Return a sparse system of these rows, whose zeros are not stored."""
    dense = np.array(rows_of)
    a = sparse_cases.matrix_of(sparse_cases.of_mask("csr", dense != 0), "float64")
    typing.cast("FakeArray", a.data).array[...] = dense[dense != 0]
    return solver.Spsolve(a, ones(len(dense)), ones(len(dense)), method)


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
    (lambda: solver.Gesvd(spoiled(5, 3), ones(5, 5), ones(3), ones(3, 3)), -1, -1, ""),
    (lambda: solver.GesvdjBatched(spoiled(3, 2, 2), ones(3, 2, 2), ones(3, 2), ones(3, 2, 2)), 2, -1, ""),
    (lambda: solver.Syevd(spoiled(3, 3), ones(3)), -1, -1, ""),
    (lambda: solver.Heevd(spoiled(3, 3, dtype="complex128"), ones(3), "L", "N"), -1, -1, ""),
    (lambda: solver.Sygvd(ones(4, 4), singular(), ones(4)), -1, 2, ""),
    (lambda: solver.Sygvd(spoiled(4, 4), ones(4, 4), ones(4)), -1, -1, ""),
    (
        lambda: solver.Hegvd(ones(4, 4, dtype="complex64"), singular(dtype="complex64"), ones(4, dtype="float32")),
        -1,
        2,
        "",
    ),
    (lambda: solver.Solve(singular(), ones(4), ones(4)), -1, 2, ""),
    (lambda: solver.Solve(singular((2, 3)), ones(2, 3, 4, 1), ones(2, 3, 4, 1)), 4, 2, ""),
    (lambda: solver.Inv(singular((2,)), ones(2, 4, 4)), 1, 2, ""),
    (lambda: solver.Inv(singular((2,))[1:2], ones(1, 4, 4)), 0, 2, ""),
    (lambda: solver.Cholesky(singular(), ones(4, 4)), -1, 2, ""),
    (
        lambda: solver.Cholesky(singular((2, 2), "complex128"), ones(2, 2, 4, 4, dtype="complex128"), lower=True),
        3,
        2,
        "",
    ),
    (lambda: solver.Lstsq(singular(), ones(4), ones(4)), -1, 2, ""),
    (lambda: solver.Lstsq(ones(3, 5), ones(3, 2), ones(5, 2)), -1, 1, ""),
    (lambda: solver.Lstsq(spoiled(5, 2), ones(5), ones(2)), -1, 0, ""),
    (lambda: solver.Svd(spoiled(2, 5), ones(2, 2), ones(2), ones(5, 5)), -1, -1, ""),
    (lambda: solver.Svdvals(spoiled(2, 5), ones(2)), -1, -1, ""),
    (lambda: solver.Eigh(spoiled(3, 3), ones(3), ones(3, 3), lower=False), -1, -1, ""),
    (lambda: solver.Eigvalsh(spoiled(3, 3), ones(3)), -1, -1, ""),
    (lambda: sparse_system([1.0, 2.0], [2.0, 4.0]), -1, -1, "x"),
    (lambda: sparse_system([1.0, 0.0], [1.0, 0.0]), -1, -1, "x"),
    (lambda: sparse_system([0.0, 0.0], [0.0, 0.0]), -1, -1, "x"),
    (lambda: sparse_system([1.0, 2.0], [2.0, 1.0], method="cholesky"), -1, -1, "x"),
    (lambda: sparse_system([np.nan, 0.0], [0.0, 1.0]), -1, -1, "x"),
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
