from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.libraries import solver
from atomr_mp.protocol.libraries.base import LibraryRequest
from tests.cases import sparse_cases
from tests.cases.solver_cases import FAILING, REQUESTS, assert_agrees, assert_fails, requests
from tests.declared import breakages, refused_in_the_worker
from tests.direct import assert_all_agree
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.gpu.test_program_cuda import told as told_of_graphs
from tests.support import Ledger
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY


@pytest.fixture
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool on the GPU."""
    with Ledger() as ledger, ledger.start(backend="cuda") as pool:
        yield pool


def run(request: LibraryRequest) -> Any:
    """Do a request on the GPU; those of cuDSS are skipped where it is not installed."""
    try:
        return on_device.run("solver", request)
    except errors.Unsupported as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("name", REQUESTS)
def test_larger_matrices_take_other_kernels_and_give_the_same(name: str) -> None:
    """Blocks of many sizes, and what is left beside them."""
    assert_all_agree(requests(REQUESTS[name], (1, 31, 64, 129, 300)), 15, assert_agrees, run)


def test_hundreds_of_data_without_a_result_harm_nothing() -> None:
    """Each is an error that says where, and after all of them the context is well."""
    refused = [number for number, (make, *_) in enumerate(FAILING) if not isinstance(make(), solver.Spsolve)]
    for _ in range(300 // len(FAILING) + 1):
        for case in refused:
            with contextlib.suppress(pytest.skip.Exception):
                assert_fails(run, case)
    for name in ("potrf", "getrf", "gesvd", "syevd", "solve", "lstsq"):
        assert_all_agree(requests(REQUESTS[name]), 30, assert_agrees, run)


def test_sparse_systems_without_factors_are_refused_or_solved_right() -> None:
    """CuDSS takes a negative pivot of Cholesky factors as it is, and another for 0; x may be right all the same."""
    for make, *_ in FAILING:
        request = make()
        if not isinstance(request, solver.Spsolve):
            continue
        try:
            run(request)
        except errors.NumericalError:
            continue
        a = sparse_cases.dense(request.a, cast("FakeArray", request.a.data).array)
        np.testing.assert_allclose(a @ cast("FakeArray", request.x).array, cast("FakeArray", request.b).array)


def test_bad_requests_harm_nothing() -> None:
    """Each rule of each declaration broken, sent past the client's check: none gets to cuSOLVER."""
    refused = 0
    for cls in REQUESTS.values():

        @given(requests(cls, (2, 3, 5)))
        @settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def broken(request: Any) -> None:
            nonlocal refused
            for what, each in breakages(request, every=True):
                assert refused_in_the_worker(each), what
                refused += 1

        broken()
        with contextlib.suppress(pytest.skip.Exception):
            assert_all_agree(requests(cls), 30, assert_agrees, run)
    assert refused > 500


def test_a_graph_of_factors_tells_each_of_its_runs(pool: atomr_mp.Pool) -> None:
    """It is recorded once, with copies of what lies in row order; the infos of each launch are its own."""
    device, random = pool.device(0), np.random.default_rng(2)
    with device.program() as p:
        a, b = p.input("a", (2, 20, 20), "float64"), p.input("b", (20, 3), "float64")
        copy = p.elementwise.copy
        batch, one, factors, reflectors, x = copy(a), copy(a[0]), copy(a[0]), copy(a[1]), copy(b)
        p.solver.potrf_batched(batch)
        p.solver.potrf(one)
        p.solver.potrs(one, x)
        p.solver.getrf(factors)
        p.solver.geqrf(reflectors)
        p.returns(x, batch, factors, reflectors)
    for turn in range(6):
        halves, sides = random.uniform(-1, 1, (2, 20, 20)), random.uniform(-1, 1, (20, 3))
        definite = halves @ halves.transpose(0, 2, 1) + 5 * np.eye(20)
        if turn % 2:
            definite[1, 7, 7] *= -1
            with pytest.raises(errors.NumericalError, match=r"step 5 \(solver.potrf_batched\)") as told:
                p.run(a=definite, b=sides).result()
            assert (told.value.batch, told.value.row) == (1, 7)
            continue
        solved, *made = (each.numpy() for each in p.run(a=definite, b=sides).result())
        assert_close(definite[0] @ solved, sides, "float64", 1000)
        lower = np.tril(made[0])
        assert_close(lower @ lower.transpose(0, 2, 1), definite, "float64", 100, 20.0)
        for factored, matrix in zip(made[1:], definite, strict=True):
            exact = np.linalg.slogdet(matrix).logabsdet
            assert np.log(np.abs(np.diag(factored))).sum() == pytest.approx(exact)
    found, refused = told_of_graphs(pool)
    assert (found.captured, found.capture_failed) == (1, 0), (found, refused)


def test_nothing_waits_for_the_device() -> None:
    """A factorisation is enqueued while the stream is held up, and reported when it has ended."""
    import cupy

    make, *_ = FAILING[3]
    request: Any = make()
    run_failing = pytest.raises(errors.NumericalError, match="not positive definite")
    with run_failing:
        run(request)  # what is loaded at first use is loaded
    slab = on_device.device().make_slab(request.a.slab.nbytes)
    on_device.over(slab).set(request.a.slab)
    stream = on_device.library("solver").stream.stream
    hold = cupy.RawKernel('extern "C" __global__ void hold(volatile int* go) { while (!*go) {} }', "hold")
    page = cupy.cuda.alloc_pinned_memory(4)
    go = np.frombuffer(page, np.int32, 1)
    go[0] = 0
    on_device.synchronize()
    with stream:
        try:
            hold((1,), (1,), (np.uintp(page.ptr),))
            later = on_device.started("solver", type(request)(on_device.placed(slab, request.a)))
            assert not stream.done
        finally:
            go[0] = 1
    stream.synchronize()
    with pytest.raises(errors.NumericalError, match="not positive definite"):
        later.read()
