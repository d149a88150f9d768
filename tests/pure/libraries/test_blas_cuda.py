from __future__ import annotations

import importlib
import re
import threading
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_mp.protocol.declaration.arguments import declared
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.requests.request import Later
from tests.actor_libraries import context_on
from tests.cases.blas_cases import REQUESTS, assert_agrees
from tests.declared import requests
from tests.direct import assert_all_agree, ended, on_stand_ins, started
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import SIGNATURES, AddressedArray, FakeCublas, FakeStream, device_memory, installed

MODULES: Final = ("blas.cuda", "blas.kinds", "pointers", "slots")

HANDLE_MADE: Final = ["create", "set_stream", "set_workspace", "set_math_mode"]


class Actor:
    """The CUDA actor on stand-ins."""

    def __init__(self) -> None:
        self.cublas: Final = FakeCublas()
        module = on_stand_ins(installed(self.cublas), MODULES)
        self.blas: Final = module.Implementation(context_on(HostDevice(), "cuda"), FakeStream())

    def run(self, request: LibraryRequest) -> Any:
        """Do a request."""
        return ended(self.start(request))

    def start(self, request: LibraryRequest) -> Any:
        """Do a request, but for what is read later."""
        device_memory.clear()
        result = started(self.blas, self.addressed(request))
        assert self.cublas.mode == self.cublas.PointerMode.HOST
        return result

    def addressed(self, request: LibraryRequest) -> LibraryRequest:
        """Return a request whose arrays have addresses."""
        found: dict[str, Any] = {field: array for field, _, array in request.arrays()}
        return msgspec.structs.replace(
            request, **{field: AddressedArray(array.layout, array.slab) for field, array in found.items()}
        )


def example(name: str, dtype: str = "float32") -> LibraryRequest:
    """Return a request on zeros."""
    shape = {"asum": (4,), "gemm": (3, 3), "gemm_strided_batched": (2, 3, 3)}[name]
    made: Any = REQUESTS[name]
    fields = [field for field, _ in declared(made).arrays.items()]
    request: LibraryRequest = made(**{field: FakeArray.of(np.zeros(shape), dtype) for field in fields})
    return request


@pytest.fixture(scope="module")
def actor() -> Actor:
    """The CUDA actor on stand-ins."""
    return Actor()


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_asked_of_cublas_gives_what_is_meant(actor: Actor, name: str) -> None:
    """Transposed where the order is not cuBLAS', and whatever the sizes: it is given no empty ones."""
    assert_all_agree(requests(REQUESTS[name]), 40, assert_agrees, actor.run)


def test_batches_that_cublas_does_not_support_are_multiplied_one_by_one() -> None:
    """Any other status is an error."""
    actor = Actor()
    batched = "gemm_strided_batched_ex_64"
    actor.cublas.refused[batched] = actor.cublas.Status.NOT_SUPPORTED
    assert_all_agree(requests(REQUESTS["gemm_strided_batched"]), 25, assert_agrees, actor.run)
    actor.cublas.refused[batched] = actor.cublas.Status.INVALID_VALUE
    with pytest.raises(actor.cublas.cuBLASError):
        actor.run(example("gemm_strided_batched"))


def test_the_handle_is_made_once_by_the_first_request() -> None:
    """The workspace comes after the stream: setting that resets it."""
    actor = Actor()
    assert actor.cublas.settings == []
    for _ in range(2):
        actor.run(example("gemm"))
        actor.run(example("asum"))
    assert actor.cublas.settings == HANDLE_MADE


def test_opening_makes_the_handle_on_whichever_thread() -> None:
    """The requests find it."""
    actor = Actor()
    opening = threading.Thread(target=actor.blas.open_here)
    opening.start()
    opening.join()
    assert actor.cublas.settings == HANDLE_MADE
    actor.run(example("gemm"))
    assert actor.cublas.settings == HANDLE_MADE


def test_scalars_are_read_later_each_from_a_slot_of_its_own(actor: Actor) -> None:
    """Slots go round; when a call fails, its slot comes back too, and the pointer mode."""
    for _ in range(3):
        pending = [actor.start(example("asum", "complex128")) for _ in range(300)]
        assert all(isinstance(each, Later) for each in pending)
        assert len({id(each) for each in pending}) == 300
        assert [each.read() for each in pending] == [0.0] * 300
    free = len(actor.blas._slots._free)
    with pytest.raises(ZeroDivisionError):
        actor.blas._reduce(lambda *_: 1 // 0, np.dtype(np.float32), getattr(actor.addressed(example("asum")), "x"))  # noqa: B009
    assert len(actor.blas._slots._free) == free
    assert actor.cublas.mode == actor.cublas.PointerMode.HOST


def test_the_stand_ins_take_what_the_binding_takes() -> None:
    """Arguments are of the same meaning, in the same order."""
    binding = importlib.import_module("nvmath.bindings.cublas")
    for name, parameters in SIGNATURES.items():
        found = re.match(rf"{name}\((.*?)\)", getattr(binding, name).__doc__)
        assert found
        assert [part.split()[-1] for part in found.group(1).split(", ") if part] == parameters, name
