"""Arguments and results inside a call: msgpack, with arrays beside it as raw frames. Pure.

Plain values (None, bool, int, float, str, bytes, list, map) are msgpack's own. A NumPy array is extension type 1, whose
content is the msgpack array [dtype name, shape, data]; data is the bytes themselves (C order, little-endian), or for
arrays larger than `INLINE_BYTES` the index of the payload frame that holds them. NumPy scalars travel as plain numbers.
NumPy is imported when the first array arrives: a process that never sees one never pays for it.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_FRAME_BYTES
from atomr_mp.protocol.data import MAX_BODY_BYTES, MAX_FRAMES

if TYPE_CHECKING:
    import numpy as np

INLINE_BYTES: Final = 8192
"""Arrays up to this size are copied into the body: an own frame costs more than the copy."""

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and maps in untyped values."""

MAX_DIMENSIONS: Final = 32
"""Most dimensions of an array."""

ARRAY: Final = 1
"""msgpack extension type of an array."""

DTYPES: Final = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
"""Element types that cross the wire, by NumPy's names."""

Buffer = bytes | memoryview
T = TypeVar("T")


def encode(value: object) -> tuple[bytes, list[Buffer]]:
    """Return (body, payload frames) of a value.

    The frames refer to the arrays' own memory: they must not be written before the message has been sent.

    Raises:
        InvalidRequest: The value holds something that does not cross the wire, or is too large.
    """
    frames: list[Buffer] = []
    try:
        try:
            body = _encode_plain(value)
        except _NeedsHookError:
            body = msgspec.msgpack.encode(value, enc_hook=lambda item: _encode_other(item, frames))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidRequest(f"a value cannot be sent: {error}") from error
    if len(body) > MAX_BODY_BYTES:
        raise errors.InvalidRequest(
            f"the values take {len(body)} bytes, more than the {MAX_BODY_BYTES} that a call may have; send large "
            "data as NumPy arrays, or in several calls"
        )
    if len(frames) > MAX_FRAMES:
        raise errors.InvalidRequest(f"{len(frames)} large arrays in one call; the limit is {MAX_FRAMES}")
    return body, frames


class Decoder(Generic[T]):
    """Decodes bodies to one type. Not for several threads at a time.

    Args:
        type_: What to decode to; msgspec's rules. `Any` admits every value up to `MAX_DEPTH`.
    """

    def __init__(self, type_: type[T] | Any = Any) -> None:
        self._frames: Sequence[Buffer] = ()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(type_, ext_hook=self._extension)

    def decode(self, body: bytes, frames: Sequence[Buffer] = ()) -> T:
        """Return the value.

        Raises:
            InvalidRequest: The body is not msgpack, not of this decoder's type, or nested too deeply; the message
                names the place.
        """
        self._frames = frames
        try:
            value = self._decoder.decode(body)
            check_depth(value)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise errors.InvalidRequest(f"the values cannot be decoded: {error}") from error
        except RecursionError as error:
            raise errors.InvalidRequest(f"the values are nested deeper than {MAX_DEPTH}") from error
        finally:
            self._frames = ()
        return value

    def _extension(self, code: int, data: memoryview) -> object:
        if code != ARRAY:
            raise ValueError(f"unknown extension type {code}")
        dtype, shape, content = _ARRAY_DECODER.decode(data)
        if dtype not in DTYPES:
            raise ValueError(f"unknown element type {dtype!r}")
        import numpy as np

        source: Buffer
        if isinstance(content, int):
            if not 0 <= content < len(self._frames):
                raise ValueError(f"payload frame {content} of {len(self._frames)}")
            source = self._frames[content]
            copy = False
        else:
            source = content
            copy = True  # the body's bytes are neither aligned nor writable
        if len(shape) > MAX_DIMENSIONS:  # first, for the product of a long list of large numbers takes minutes
            raise ValueError(f"an array of {len(shape)} dimensions; the limit is {MAX_DIMENSIONS}")
        element = np.dtype(dtype)
        expected = math.prod(shape) * element.itemsize
        if any(n < 0 for n in shape) or len(source) != expected:
            raise ValueError(f"an array of {dtype} and shape {shape} takes {expected} bytes, got {len(source)}")
        array = np.frombuffer(source, element).reshape(shape)
        return array.copy() if copy else array


class _NeedsHookError(Exception):
    """The value holds something that is not plain; encode again with the hook that collects frames."""


def _needs_hook(_value: object) -> object:
    raise _NeedsHookError


_encode_plain: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder(enc_hook=_needs_hook).encode
_ARRAY_DECODER: Final = msgspec.msgpack.Decoder(tuple[str, list[int], bytes | int])
_CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})


def _encode_other(value: object, frames: list[Buffer]) -> object:
    # Whoever holds a NumPy object has imported NumPy.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return _encode_array(numpy, value, frames)
        if isinstance(value, numpy.generic) and _dtype_name(value.dtype) in DTYPES:
            return value.item()
    kind = type(value)
    raise errors.InvalidRequest(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent; use None, bool, int, float, str, bytes, lists, "
        "maps with string keys, and NumPy arrays"
    )


def _encode_array(numpy: Any, array: np.ndarray[Any, Any], frames: list[Buffer]) -> msgspec.msgpack.Ext:
    dtype = _dtype_name(array.dtype)
    if dtype not in DTYPES:
        raise errors.InvalidRequest(
            f"arrays of {array.dtype} cannot be sent; convert to one of {', '.join(sorted(DTYPES))}"
        )
    if array.ndim > MAX_DIMENSIONS:
        raise errors.InvalidRequest(f"an array of {array.ndim} dimensions; the limit is {MAX_DIMENSIONS}")
    if type(array) is not numpy.ndarray and hasattr(array, "mask"):
        raise errors.InvalidRequest("a masked array cannot be sent: its mask would be lost; send `filled()`, or both")
    if array.nbytes > MAX_FRAME_BYTES:
        raise errors.InvalidRequest(
            f"an array of {array.nbytes} bytes; the limit of a message is {MAX_FRAME_BYTES}: send it in parts"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    content: bytes | int
    if array.nbytes <= INLINE_BYTES:
        content = array.tobytes()
    else:
        content = len(frames)
        frames.append(memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)))
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((dtype, array.shape, content)))


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    # NumPy computes a dtype's name anew each time.
    return dtype.name


def check_depth(value: object) -> None:
    """Check a value whose type bounds nothing.

    Raises:
        InvalidRequest: It is nested deeper than `MAX_DEPTH`.
    """
    if type(value) in _CONTAINERS:
        try:
            _check_depth(value, MAX_DEPTH)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from error


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise ValueError(f"the values are nested deeper than {MAX_DEPTH}")
    if type(value) is list:
        for item in value:
            if type(item) in _CONTAINERS:
                _check_depth(item, left - 1)
    elif type(value) is dict:
        for item in value.values():
            if type(item) in _CONTAINERS:
                _check_depth(item, left - 1)
