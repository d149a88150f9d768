"""Layouts are NumPy's: every view is compared with the one that NumPy makes of an array in the same memory."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import MAX_BYTES, MAX_DIMENSIONS, Layout, check_shape
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.token import TOKEN_BYTES

Array = npt.NDArray[Any]

DTYPES: Final = sorted(dtypes.ITEM_BYTES)
SLAB_BYTES: Final = 2**15

names = st.sampled_from(DTYPES)
orders = st.sampled_from("CF")
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


# --- views, beside NumPy's -----------------------------------------------------------------------------------


def address(array: Array) -> int:
    """Return where an array's first element lies."""
    found: int = array.__array_interface__["data"][0]
    return found


def assert_alike(layout: Layout, array: Array, slab: Array) -> None:
    """Compare a layout with an array in a slab. Empty arrays have no elements to compare."""
    assert layout.shape == array.shape
    assert (layout.size, layout.nbytes, layout.item_bytes) == (array.size, array.nbytes, array.itemsize)
    assert layout.is_contiguous("C") == array.flags.c_contiguous
    assert layout.is_contiguous("F") == array.flags.f_contiguous
    low, high = layout.span
    if array.size == 0:
        assert low == high
        assert 0 <= low <= slab.nbytes
        return
    assert layout.offset == address(array) - address(slab)
    assert all(
        stride == other
        for n, stride, other in zip(layout.shape, layout.strides, array.strides, strict=True)
        if n > 1  # no other stride is ever used
    )
    bounds = np.lib.array_utils.byte_bounds(array)
    assert (low, high) == tuple(at - address(slab) for at in bounds)


def array_of(layout: Layout, slab: Array) -> Array:
    """Return the array that a layout describes."""
    dtype = dtypes.to_numpy(layout.dtype)
    return np.ndarray(layout.shape, dtype, slab.data, layout.offset, layout.strides)


@st.composite
def steps(draw: st.DrawFn, array: Array) -> tuple[str, Any]:
    """Draw a way of making a view of an array; reshaping may need a copy."""
    kind = draw(st.sampled_from(["index", "transpose", "reverse", "reshape"]))
    match kind:
        case "index":
            return kind, draw(hnp.basic_indices(array.shape, allow_newaxis=True, max_dims=8))
        case "transpose":
            axes = draw(st.permutations(range(array.ndim)))
            return kind, tuple(axis - array.ndim if draw(st.booleans()) else axis for axis in axes)
        case "reverse":
            return kind, None
        case _:
            return kind, draw(shapes_of(array.size))


@st.composite
def shapes_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Draw a shape of this many elements, perhaps with one length left open."""
    lengths: list[int] = []
    if size == 0:
        lengths += [*draw(st.lists(st.integers(0, 3), max_size=3)), 0]
    else:
        left = size
        while left > 1:
            factor = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
            lengths.append(factor)
            left //= factor
        lengths += [1] * draw(st.integers(0, 2))
    shape = list(draw(st.permutations(lengths)))
    if draw(st.booleans()) and shape:
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return tuple(shape)


def taken(view: Array | Layout, step: tuple[str, Any]) -> Any:
    """Return what a step makes of an array, or of a layout; never a copy."""
    kind, how = step
    if kind == "index":
        return view[how] if isinstance(view, np.ndarray) else view.indexed(how)
    if kind == "reshape":
        return np.reshape(view, how, copy=False) if isinstance(view, np.ndarray) else view.reshaped(how)
    return view.transpose(how) if isinstance(view, np.ndarray) else view.transposed(how)


@settings(max_examples=300)
@given(dtype=names, shape=shapes, order=orders, start=st.integers(0, 10), drawn=st.data())
def test_any_walk_of_views_is_numpys(dtype: str, shape: tuple[int, ...], order: str, start: int, drawn: Any) -> None:
    """Shape, strides, offset, contiguity and bounds; a view is refused exactly where NumPy refuses, or would copy."""
    slab = np.zeros(SLAB_BYTES, np.uint8)
    layout = Layout.contiguous(dtype, shape, start * 16, order=order)
    array = array_of(layout, slab)
    assert_alike(layout, array, slab)
    first, last = layout.span
    assert array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
    for _ in range(drawn.draw(st.integers(1, 6), label="length of the walk")):
        step = drawn.draw(steps(array), label="step")
        try:
            expected = taken(array, step)
        except ValueError:
            with pytest.raises(ValueError, match=r"reshape|viewed"):
                taken(layout, step)
            continue
        if not isinstance(expected, np.ndarray):  # NumPy gives scalars where we give arrays without dimensions
            expected = array[(*step[1], ...) if isinstance(step[1], tuple) else (step[1], ...)]
        assume(expected.ndim <= MAX_DIMENSIONS)
        layout, array = taken(layout, step), expected
        assert_alike(layout, array, slab)
        low, high = layout.span
        assert first <= low <= high <= last, "the view leaves the memory of what it was made from"
    if array.size:
        assert np.shares_memory(array_of(layout, slab), array)


@given(shape=shapes, wanted=st.lists(st.integers(-2, 6), max_size=4).map(tuple))
@example(shape=(0,), wanted=(0, -1))
@example(shape=(0, 3), wanted=(-1, 3))
@example(shape=(), wanted=())
@example(shape=(1,), wanted=(-1, -1))
def test_a_shape_fits_where_numpys_does(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Also with a length left open, and where it is unknown what that would be."""
    assume(-2 not in wanted or -1 in wanted)  # NumPy takes any single negative length for one that is open
    assume(sum(n < 0 for n in wanted) != 1 or -1 in wanted)
    array = np.zeros(shape, np.int16)
    layout = Layout.contiguous("int16", shape)
    try:
        expected = array.reshape(wanted)
    except ValueError:
        with pytest.raises(ValueError, match="shape"):
            layout.reshaped(wanted)
    else:
        assert layout.reshaped(wanted).shape == expected.shape


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(3, id="one beyond"),
        pytest.param(-4, id="one before"),
        pytest.param((0, 0, 0), id="too many"),
        pytest.param((..., 0, 0, 0), id="too many behind an ellipsis"),
        pytest.param((..., ...), id="two ellipses"),
        pytest.param(True, id="a bool"),
        pytest.param((0, False), id="a bool among integers"),
        pytest.param(np.True_, id="NumPy's bool"),
        pytest.param(1.0, id="a float"),
        pytest.param("0", id="text"),
        pytest.param([0, 1], id="a list"),
        pytest.param(np.array([0, 1]), id="an array"),
        pytest.param((np.array([True, False, True]), 0), id="a mask"),
        pytest.param((slice(None), object()), id="an object"),
    ],
)
def test_what_is_not_basic_indexing_is_an_index_error(index: Any) -> None:
    """Never another error, and never what NumPy would copy for."""
    with pytest.raises(IndexError):
        Layout.contiguous("int8", (3, 2)).indexed(index)


