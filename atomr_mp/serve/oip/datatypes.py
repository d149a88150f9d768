"""The protocol's element types. Pure.

BYTES are elements of any length: texts, or other bytes. In raw data each has its length in front, as a little-endian
32-bit number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from atomr_mp import errors

BYTES: Final = "BYTES"

NAMES: Final[dict[str, str]] = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
"""Our names of element types by the protocol's; BYTES has none."""

DATATYPES: Final[dict[str, str]] = {ours: theirs for theirs, ours in NAMES.items()}
"""The protocol's names by ours."""

ONLY_RAW: Final = frozenset({"FP16", "BF16"})
"""Types that have no form in JSON, as in Triton."""

LENGTH_BYTES: Final = 4

MOST_ELEMENT_BYTES: Final = 2**32 - 1

_LENGTH: Final = struct.Struct("<I")


def check(datatype: object) -> str:
    """Return a datatype's name.

    Raises:
        InvalidRequest: There is no such datatype.
    """
    if isinstance(datatype, str) and (datatype in NAMES or datatype == BYTES):
        return datatype
    shown = repr(datatype)[:60]
    raise errors.InvalidRequest(f"there is no datatype {shown}; there are: {', '.join(NAMES)}, {BYTES}")


def unpack(data: memoryview, most: int) -> list[bytes]:
    """Return the elements in the raw data of a BYTES tensor.

    Args:
        data: The data.
        most: Most elements that there may be; each costs memory beyond its bytes.

    Raises:
        InvalidRequest: An element runs over the end of the data, or there are more.
    """
    found: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        if len(found) == most:
            raise errors.InvalidRequest(f"the data has more than the {most} elements of its shape")
        if end - at < LENGTH_BYTES:
            raise errors.InvalidRequest(f"its last {end - at} bytes are too few for the length of an element")
        (length,) = _LENGTH.unpack_from(data, at)
        at += LENGTH_BYTES
        if length > end - at:
            raise errors.InvalidRequest(
                f"element {len(found)} has {length} bytes by the length in front of it, and {end - at} follow"
            )
        found.append(bytes(data[at : at + length]))
        at += length
    return found


def pack(elements: Sequence[bytes]) -> bytes:
    """Return the raw data of a BYTES tensor.

    Raises:
        ValueError: An element is longer than its length can say.
    """
    parts: list[bytes] = []
    for each in elements:
        if len(each) > MOST_ELEMENT_BYTES:
            raise ValueError(f"an element has {len(each)} bytes; the most are {MOST_ELEMENT_BYTES}")
        parts += (_LENGTH.pack(len(each)), each)
    return b"".join(parts)
