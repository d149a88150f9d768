"""Arrays between HTTP and a call: nested lists, and NumPy's own file format (`.npy`). Pure.

NumPy is imported when the first array comes.
"""

from __future__ import annotations

import ast
import io
import math
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import MAX_DIMENSIONS, check_shape

if TYPE_CHECKING:
    import numpy as np

MAGIC: Final = b"\x93NUMPY"

MAX_HEADER_BYTES: Final = 4096
"""Most bytes of a header; NumPy writes fewer for any array that can be sent."""

EXACT: Final = 2**53
"""Whole numbers up to here are the same as float64."""

_NOT_WHOLE: Final = ("float", "bfloat", "complex")

_WHOLE: Final = ("int", "uint")

_NUMBERS: Final = frozenset({int, float, bool})

_ELEMENT: Final = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c8|c16)")
"""The names that NumPy gives in headers to the element types that cross."""

_HEADER_KEYS: Final = {"descr", "fortran_order", "shape"}


def converter(dtype: str | None) -> Callable[[Any], Any]:
    """Return a function that makes arrays from nested lists of numbers.

    Args:
        dtype: The element type; None for int64, float64 or bool, whichever the lists have. Complex numbers are given as
            pairs in an additional last dimension.
    """

    def convert(value: object) -> object:
        if not isinstance(value, list | int | float):
            return value
        return from_lists(value, dtype)

    return convert


def from_lists(value: object, dtype: str | None) -> np.ndarray[Any, Any]:
    """Return an array of nested lists of numbers.

    Raises:
        ValueError: The lists have other elements than numbers, differ in length, or do not fit the element type.
    """
    import numpy as np

    try:
        found = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"these lists do not make an array: {error}") from error
    if found.dtype.kind == "f" and (dtype or "int").startswith(_WHOLE):
        found = _unrounded(value, found, takes_points=dtype is not None)
    if (
        found.dtype.kind == "O"
        and (dtype or "").startswith(_NOT_WHOLE)
        and all(type(each) in _NUMBERS for each in found.flat)
    ):
        found = found.astype(np.float64)  # a number beyond 64 bits, as JavaScript writes 1e20
    if found.dtype.kind not in "biuf":
        raise ValueError("an array is given as lists of numbers, nested once for each dimension")
    if found.ndim > MAX_DIMENSIONS:
        raise ValueError(f"an array of {found.ndim} dimensions; the limit is {MAX_DIMENSIONS}")
    if dtype is None:
        return found
    if dtype.startswith("complex"):
        if found.shape[-1:] == (0,):  # as an empty array is given back
            return np.zeros(found.shape, dtypes.to_numpy(dtype))
        if found.shape[-1:] != (2,):
            raise ValueError("complex numbers are given as pairs [real, imaginary]")
        found = found[..., 0] + 1j * found[..., 1]
    return _cast(found, dtypes.to_numpy(dtype))


def _unrounded(value: object, found: np.ndarray[Any, Any], *, takes_points: bool) -> np.ndarray[Any, Any]:
    """Return an array of whole numbers as they were given: NumPy makes float64 of some that only uint64 has.

    Args:
        value: The lists.
        found: What NumPy has made of them.
        takes_points: Whether 5.0 is a whole number.

    Raises:
        ValueError: They fit neither int64 nor uint64.
    """
    import numpy as np

    if not (abs(found) >= EXACT).any():
        return found
    given = list(np.asarray(value, dtype=object).flat)
    if not all(type(each) is not float or (takes_points and each.is_integer()) for each in given):
        return found
    numbers = [int(each) for each in given]
    for element in (np.int64, np.uint64):
        if np.iinfo(element).min <= min(numbers) and max(numbers) <= np.iinfo(element).max:
            return np.array(numbers, dtype=element).reshape(found.shape)
    raise ValueError("these whole numbers fit neither int64 nor uint64")


