from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.base import LibraryReference, check
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration import overlap, strides
from atomr_mp.protocol.declaration.arguments import reads, updates, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.declaration.shapes import evaluated
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import DECLARED, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest, Moving
from atomr_mp.protocol.libraries.blas_lt import Matmul
from atomr_mp.protocol.libraries.fft import Transform
from atomr_mp.protocol.refs import Operand
from tests.cases import (
    blas_lt_cases,
    dnn_cases,
    elementwise_cases,
    fft_cases,
    rng_cases,
    solver_cases,
    sparse_cases,
    tensor_cases,
)
from tests.declared import breakages, positions, refused_in_the_worker, requests
from tests.fakes.fake_arrays import FakeArray

ROOT: Final = Path(__file__).resolve().parents[3]
REQUESTS: Final = [cls for library in DECLARED for cls in requests_of(library).values()]
DRAWN: Final[dict[type[LibraryRequest], st.SearchStrategy[Any]]] = {
    Matmul: blas_lt_cases.requests(pairs=blas_lt_cases.WIDE),
    Transform: fft_cases.requests(),
}
"""What requests are drawn from whose parameters depend on each other."""
CASES: Final[dict[str, Any]] = {
    "dnn": dnn_cases,
    "elementwise": elementwise_cases,
    "rng": rng_cases,
    "solver": solver_cases,
    "sparse": sparse_cases,
    "tensor": tensor_cases,
}
"""Where all requests of a library are drawn."""


def drawn(cls: type[LibraryRequest]) -> st.SearchStrategy[Any]:
    """Return what valid requests of a type are drawn from."""
    cases = CASES.get(cls.__module__.rpartition(".")[2])
    if cases is not None:
        own: st.SearchStrategy[Any] = cases.requests(cls)
        return own
    return DRAWN[cls] if cls in DRAWN else requests(cls)


@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: f"{cls.__module__.rpartition('.')[2]}.{cls.name}")
def test_every_broken_rule_is_refused_in_the_client_and_in_the_worker(cls: type[LibraryRequest]) -> None:
    """Whatever the declaration says is checked on both sides, and the error is typed."""
    seen: set[str] = set()

    @given(st.data())
    @settings(max_examples=15, deadline=None)
    def refused(data: st.DataObject) -> None:
        for what, broken in breakages(data.draw(drawn(cls))):
            with pytest.raises((errors.InvalidRequest, errors.BorrowConflict)):
                check(broken)
            assert refused_in_the_worker(broken), what
            seen.add(what)

    refused()
    assert len(seen) > 3


@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: f"{cls.__module__.rpartition('.')[2]}.{cls.name}")
def test_messages_survive_the_wire(cls: type[LibraryRequest]) -> None:
    """Every field is the same afterwards, and arrays are what the receiver makes of their refs."""

    @given(st.data())
    @settings(max_examples=5, deadline=None)
    def survives(data: st.DataObject) -> None:
        request = data.draw(drawn(cls))
        sent: dict[int, Any] = {array.number: array for _, _, array in request.arrays() if array is not None}
        body, frames, _ = values.encode(request)
        decoder: values.Decoder[Any] = values.Decoder(cls, cls.hook())
        received = decoder.decode(body, frames, lambda wire: sent[wire.buffer].from_wire(wire))  # type: ignore[union-attr]
        assert received.identity() == request.identity()
        assert received.plan_key() == request.plan_key()

    survives()


def test_the_lines_of_every_library_are_counted() -> None:
    """`scripts/library-cost` finds the files of each, and of what they share."""
    command = [sys.executable, str(ROOT / "scripts" / "library-cost"), "--json"]
    counts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(counts) == {*DECLARED, "all", "programs", "core"}
    assert all(row["product"] and row["tests"] for row in counts.values()), counts
    assert counts["all"]["requests"] == sum(len(requests_of(library)) for library in DECLARED)


@pytest.mark.parametrize("library", DECLARED)
def test_a_reference_has_a_method_for_each_request(library: str) -> None:
    """It is typed source, with a docstring for each parameter."""
    reference: type[LibraryReference] = importlib.import_module(f"atomr_mp.libraries.{library}").Reference
    for name, cls in requests_of(library).items():
        text = getattr(reference, name).__doc__
        assert all(f"    {field}: " in text for field in cls.__struct_fields__ if field not in cls.held), name


# --- what a declaration gives -----------------------------------------------------------------------------------------


class Csr(msgspec.Struct, frozen=True, array_like=True):
    """A struct of arrays."""

    data: Annotated[Operand, reads("nnz", lies=strides.packed)]
    rows: Annotated[Operand, reads("nnz", dtype="I", lies=strides.packed)]
    shape: tuple[int, int]


