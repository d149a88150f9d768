"""How much requests are to do, and how large arrays may seem that repeat their elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import (
    LIBRARIES,
    blas,
    dnn,
    elementwise,
    kernels,
    memory,
    requests_of,
    rng,
    solver,
    sparse,
    tensor,
)
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import WireRef
from atomr_mp_workers.device import open_device
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.program.definitions import weigh
from atomr_mp_workers.libraries.weights import TOLD, UNKNOWN, check_extents, name_of, weight
from tests.actor_libraries import context_on
from tests.cases.library_cases import CASES, Case
from tests.cases.sparse_cases import matrix_of, of_mask
from tests.fakes.fake_arrays import FakeArray

INLINE: Final = 65536
"""Bytes that a host's request may touch on the loop, by default."""

LARGE: Final = 2**28
"""Bytes that take so long to touch that others would notice."""

HOST: Final = Libraries(context_on(open_device("host", "adaptive"), "host"))


def weighed(request: Any) -> int:
    """Return the weight with which a request comes to its stream, besides the memory that it borrows."""
    method = HOST.find(name_of(type(request)))
    assert method is not None
    assert method.weigh is not None
    return method.weigh((request, method._facts(request)))


def of(*shape: int, strides: tuple[int, ...] | None = None, dtype: str = "float64") -> Any:
    """Return an array, of no more memory than it touches."""
    layout = Layout.contiguous(dtype, shape)
    return FakeArray(layout if strides is None else layout._replace(strides=strides))


def test_what_takes_long_is_heavy_however_few_bytes_it_touches() -> None:
    """Elements in one place, empty dimensions of loops, and windows, steps and samples of the host's loops."""
    one = of(10**6, strides=(0,))
    for request in (
        elementwise.Negative(one, of(10**6, strides=(0,))),
        tensor.Reduction(of(10**6, strides=(0,)), "i", "", of()),
        blas.Gemm(of(10**4, 0), of(0, 10**4), of(10**4, 10**4, strides=(0, 0))),
        blas.Gemm(of(200, 200, strides=(0, 0)), of(200, 200, strides=(0, 0)), of(200, 200, strides=(0, 0))),
    ):
        assert weight(request) > INLINE, request
    assert weight(dnn.WindowPool(of(1, 1, 9), of(1, 1, 1), kernel_size=(9,))) == UNKNOWN
    assert weight(dnn.RnnForward(of(9, 0, 1), of(16), of(9, 0, 1), hidden_size=1)) == UNKNOWN


def test_small_requests_stay_light() -> None:
    """They are done at once, without a thread."""
    assert weight(elementwise.Negative(of(1000), of(1000))) < INLINE
    assert weight(blas.Gemm(of(32, 32), of(32, 32), of(32, 32))) < INLINE


@given(st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), max_size=4), st.integers(0, 10**9))
def test_only_arrays_that_repeat_may_seem_too_large(dimensions: list[tuple[int, bool]], most: int) -> None:
    """An array whose elements have places of their own is memory that is there."""
    shape, step, strides = tuple(n for n, _ in dimensions), 8, list[int]()
    for n, repeats in dimensions:
        strides.append(0 if repeats else step)
        step *= 1 if repeats else n
    layout = Layout("float64", shape, tuple(strides), 0)
    operand = FakeArray.__new__(FakeArray)
    operand.layout = layout
    request = elementwise.Negative(operand, operand)
    repeated = any(repeats and n > 1 for n, repeats in dimensions)
    if layout.nbytes > most and repeated:
        with pytest.raises(errors.OutOfMemory, match="repeats its elements") as raised:
            check_extents(request, most)
        assert not raised.value.maybe_executed
    else:
        check_extents(request, most)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_request_has_a_weight(case: Case) -> None:
    """Of a number that is not negative, whatever its declaration, and as much as its arrays at least."""

    @settings(max_examples=10)
    @given(case.drawn())
    def check(request: Any) -> None:
        assert weight(request) >= max(
            [each.layout.nbytes for _, _, each in request.arrays() if each is not None] or [0]
        )

    check()


# --- what is made -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_weighs_as_much_as_the_outputs_that_are_made_for_it(case: Case) -> None:
    """Of whatever size: also where nothing else is to do, and where its arrays, if it has any, are small."""

    @settings(max_examples=10)
    @given(case.drawn())
    def check(request: Any) -> None:
        for each in (request, *_without_outputs(request)):
            given_ = 0 if each.is_idle() else min(weight(each), UNKNOWN)
            made = sum(layout.nbytes for layout in each.results().values())
            assert weighed(each) >= min(given_ + made, UNKNOWN), each

    check()