def _cast(array: np.ndarray[Any, Any], element: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array converted to another element type, with the same numbers except for rounding.

    Raises:
        ValueError: A number would change.
    """
    import numpy as np

    if element.kind in "iu" and array.size:
        bounds = np.iinfo(element)
        if array.dtype.kind == "f" and not ((array == np.floor(array)) & (abs(array) <= EXACT)).all():
            raise ValueError(f"elements of {element} are whole numbers")
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise ValueError(f"elements of {element} are from {bounds.min} to {bounds.max}")
    if element.kind == "b" and not ((array == 0) | (array == 1)).all():
        raise ValueError("elements of bool are true and false")
    with np.errstate(over="ignore"):
        cast = array.astype(element)
    if element.kind in "fc" and not np.isfinite(cast).all():
        raise ValueError(f"a number is too large for {element}")
    return cast


def to_lists(array: np.ndarray[Any, Any]) -> Any:
    """Return nested lists; a complex number is a pair [real, imaginary]."""
    import numpy as np

    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).tolist()
    if array.dtype.kind == "V":  # ml_dtypes' types
        return array.astype(np.float32).tolist()
    return array.tolist()


def from_npy(data: bytes) -> np.ndarray[Any, Any]:
    """Return the array in a `.npy` file. It lies in `data` itself, which it keeps alive.

    The header is read as a literal of bounded length and never evaluated. Objects and structures are refused.

    Raises:
        InvalidRequest: These bytes are not such a file, or do not have the length that its header tells.
    """
    try:
        return _from_npy(data)
    except ValueError as error:
        raise errors.InvalidRequest(f"the body is not a .npy file that can be read: {error}") from error


def _from_npy(data: bytes) -> np.ndarray[Any, Any]:
    if data[:6] != MAGIC or len(data) < 10 or data[6] not in {1, 2, 3}:
        raise ValueError("it does not begin as one of version 1, 2 or 3")
    size, start = (struct.unpack_from("<H", data, 8)[0], 10) if data[6] == 1 else (_long_size(data), 12)
    if size > MAX_HEADER_BYTES or start + size > len(data):
        raise ValueError(f"its header has {size} bytes")
    kind, in_columns, lengths = _header(data[start : start + size])
    if not _ELEMENT.fullmatch(kind):  # NumPy ends the process at some names of other types
        raise ValueError(f"arrays of {kind[:40]!r} cannot be sent")
    import numpy as np

    element = np.dtype(kind)
    check_shape(lengths, element.itemsize)
    expected = math.prod(lengths) * element.itemsize
    length = len(data) - start - size
    if length != expected:
        raise ValueError(f"an array of {element} and shape {lengths} takes {expected} bytes, not {length}")
    array = np.frombuffer(data, element, offset=start + size)
    return array.reshape(lengths, order="F" if in_columns else "C")


def _header(header: bytes) -> tuple[str, bool, tuple[int, ...]]:
    """Return a header's element type, whether the array lies in columns, and its shape.

    Raises:
        ValueError: It is no such header.
    """
    try:
        found = ast.literal_eval(header.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # what `literal_eval` may raise
        found = None
    if isinstance(found, dict) and found.keys() == _HEADER_KEYS:
        kind, in_columns, shape = found["descr"], found["fortran_order"], found["shape"]
        whole = isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)
        if isinstance(kind, str) and isinstance(in_columns, bool) and whole:
            return kind, in_columns, shape
    raise ValueError("its header has no plain element type, order and shape")


def _long_size(data: bytes) -> int:
    if len(data) < 12:
        raise ValueError("it ends in its header")
    size: int = struct.unpack_from("<I", data, 8)[0]
    return size


def to_npy(array: np.ndarray[Any, Any]) -> bytes:
    """Return an array as a `.npy` file.

    Raises:
        ValueError: NumPy itself does not have the element type; ml_dtypes does.
    """
    import numpy as np

    if array.dtype.kind == "V":
        raise ValueError(f".npy files have no {array.dtype}; ask for application/json")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()
