from __future__ import annotations

from typing import Any, Final

import pytest

from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from tests.actor_libraries import context_on
from tests.cases.solver_cases import FAILING, REQUESTS, assert_agrees, assert_fails, requests
from tests.direct import assert_all_agree, ended, on_stand_ins, started
from tests.fakes.fake_cublas import AddressedArray, FakeStream
from tests.fakes.fake_cusolver import DeviceValues, FakeCublasBatches, FakeCusolver, installed

PARTS: Final = ("cuda", "direct", "factors", "orthogonal", "spectral", "routines", "handle", "columns", "kinds")
MODULES: Final = (*(f"solver.{part}" for part in PARTS), "blas.cuda", "blas.kinds", "slots")


class PlacedArray(AddressedArray):
    """An array in a buffer of NumPy's, as the actor meets those on a device."""

    attached: Any = None

    @property
    def array(self) -> Any:
        """The array itself, zero-copy."""
        return super().array.view(DeviceValues)


def _placed(array: Any) -> PlacedArray:
    made = PlacedArray(array.layout, array.slab)
    if it := getattr(array, "attached", None):
        indices, indptr = (each.view(DeviceValues) for each in (it.indices, it.indptr))
        made.attached = CheckedStructure(it.stored, it.shape, it.blocksize, indices, indptr)
    return made


class Actor:
    """The CUDA actor on stand-ins."""

    def __init__(self) -> None:
        self.cusolver: Final = FakeCusolver()
        module = on_stand_ins(installed(self.cusolver, FakeCublasBatches()), MODULES)
        self.solver: Final = module.Implementation(context_on(HostDevice(), "cuda"), FakeStream())

    def run(self, request: LibraryRequest) -> Any:
        """Do a request."""
        return ended(started(self.solver, with_arrays(request, _placed)))


@pytest.fixture(scope="module")
def actor() -> Actor:
    """The CUDA actor on stand-ins."""
    return Actor()


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_asked_of_cusolver_gives_what_is_meant(actor: Actor, name: str) -> None:
    """Transposed or copied where the order is not cuSOLVER's, and whatever the sizes: it is given no empty ones."""
    assert_all_agree(requests(REQUESTS[name]), 25, assert_agrees, actor.run)


@pytest.mark.parametrize("case", range(len(FAILING)))
def test_data_without_a_result_are_an_error_that_says_where(actor: Actor, case: int) -> None:
    """Singular and indefinite matrices, pivots that are no rows: which matrix, which row, what is undefined."""
    assert_fails(actor.run, case)
