from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp.protocol.board import PLAN_WORDS
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.tensor import Contraction, EinsteinSum, Permutation
from atomr_mp.protocol.library_names import ENGINES
from atomr_mp_workers.device.host import HostDevice
from tests.actor_libraries import context_on
from tests.cases.tensor_cases import REQUESTS, assert_agrees, requests
from tests.direct import assert_all_agree, on_stand_ins, started
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import AddressedArray, FakeStream
from tests.fakes.fake_cutensor import FakeCutensor, installed

MODULES: Final = ("tensor.cuda", "tensor.cutensor_plan")


class PlanFigures(list[int]):
    """Figures of a library; each engine that is noted there is kept."""

    def __init__(self, engines: list[str]) -> None:
        super().__init__([0] * PLAN_WORDS)
        self._engines = engines

    def __setitem__(self, at: Any, value: Any) -> None:
        self._engines.append(ENGINES[value])
        super().__setitem__(at, value)


class Actor:
    """The CUDA actor on stand-ins."""

    def __init__(self, *, library: bool = True) -> None:
        self.cutensor: Final = FakeCutensor(installed=library)
        self.engines: Final[list[str]] = []
        module = on_stand_ins(installed(self.cutensor), MODULES)
        figures = PlanFigures(self.engines)
        context = dataclasses.replace(context_on(HostDevice(), "cuda"), figures=lambda _library: figures)
        self.serves: Final = module.serves
        self.tensor: Final = module.Implementation(context, FakeStream())

    def run(self, request: LibraryRequest) -> None:
        """Do a request with a plan of its own, on memory that begins at multiples of 256."""
        found: list[Any] = [array for _, _, array in request.arrays()]
        slabs = {array.number: aligned(array.slab) for array in found}
        there = with_arrays(request, lambda each: AddressedArray(each.layout, slabs[each.number]))  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            started(self.tensor, there)
        for array in found:
            array.slab[:] = slabs[array.number]


def aligned(slab: Any) -> Any:
    """Return a copy of some bytes that begins at a multiple of 256."""
    memory = np.zeros(slab.nbytes + 256, np.uint8)
    at = -memory.ctypes.data % 256
    memory[at : at + slab.nbytes] = slab
    return memory[at : at + slab.nbytes]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("library", [True, False], ids=["cutensor", "cupy"])
def test_what_is_asked_gives_what_is_meant(name: str, *, library: bool) -> None:
    """Plans of cuTENSOR are used where it is installed, CuPy's arrays otherwise. Empty arrays never reach cuTENSOR."""
    actor = Actor(library=library)

    def run(request: LibraryRequest) -> None:
        before = len(actor.cutensor.ran)
        actor.run(request)
        served = library and (name == "einstein_sum" or actor.serves(request))
        assert (len(actor.cutensor.ran) > before) == served or (served and name == "einstein_sum")

    assert_all_agree(requests(REQUESTS[name]), 20, assert_agrees, run)
    assert actor.engines == ["cuTENSOR" if library else "CuPy"]
    assert actor.cutensor.objects == {}


def product(dtype: str = "float32") -> Contraction:
    """Return a product of matrices of ones."""
    a, b, c = (FakeArray.of(np.ones((3, 3)), dtype) for _ in "abc")
    return Contraction(a, b, "ij", "jk", "ik", c, compute="tf32" if dtype == "float32" else "default")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_of_half_precision_are_float32(dtype: str) -> None:
    """As cuTENSOR tells: a third is not rounded to the type of the elements before it multiplies."""
    a, b = FakeArray.of(np.full(2, 3.0), dtype), FakeArray.of(np.zeros(2), dtype)
    actor = Actor()
    actor.run(Permutation(a, "i", "i", b, alpha=1 / 3))
    assert actor.cutensor.ran == ["permute"]
    assert (b.array == 1).all()


@pytest.mark.parametrize("status", [7, 15])
def test_what_cutensor_has_no_kernel_for_is_done_by_arrays(status: int) -> None:
    """The request does not fail for it."""
    actor, request = Actor(), product()
    actor.cutensor.status = status
    actor.run(request)
    assert (request.c.array == 3).all()  # type: ignore[union-attr]
    assert actor.cutensor.ran == []
    assert actor.cutensor.objects == {}


def test_another_status_is_an_error() -> None:
    """It says nothing of the request."""
    actor = Actor()
    actor.cutensor.status = 14
    with pytest.raises(actor.cutensor.cuTENSORError):
        actor.run(product())


def test_a_sum_of_products_is_done_by_cutensor_step_by_step() -> None:
    """Each pair is a contraction, on temporaries between; a diagonal needs no step."""
    actor = Actor()
    operands: list[Any] = [FakeArray.of(np.ones((4, 4)), "float64") for _ in range(4)]
    out = FakeArray.of(np.zeros(4), "float64")
    actor.run(EinsteinSum(operands, "ii,ij,jk,kl->i", out))
    assert actor.cutensor.ran == ["reduce", "contract", "contract", "contract"]
    assert (out.array == 64).all()
