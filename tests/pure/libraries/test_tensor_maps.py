"""Tensor maps: errors name the rule in the caller's words, and the driver takes every other map."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries import base
from atomr_mp.libraries.kernel_arguments import Packed, pack
from atomr_mp.libraries.kernels import DeviceKernels
from atomr_mp.libraries.tensor_maps import TensorMap
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import tensor_maps
from atomr_mp.protocol.libraries.kernels import KernelLaunch, KernelOf
from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf, check_map, encoding
from atomr_mp.protocol.refs import Operand
from tests.fakes.fake_tensor_maps import Encoded, is_refused


class Array(Operand):
    """An array without memory."""

    def __init__(self, layout: Layout, name: str = "a") -> None:
        self.layout = layout
        self.name = name

    @property
    def memory(self) -> object:
        """The name of the memory."""
        return self.name


PLAIN: Final = Layout.contiguous("float32", (8, 64), 256)
CUBE: Final = Layout.contiguous("float16", (4, 8, 64), 256)
KERNELS: Any = DeviceKernels(None)  # type: ignore[arg-type]


def made(layout: Layout, **given: Any) -> TensorMap:
    """Return a map of an array, as a caller makes it."""
    found: TensorMap = KERNELS.tensor_map(Array(layout), **({"box": (4, 16)} | given))
    return found


def strided(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Layout:
    """Return a layout."""
    return Layout(dtype, shape, strides, offset)


WRONG: Final[dict[str, tuple[str, Layout, dict[str, Any]]]] = {
    "no dimensions": (
        "the array has 0 dimensions; that of a tensor map has 1 to 5",
        strided("int8", (), ()),
        {"box": ()},
    ),
    "six dimensions": ("has 6 dimensions", Layout.contiguous("int32", (4,) * 6), {"box": (4,) * 6}),
    "interleaved in two dimensions": ("has 3 to 5 with interleave '16B'", PLAIN, {"interleave": "16B"}),
    "no elements": ("dimension 0 of the array has length 0", Layout.contiguous("float32", (0, 64)), {}),
    "a long dimension": (
        r"dimension 0 of the array has length 4294967297; it must be from 1 to 2\*\*32",
        Layout.contiguous("uint8", (2**32 + 1, 16)),
        {"box": (1, 16)},
    ),
    "complex numbers": ("the array is complex64, which no tensor map has", Layout.contiguous("complex64", (8, 8)), {}),
    "another data type": (
        "data_type is 'uint8'; it must be one of float32, float32_ftz, tfloat32, tfloat32_ftz",
        PLAIN,
        {"data_type": "uint8"},
    ),
    "no data type": ("data_type is 'tf32'", PLAIN, {"data_type": "tf32"}),
    "no swizzle": ("swizzle is '16B'; it must be one of none, 32B, 64B, 128B", PLAIN, {"swizzle": "16B"}),
    "no interleave": ("interleave is 32", PLAIN, {"interleave": 32}),
    "no promotion": ("l2_promotion is 'L2_64B'", PLAIN, {"l2_promotion": "L2_64B"}),
    "no fill": ("oob_fill is 'nan'", PLAIN, {"oob_fill": "nan"}),
    "NaN of integers": (
        "oob_fill is 'nan_request_zero_fma', and int32 has no NaN",
        Layout.contiguous("int32", (8, 64)),
        {"oob_fill": "nan_request_zero_fma"},
    ),
    "wide interleave without swizzle": (
        "swizzle is 'none'; with interleave '32B' it must be '32B'",
        CUBE,
        {"box": (1, 1, 16), "interleave": "32B"},
    ),
    "a short box": (
        r"box is \(16,\); it must have a number for each dimension of the array, which has 2",
        PLAIN,
        {"box": 16},
    ),
    "a large box": (r"box is \(257, 16\); each number must be from 1 to 256", PLAIN, {"box": (257, 16)}),
    "an empty box": (r"box is \(4, 0\); each number must be from 1 to 256", PLAIN, {"box": (4, 0)}),
    "no box": ("box is 'ab'; it must be a sequence of whole numbers", PLAIN, {"box": "ab"}),
    "long element strides": ("element_strides is .* from 1 to 8", PLAIN, {"element_strides": (9, 1)}),
    "element strides of none": ("element_strides is .* from 1 to 8", PLAIN, {"element_strides": (0, 1)}),
    "few element strides": (r"element_strides is \(1,\); it must have a number", PLAIN, {"element_strides": (1,)}),
    "an element stride that CUDA ignores": ("CUDA ignores that", PLAIN, {"element_strides": (1, 2)}),
    "a narrow box": (
        r"box is \(4, 6\): its rows have 24 bytes, which must be a multiple of 16: its last number must be one of 4",
        PLAIN,
        {"box": (4, 6)},
    ),
    "a box wider than the swizzle": (
        r"its rows have 64 bytes; with swizzle '32B' they have at most 32",
        PLAIN,
        {"swizzle": "32B"},
    ),
    "gaps between elements": (
        "8 bytes apart; they must lie without gaps, 4 bytes",
        PLAIN.indexed((..., slice(0, 64, 2))),
        {},
    ),
    "columns first": ("256 bytes apart; they must lie without gaps", PLAIN.transposed(None), {}),
    "rows of odd length": (
        "the stride of dimension 0 is 252 bytes; it must be a multiple of 16 from 16 on",
        Layout.contiguous("float32", (8, 63)),
        {},
    ),
    "narrow rows of wide units": (
        "the stride of dimension 1 is 16 bytes; it must be a multiple of 32 from 32 on",
        Layout.contiguous("float16", (4, 8, 8)),
        {"box": (1, 1, 8), "interleave": "32B", "swizzle": "32B"},
    ),
    "rows backwards": ("the stride of dimension 0 is -256 bytes", PLAIN.indexed(slice(None, None, -1)), {}),
    "repeated rows": ("the stride of dimension 0 is 0 bytes", strided("float32", (8, 64), (0, 4)), {}),
    "far rows": ("less than 2", strided("float32", (2, 64), (2**40, 4)), {}),
    "rows that overlap": (
        "the stride of dimension 0 is 240 bytes, shorter than the 256 that it steps over: elements overlap",
        strided("float32", (8, 64), (240, 4)),
        {},
    ),
    "planes that overlap": (
        "the stride of dimension 0 is 512 bytes, shorter than the 1024",
        strided("float32", (8, 4, 64), (512, 256, 4)),
        {"box": (1, 4, 16)},
    ),
    "an odd address": ("the array begins 4 bytes behind a multiple of 16", PLAIN.at(260), {}),
    "an address for wide units": (
        "the array begins 16 bytes behind a multiple of 32",
        CUBE.at(272),
        {"box": (1, 1, 16), "interleave": "32B", "swizzle": "32B"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_rule_is_told_where_the_map_is_made(case: str) -> None:
    """In the caller's words, before anything is sent; and by the worker for a launch that says the same."""
    words, layout, given = WRONG[case]
    with pytest.raises(errors.InvalidRequest, match=words):
        made(layout, **given)


