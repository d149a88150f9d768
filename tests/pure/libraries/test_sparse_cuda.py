from __future__ import annotations

import gc
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import requests_of, sparse
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from tests.cases.sparse_cases import assert_agrees, elements, matrix_of, of_mask, requests
from tests.direct import ended, on_stand_ins, started
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import FakeStream, device_memory
from tests.fakes.fake_cusparse import FakeCusparse, OnGpu, installed, on_gpu
from tests.pure.libraries.test_sparse import ACTOR

MODULES: Final = ("sparse.cuda", "sparse.products", "blas.kinds", "pointers", "slots")


class Actor:
    """The CUDA actor on stand-ins."""

    def __init__(self) -> None:
        self.cusparse: Final = FakeCusparse()
        module: Any = on_stand_ins(installed(self.cusparse), MODULES)
        vars(module.products)["_function"] = self.cusparse.called

        class Implementation(module.Implementation):  # type: ignore[misc]
            """Has structures in the host's memory."""

            def _room(self, dtype: str, shape: tuple[int, ...]) -> Any:
                return on_gpu(super()._room(dtype, shape))

        self.sparse: Final = Implementation(ACTOR.context, FakeStream())

    def run(self, request: Any) -> Any:
        """Do a request."""
        device_memory.clear()
        result = ended(started(self.sparse, with_arrays(request, on_device)))
        assert all(each.mode == 0 for each in self.cusparse.made.values() if hasattr(each, "handle"))
        return result


def on_device(operand: Any) -> OnGpu:
    """Return an operand with an address, and with what is attached to it on the device."""
    made = OnGpu(operand.layout, operand.slab)
    made.number = operand.number
    it: CheckedStructure | None = getattr(operand, "attached", None)
    if it is not None:
        found = operand.__dict__.get("on_gpu")
        if found is None:
            found = CheckedStructure(
                it.stored, it.shape, it.blocksize, on_gpu(it.indices), on_gpu(it.indptr), it.filled
            )
            operand.on_gpu = found
        made.attached = found
    return made


@pytest.fixture(scope="module")
def actor() -> Actor:
    """The CUDA actor on stand-ins."""
    return Actor()


@pytest.mark.parametrize("name", requests_of("sparse"))
def test_what_is_asked_of_cusparse_gives_what_is_meant(actor: Actor, name: str) -> None:
    """Transposed where it gets another matrix, twice in a row, and never with anything that is empty."""

    @given(requests(requests_of("sparse")[name]), st.integers(0, 2**32 - 1))
    @settings(max_examples=25, deadline=None)
    def agrees(request: Any, seed: int) -> None:
        for again in range(2):
            assert_agrees(request, np.random.default_rng(seed + again), actor.run)

    agrees()


def test_descriptors_are_destroyed_with_their_structure(actor: Actor) -> None:
    """Only the handle is left."""
    gc.collect()
    assert [made for made in actor.cusparse.made.values() if not hasattr(made, "handle")] == []


def test_a_product_that_takes_too_much_memory_is_tried_in_a_frugal_way(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that takes too much too, the error says what to do, and nothing is left behind."""
    matrix = matrix_of(of_mask("csr", np.ones((2, 2), bool)), "float32")
    actor.run(sparse.Spgemm(matrix, matrix))  # the first request makes the handle
    before = len(actor.cusparse.made)
    algorithms = actor.cusparse.SpGEMMAlg
    monkeypatch.setattr(actor.cusparse, "short", {algorithms.DEFAULT})
    actor.run(sparse.Spgemm(matrix, matrix))
    monkeypatch.setattr(actor.cusparse, "short", {algorithms.DEFAULT, algorithms.ALG3})
    with pytest.raises(errors.OutOfMemory, match="multiply blocks of rows"):
        actor.run(sparse.Spgemm(matrix, matrix))
    assert len(actor.cusparse.made) == before


@pytest.mark.parametrize("name", ["spmv", "spmm", "spsv", "spsm"])
def test_what_was_prepared_serves_other_values_and_other_memory(actor: Actor, name: str) -> None:
    """A structure is analysed once; each request has its own values, vectors and factors."""
    random = np.random.default_rng(6)
    it = of_mask("csr", np.tri(4, dtype=bool))
    name_of_it: Any = matrix_of(it, "float64").structure
    for turn in range(4):
        matrix = msgspec.structs.replace(matrix_of(it, "float64"), structure=name_of_it)
        values: Any = matrix.data
        values.array[...] = [
            2 + turn if row == column else random.uniform() for row, column, _ in elements(it, values.array)
        ]
        shape = (4, 3) if name in {"spmm", "spsm"} else (4,)
        b, out = (FakeArray.of(random.uniform(-1, 1, shape), "float64") for _ in "bx")
        exact = np.zeros((4, 4))
        for row, column, value in elements(it, values.array):
            exact[row, column] = value
        cls: Any = requests_of("sparse")[name]
        if name in {"spsv", "spsm"}:
            actor.run(cls(matrix, b, "L", out, alpha=1.0 + turn))
            np.testing.assert_allclose(exact @ out.array, (1 + turn) * b.array)
        else:
            actor.run(cls(matrix, b, out, alpha=1.0 + turn))
            np.testing.assert_allclose(out.array, (1 + turn) * exact @ b.array)


def test_what_a_cusparse_does_not_have_says_what_to_do(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may; nothing has run, and nothing is kept of it."""
    matrix = matrix_of(of_mask("bsr", np.ones((2, 2), bool), (3, 3)), "float32")
    request = sparse.Spmm(matrix, FakeArray.of(np.ones((6, 1)), "float32"), FakeArray.of(np.ones((6, 1)), "float32"))
    monkeypatch.setattr(actor.cusparse, "refused", True)
    with pytest.raises(errors.Unsupported, match=r"bsr, blocks of \(3, 3\) and int32"):
        actor.run(request)
    monkeypatch.undo()
    actor.run(request)


def test_a_block_that_is_not_there_is_worth_nothing(actor: Actor) -> None:
    """Whatever lies in its place among the values: cuSPARSE would multiply it."""
    it = of_mask("blocked_ell", np.array([[True, True], [False, True]]), (2, 2))
    matrix = matrix_of(it, "float64")
    values: Any = matrix.data
    values.array[...] = 7.0
    out = FakeArray.of(np.zeros((4, 1)), "float64")
    actor.run(sparse.Spmm(matrix, FakeArray.of(np.ones((4, 1)), "float64"), out))
    assert out.array[:, 0].tolist() == [28, 28, 14, 14]


@pytest.mark.parametrize(("stored", "blocksize", "words"), [("bsr", (1, 2), "square"), ("blocked_ell", (2, 2), "TF32")])
def test_what_cusparse_does_not_do_exactly_is_refused_and_the_host_does_it(
    actor: Actor, stored: sparse.Format, blocksize: tuple[int, int], words: str
) -> None:
    """Nothing is written."""
    matrix = matrix_of(of_mask(stored, np.ones((2, 2), bool), blocksize), "float32")
    values: Any = matrix.data
    values.array[...] = 1
    m, n = matrix.shape
    b, out = FakeArray.of(np.ones((n, 1)), "float32"), FakeArray.of(np.zeros((m, 1)), "float32")
    with pytest.raises(errors.Unsupported, match=words):
        actor.run(sparse.Spmm(matrix, b, out))
    assert not out.array.any()
    ACTOR.spmm(sparse.Spmm(matrix, b, out))
    assert (out.array == n).all()
