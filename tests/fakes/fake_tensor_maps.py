"""A stand-in for the driver's cuTensorMapEncodeTiled: the rules of its documentation, written down once more."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

INVALID_VALUE: Final = 1
ITEM_BYTES: Final = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)
"""Bytes of an element of each data type."""
FLOATS: Final = range(6, 13)


class Encoded(NamedTuple):
    """The arguments of a call."""

    data_type: int
    address: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int


def is_refused(given: Encoded) -> bool:
    """Return whether the driver refuses a map, going by its documentation."""
    rank, item = len(given.lengths), ITEM_BYTES[given.data_type]
    unit = 32 if given.interleave == 2 else 16
    row = given.box[0] * item if rank else 0
    return (
        not 1 <= rank <= 5
        or (given.interleave > 0 and rank < 3)
        or given.address % unit != 0
        or not all(0 < each <= 2**32 for each in given.lengths)
        or not all(each % unit == 0 and 0 <= each < 2**40 for each in given.strides)
        or not all(0 < each <= 256 for each in given.box)
        or not all(0 < each <= 8 for each in given.element_strides)
        or (given.interleave == 0 and row % 16 != 0)
        or (given.interleave == 0 and given.swizzle > 0 and row > 16 << given.swizzle)
        or (given.interleave == 2 and given.swizzle != 1)
        or (given.oob_fill == 1 and given.data_type not in FLOATS)
    )


class FakeTensorMaps:
    """The function, with an address."""

    def __init__(self) -> None:
        self.encoded: Final[list[Encoded]] = []
        self.status = 0
        """What it returns for all maps, if it is not 0."""
        longs, ints = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
        kinds: list[Any] = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, longs, longs, ints, ints]
        self._function: Final = ctypes.CFUNCTYPE(ctypes.c_int, *kinds, *[ctypes.c_int] * 4)(self._encode)
        self.address: Final = ctypes.cast(self._function, ctypes.c_void_p).value

    def _encode(
        self,
        place: int,
        data_type: int,
        rank: int,
        address: int | None,
        lengths: Sequence[int],
        strides: Sequence[int],
        *rest: Any,
    ) -> int:
        box, element_strides, *choices = rest
        numbers = tuple(lengths[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), tuple(element_strides[:rank])
        given = Encoded(data_type, address or 0, *numbers, *choices)
        if place % 64 or self.status or is_refused(given):
            return self.status or INVALID_VALUE
        self.encoded.append(given)
        ctypes.memset(place, len(self.encoded), 128)
        return 0