def _without_outputs(request: Any) -> Iterator[Any]:
    """Return the request with all outputs left out that it need not be given, if there are some."""
    optional = {each.name for each in msgspec.structs.fields(type(request)) if each.default is None}
    outputs: dict[str, Any] = {
        name: None for name, argument, _ in request.arrays() if argument.writes and name in optional
    }
    changes = outputs | ({"beta": 0.0} if hasattr(request, "beta") else {})
    changes |= {"dtype": "float64"} if getattr(request, "dtype", "") is None else {}
    changes |= {"size": (3, 5)} if getattr(request, "size", 0) is None else {}
    left_out = msgspec.structs.replace(request, **changes)
    try:
        left_out.check()
    except errors.InvalidRequest:
        return
    if outputs:
        yield left_out


def _large_of_small() -> Iterator[LibraryRequest]:
    """Return requests with small inputs, or none, and large results."""
    n = LARGE // 8
    for name, drawn in requests_of("rng").items():
        given_ = {"gamma": {"shape": 1.0}, "beta": {"a": 1.0, "b": 1.0}, "choice": {"p": of(3)}}.get(name, {})
        yield drawn(size=(n,), **given_)
    yield memory.Full([n], "float64", 1.0)
    yield memory.Put(np.broadcast_to(0.0, (n,)))
    yield memory.GetPart(1, WireRef(bytes(16), 0, 0, "float64", (n,), (8,), 0))
    yield blas.Gemm(of(6000, 0), of(0, 6000))
    yield blas.Gemm(of(6000, 6000, strides=(0, 0)), of(6000, 6000, strides=(0, 0)), alpha=0.0)
    yield blas.Gemm(of(6000, 1), of(1, 6000))
    yield elementwise.Add(of(6000, 1), of(1, 6000))
    yield elementwise.Where(of(6000, 1, dtype="bool"), of(1, 6000), of(1, 1))
    yield solver.Qr(of(6000, 1))
    yield tensor.Contraction(of(6000), of(6000), "i", "j", "ij")
    matrix = matrix_of(of_mask("csr", np.eye(2, dtype=bool)), "float64")
    yield sparse.SparseToDense(msgspec.structs.replace(matrix, rows=6000, columns=6000))


@pytest.mark.parametrize("request_", list(_large_of_small()), ids=lambda each: name_of(type(each)))
def test_what_makes_much_of_little_is_heavy(request_: Any) -> None:
    """Its inputs are small, and its output is left out: it would hold the loop for as long as that takes to fill."""
    assert weighed(request_) >= LARGE


def test_random_numbers_take_longer_than_their_bytes() -> None:
    """Also where the output is given, and in a program."""
    assert weighed(rng.Gamma(1.0, of(2000))) > INLINE
    assert weighed(rng.Gamma(1.0, of(200))) < INLINE


SILENT: Final = [
    each
    for library in LIBRARIES
    for each in requests_of(library).values()
    if each.answers or (each.work == LibraryRequest.work and each.flops is LibraryRequest.flops)
]
"""Requests that declare no operations, or whose result no declaration tells the extent of."""


def test_what_declares_no_cost_is_never_light() -> None:
    """A new request is heavy until somebody says that its cost is that of its arrays."""
    silent = {name_of(each): each for each in SILENT}
    assert set(TOLD) <= set(silent), "these declare their work"
    never = {name for name, each in silent.items() if name not in TOLD and HOST.find(name).weigh != weigh}  # type: ignore[union-attr]
    drawn = {case.name: case for case in CASES}
    assert {"kernels.launch", "sparse.convert", "solver.eigh"} <= never
    for name in never & set(drawn):
        _assert_heavy(drawn[name])
    for name in never - set(drawn):
        assert name.startswith("kernels.")
    launched = kernels.KernelLaunch(_kernel(), [], [], [of(1)], b"", (), (1, 1, 1), (1, 1, 1))
    assert weighed(launched) == UNKNOWN


def _assert_heavy(case: Case) -> None:
    @settings(max_examples=3)
    @given(case.drawn())
    def check(request: Any) -> None:
        assert weighed(request) == UNKNOWN or request.is_idle()

    check()


def _kernel() -> kernels.KernelOf:
    return kernels.KernelOf(of(1), "k", bytes(32), ())


def test_ordinary_small_requests_are_light_with_outputs_left_out_too() -> None:
    """They are done at once."""
    for each in (
        blas.Axpy(of(16), of(16)),
        blas.Nrm2(of(1000)),
        blas.Gemm(of(16, 16), of(16, 16)),
        elementwise.Add(of(1000), of(1000)),
        elementwise.Cast(of(1000), dtype="float32"),
        memory.Full([1000], "float64", 0.0),
        memory.Empty([LARGE], "float64"),
        memory.Put(np.zeros(1000)),
        memory.Get(of(1000)),
        memory.Fill(of(1000), 1.0),
        rng.Normal(size=(100,)),
    ):
        assert weighed(each) < INLINE, each