def _joined(request: Any, sizes: Any) -> tuple[int, ...]:
    """(the sum of the lengths of the parts, n)."""
    return sum(part.shape[0] for part in request.parts), sizes["n"]


class Everything(LibraryRequest, frozen=True):
    """A request that uses all that can be declared."""

    name: ClassVar = "everything"
    types: ClassVar = {"T": ("float32", "complex64"), "I": ("int32",)}
    parts: Annotated[list[Operand], reads("_ n")]
    matrix: Csr
    out: Annotated[Operand | None, writes(_joined, factor="beta")] = None
    state: Annotated[Operand | None, updates("n")] = None
    beta: Scalar = 0.0
    offset: Moving = 0
    axis: int = 0


def everything(**changes: Any) -> Everything:
    """Return a valid request with some of its fields changed."""
    made = Everything(
        parts=[FakeArray.of(np.zeros((2, 3)), "float32"), FakeArray.of(np.zeros((4, 3)), "float32")],
        matrix=Csr(FakeArray.of(np.zeros(5), "float32"), FakeArray.of(np.zeros(5), "int32"), (2, 2)),
        state=FakeArray.of(np.zeros(3), "float32"),
    )
    return msgspec.structs.replace(made, **changes)


def test_arrays_in_lists_and_structs_are_declared_as_others() -> None:
    """They have names for messages, are checked, and are written only if that is declared."""
    request = everything()
    check(request)
    assert [name for name, _, _ in request.arrays()] == [
        "out",
        "state",
        "parts[0]",
        "parts[1]",
        "matrix.data",
        "matrix.rows",
    ]
    assert request.written() == [request.state]
    assert request.results() == {"out": Layout.contiguous("float32", (6, 3))}
    assert request.sizes() == {"n": 3, "nnz": 5}
    broken = Csr(FakeArray.of(np.zeros(5), "float32"), FakeArray.of(np.zeros(4), "int32"), (2, 2))
    with pytest.raises(errors.InvalidRequest, match=r"nnz must be .* it is 5 for matrix.data, 4 for matrix.rows"):
        check(everything(matrix=broken))
    with pytest.raises(errors.InvalidRequest, match=r"matrix.rows may be int32"):
        check(everything(matrix=Csr(broken.data, FakeArray.of(np.zeros(5), "int64"), (2, 2))))
    with pytest.raises(errors.BorrowConflict, match=r"state is written and overlaps parts\[0\]|overlaps"):
        check(msgspec.structs.replace(request, state=request.parts[0][0]))  # type: ignore[index]


def test_plans_depend_on_all_but_what_is_given_anew() -> None:
    """Layouts, alignments and parameters count; of a factor whether it is 0; of a moving parameter nothing."""
    request = everything(out=FakeArray.of(np.zeros((6, 3)), "float32"))
    key = request.plan_key()
    same = {"offset": 7, "state": FakeArray.of(np.ones(3), "float32")}
    for name, value in same.items():
        assert msgspec.structs.replace(request, **{name: value}).plan_key() == key, name
    other = {
        "beta": 2.0,
        "axis": 1,
        "state": FakeArray(Layout("float32", (3,), (8,), 64)),
        "out": FakeArray(Layout.contiguous("float32", (6, 3), 68)),
        "matrix": Csr(request.matrix.data, request.matrix.rows, (3, 2)),
    }
    keys = [msgspec.structs.replace(request, **{name: value}).plan_key() for name, value in other.items()]
    assert len({key, *keys}) == len(keys) + 1
    assert everything(beta=2.0).plan_key() == everything(beta=3.0).plan_key()


def test_what_recurs_is_all_but_what_moves_on() -> None:
    """Memory and each parameter count, so that what was checked once need not be checked again."""
    request = everything()
    recurring = request.recurring()
    assert everything(offset=7).recurring() != recurring  # other memory
    assert msgspec.structs.replace(request, offset=7).recurring() == recurring
    assert msgspec.structs.replace(request, offset=7).identity() != request.identity()
    for name, value in {"beta": 2.0, "axis": 1, "state": None, "parts": request.parts[:1]}.items():
        assert msgspec.structs.replace(request, **{name: value}).recurring() != recurring, name


def test_work_and_traffic_follow_from_the_sizes() -> None:
    """Operations as is usual to count them, and the bytes of each array once for each direction."""
    gemm = requests_of("blas")["gemm"]
    a, b, c = (FakeArray.of(np.zeros(shape), "float32") for shape in ((2, 3), (3, 4), (2, 4)))
    request: Any = gemm(a, b, c)
    assert request.flops() == 2 * 2 * 3 * 4
    assert request.moved_bytes() == 4 * (6 + 12 + 8)
    assert msgspec.structs.replace(request, beta=1.0).moved_bytes() == 4 * (6 + 12 + 2 * 8)
    assert evaluated("2/3 n³ - n² + short m", request, {"m": 2, "n": 3}) == 18 - 9 + 4