def test_what_is_no_array_has_no_map() -> None:
    """An array of the caller's own is no memory of the device."""
    with pytest.raises(errors.InvalidRequest, match=r"a ndarray is given .*`Device.put` makes a ref"):
        KERNELS.tensor_map(np.zeros((8, 64), np.float32), box=(4, 16))


def test_a_map_is_given_to_the_driver_with_the_last_dimension_first() -> None:
    """Rows that are slices of longer ones keep their stride; that of a single row says nothing."""
    sliced = Layout.contiguous("bfloat16", (6, 8, 64)).indexed((slice(1, None), ..., slice(0, 48)))
    form = made(sliced, box=(2, 4, 16), element_strides=(2, 1, 1), swizzle="64B", l2_promotion="256B").form
    assert encoding(sliced, form) == ((9, (48, 8, 5), (128, 1024), (16, 4, 2), (1, 1, 2), 0, 2, 3, 0))
    single = strided("float32", (1, 1, 3), (12, 12, 4))
    assert encoding(single, made(single, box=(1, 1, 4)).form)[1:3] == ((3, 1, 1), (16, 16))
    vector = Layout.contiguous("float32", (64,))
    assert encoding(vector, made(vector, box=16, data_type="tfloat32").form)[:4] == (11, (64,), (), (16,))
    assert made(vector, box=16, oob_fill="nan_request_zero_fma").form.oob_fill == "nan_request_zero_fma"
    for at, name in enumerate(tensor_maps.DATA_TYPES):
        assert tensor_maps.DATA_TYPES.index(name) == at


lengths: Final = st.sampled_from([1, 1, 2, 3, 4, 8, 16])


