from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.base import check_fields
from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas, requests_of
from atomr_mp.protocol.libraries.base import COMPLEX, LibraryRequest, Scalar, operands
from tests.fake_arrays import GUARD_BYTES, FakeArray

REQUESTS: Final = requests_of("blas")
WITH_SCALARS: Final = [name for name, cls in REQUESTS.items() if {"alpha", "s"} & set(cls.__struct_fields__)]


def flat(count: int, dtype: str = "float32", offset: int = 0) -> FakeArray:
    """Return flat memory of so many elements."""
    return FakeArray(Layout.contiguous(dtype, (count,), offset))


def check(request: LibraryRequest) -> None:
    """Check as a reference does before it sends."""
    check_fields(request)
    request.check()


def example(name: str, dtype: str = "float32", /, **changes: Any) -> LibraryRequest:
    """Return a valid request with some of its fields changed."""
    return msgspec.structs.replace(EXAMPLES[name](lambda count: flat(count, dtype)), **changes)


def arrays(request: LibraryRequest) -> Mapping[str, bool]:
    """Return the fields that hold arrays, and whether the request writes them."""
    return operands(type(request))


EXAMPLES: Final[dict[str, Callable[[Callable[[int], FakeArray]], LibraryRequest]]] = {
    "axpy": lambda of: blas.Axpy(x=of(7), y=of(10), n=4, incx=-2, incy=3, alpha=2.0),
    "scal": lambda of: blas.Scal(x=of(7), n=4, incx=2, alpha=2.0),
    "nrm2": lambda of: blas.Nrm2(x=of(7), n=4, incx=2),
    "dot": lambda of: blas.Dot(x=of(7), y=of(10), n=4, incx=2, incy=-3),
    "asum": lambda of: blas.Asum(x=of(7), n=4, incx=2),
    "iamax": lambda of: blas.Iamax(x=of(7), n=4, incx=2),
    "iamin": lambda of: blas.Iamin(x=of(7), n=4, incx=2),
    "copy": lambda of: blas.Copy(x=of(7), y=of(10), n=4, incx=2, incy=3),
    "swap": lambda of: blas.Swap(x=of(7), y=of(10), n=4, incx=2, incy=3),
    "rot": lambda of: blas.Rot(x=of(7), y=of(10), n=4, incx=2, incy=3, c=0.6, s=0.8),
    "gemv": lambda of: blas.Gemv(a=of(17), x=of(4), y=of(7), m=2, n=4, lda=5, incx=1, incy=-6),
    "ger": lambda of: blas.Ger(a=of(17), x=of(3), y=of(7), m=2, n=4, lda=5, incx=2, incy=2),
    "geam": lambda of: blas.Geam(a=of(17), b=of(9), c=of(14), m=2, n=4, lda=5, ldb=5, ldc=4, trans_b="T"),
    "syrk": lambda of: blas.Syrk(a=of(14), c=of(22), n=4, k=3, lda=5, ldc=6, uplo="L"),
    "trsm": lambda of: blas.Trsm(a=of(11), b=of(18), m=4, n=3, lda=4, ldb=5, side="R", uplo="U", order="row"),
    "gemm": lambda of: blas.Gemm(a=of(14), b=of(16), c=of(10), m=2, n=3, k=4, lda=4, ldb=6, ldc=4),
    "gemm_strided_batched": lambda of: blas.GemmStridedBatched(
        a=of(34),
        b=of(16),
        c=of(34),
        m=2,
        n=3,
        k=4,
        lda=4,
        ldb=6,
        ldc=4,
        stride_a=10,
        stride_b=0,
        stride_c=12,
        batch_size=3,
    ),
}
"""A valid request of each kind, with gaps, whose memory ends with its last element."""

