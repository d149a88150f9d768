from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.blas_lt import Matmul, takes_aux
from atomr_mp_workers.device.host import HostDevice
from tests.actor_libraries import context_on
from tests.cases.blas_lt_cases import PAIRS, WIDE, assert_agrees, requests
from tests.direct import on_stand_ins, started
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import AddressedArray, FakeStream
from tests.fakes.fake_cublas_lt import FakeCublasLt, installed

MODULES: Final = ("blas_lt.cuda", "blas_lt.plan", "blas_lt.kinds", "pointers")


class Actor:
    """The CUDA actor on stand-ins."""

    def __init__(self) -> None:
        self.cublas: Final = FakeCublasLt()
        module = on_stand_ins(installed(self.cublas), MODULES)
        self.lt: Final = module.Implementation(context_on(HostDevice(), "cuda"), FakeStream())

    def run(self, request: LibraryRequest) -> None:
        """Do a request with a plan of its own."""
        found: dict[str, Any] = {name: array for name, _, array in request.arrays() if array is not None}
        slabs = {array.number: aligned(array).slab for array in found.values()}
        there = {name: AddressedArray(array.layout, slabs[array.number]) for name, array in found.items()}
        started(self.lt, msgspec.structs.replace(request, **there))
        for array in found.values():
            array.slab[:] = slabs[array.number]


def aligned(array: FakeArray) -> AddressedArray:
    """Return an array whose memory begins at a multiple of 256, as memory of a device does."""
    slab = np.zeros(array.slab.nbytes + 256, np.uint8)
    at = -slab.ctypes.data % 256
    slab[at : at + array.slab.nbytes] = array.slab
    return AddressedArray(array.layout, slab[at : at + array.slab.nbytes])


@pytest.fixture(scope="module")
def actor() -> Actor:
    """The CUDA actor on stand-ins."""
    return Actor()


FLOATS: Final = [pair for pair in WIDE if pair[0] != "int8"]
NARROW: Final = [pair for pair in PAIRS if pair not in FLOATS]


@given(requests(pairs=FLOATS), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_what_is_asked_of_cublaslt_gives_what_is_meant(request: Any, seed: int) -> None:
    """In column order and in row order: vectors and gradients go along the axes of the caller."""
    assume(not takes_aux(request) or request.a.shape[-1] > 1)  # for which cuBLASLt has nothing
    gradients = request.bias_grad
    if gradients is not None and any(
        n > 1 and step % 16 for n, step in zip(gradients.shape[:-1], gradients.strides, strict=False)
    ):
        with pytest.raises(errors.Unsupported, match="a batch of bias gradients wants vectors of such lengths"):
            ACTOR.run(request)
    else:
        assert_agrees(request, np.random.default_rng(seed), ACTOR.run)


@given(requests(lengths=(16, 32, 48), pairs=NARROW, orders={"b": "column"}), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_eight_bits_are_multiplied_where_they_lie_in_lines_of_16_bytes(request: Any, seed: int) -> None:
    """Anything else is refused: cuBLASLt offers kernels for it that lose the context."""
    assume(not takes_aux(request) or request.a.shape[-1] > 1)
    arrays = [each for each in (request.a, request.b, request.c, request.out) if each is not None]
    lines = [stride for each in arrays for stride in each.strides if stride != each.layout.item_bytes]
    if all(stride % 16 == 0 for stride in lines) and all(each.layout.offset % 16 == 0 for each in arrays):
        assert_agrees(request, np.random.default_rng(seed), ACTOR.run)
    else:
        with pytest.raises(errors.Unsupported, match="multiples of 16 bytes"):
            ACTOR.run(request)


ACTOR: Final = Actor()


def of(*shape: int, dtype: str = "float32") -> FakeArray:
    """Return zeros."""
    return FakeArray.of(np.zeros(shape), dtype)


@pytest.mark.parametrize("status", [0, 7, 15])
def test_what_has_no_kernel_is_refused_before_anything_runs(status: int) -> None:
    """The heuristic says so by a status or by an empty list."""
    actor = Actor()
    actor.cublas.status, actor.cublas.proposed = status, 0
    with pytest.raises(
        errors.Unsupported, match="has no kernel on this GPU for float32 by float32 to float32 of 3 by 3"
    ):
        actor.run(Matmul(of(3, 4), of(4, 3), of(3, 3)))
    assert actor.cublas.ran == []
    assert actor.cublas.objects == {}
    with pytest.raises(errors.Unsupported, match="drelu"):
        Actor().run(Matmul(of(3, 1), of(1, 3), of(3, 3), aux=of(3, 16, dtype="uint8"), epilogue="drelu"))


def test_another_status_is_an_error() -> None:
    """It says nothing of the request."""
    actor = Actor()
    actor.cublas.status = 14
    with pytest.raises(actor.cublas.cuBLASLtError):
        actor.run(Matmul(of(3, 4), of(4, 3), of(3, 3)))


def test_descriptors_go_with_their_plan(actor: Actor) -> None:
    """No descriptor is left over."""
    actor.run(Matmul(of(3, 4), of(4, 3), of(3, 3)))
    assert actor.cublas.objects == {}


def test_autotuning_takes_the_fastest_and_leaves_the_operands_alone() -> None:
    """Each algorithm that is proposed is timed, on memory of its own."""
    actor = Actor()
    actor.cublas.proposed = 3
    a, b, out = FakeArray.of(np.eye(4), "float32"), FakeArray.of(np.arange(16).reshape(4, 4), "float32"), of(4, 4)
    plan = actor.lt.prepare_matmul(Matmul(aligned(a), aligned(b), aligned(out), autotune=True))
    assert set(actor.cublas.ran) == {1, 2, 3}
    assert len(plan) == 3
    actor.cublas.ran.clear()
    actor.run(Matmul(a, b, out))
    assert actor.cublas.ran == [1]
    np.testing.assert_array_equal(out.array, b.array)