def test_numpys_integers_index_as_pythons() -> None:
    """Whatever has `__index__`."""
    layout = Layout.contiguous("int8", (3, 2))
    assert layout.indexed(np.int64(-1)) == layout.indexed(2)
    assert layout.indexed((np.array(1), np.uint8(1))) == layout.indexed((1, 1))


def test_a_slice_without_a_step_is_numpys_error() -> None:
    """A step of 0 and bounds that are no integers are refused as by NumPy."""
    layout = Layout.contiguous("int8", (3,))
    with pytest.raises(ValueError, match="step"):
        layout.indexed(slice(None, None, 0))
    with pytest.raises(TypeError, match="slice indices"):
        layout.indexed(slice(0.5, None))


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0, -3), (0, 1, 2), ()])
def test_axes_must_name_each_dimension_once(axes: tuple[int, ...]) -> None:
    """Counted from the front or from the back."""
    with pytest.raises(ValueError, match="axes"):
        Layout.contiguous("int8", (3, 2)).transposed(axes)


def test_new_dimensions_have_a_limit() -> None:
    """It is that of arriving shapes."""
    layout = Layout.contiguous("int8", (1,) * (MAX_DIMENSIONS - 1))
    assert len(layout.indexed(None).shape) == MAX_DIMENSIONS
    with pytest.raises(errors.InvalidRequest, match=str(MAX_DIMENSIONS)):
        layout.indexed((None, None))


# --- overlaps ------------------------------------------------------------------------------------------------


