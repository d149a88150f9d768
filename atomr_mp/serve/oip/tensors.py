"""Tensors of a request or an answer, from raw data or JSON, and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import check_shape
from atomr_mp.serve.oip import datatypes
from atomr_mp.serve.oip.datatypes import BYTES, DATATYPES, NAMES, ONLY_RAW
from atomr_mp.serve.values import arrays

if TYPE_CHECKING:
    import numpy as np

MOST_NAME_CHARS: Final = 100
"""Most characters of a client's own text that a message repeats."""

MOST_TEXTS: Final = 2**18
"""Most elements of a BYTES tensor: each is an object, and a front end that makes them is deaf to others."""

WIDER: Final = {"INT8": "int32", "INT16": "int32", "UINT8": "uint32", "UINT16": "uint32"}
"""The types in which gRPC's typed contents have elements that are smaller."""


def element_bytes(datatype: str) -> int:
    """Return the bytes of an element of a datatype other than BYTES."""
    return dtypes.item_bytes(NAMES[datatype])


class NamedTensor(NamedTuple):
    """A tensor with its elements."""

    name: str
    datatype: str
    """One of the protocol's names."""
    shape: tuple[int, ...]
    values: np.ndarray[Any, Any] | list[bytes]
    """An array of this shape, C-contiguous and perhaps read-only; the elements of BYTES in the same order."""


def shape_of(name: str, given: object) -> tuple[int, ...]:
    """Return a tensor's shape from a client's list.

    Raises:
        InvalidRequest: It is no shape.
    """
    if not isinstance(given, list | tuple) or not all(type(each) is int for each in given):
        raise _wrong(name, f"its shape is a list of whole numbers, not {repr(given)[:MOST_NAME_CHARS]}")
    if any(each < 0 for each in given):
        raise _wrong(name, f"its shape {list(given)[:32]} has a negative length")
    return tuple(given)


def of_raw(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> NamedTensor:
    """Return a tensor of raw data: elements in row-major order, little-endian. It lies in the data itself.

    Raises:
        InvalidRequest: The data is not that of such a tensor.
    """
    count = check_raw_size(name, datatype, shape, len(data))
    if datatype == BYTES:
        try:
            elements = datatypes.unpack(data, count)
        except errors.InvalidRequest as error:
            raise _wrong(name, str(error)) from error
        if len(elements) != count:
            raise _wrong(name, f"its data has {len(elements)} elements, and the shape {list(shape)} {count}")
        return NamedTensor(name, datatype, shape, elements)
    import numpy as np

    element = dtypes.to_numpy(NAMES[datatype])
    array = np.frombuffer(data, np.uint8).view(element) if count else np.zeros(0, element)
    if datatype == "BOOL" and count and int(array.view(np.uint8).max()) > 1:
        raise _wrong(name, "an element of BOOL is a byte that is 0 or 1")
    return NamedTensor(name, datatype, shape, array.reshape(shape))


def check_raw_size(name: str, datatype: str, shape: tuple[int, ...], nbytes: int) -> int:
    """Return how many elements a shape has; those of raw data of so many bytes.

    Raises:
        InvalidRequest: No array has this shape, or its raw data has another size.
    """
    count = _count(name, datatype, shape)
    if datatype != BYTES and nbytes != (expected := count * element_bytes(datatype)):
        raise _wrong(name, f"its data has {nbytes} bytes; {datatype} of shape {list(shape)} takes {expected}")
    return count


def of_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> NamedTensor:
    """Return a tensor of a JSON list: flat, or nested as its shape is.

    Raises:
        InvalidRequest: The list is not that of such a tensor.
    """
    count = _count(name, datatype, shape)
    if datatype in ONLY_RAW:
        raise _wrong(name, f"{datatype} has no form in JSON; send it as binary data")
    if not isinstance(data, list):
        raise _wrong(name, "its data is a list of elements")
    flat = _flat(name, data, shape)
    if len(flat) != count:
        raise _wrong(name, f"its data has {len(flat)} elements, and the shape {list(shape)} {count}")
    if datatype == BYTES:
        if not all(type(each) is str for each in flat):
            raise _wrong(name, "elements of BYTES are texts in JSON")
        return NamedTensor(name, datatype, shape, [each.encode() for each in flat])
    return NamedTensor(name, datatype, shape, _numbers(name, datatype, flat).reshape(shape))


def of_list(name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]) -> NamedTensor:
    """Return a tensor of elements in row-major order, as gRPC's typed contents have them.

    Raises:
        InvalidRequest: They are not those of such a tensor.
    """
    count = _count(name, datatype, shape)
    if len(elements) != count:
        raise _wrong(name, f"its contents have {len(elements)} elements, and the shape {list(shape)} {count}")
    if datatype == BYTES:
        return NamedTensor(name, datatype, shape, [bytes(each) for each in elements])
    import numpy as np

    given = np.fromiter(elements, WIDER.get(datatype, NAMES[datatype]), count)
    found = given.astype(NAMES[datatype], copy=False)
    if datatype in WIDER and not (found == given).all():
        bounds = np.iinfo(found.dtype)
        raise _wrong(name, f"elements of {datatype} are from {bounds.min} to {bounds.max}")
    return NamedTensor(name, datatype, shape, found.reshape(shape))