def test_the_formula_of_every_request_is_a_number() -> None:
    """All of its names are known."""
    for cls in REQUESTS:

        @given(drawn(cls))
        @settings(max_examples=3, deadline=None)
        def counted(request: LibraryRequest) -> None:
            assert request.flops() >= 0

        counted()


def test_what_moves_no_elements_declares_no_bytes() -> None:
    """To take a borrow, to accept and to share; what fills or copies declares its own."""
    array, own = FakeArray.of(np.zeros(10), "float64"), requests_of("memory")
    still: list[Any] = [own["borrow"](array, 1), own["accept"](array), own["share"](array, bytes(16))]
    assert [each.moved_bytes() for each in still] == [0, 0, 0]
    moving: list[Any] = [own["fill"](array, 1.0), own["full"]([10], "float64", 1.0), own["put"](np.zeros(10))]
    assert [each.moved_bytes() for each in moving] == [80, 80, 80]
    assert requests_of("elementwise")["copy"](array).flops() == 0


@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: f"{cls.__module__.rpartition('.')[2]}.{cls.name}")
def test_requests_with_one_key_of_their_work_declare_the_same(cls: type[LibraryRequest]) -> None:
    """So a worker reckons it once for all arrays of these sizes."""
    found: dict[Any, tuple[int, int]] = {}

    @given(drawn(cls))
    @settings(max_examples=20, deadline=None)
    def reckoned(request: LibraryRequest) -> None:
        key, work = request.work_key(), (request.flops(), request.moved_bytes())
        if key is not None:
            assert found.setdefault(key, work) == work

    reckoned()


# --- how arrays lie ---------------------------------------------------------------------------------------------------


layouts: Final = st.builds(
    lambda shape, steps, offset: Layout("int16", tuple(shape), tuple(2 * step for step in steps[: len(shape)]), offset),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(-12, 12), min_size=3, max_size=3),
    st.integers(100, 120).map(lambda at: 2 * at),
)


@given(layouts, layouts)
@settings(max_examples=200)
def test_arrays_that_share_an_element_are_always_found(one: Layout, other: Layout) -> None:
    """And where both are rows, columns or blocks of one matrix, only these."""
    first, second = (set(positions(FakeArray(each)).reshape(-1).tolist()) for each in (one, other))
    share = overlap.share_elements(one, other)
    assert share or not first & second
    combs = [overlap.comb_of(each) for each in (one, other)]
    for comb, exact in zip(combs, (first, second), strict=True):
        if comb is not None:
            runs = [range(comb.low + i * comb.step, comb.low + i * comb.step + comb.run) for i in range(comb.times)]
            covered = set(itertools.chain.from_iterable(runs))
            assert exact <= covered
    if all(comb is not None for comb in combs) and len({comb.step for comb in combs if comb and comb.times > 1}) < 2:
        covers = [
            {at + i * comb.step for i in range(comb.times) for at in range(comb.low, comb.low + comb.run)}
            for comb in combs
            if comb is not None
        ]
        assert share == bool(covers[0] & covers[1])


@given(layouts)
@settings(max_examples=300)
def test_elements_that_are_told_apart_are(layout: Layout) -> None:
    """No byte belongs to two elements of an array that may be written."""
    if strides.is_apart(layout):
        at = positions(FakeArray(layout)).reshape(-1)
        assert len(set(at.tolist())) == at.size


@given(layouts)
@settings(max_examples=300)
def test_a_leading_dimension_tells_where_each_element_is(layout: Layout) -> None:
    """As BLAS counts, in either order; and the batch has one stride."""
    if len(layout.shape) < 2:
        return
    for order in ("row", "column"):
        ld = strides.leading(layout, order)
        if not ld:
            continue
        rows, columns = layout.shape[-2:]
        assert ld >= max(1, columns if order == "row" else rows)
        matrix = positions(FakeArray(layout))[..., 0].reshape(-1, rows, columns)
        i, j = np.indices((rows, columns))
        expected = (i * ld + j if order == "row" else i + j * ld) * 2
        assert (matrix - matrix[:, :1, :1] == expected).all()
        stride = strides.batch_stride(layout)
        if stride is not None:
            assert (matrix[:, 0, 0] - matrix[0, 0, 0] == stride * np.arange(len(matrix))).all()
