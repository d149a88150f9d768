"""Tensor maps, by which a kernel has tiles of an array copied (TMA): what one says, and the rules that it obeys. Pure.

A map describes an array and a box: how many elements of each dimension one copy moves. The rules are those of CUDA's
`cuTensorMapEncodeTiled`, and some that the driver does not check, whose breach moves other elements than are meant or
ends the context. Dimensions are in the order of the array's shape here, so the last one is CUDA's first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.words import counted, not_among

BYTES: Final = 128
"""Size of an encoded map."""
ALIGNED_BYTES: Final = 64
"""A kernel reads each map at a multiple of this."""

MAX_RANK: Final = 5
LEAST_RANK_INTERLEAVED: Final = 3
MAX_LENGTH: Final = 2**32
MAX_STRIDE_BYTES: Final = 2**40
"""Strides are less."""
MAX_BOX: Final = 256
MAX_ELEMENT_STRIDE: Final = 8

UNIT_BYTES: Final = 16
"""Addresses, strides, and the rows of a box are multiples of this."""
WIDE_UNIT_BYTES: Final = 32
"""Addresses and strides are multiples of this where channels are interleaved in 32 bytes."""

Interleave = Literal["none", "16B", "32B"]
Swizzle = Literal["none", "32B", "64B", "128B"]
L2Promotion = Literal["none", "64B", "128B", "256B"]
OobFill = Literal["none", "nan_request_zero_fma"]
DataType = Literal[
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float32_ftz",
    "tfloat32",
    "tfloat32_ftz",
]

INTERLEAVES: Final[tuple[Interleave, ...]] = ("none", "16B", "32B")
SWIZZLES: Final[tuple[Swizzle, ...]] = ("none", "32B", "64B", "128B")
L2_PROMOTIONS: Final[tuple[L2Promotion, ...]] = ("none", "64B", "128B", "256B")
OOB_FILLS: Final[tuple[OobFill, ...]] = ("none", "nan_request_zero_fma")
DATA_TYPES: Final[tuple[DataType, ...]] = DataType.__args__  # type: ignore[attr-defined]
"""Names of each choice, in the order of CUDA's numbers."""

TYPES_OF: Final[dict[str, tuple[DataType, ...]]] = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), ("uint8",)),
    **dict.fromkeys(("int16", "uint16"), ("uint16",)),
    "uint32": ("uint32",),
    "int32": ("int32",),
    "uint64": ("uint64",),
    "int64": ("int64",),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "float32": ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz"),
    "float64": ("float64",),
}
"""The data types of maps of arrays with an element type; the first unless another is named."""

SWIZZLE_BYTES: Final[dict[Swizzle, int]] = {"32B": 32, "64B": 64, "128B": 128}
"""Most bytes of a row of the box."""

Lengths = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_LENGTH)], ...], Meta(max_length=MAX_RANK)]


class TensorMapOf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor map among the arguments of a launch."""

    array: Annotated[int, Meta(ge=-1, le=2**16)]
    """The number of its array, as in the launch's `kinds`."""
    box: Lengths
    """Elements of each dimension that a copy moves, before `element_strides` are taken into account."""
    element_strides: Lengths
    """Each how many elements of a dimension one is copied."""
    data_type: DataType
    interleave: Interleave = "none"
    swizzle: Swizzle = "none"
    """Order of a box in shared memory, against conflicts of its banks."""
    l2_promotion: L2Promotion = "none"
    """Bytes that are fetched into the L2 cache at a time."""
    oob_fill: OobFill = "none"
    """Content of elements outside of the array: zeros, or NaN that counts as zero in a multiplication with addition."""