VIOLATIONS: Final[list[tuple[str, dict[str, Any], str]]] = [
    # sizes and their bounds
    ("axpy", {"n": -1}, "n is -1"),
    ("axpy", {"n": 2**31}, "n is 2147483648"),
    ("axpy", {"n": 1.5}, "n is 1.5"),
    ("gemv", {"m": -1}, "m is -1"),
    ("syrk", {"k": -1}, "k is -1"),
    ("gemm", {"k": 2**31}, "k is 2147483648"),
    ("gemm", {"lda": 2**31}, "lda is 2147483648"),
    ("gemm_strided_batched", {"batch_size": -1}, "batch_size is -1"),
    ("gemm_strided_batched", {"stride_a": -1}, "stride_a is -1"),
    ("gemm_strided_batched", {"stride_a": 2**63}, "stride_a is 9223372036854775808"),
    # increments
    ("axpy", {"incx": 0}, "incx is 0"),
    ("axpy", {"incy": 0}, "incy is 0"),
    ("axpy", {"incx": -(2**31)}, "incx is -2147483648"),
    ("gemv", {"incx": 0}, "incx is 0"),
    ("ger", {"incy": 0}, "incy is 0"),
    *(
        (name, {"incx": inc}, f"incx is {inc}")
        for name in ("scal", "nrm2", "asum", "iamax", "iamin")
        for inc in (0, -2)
    ),
    # leading dimensions
    ("gemv", {"lda": 1}, "lda must be at least 2"),
    ("gemv", {"lda": 3, "order": "row"}, "lda must be at least 4"),
    ("gemv", {"lda": 0, "m": 0}, "lda is 0"),
    ("ger", {"lda": 1}, "lda must be at least 2"),
    ("geam", {"lda": 1}, "lda must be at least 2"),
    ("geam", {"ldb": 3}, "ldb must be at least 4"),
    ("geam", {"ldc": 1}, "ldc must be at least 2"),
    ("syrk", {"lda": 3}, "lda must be at least 4"),
    ("syrk", {"lda": 2, "trans": "T"}, "lda must be at least 3"),
    ("syrk", {"ldc": 3}, "ldc must be at least 4"),
    ("trsm", {"lda": 2}, "lda must be at least 3"),
    ("trsm", {"lda": 3, "side": "L"}, "lda must be at least 4"),
    ("trsm", {"ldb": 2}, "ldb must be at least 3"),
    ("gemm", {"lda": 1}, "lda must be at least 2"),
    ("gemm", {"lda": 3, "trans_a": "T"}, "lda must be at least 4"),
    ("gemm", {"ldb": 3}, "ldb must be at least 4"),
    ("gemm", {"ldb": 2, "trans_b": "C"}, "ldb must be at least 3"),
    ("gemm", {"ldc": 1}, "ldc must be at least 2"),
    ("gemm_strided_batched", {"ldc": 1}, "ldc must be at least 2"),
    # room: sizes whose products would not fit 64 bits
    ("scal", {"n": 2**31 - 1, "incx": 2**31 - 1}, "x has 7 elements and needs 4611686011984936963: "),
    ("gemm", {"k": 2**31 - 1, "lda": 2**31 - 1, "ldb": 2**31 - 1}, "a has 14 elements"),
    ("gemm_strided_batched", {"batch_size": 2**31 - 1, "stride_c": 2**63 - 1}, "c has 34 elements"),
    # batches that are written
    ("gemm_strided_batched", {"stride_c": 0}, "the matrices of c overlap"),
    ("gemm_strided_batched", {"stride_c": 9}, "the matrices of c overlap"),
    ("gemm_strided_batched", {"stride_c": 2, "ldc": 5}, "the matrices of c overlap"),
    # words
    ("gemv", {"trans": "X"}, "trans is 'X'"),
    ("gemm", {"trans_a": "n"}, "trans_a is 'n'"),
    ("gemm", {"trans_b": ""}, "trans_b is ''"),
    ("gemm", {"order": "C"}, "order is 'C'"),
    ("syrk", {"uplo": "lower"}, "uplo is 'lower'"),
    ("trsm", {"uplo": "X"}, "uplo is 'X'"),
    ("trsm", {"side": "l"}, "side is 'l'"),
    ("trsm", {"diag": "unit"}, "diag is 'unit'"),
    ("axpy", {"alpha": "1"}, "alpha is '1'"),
    ("axpy", {"x": None}, "x is None"),
    # factors
    *((name, {"alpha": (1.0, 0.0)}, "alpha is complex") for name in WITH_SCALARS if name != "rot"),
    *((name, {"beta": (1.0, 0.0)}, "beta is complex") for name in ("gemv", "geam", "syrk", "gemm")),
    ("gemm_strided_batched", {"beta": (1.0, 0.0)}, "beta is complex"),
    ("rot", {"s": (1.0, 0.0)}, "s is complex"),
    ("rot", {"c": (1.0, 0.0)}, "c is"),
    # memory that does not consist of elements
    ("scal", {"x": FakeArray(Layout("float32", (7,), (4,), 2))}, "multiples of the 4 bytes"),
    ("scal", {"x": FakeArray(Layout("float32", (7,), (5,), 0))}, "multiples of the 4 bytes"),
    ("scal", {"x": FakeArray(Layout("float32", (7, 2), (4, 6), 0))}, "multiples of the 4 bytes"),
]


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_is_admitted_as_it_should_be(name: str) -> None:
    """The examples that are then violated are valid, for every type that the request is defined for."""
    for dtype in REQUESTS[name].dtypes:
        check(example(name, dtype))