@st.composite
def maps(draw: st.DrawFn) -> tuple[Layout, TensorMapOf]:
    """Draw a layout and a map of it: most rules are kept, so that some maps are right."""
    dtype = draw(st.sampled_from([*tensor_maps.TYPES_OF, "complex64"]))
    rank = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 6]))
    shape = tuple(draw(st.lists(lengths, min_size=rank, max_size=rank)))
    layout = Layout.contiguous(dtype, shape, draw(st.sampled_from([0, 16, 32, 64, 4])))
    if draw(st.booleans()):
        change = draw(st.sampled_from([-16, 2, 16, 32, 160]))
        at = draw(st.integers(0, rank - 1))
        layout = layout._replace(strides=tuple(s + change * (k == at) for k, s in enumerate(layout.strides)))
    if draw(st.booleans()):
        layout = layout.transposed(tuple(draw(st.permutations(range(rank)))))
    size = draw(st.sampled_from([rank, rank, rank, rank, max(rank - 1, 0)]))
    box = [*draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))]
    if box:
        box[-1] = draw(st.sampled_from([16, 16, 32, 8, 4, 3, 256, 300, 0]))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 8, 9]), min_size=size, max_size=size))
    types = tensor_maps.TYPES_OF.get(dtype, ("float32",))
    return layout, TensorMapOf(
        0,
        tuple(box[:5]),
        tuple(steps[:5]),
        draw(st.sampled_from(types)),
        draw(st.sampled_from(["none", "none", "none", "16B", "32B"])),
        draw(st.sampled_from(tensor_maps.SWIZZLES)),
        draw(st.sampled_from(tensor_maps.L2_PROMOTIONS)),
        draw(st.sampled_from(["none", "none", *tensor_maps.OOB_FILLS])),
    )


def has_meaning(layout: Layout, form: TensorMapOf) -> bool:
    """Return whether a map that the driver may take describes the array: what it does not check."""
    places = np.array([layout.offset])
    for n, stride in zip(layout.shape, layout.strides, strict=True):
        places = np.add.outer(places, stride * np.arange(n))
    taken = np.add.outer(places, np.arange(layout.item_bytes))
    rows = layout.shape[-1] == 1 or layout.strides[-1] == layout.item_bytes
    steps = form.interleave != "none" or form.element_strides[-1] == 1
    forward = all(stride > 0 for n, stride in zip(layout.shape, layout.strides, strict=True) if n > 1)
    return bool(rows and steps and forward and np.unique(taken).size == taken.size)


def test_what_passes_is_what_the_driver_takes() -> None:
    """Neither more nor less, but for maps that the driver takes and that mean something else."""
    outcomes = {"taken": 0, "refused": 0, "meaningless": 0}

    @given(case=maps())
    @settings(max_examples=1500, deadline=None)
    def agrees(case: tuple[Layout, TensorMapOf]) -> None:
        layout, form = case
        rank = len(layout.shape)
        told = layout.dtype in tensor_maps.TYPES_OF and len(form.box) == rank and rank <= tensor_maps.MAX_RANK
        if told:
            told = not is_refused(encoded(layout, form))
        means = told and has_meaning(layout, form)
        outcomes["taken" if means else "meaningless" if told else "refused"] += 1
        try:
            check_map(layout, form)
        except errors.InvalidRequest:
            assert not means or _is_interlaced(layout)
        else:
            assert means

    agrees()
    assert min(outcomes.values()) > 10, outcomes


def encoded(layout: Layout, form: TensorMapOf) -> Encoded:
    """Return the arguments that the driver gets."""
    given = encoding(layout, form)._asdict()
    return Encoded(address=layout.offset, **given)