class Encoding(NamedTuple):
    """The arguments of `cuTensorMapEncodeTiled` but the address: dimensions in CUDA's order, numbers for choices."""

    data_type: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from one element to the next, of all dimensions but the first."""
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int


def unit_of(interleave: Interleave) -> int:
    """Return the number of bytes whose multiples addresses and strides are."""
    return WIDE_UNIT_BYTES if interleave == "32B" else UNIT_BYTES


def encoding(layout: Layout, form: TensorMapOf) -> Encoding:
    """Return how a map that `check_map` has accepted is given to the driver."""
    unit = unit_of(form.interleave)
    # The stride of a dimension of length 1 says nothing, and may be one that the driver refuses.
    row = -(-layout.shape[-1] * layout.item_bytes // unit) * unit
    strides = tuple(stride if n > 1 else row for n, stride in zip(layout.shape, layout.strides, strict=True))
    return Encoding(
        DATA_TYPES.index(form.data_type),
        layout.shape[::-1],
        strides[-2::-1] if len(strides) > 1 else (),
        form.box[::-1],
        form.element_strides[::-1],
        INTERLEAVES.index(form.interleave),
        SWIZZLES.index(form.swizzle),
        L2_PROMOTIONS.index(form.l2_promotion),
        OOB_FILLS.index(form.oob_fill),
    )


def check_map(layout: Layout, form: TensorMapOf) -> None:
    """Check that there can be such a map of an array.

    Raises:
        InvalidRequest: There cannot; the message says why.
    """
    _check_choices(layout, form)
    _check_array(layout, form.interleave)
    _check_box(layout, form)
    if low := layout.offset % (unit := unit_of(form.interleave)):
        raise errors.InvalidRequest(
            f"the array begins {counted(low, 'byte')} behind a multiple of {unit}, where a tensor map's has to begin: "
            "slice it elsewhere, or copy it"
        )


def _check_choices(layout: Layout, form: TensorMapOf) -> None:
    for name, value, known in (
        ("interleave", form.interleave, INTERLEAVES),
        ("swizzle", form.swizzle, SWIZZLES),
        ("l2_promotion", form.l2_promotion, L2_PROMOTIONS),
        ("oob_fill", form.oob_fill, OOB_FILLS),
        ("data_type", form.data_type, TYPES_OF.get(layout.dtype, DATA_TYPES)),
    ):
        if value not in known:
            raise errors.InvalidRequest(not_among(name, value, known))
    if layout.dtype not in TYPES_OF:
        raise errors.InvalidRequest(
            f"the array is {layout.dtype}, which no tensor map has; it has {', '.join(TYPES_OF)}"
        )
    if form.oob_fill != "none" and "float" not in form.data_type:
        raise errors.InvalidRequest(f"oob_fill is {form.oob_fill!r}, and {form.data_type} has no NaN: leave it out")
    if form.interleave == "32B" and form.swizzle != "32B":
        raise errors.InvalidRequest(f"swizzle is {form.swizzle!r}; with interleave '32B' it must be '32B'")


def _check_array(layout: Layout, interleave: Interleave) -> None:
    shape, strides, rank = layout.shape, layout.strides, len(layout.shape)
    least = 1 if interleave == "none" else LEAST_RANK_INTERLEAVED
    if not least <= rank <= MAX_RANK:
        with_this = "" if interleave == "none" else f" with interleave {interleave!r}"
        raise errors.InvalidRequest(
            f"the array has {counted(rank, 'dimension')}; that of a tensor map has {least} to {MAX_RANK}{with_this}"
        )
    for at, n in enumerate(shape):
        if not 1 <= n <= MAX_LENGTH:
            raise errors.InvalidRequest(f"dimension {at} of the array has length {n}; it must be from 1 to 2**32")
    if shape[-1] > 1 and strides[-1] != layout.item_bytes:
        raise errors.InvalidRequest(
            f"elements of the last dimension are {strides[-1]} bytes apart; they must lie without gaps, "
            f"{layout.item_bytes} bytes apart: transpose the array, or copy it"
        )
    unit, spanned = unit_of(interleave), layout.item_bytes
    for stride, at in sorted((strides[at], at) for at in range(rank) if shape[at] > 1):
        if at < rank - 1 and not (0 < stride < MAX_STRIDE_BYTES and stride % unit == 0):
            raise errors.InvalidRequest(
                f"the stride of dimension {at} is {stride} bytes; it must be a multiple of {unit} from {unit} on, and "
                "less than 2**40: copy the array to one with longer rows"
            )
        if stride < spanned:
            raise errors.InvalidRequest(
                f"the stride of dimension {at} is {stride} bytes, shorter than the {spanned} that it steps over: "
                "elements overlap, which CUDA does not refuse"
            )
        spanned = stride * (shape[at] - 1) + spanned


def _check_box(layout: Layout, form: TensorMapOf) -> None:
    rank = len(layout.shape)
    given: tuple[tuple[str, Sequence[int], int], ...] = (
        ("box", form.box, MAX_BOX),
        ("element_strides", form.element_strides, MAX_ELEMENT_STRIDE),
    )
    for name, lengths, most in given:
        if len(lengths) != rank:
            raise errors.InvalidRequest(
                f"{name} is {tuple(lengths)}; it must have a number for each dimension of the array, which has {rank}"
            )
        if not all(1 <= each <= most for each in lengths):
            raise errors.InvalidRequest(f"{name} is {tuple(lengths)}; each number must be from 1 to {most}")
    if form.interleave != "none":
        return
    if form.element_strides[-1] != 1:
        raise errors.InvalidRequest(
            f"element_strides is {form.element_strides}; its last number must be 1, since CUDA ignores that of the "
            "dimension without gaps"
        )
    row = form.box[-1] * layout.item_bytes
    if row % UNIT_BYTES:
        raise errors.InvalidRequest(
            f"box is {form.box}: its rows have {counted(row, 'byte')}, which must be a multiple of {UNIT_BYTES}: "
            f"its last number must be one of {UNIT_BYTES // math.gcd(UNIT_BYTES, layout.item_bytes)}"
        )
    if row > SWIZZLE_BYTES.get(form.swizzle, row):
        raise errors.InvalidRequest(
            f"box is {form.box}: its rows have {row} bytes; with swizzle {form.swizzle!r} they have at most "
            f"{SWIZZLE_BYTES[form.swizzle]}"
        )