@pytest.mark.parametrize(
    ("name", "changes", "message"), VIOLATIONS, ids=["-".join((name, *changes)) for name, changes, _ in VIOLATIONS]
)
def test_what_does_not_fit_is_refused_by_name(name: str, changes: dict[str, Any], message: str) -> None:
    """One rule is broken, and the error says which field, what it is, and what it must be."""
    with pytest.raises(errors.InvalidRequest) as caught:
        check(example(name, **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", REQUESTS)
def test_one_element_less_is_refused(name: str) -> None:
    """Every operand must have every element, to the last; the error tells both numbers."""
    for field in operands(REQUESTS[name]):
        count = getattr(example(name), field).size
        with pytest.raises(errors.InvalidRequest, match=rf"{field} has {count - 1} elements and needs {count}: "):
            check(example(name, **{field: flat(count - 1)}))


@pytest.mark.parametrize("name", REQUESTS)
def test_types_are_the_same_and_admitted(name: str) -> None:
    """A type that the request is not defined for is refused, and so is one array that differs from the others."""
    for dtype in sorted(set(dtypes.ITEM_BYTES) - set(REQUESTS[name].dtypes)):
        with pytest.raises(errors.InvalidRequest, match="not defined for"):
            check(example(name, dtype))
    fields = list(operands(REQUESTS[name]))
    for field in fields if len(fields) > 1 else []:
        with pytest.raises(errors.InvalidRequest, match="must be the same"):
            check(example(name, **{field: flat(100, "float64")}))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_syrk_of_complex_numbers_does_not_conjugate(dtype: str) -> None:
    """That would be herk."""
    with pytest.raises(errors.InvalidRequest, match="herk"):
        check(example("syrk", dtype, trans="C", lda=3))
    check(example("syrk", dtype, alpha=(1.0, 2.0), beta=(0.0, 1.0)))


@pytest.mark.parametrize("name", [name for name, cls in REQUESTS.items() if any(operands(cls).values())])
def test_what_is_written_overlaps_nothing(name: str) -> None:
    """One element in common is a conflict; neighbours in one buffer are none."""
    fields = operands(REQUESTS[name])
    for written in [field for field, writes in fields.items() if writes]:
        for other in fields.keys() - {written}:
            here, there = getattr(example(name), written).size, getattr(example(name), other).size
            memory = flat(here + there)
            check(example(name, **{written: memory[:here], other: memory[here:]}))
            check(example(name, **{written: memory[there:], other: memory[:there]}))
            with pytest.raises(errors.BorrowConflict, match=f"{written} is written and overlaps {other}|and overlaps"):
                check(example(name, **{written: memory[:here], other: memory[here - 1 :]}))


def test_only_geam_writes_what_it_reads_and_only_in_place() -> None:
    """C may be A or B: not transposed, with the same leading dimension, from the same element on."""
    memory = flat(18)
    in_place = {"a": memory[:17], "c": memory[:17], "ldc": 5}
    check(example("geam", **in_place))
    check(example("geam", b=memory[:17], c=memory[:17], ldb=5, ldc=5, trans_b="N"))
    check(example("geam", a=memory[:17], b=memory[:17], c=memory[:17], ldb=5, ldc=5, trans_b="N"))
    for changes in (
        in_place | {"lda": 4},
        in_place | {"a": memory[1:]},
        in_place | {"m": 4, "n": 3, "lda": 4, "ldc": 4, "trans_a": "T", "trans_b": "N", "b": flat(100)},
    ):
        with pytest.raises(errors.BorrowConflict, match="c is written and overlaps a"):
            check(example("geam", **changes))


def test_blocks_of_one_matrix_do_not_overlap() -> None:
    """Their memory is interleaved, but no element is in both: blocked algorithms work in place."""
    matrix = FakeArray(Layout.contiguous("float64", (9, 9), order="F"))
    diagonal, below, right = matrix[:4, :4], matrix[4:, :4], matrix[:4, 4:]
    check(blas.Trsm(a=diagonal, b=below, m=5, n=4, lda=9, ldb=9, side="R", uplo="L", trans="T"))
    check(blas.Trsm(a=diagonal, b=right, m=4, n=5, lda=9, ldb=9, side="L", uplo="L"))
    check(blas.Gemm(a=below, b=right, c=matrix[4:, 4:], m=5, n=5, k=4, lda=9, ldb=9, ldc=9))
    check(blas.Swap(x=matrix[2], y=matrix[5], n=9, incx=9, incy=9))
    check(blas.Gemv(a=matrix[:4, :4], x=matrix[:4, 4], y=matrix[4:8, 0], m=4, n=4, lda=9, incx=1, incy=1))
    check(blas.Ger(a=matrix[1:, 1:], x=matrix[1:, 0], y=matrix[0, 1:], m=8, n=8, lda=9, incx=1, incy=9))
    with pytest.raises(errors.BorrowConflict):
        check(blas.Gemv(a=matrix[:4, :4], x=matrix[:4, 4], y=matrix[3:7, 0], m=4, n=4, lda=9, incx=1, incy=1))
    with pytest.raises(errors.BorrowConflict):
        check(blas.Trsm(a=matrix[1:5, :4], b=below, m=5, n=4, lda=9, ldb=9, side="R", uplo="L"))


@given(st.data())
def test_blocks_conflict_exactly_where_they_share_an_element(data: st.DataObject) -> None:
    """For blocks of one matrix the check says what comparing all elements says."""
    matrix = FakeArray(Layout.contiguous("float32", (7, 7), order="F"))
    elements = np.arange(49).reshape(7, 7).T
    blocks = []
    for _ in range(2):
        (top, bottom), (left, right) = (
            sorted(data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))) for _ in "rc"
        )
        blocks.append((slice(top, bottom), slice(left, right)))
    (one, other) = blocks
    rows, columns = (min(matrix[one].shape[axis], matrix[other].shape[axis]) for axis in (0, 1))
    request = blas.Geam(a=matrix[one], b=flat(49), c=matrix[other], m=rows, n=columns, lda=7, ldb=7, ldc=7, trans_a="N")
    shared = np.intersect1d(elements[one][:rows, :columns], elements[other][:rows, :columns])
    if shared.size and matrix[one].layout.span[0] != matrix[other].layout.span[0]:
        with pytest.raises(errors.BorrowConflict):
            check(request)
    else:
        check(request)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_messages_survive_the_wire(name: str, dtype: str) -> None:
    """Every field is the same afterwards, and arrays are what the receiver makes of their refs."""
    request = example(name, dtype)
    for scalar in {"alpha", "beta", "s"} & set(request.__struct_fields__) if dtype in COMPLEX else ():
        request = msgspec.structs.replace(request, **{scalar: (0.5, -2.0)})
    sent = {array.memory: array for field in arrays(request) for array in [getattr(request, field)]}
    body, frames, _ = values.encode(request)
    decoder: values.Decoder[Any] = values.Decoder(type(request))
    received = decoder.decode(
        body,
        frames,
        lambda wire: sent[getattr(wire, "buffer")].from_wire(wire),  # noqa: B009
    )
    received.check()
    for field in request.__struct_fields__:
        before, after = getattr(request, field), getattr(received, field)
        if isinstance(before, FakeArray):
            assert (after.layout, after.memory) == (before.layout, before.memory)
        else:
            assert (after, type(after)) == (before, type(before))


