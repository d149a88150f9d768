"""What is refused, and what SciPy's names promise: without a backend."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from scipy import linalg

from atomr_mp import errors
from atomr_mp.libraries.solver import Reference
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import solver
from tests.direct import DirectDevice
from tests.fakes.fake_arrays import FakeArray

SOLVER: Final[Any] = Reference(DirectDevice())


def of(*shape: int, dtype: str = "float64") -> FakeArray:
    """Return zeros."""
    return FakeArray.of(np.zeros(shape), dtype)


def test_names_shapes_and_types_are_scipys() -> None:
    """Outputs that are left out come in SciPy's order."""
    tall, square = np.random.default_rng(1).uniform(size=(5, 3)), np.eye(4)
    calls: list[tuple[Any, Any]] = [
        (SOLVER.qr(of(5, 3)), linalg.qr(tall)),
        (SOLVER.qr(of(5, 3), mode="economic"), linalg.qr(tall, mode="economic")),
        (SOLVER.svd(of(5, 3)), linalg.svd(tall)),
        (SOLVER.svd(of(3, 5), full_matrices=False), linalg.svd(tall.T, full_matrices=False)),
        (SOLVER.svdvals(of(5, 3)), linalg.svdvals(tall)),
        (SOLVER.eigh(of(4, 4)), linalg.eigh(square)),
        (SOLVER.eigvalsh(of(4, 4)), linalg.eigvalsh(square)),
        (SOLVER.cholesky(of(4, 4)), linalg.cholesky(square)),
        (SOLVER.inv(of(4, 4)), linalg.inv(square)),
        (SOLVER.det(of(4, 4)), linalg.det(square)),
        (SOLVER.solve(of(4, 4), of(4)), linalg.solve(square, np.ones(4))),
        (SOLVER.solve(of(4, 4), of(4, 2)), linalg.solve(square, np.ones((4, 2)))),
        (SOLVER.lstsq(of(5, 3), of(5)), linalg.lstsq(tall, np.ones(5))[0]),
        (SOLVER.lstsq(of(5, 3), of(5, 2)), linalg.lstsq(tall, np.ones((5, 2)))[0]),
    ]
    for request, made in calls:
        found = [layout.shape for layout in request.results().values()]
        assert found == [np.shape(each) for each in (made if isinstance(made, tuple) else (made,))], request
    assert [each.dtype for each in SOLVER.svd(of(2, 2, dtype="complex64")).results().values()] == [
        "complex64",
        "float32",
        "complex64",
    ]
    assert SOLVER.eigh(of(2, 2, dtype="complex128")).results()["w"].dtype == "float64"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SOLVER.getrf(of(3)), "it must have 2"),
        (lambda: SOLVER.getrf(of(3, 3, dtype="float16")), "not defined for float16"),
        (lambda: SOLVER.getrs(of(3, 3), of(3), of(3, 1)), "pivots is float64; it must be int64"),
        (lambda: SOLVER.potrf(of(3, 4)), "n must be the same"),
        (lambda: SOLVER.potrs(of(3, 3), of(3)), "it must have 2"),
        (lambda: SOLVER.solve(of(2, 3, 3), of(3)), r"b must have as many dimensions as a: \(\*batch, n, 1\)"),
        (lambda: SOLVER.solve(of(2, 3, 3), of(3, 3, 1)), r"must have \(2, 3, 1\)"),
        (lambda: SOLVER.solve(of(3, 3), of()), r"b has the shape \(\); it must have \(3,\)"),
        (lambda: SOLVER.lstsq(of(5, 3), of(3)), r"must have \(5,\): \(rows of a\), or"),
        (lambda: SOLVER.orgqr(of(3, 4), of(3)), "as many rows as columns"),
        (lambda: SOLVER.orgqr(of(3, 3, dtype="complex64"), of(3)), "not defined for complex64"),
        (lambda: SOLVER.ormqr(of(3, 4), of(4), of(3, 3)), "more reflectors than q has rows"),
        (lambda: SOLVER.gesvdj_batched(of(2, 33, 4)), "up to 32 rows and columns; svd takes larger ones"),
        (lambda: SOLVER.sygvd(of(3, 3), of(3, 3), itype=4), "itype is 4"),
        (lambda: SOLVER.qr(of(3, 3), mode="raw"), "mode is 'raw'"),
        (lambda: SOLVER.syevd(of(3, 3, dtype="complex64")), "not defined for complex64"),
    ],
)
def test_what_cannot_be_solved_says_so(call: Any, message: str) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


class Long(FakeArray):
    """An array without memory, however large."""

    def __init__(self, *shape: int) -> None:
        super().__init__(Layout.contiguous("float32", shape), np.zeros(0, np.uint8))


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: solver.Getrf(Long(2**31, 1)),
        lambda: solver.Geqrf(Long(2, 2**31)),
        lambda: solver.Ormqr(Long(2**31, 1), Long(1), Long(2**31, 1)),
        lambda: solver.PotrfBatched(Long(2**16, 2**15, 1, 1)),
        lambda: solver.GesvdjBatched(Long(2**31, 1, 1)),
        lambda: solver.Solve(Long(1, 1), Long(1, 2**31)),
        lambda: solver.Lstsq(Long(2**31, 1), Long(2**31)),
    ],
)
def test_lengths_that_32_bits_do_not_hold_are_refused(request_of: Any) -> None:
    """LAPACK would take them for others."""
    with pytest.raises(errors.InvalidRequest, match="must be below 2³¹"):
        request_of().check()