def of_array(name: str, array: np.ndarray[Any, Any]) -> NamedTensor:
    """Return a tensor of an array.

    Raises:
        ValueError: The protocol does not have its element type.
    """
    import numpy as np

    if array.dtype.kind == "U":
        return NamedTensor(name, BYTES, array.shape, [str(each).encode() for each in array.flat])
    if array.dtype.kind == "S":
        return NamedTensor(name, BYTES, array.shape, [bytes(each) for each in array.flat])
    datatype = DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise ValueError(f"the protocol has no elements of {array.dtype.name}")
    return NamedTensor(name, datatype, array.shape, np.ascontiguousarray(array).reshape(array.shape))


def raw(tensor: NamedTensor) -> bytes:
    """Return a tensor's raw data."""
    values = tensor.values
    return datatypes.pack(values) if isinstance(values, list) else values.tobytes()


def as_json(tensor: NamedTensor) -> list[Any]:
    """Return a tensor's elements as a flat list for JSON.

    Raises:
        ValueError: They have no form in JSON.
    """
    if tensor.datatype in ONLY_RAW:
        raise ValueError(f"{tensor.datatype} has no form in JSON; ask for it with `binary_data` true")
    values = tensor.values
    if not isinstance(values, list):
        return _shown_numbers(values.reshape(-1))
    try:
        return [each.decode() for each in values]
    except UnicodeDecodeError as error:
        raise ValueError("an element is no UTF-8; ask for it with `binary_data` true") from error


def _shown_numbers(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return numbers for JSON. NaN and infinities become the words that Triton writes and Python reads."""
    import numpy as np

    found: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        for at in np.flatnonzero(~np.isfinite(values)).tolist():
            found[at] = _NAN if math.isnan(found[at]) else (_INFINITY if found[at] > 0 else _LEAST)
    return found


_NAN: Final = msgspec.Raw(b"NaN")
_INFINITY: Final = msgspec.Raw(b"Infinity")
_LEAST: Final = msgspec.Raw(b"-Infinity")


def _count(name: str, datatype: str, shape: tuple[int, ...]) -> int:
    """Return how many elements a shape has.

    Raises:
        InvalidRequest: No array has this shape.
    """
    try:
        check_shape(shape, 1 if datatype == BYTES else element_bytes(datatype))
    except errors.InvalidRequest as error:
        raise _wrong(name, str(error)) from error
    count = math.prod(shape)
    if datatype == BYTES and count > MOST_TEXTS:
        raise _wrong(name, f"a tensor of BYTES has at most {MOST_TEXTS} elements, and the shape {list(shape)} {count}")
    return count


def _flat(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the elements of a list that is flat, or nested as the shape is.

    Raises:
        InvalidRequest: It is nested in another way.
    """
    if not (data and isinstance(data[0], list)):
        return data
    for depth, length in enumerate(shape):
        if any(type(each) is not list or len(each) != length for each in ([data] if not depth else data)):
            raise _wrong(name, f"its data is neither flat nor nested as its shape {list(shape)}")
        if depth:
            data = [inner for each in data for inner in each]
    if any(type(each) is list for each in data):
        raise _wrong(name, f"its data is nested more deeply than its shape {list(shape)}")
    return data


def _numbers(name: str, datatype: str, flat: list[Any]) -> np.ndarray[Any, Any]:
    """Return an array of one dimension of numbers.

    Raises:
        InvalidRequest: One is none, or does not fit the datatype.
    """
    import numpy as np

    element = NAMES[datatype]
    if not flat:
        return np.zeros(0, dtypes.to_numpy(element))
    kinds = set(map(type, flat))
    if not kinds <= {int, float, bool} or (bool in kinds and datatype != "BOOL"):
        raise _wrong(name, f"elements of {datatype} are {'true and false' if datatype == 'BOOL' else 'numbers'}")
    try:
        return _floats(flat, element) if datatype.startswith("FP") else arrays.from_lists(flat, element)
    except (ValueError, OverflowError) as error:
        raise _wrong(name, str(error)) from error


def _floats(flat: list[Any], element: str) -> np.ndarray[Any, Any]:
    """Return an array of floating-point numbers, which may be NaN or infinite.

    Raises:
        ValueError: A finite number is too large.
    """
    import numpy as np

    wide = np.array(flat, dtype=np.float64)
    with np.errstate(over="ignore"):
        found = wide.astype(dtypes.to_numpy(element))
    if (np.isinf(found) & np.isfinite(wide)).any():
        raise ValueError(f"a number is too large for {element}")
    return found


def _wrong(name: str, why: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"tensor {name[:MOST_NAME_CHARS]!r}: {why}")