@pytest.mark.parametrize(("field", "value"), [("n", -1), ("incx", 0), ("incx", 2**31), ("n", "4"), ("alpha", None)])
def test_the_worker_does_not_rely_on_the_senders_checks(field: str, value: object) -> None:
    """What the client should not have sent is refused when it is decoded or checked."""
    request = example("scal", **{field: value})
    memory = request.x  # type: ignore[attr-defined]
    body, _, _ = values.encode(request)
    with pytest.raises(errors.InvalidRequest):
        values.Decoder(type(request)).decode(body, (), memory.from_wire).check()


Places = npt.NDArray[np.intp]


def shapes(request: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a request's operands have in memory."""
    size = {name: getattr(request, name, 0) for name in "mnk"}
    if request.name == "trsm":
        size["k"] = size["m" if request.side == "L" else "n"]
    found = {}
    for name in arrays(request):
        letters, trans = SHAPES.get(request.name, {}).get(name, ("n", None))
        turned = trans is not None and getattr(request, trans) != "N"
        found[name] = tuple(size[letter] for letter in (letters[::-1] if turned else letters))
    if request.name == "gemv" and request.trans != "N":
        found["x"], found["y"] = found["y"], found["x"]
    return found


SHAPES: Final[dict[str, dict[str, tuple[str, str | None]]]] = {
    "gemv": {"a": ("mn", None), "x": ("n", None), "y": ("m", None)},
    "ger": {"a": ("mn", None), "x": ("m", None), "y": ("n", None)},
    "geam": {"a": ("mn", "trans_a"), "b": ("mn", "trans_b"), "c": ("mn", None)},
    "syrk": {"a": ("nk", "trans"), "c": ("nn", None)},
    "trsm": {"a": ("kk", None), "b": ("mn", None)},
    "gemm": {"a": ("mk", "trans_a"), "b": ("kn", "trans_b"), "c": ("mn", None)},
    "gemm_strided_batched": {"a": ("mk", "trans_a"), "b": ("kn", "trans_b"), "c": ("mn", None)},
}
"""Sizes of op(A), and the field that says whether A is its transpose; vectors of n elements are left out."""


def places(request: Any, name: str) -> Places:
    """Return where the elements of an operand are, counted from the lowest of its memory."""
    shape = shapes(request)[name]
    if len(shape) == 1:
        increment: int = getattr(request, f"inc{name}")
        return np.arange(shape[0]) * increment + (0 if increment > 0 else (1 - shape[0]) * increment)
    leading = getattr(request, f"ld{name}")
    steps = (1, leading) if request.order == "column" else (leading, 1)
    one: Places = np.arange(shape[0])[:, None] * steps[0] + np.arange(shape[1]) * steps[1]
    if not isinstance(request, blas.GemmStridedBatched):
        return one
    stride: int = getattr(request, f"stride_{name}")
    return np.arange(request.batch_size)[:, None, None] * stride + one


@st.composite
def requests(draw: st.DrawFn, name: str, sizes: Sequence[int] = (0, 1, 2, 3, 5, 7)) -> LibraryRequest:
    """Draw a valid request: its memory is poisoned (all NaN), just large enough or larger, and begins anywhere."""
    cls: Any = REQUESTS[name]
    dtype = draw(st.sampled_from(cls.dtypes))
    request = cls(**{field.name: draw(fields(field, dtype, sizes)) for field in msgspec.structs.fields(cls)})
    if name == "syrk" and dtype in COMPLEX and request.trans == "C":
        request = msgspec.structs.replace(request, trans="T")
    for operand, shape in shapes(request).items():
        if len(shape) == 2:
            request = msgspec.structs.replace(request, **draw(leading(request, operand, shape)))
        count = int(places(request, operand).max(initial=-1)) + 1 + draw(st.sampled_from([0, 0, 4]))
        memory = flat(count, dtype, GUARD_BYTES + dtypes.item_bytes(dtype) * draw(st.integers(0, 3)))
        memory.slab[:] = 0xFF
        request = msgspec.structs.replace(request, **{operand: memory})
    drawn: LibraryRequest = request
    return drawn


def fields(field: msgspec.structs.FieldInfo, dtype: str, sizes: Sequence[int]) -> st.SearchStrategy[Any]:
    """Return the values of a field; operands and what depends on sizes are drawn later."""
    match field.name:
        case "incx" | "incy":
            steps = st.integers(1, 3)
            return steps if field.type is blas.Forward else steps | steps.map(operator.neg)
        case "alpha" | "beta" | "s":
            factors: list[Scalar] = [0.0, 1.0, -0.75, 2.5]
            return st.sampled_from([*factors, (0.0, 1.0), (0.5, -1.25)] if dtype in COMPLEX else factors)
        case "c" if field.type is float:
            return st.sampled_from([0.0, 1.0, 0.6])
        case "m" | "n" | "k" | "batch_size":
            return st.sampled_from([0, 1, 3, 7] if field.name == "batch_size" else sizes)
        case "conjugate" | "trans" | "trans_a" | "trans_b" | "order" | "side" | "uplo" | "diag":
            return st.sampled_from(get_args(field.type) or (False, True))
        case _:
            return st.none()


@st.composite
def leading(draw: st.DrawFn, request: Any, operand: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Draw the leading dimension of a matrix, and the stride to the next of its batch."""
    length, times = shape if request.order == "column" else shape[::-1]
    ld = max(1, length) + draw(st.integers(0, 2))
    if not isinstance(request, blas.GemmStridedBatched):
        return {f"ld{operand}": ld}
    least = ld * (times - 1) + length if length and times else 0
    stride = least + draw(st.integers(0, 2))
    if operand != "c":
        stride = draw(st.integers(0, least + 2))
    elif draw(st.booleans()):
        stride = length + draw(st.integers(0, 1))
        ld = max(ld, stride * max(0, request.batch_size - 1) + length)
    return {f"ld{operand}": ld, f"stride_{operand}": stride}


@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_valid_is_refused(name: str) -> None:
    """Sizes of 0 and 1, any increment, leading dimension, order and op, and memory that just suffices are admitted."""

    @given(requests(name))
    def admitted(request: LibraryRequest) -> None:
        check(request)

    admitted()