def _is_interlaced(layout: Layout) -> bool:
    """Return whether elements of one dimension lie between those of another without overlap: such maps are refused."""
    steps = sorted((stride, n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n > 1)
    spanned = layout.item_bytes
    for stride, n in steps:
        if stride < spanned:
            return True
        spanned += stride * (n - 1)
    return False


# --- among the arguments of a launch ----------------------------------------------------------------------------------


def kernel(*parameters: tuple[int, int]) -> KernelOf:
    """Return a kernel with such parameters."""
    return KernelOf(Array(Layout.contiguous("uint8", (1,)), "module"), "k", bytes(32), parameters)


def packed(parameters: tuple[tuple[int, int], ...], *arguments: Any, **written: Any) -> Packed:
    """Pack arguments."""
    named = {"out": (), "inout": ()} | written
    return pack(
        kernel(*parameters),
        arguments,
        is_array=lambda each: isinstance(each, Operand),
        key_of=lambda each: (each.memory, each.layout),
        **named,
    )


def test_the_array_of_a_map_is_an_argument_like_others() -> None:
    """It is read or written, by its own name or the map's, and counted once however often it is used."""
    x, y = Array(PLAIN, "x"), Array(PLAIN, "y")
    of_x, of_y = (KERNELS.tensor_map(each, box=(4, 16)) for each in (x, y))
    again = KERNELS.tensor_map(x, box=(8, 32))
    places = ((0, 128), (128, 8), (192, 128), (320, 128))
    for written in (y, of_y):
        found = packed(places, of_x, x, of_y, again, out=[written])
        assert (found.inputs, found.out, found.inout) == ([x], [y], [])
        assert found.values == bytes(448)
        assert found.kinds == (("tensor map", 0), ("address", 0), ("tensor map", 1), ("tensor map", 2))
        assert [(each.array, each.box) for each in found.maps] == [(0, (4, 16)), (1, (4, 16)), (0, (8, 32))]
    assert packed(places[:1], of_x, inout=[of_x]).inout == [x]
    with pytest.raises(errors.InvalidRequest, match="argument 0 of k is named in out and in inout"):
        packed(places[:1], of_x, out=[of_x], inout=[x])
    with pytest.raises(errors.InvalidRequest, match="out of k names what is none of the arrays"):
        packed(places[:1], of_x, out=[of_y])
    for wrong in ((0, 8), (0, 136)):
        with pytest.raises(errors.InvalidRequest, match=r"argument 0 of k is a tensor map, .*__grid_constant__"):
            packed((wrong,), of_x)


@pytest.mark.parametrize(("array", "form"), [(None, "as it is"), ((64, 32), "as it is"), ("as it is", None)])
def test_what_is_no_map_of_a_ref_is_told(array: Any, form: Any) -> None:
    """With the argument's place."""
    made = KERNELS.tensor_map(Array(PLAIN), box=(4, 16))
    other = TensorMap(made.array if array == "as it is" else array, made.form if form == "as it is" else form)
    with pytest.raises(errors.InvalidRequest, match=r"argument 0 of k is no tensor map as"):
        packed(((0, 128),), other)


@pytest.mark.parametrize("field", TensorMapOf.__struct_fields__)
@pytest.mark.parametrize("value", ["zz", None, -2, 2**40, 1.5, True, np.int64(3), ("a",), (np.int64(4), 16)])
def test_a_field_of_another_type_is_told(field: str, value: Any) -> None:
    """By its name, where the caller stands."""
    form = msgspec.structs.replace(FORM, **{field: value})
    with pytest.raises(errors.InvalidRequest, match=rf"launch: {field} is"):
        base.check(launch(maps=(form,)))


def launch(**changes: Any) -> KernelLaunch:
    """Return a launch with a map."""
    form = TensorMapOf(0, (4, 16), (1, 1), "float32")
    request = KernelLaunch(
        kernel((0, 128)), [Array(PLAIN)], [], [], bytes(128), (("tensor map", 0),), (1, 1, 1), (1, 1, 1), maps=(form,)
    )
    return msgspec.structs.replace(request, **changes)


FORM: Final = launch().maps[0]


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("a tensor map is declared that is none", {"maps": (FORM, FORM)}),
        ("a tensor map is declared that is none", {"maps": ()}),
        ("a tensor map is declared that is none", {"kinds": (("tensor map", 1),)}),
        ("a tensor map is declared that is none", {"kinds": (("tensor map", -1),)}),
        ("an array is declared that is none", {"maps": (msgspec.structs.replace(FORM, array=1),)}),
        ("an array is declared that is none", {"maps": (msgspec.structs.replace(FORM, array=-1),)}),
        ("an array is declared that is none", {"inout": [Array(PLAIN, "b")]}),
        ("its parameter has 136", {"kernel": kernel((0, 136)), "values": bytes(136)}),
        (
            "argument 0 of k, a tensor map: box is .* from 1 to 256",
            {"maps": (msgspec.structs.replace(FORM, box=(4, 2**20)),)},
        ),
        ("argument 0 of k, a tensor map: the array begins 8 bytes", {"inputs": [Array(PLAIN.at(264))]}),
        ("argument 0 of k, a tensor map: .*overlap", {"inputs": [Array(strided("float32", (8, 64), (240, 4)))]}),
        (
            "argument 0 of k, a tensor map: data_type is",
            {"maps": (msgspec.structs.replace(FORM, data_type="uint8"),)},
        ),
    ],
)
def test_the_worker_checks_maps_again(words: str, changes: dict[str, Any]) -> None:
    """Whatever a client says: a map of other memory would end the context."""
    launch().check()
    with pytest.raises(errors.InvalidRequest, match=words):
        launch(**changes).check()
