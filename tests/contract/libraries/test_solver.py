"""Solvers through a pool; their numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.libraries.solver import Factors
from tests.tolerances import assert_close


def test_factors_are_used_by_the_next_request(device: atomr_mp.Device) -> None:
    """In place, with pivots that are allocated; of transposed views too."""
    random = np.random.default_rng(3)
    a, b = random.uniform(-1, 1, (20, 20)), random.uniform(-1, 1, (20, 3))
    for factors, trans in ((device.put(a), "N"), (device.put(a.T.copy()).T, "N"), (device.put(a.T.copy()), "T")):
        x, pivots = device.put(b), device.solver.getrf(factors).result()
        assert (pivots.shape, pivots.dtype) == ((20,), "int64")
        assert device.solver.getrs(factors, pivots, x, trans=trans).result() is None
        assert_close(a @ x.numpy(), b, "float64", 1000)


def test_a_matrix_without_a_factor_fails_its_request_and_its_readers(device: atomr_mp.Device) -> None:
    """The matrix is undefined; the next matrix is factored."""
    a = np.broadcast_to(np.eye(5), (4, 5, 5)).copy()
    a[2, 3, 3] = -1
    factors, b = device.put(a), device.put(np.ones((4, 5, 1)))
    failed = device.solver.potrf_batched(factors)
    behind = device.solver.potrs_batched(factors, b)
    with pytest.raises(errors.NumericalError, match="matrix 2 is not positive definite") as told:
        failed.result()
    assert (told.value.library, told.value.batch, told.value.row) == ("solver", 2, 3)
    with pytest.raises(errors.GpuRefUndefined):
        behind.result()
    device.solver.potrf(device.put(np.eye(5))).result()


def test_a_program_names_the_step_whose_matrix_is_singular(device: atomr_mp.Device) -> None:
    """A program of factors and solutions gives what its requests give."""
    with device.program() as p:
        a, b = p.input("a", (6, 6), "float64"), p.input("b", (6, 1), "float64")
        p.solver.getrs(a, p.solver.getrf(a), b)
    a_ref, b_ref = device.put(2 * np.eye(6)), device.put(np.ones((6, 1)))
    p.run(a=a_ref, b=b_ref).result()
    assert_close(b_ref.numpy(), np.full((6, 1), 0.5), "float64")
    with pytest.raises(errors.NumericalError, match=r"step 0 \(solver.getrf\)"):
        p.run(a=device.zeros((6, 6), "float64"), b=device.put(np.ones((6, 1)))).result()


def test_scipys_names_keep_what_they_read_and_return_new_refs(device: atomr_mp.Device) -> None:
    """Several outputs come as a list, in SciPy's order; any strides fit."""
    a = np.random.default_rng(5).uniform(-1, 1, (7, 4))
    ref = device.put(np.repeat(a.T, 2, axis=0))[::2].T
    q, r = (each.numpy() for each in device.solver.qr(ref, mode="economic").result())
    assert_close(q @ r, a, "float64", 100)
    u, s, vh = (each.numpy() for each in device.solver.svd(ref, full_matrices=False).result())
    assert_close(u * s @ vh, a, "float64", 100)
    w, v = (each.numpy() for each in device.solver.eigh(device.put(a.T @ a)).result())
    assert_close(a.T @ a @ v, v * w, "float64", 100)
    assert_close(w[::-1], s**2, "float64", 100, 10.0)
    product = device.put(a.T @ a)
    assert_close(device.solver.inv(product).result().numpy() @ a.T @ a, np.eye(4), "float64", 1000)
    assert device.solver.det(product).result().numpy() == pytest.approx(np.prod(s**2))
    assert_close(ref.numpy(), a, "float64")


def test_outputs_without_elements_are_outputs(device: atomr_mp.Device) -> None:
    """As many as the request has, whatever their sizes."""
    u, s, vh = device.solver.gesvd(device.put(np.diag([3.0, 4.0])), job="N").result()
    assert (u.shape, vh.shape) == ((2, 0), (0, 2))
    assert_close(s.numpy(), [4.0, 3.0], "float64", 10)


def test_systems_are_solved_within_a_program(device: atomr_mp.Device) -> None:
    """A run gives what its requests give, each time."""
    random = np.random.default_rng(9)
    with device.program() as p:
        a, b = p.input("a", (5, 5), "float64"), p.input("b", (5,), "float64")
        p.returns(p.solver.solve(a, b), p.solver.det(a), p.solver.lstsq(a, b))
    for _ in range(3):
        values, sides = random.uniform(-1, 1, (5, 5)) + 3 * np.eye(5), random.uniform(-1, 1, 5)
        x, det, same = (each.numpy() for each in p.run(a=values, b=sides).result())
        assert_close(values @ x, sides, "float64", 100)
        assert_close(same, x, "float64", 100)
        assert det == pytest.approx(np.linalg.det(values))


def test_a_sparse_matrix_is_solved_with_other_values_and_right_hand_sides(
    device: atomr_mp.Device, backend: str
) -> None:
    """Its structure is looked at once, its values may be others; one that is singular says so."""
    laplace = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (50, 50), format="csr")
    a, b = device.sparse.csr(laplace), np.random.default_rng(4).uniform(-1, 1, (50, 2))
    methods: tuple[Factors, ...] = ("lu", "cholesky")
    for method in methods:
        try:
            x = device.solver.spsolve(a, device.put(b), method=method).result()
        except errors.Unsupported as missing:
            assert backend == "cuda"
            pytest.skip(missing.message)
        assert_close(laplace @ x.numpy(), b, "float64", 1000, 10.0)
        one = device.solver.spsolve(a.with_data(device.put(laplace.data * 2)), device.put(b[:, 0]), method=method)
        assert_close(one.result().numpy(), x.numpy()[:, 0] / 2, "float64", 1000, 10.0)
    shifted = device.sparse.csr((laplace - 0.5 * scipy.sparse.eye_array(50)).tocsr())
    assert device.solver.spsolve(shifted, device.put(b)).result().shape == (50, 2)
    with pytest.raises(errors.NumericalError, match="or it is not positive definite"):
        device.solver.spsolve(shifted, device.put(b), method="cholesky").result()
    with pytest.raises(errors.Unsupported, match=r"has no QR factors.*method='lu'"):
        device.solver.spsolve(a, device.put(b), method="qr")
    with pytest.raises(errors.Unsupported, match="takes a in csr with int32 indices"):
        device.solver.spsolve(device.sparse.csc(laplace), device.put(b))
