from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.protocol.libraries import tensor
from atomr_mp_workers.libraries.tensor.engine import ArrayEngine
from tests.cases.tensor_cases import REQUESTS, assert_agrees, requests
from tests.direct import assert_all_agree, refused
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

agrees_fast: Final = functools.partial(assert_agrees, fast=True)
run: Final = functools.partial(on_device.run, "tensor")


@pytest.fixture(params=["whatever is installed", "cupy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What serves: cuTENSOR if it is installed, or CuPy all the same."""
    if request.param == "cupy":
        monkeypatch.setattr(on_device.library("tensor"), "_handle", 0)
    return str(request.param)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_numpy(name: str) -> None:
    """Whatever modes, strides, operators, factors, types; nothing else is written."""
    assert_all_agree(requests(REQUESTS[name]), 200, agrees_fast, run)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", ["contraction", "reduction", "permutation", "einstein_sum"])
def test_larger_sizes_take_other_kernels_and_give_the_same(name: str) -> None:
    """Tiles that are full, and those at the edges that are not."""
    assert_all_agree(requests(REQUESTS[name], (1, 8, 17, 32)), 30, agrees_fast, run)


def product(dtype: str, compute: tensor.Compute = "default") -> tensor.Contraction:
    """Return a batch of products of matrices."""
    random = np.random.default_rng(3)
    a, b, c = (FakeArray.of(random.uniform(-1, 1, (4, 64, 64)), dtype) for _ in "abc")
    return tensor.Contraction(a, b, "bij", "bjk", "bik", c, compute=compute)


@pytest.mark.parametrize("dtype", tensor.TYPES)
def test_cutensor_serves_if_it_is_installed(dtype: str) -> None:
    """And says so; contractions of every type have a plan of it, not CuPy's."""
    run(product(dtype))
    if on_device.SERVING[-1] != "cuTENSOR":
        pytest.skip("cuTENSOR is not installed")
    library: Any = on_device.library("tensor")
    plan = library.planned(product(dtype))
    assert not isinstance(getattr(plan, "__self__", None), ArrayEngine)


def test_tf32_is_taken_only_where_it_is_asked_for() -> None:
    """It is off by 2⁻¹¹ of a factor at most; by default nothing is."""
    for compute, error in (("default", 0.0), ("tf32", 2.0**-10)):
        request = product("float32", compute)  # type: ignore[arg-type]
        a, b = (each.array.astype(np.float64) for each in (request.a, request.b))  # type: ignore[attr-defined]
        run(request)
        expected = a @ b
        assert_close(request.c.array, expected, "float32", 64, 1.0 + error * 2**21)  # type: ignore[union-attr]


def test_bad_requests_leave_the_context_well() -> None:
    """A few hundred are refused by the check; then a product is right."""
    assert sum(refused(requests(cls), 10) for cls in REQUESTS.values()) > 300
    request = product("float64")
    expected = request.a.array @ request.b.array  # type: ignore[attr-defined]
    run(request)
    assert_close(request.c.array, expected, "float64", 64, 1.0)  # type: ignore[union-attr]
    on_device.synchronize()