@given(dtype=names, other_dtype=names, drawn=st.data())
def test_views_that_share_memory_overlap(dtype: str, other_dtype: str, drawn: Any) -> None:
    """Whoever trusts a "no" never reads what is being written; and an empty array overlaps nothing."""
    slab = np.zeros(256, np.uint8)
    drawn_layouts = []
    for name in (dtype, other_dtype):
        layout = Layout.contiguous(name, (256 // dtypes.item_bytes(name),))
        for _ in range(2):
            if layout.shape and layout.size:
                layout = layout.indexed(drawn.draw(st.slices(layout.shape[0]), label="slice"))
        drawn_layouts.append(layout)
    one, other = drawn_layouts
    if np.shares_memory(array_of(one, slab), array_of(other, slab)):
        assert one.overlaps(other)
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(one) == (one.size > 0)
    if not one.size:
        assert not one.overlaps(other)


def test_an_empty_array_in_the_middle_of_another_overlaps_nothing() -> None:
    """It has a place, and no bytes there."""
    layout = Layout.contiguous("int8", (10,))
    empty = layout.indexed(slice(5, None)).indexed(slice(0, 0))
    assert empty.span == (5, 5)
    assert not empty.overlaps(layout)
    assert not layout.overlaps(empty)


# --- what can exist ------------------------------------------------------------------------------------------

lengths = st.integers(0, 5) | st.integers(-(2**70), 2**70) | st.sampled_from([MAX_BYTES, MAX_BYTES + 1])


@given(st.lists(lengths, max_size=MAX_DIMENSIONS + 3).map(tuple), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_shape_is_admitted_exactly_if_it_can_exist(shape: tuple[int, ...], item_bytes: int) -> None:
    """No more dimensions and bytes than the limits, empty lengths not counted; then no product overflows anywhere."""
    possible = (
        len(shape) <= MAX_DIMENSIONS
        and all(n >= 0 for n in shape)
        and math.prod(n for n in shape if n) * item_bytes <= MAX_BYTES
    )
    if possible:
        check_shape(shape, item_bytes)
    else:
        with pytest.raises(errors.InvalidRequest):
            check_shape(shape, item_bytes)


@pytest.mark.timeout(20)
def test_a_long_list_of_large_numbers_is_refused_at_once() -> None:
    """Their product has millions of digits; it is not computed."""
    for shape in ((2**64,) * 2_000_000, (0, *(2**64,) * 2_000_000)):
        with pytest.raises(errors.InvalidRequest, match="dimensions"):
            check_shape(shape, 8)


@pytest.mark.parametrize("dtype", ["", "float31", "object", "O", "float128", "f4", "Float32", "__class__"])
def test_an_element_type_must_be_known(dtype: str) -> None:
    """The message lists those that are."""
    with pytest.raises(errors.InvalidRequest, match="known are: bfloat16, bool"):
        Layout.contiguous(dtype, (1,))


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_type_is_numpys_or_ml_dtypes(name: str) -> None:
    """Name and size agree, and the name leads back to the type."""
    dtype = dtypes.to_numpy(name)
    assert dtypes.name_of(dtype) == name
    assert dtype.itemsize == dtypes.item_bytes(name)


# --- layouts from the wire -----------------------------------------------------------------------------------

wire_lengths = st.integers(0, 4) | st.integers(0, MAX_BYTES)
wire_refs = st.builds(
    WireRef,
    token=st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES),
    buffer=st.integers(0, 2**64 - 1),
    slab=st.integers(0, 2**32 - 1),
    dtype=names | st.text(max_size=5),
    shape=st.lists(wire_lengths, max_size=4).map(tuple),
    strides=st.lists(st.integers(-4, 4).map(lambda n: 16 * n) | st.integers(-MAX_BYTES, MAX_BYTES), max_size=4).map(
        tuple
    ),
    offset=st.integers(0, 64).map(lambda n: 16 * n) | st.integers(0, MAX_BYTES),
)


@given(wire_refs)
def test_a_ref_has_a_layout_or_is_an_invalid_request(ref: WireRef) -> None:
    """Whatever it claims; and what has a layout is as aligned as its elements, for a GPU faults where it is not."""
    try:
        layout = ref.layout
    except errors.InvalidRequest:
        return
    assert layout == (ref.dtype, ref.shape, ref.strides, ref.offset)
    assert layout.span == ref.span
    low, high = layout.span
    assert low <= high
    assert (high - low) % layout.item_bytes == 0
    assert low % layout.item_bytes == 0


@given(shape=shapes, dtype=names, drawn=st.data())
def test_what_is_in_a_slab_can_be_made_an_array(shape: tuple[int, ...], dtype: str, drawn: Any) -> None:
    """The span alone decides: NumPy refuses no array whose span lies in its memory, however odd its strides."""
    slab = np.zeros(SLAB_BYTES, np.uint8)
    item = dtypes.item_bytes(dtype)
    odd = st.integers(-8, 8) | st.integers(-MAX_BYTES // 16, MAX_BYTES // 16)
    strides = tuple(item * drawn.draw(odd, label="stride") for _ in shape)
    layout = Layout(dtype, shape, strides, item * drawn.draw(st.integers(0, SLAB_BYTES // item), label="offset"))
    low, high = layout.span
    if low >= 0 and high <= slab.nbytes:
        array = array_of(layout, slab)
        assert array.shape == shape
        assert array.sum() == 0 or dtype.startswith("float8")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"dtype": "float31"}, "unknown element type"),
        ({"strides": (8,)}, "2 dimensions with 1 stride"),
        ({"strides": (8, 8, 8)}, "2 dimensions with 3 strides"),
        ({"offset": 4}, "multiples of the 8 bytes"),
        ({"strides": (16, 4)}, "multiples of the 8 bytes"),
        ({"strides": (-12, 8)}, "multiples of the 8 bytes"),
        ({"shape": (2**24, 2**24)}, "larger than any memory"),
        ({"shape": (2**22, 0, 2**22), "strides": (0, 0, 0)}, None),
        ({"shape": (2**22, 0, 2**23), "strides": (0, 0, 0)}, "larger than any memory"),
    ],
)
def test_a_ref_that_is_none_says_why(changed: dict[str, Any], match: str | None) -> None:
    """It is refused before anything touches memory."""
    ref = WireRef(bytes(TOKEN_BYTES), 1, 1, "float64", (2, 2), (16, 8), 0)
    ref = msgspec.structs.replace(ref, **changed)
    if match is None:
        assert ref.layout.size == 0
    else:
        for _ in range(2):  # what is refused is not remembered
            with pytest.raises(errors.InvalidRequest, match=match):
                _ = ref.layout


@pytest.mark.parametrize("kind", [WireRef, ClientArray])
@given(drawn=st.data())
def test_any_bytes_are_a_ref_with_a_layout_or_refused(kind: type[WireRef | ClientArray], drawn: Any) -> None:
    """Noise, and refs that were damaged on their way."""
    decoder: msgspec.msgpack.Decoder[WireRef | ClientArray] = msgspec.msgpack.Decoder(kind)
    wire = drawn.draw(wire_refs)
    fields = msgspec.structs.astuple(wire)
    if kind is ClientArray:
        fields = (wire.buffer, wire.slab, wire.dtype, wire.shape, wire.offset)
    received = bytearray(msgspec.msgpack.encode(fields))
    for at, byte in drawn.draw(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3)):
        received[at % len(received)] = byte
    received = drawn.draw(st.just(received) | st.binary(max_size=80), label="received")
    with contextlib.suppress(errors.InvalidRequest, msgspec.DecodeError, UnicodeDecodeError):
        ref = decoder.decode(received)
        layout = ref.layout
        assert operator.le(*layout.span)


@given(names, st.lists(st.integers(0, 4), max_size=3), st.data())
def test_any_strides_are_numpys_and_stay_within_the_array(dtype: str, shape: list[int], data: st.DataObject) -> None:
    """A view that would leave the memory of the array it is made from is refused."""
    base = Layout.contiguous(dtype, (4, 5), 64)
    item = base.item_bytes
    steps = [item * data.draw(st.integers(-6, 6)) for _ in shape]
    offset = item * data.draw(st.integers(0, 19))
    wanted = Layout(dtype, tuple(shape), tuple(steps), 64 + offset)
    low, high = wanted.span
    if base.span[0] <= low and high <= base.span[1]:
        assert base.strided(shape, steps, offset) == wanted
    else:
        with pytest.raises(errors.GpuRefOutOfExtent, match="reaches from byte"):
            base.strided(shape, steps, offset)


def test_strides_that_belong_to_no_array_are_refused() -> None:
    """One for each length, on elements; no negative lengths."""
    base = Layout.contiguous("float32", (4, 5))
    for shape, steps, offset in (((2, 2), (4,), 0), ((2,), (3,), 0), ((2,), (4,), 2), ((-1,), (4,), 0)):
        with pytest.raises(errors.InvalidRequest):
            base.strided(shape, steps, offset)


# --- the same elements ---------------------------------------------------------------------------------------


def places(layout: Layout) -> Array:
    """Return the offset of each element."""
    at = np.indices(layout.shape, dtype=np.int64)
    steps = [axis * stride for axis, stride in zip(at, layout.strides, strict=True)]
    return sum(steps, np.full(layout.shape, layout.offset))


@given(st.data())
def test_layouts_of_the_same_elements_are_known_whatever_strides_say_nothing(data: st.DataObject) -> None:
    """Those of dimensions of length 1, and of leading ones that broadcasting adds; never for other elements."""
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    strides = st.lists(st.integers(-4, 4).map(lambda n: 4 * n), min_size=len(shape), max_size=len(shape)).map(tuple)
    one = Layout("float32", shape, data.draw(strides), 256)
    loose = data.draw(strides)
    kept = tuple(b if n == 1 else a for n, a, b in zip(shape, one.strides, loose, strict=True))
    gone = data.draw(st.integers(0, next((at for at, n in enumerate(shape) if n != 1), len(shape))))
    other = Layout("float32", shape[gone:], kept[gone:], 256)
    if one.size:
        assert one.has_elements_of(other)
    changed = data.draw(
        st.sampled_from(
            [
                other,
                other.at(260),
                other._replace(dtype="int32"),
                other._replace(strides=data.draw(strides)[gone:]),
                other._replace(shape=shape[gone:][::-1]),
                other._replace(shape=(1, *other.shape), strides=(0, *other.strides)),
            ]
        )
    )
    padded = (1,) * (len(shape) - len(changed.shape)) + changed.shape
    same = changed.dtype == one.dtype and padded == shape and bool((places(one) == places(changed)).all())
    if one.size:
        assert one.has_elements_of(changed) == same
