"""Arguments and results inside a call: msgpack, with arrays beside it as raw frames or in shared memory. Pure.

Plain values (None, bool, int, float, str, bytes, list, map) are msgpack's own; `crossing` refuses what msgspec would
change. Subclasses of these types travel as the plain type. A NumPy array is extension type 1, whose
content is the msgpack array [dtype name, shape, data]; data is the bytes themselves (C order, little-endian), or for
arrays larger than `INLINE_BYTES` the index of the payload frame that holds them. An array in a device's memory is
extension type 2, a `refs.WireRef`; one in memory of the client extension type 3, a `refs.ClientArray`: that is how
arrays larger than `SHARED_BYTES` travel where both ends can map the memory. Texts and bytes too large for a body are
extension type 4, see `packing`. NumPy scalars travel as plain numbers and texts, complex numbers as arrays without
dimensions.
NumPy is imported when the first array arrives: a process that never sees one never pays for it.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from atomr_mp import checks, errors
from atomr_mp.protocol import dtypes, foreign, type_words
from atomr_mp.protocol.crossing import SCALARS, JsonArguments
from atomr_mp.protocol.crossing import check as check_crosses
from atomr_mp.protocol.decoders import decoder, known
from atomr_mp.protocol.flow.limits import AROUND, MAX_BODY_BYTES, MAX_DEPTH, MAX_FRAMES, MAX_PAYLOAD_BYTES
from atomr_mp.protocol.layout import MAX_DIMENSIONS, check_shape
from atomr_mp.protocol.packing import MAX_PACKED_BYTES, PACKED, PACKED_MARK, PackedTexts, packed, unpacked
from atomr_mp.protocol.pickling import why_not_sent
from atomr_mp.protocol.refs import CLIENT_ARRAY, REF, ClientArray, Operand, WireRef, decode_client_array, decode_ref

if TYPE_CHECKING:
    import numpy as np

INLINE_BYTES: Final = 8192
"""Arrays up to this size are copied into the body: an own frame costs more than the copy."""

SHARED_BYTES: Final = 128 * 1024
"""Arrays from this size on travel in shared memory where that is possible: the copy through a socket costs more than
the bookkeeping."""

ARRAY: Final = 1
"""msgpack extension type of an array."""

DTYPES: Final = frozenset(dtypes.ITEM_BYTES)
"""Element types that cross the wire, by NumPy's and ml_dtypes' names."""

Buffer = bytes | memoryview
T = TypeVar("T")


class PlacedArray(Protocol):
    """An array that lies in shared memory."""

    def to_wire(self) -> WireRef | ClientArray:
        """Return the wire form."""


Encoded = tuple[bytes, Sequence[bytes], Sequence[PlacedArray]]
"""A value, ready to be sent: the body; the payload frames; and what the value refers to in shared memory, to be kept as
long as the value is needed. The body and the frames are copies: whoever made the value may write to its arrays at once,
however long the message waits.
"""


def encode(  # noqa: C901 - a further call would cost more
    value: object,
    place: Callable[[Any], PlacedArray | None] | None = None,
    payload_bytes: int = MAX_PAYLOAD_BYTES,
    around: int | None = None,
) -> Encoded:
    """Return the wire form of a value.

    Args:
        value: What to send.
        place: Copies a large array into shared memory, or takes one of device memory as it is; None if it cannot.
        payload_bytes: Most bytes of the payload frames together.
        around: How many lists there are around values that may be nested up to `MAX_DEPTH`. None for arguments, which
            have the limits of their parameters.

    Raises:
        InvalidRequest: The value holds something that does not cross the wire, is too large, or is nested too deeply.
    """
    # The arguments of most calls are scalars, which have no parts to check.
    if type(value) is tuple and SCALARS.issuperset(map(type, value)) and (at_once := _encode_at_once(value)):
        return at_once
    frames: list[bytes] | tuple[()] = ()
    placed: list[PlacedArray] | tuple[()] = ()
    given = value
    try:
        if type(value) is tuple and not _PLAIN.issuperset(map(type, value)):
            # Refs among the arguments, before the encoder calls back for them: that takes twice as long.
            placed, arguments = [], list(value)
            for at, argument in enumerate(arguments):
                if isinstance(argument, Operand):
                    placed.append(argument)
                    arguments[at] = argument.to_wire().extension
            value = arguments
        try:
            body = _encode_plain(value) if type(value) in _PLAIN else None
        except _NeedsHookError:
            body = None
        if body is None:
            frames, placed = [], [*placed]
            hook = functools.partial(_encode_other, frames, placed, place)
            body = msgspec.msgpack.encode(value, enc_hook=hook)
        if len(body) > MAX_BODY_BYTES:
            body, frames, placed = _encode_large(given, len(body), place)
    except (TypeError, ValueError, OverflowError, RecursionError, BufferError) as error:
        advice = "; send bytes() of it" if isinstance(error, BufferError) else ""
        raise errors.InvalidRequest(f"a value cannot be sent: {error}{advice}") from error
    check_crosses(given, around)
    if len(frames) > MAX_FRAMES:
        raise errors.InvalidRequest(f"{len(frames)} large arrays in one call; the limit is {MAX_FRAMES}")
    if frames and _nbytes(frames) > payload_bytes:
        raise errors.InvalidRequest(
            f"arrays of {_nbytes(frames)} bytes in one call, and no shared memory for them; the limit is "
            f"{payload_bytes}: send them in several calls"
        )
    return body, frames, placed


def encode_scalar(value: object, place: Callable[[Any], PlacedArray | None] | None = None) -> Encoded:
    """Return the wire form of a value whose type is one of `SCALARS`, as `encode` does, in half the time."""
    return _encode_at_once(value) or encode(value, place)  # which says why it cannot be sent


def _encode_at_once(value: object) -> Encoded | None:
    """Return the wire form of scalars; None if they cannot be sent."""
    try:
        body = _encode_plain(value)
    except (OverflowError, ValueError):
        return None
    return (body, (), ()) if len(body) <= MAX_BODY_BYTES else None


class Decoder(Generic[T]):
    """Decodes bodies to one type. Not for several threads at a time.

    Args:
        type_: What to decode to; msgspec's rules. `Any` admits every value up to `MAX_DEPTH`, with
            up to `AROUND` lists around it.
        hook: msgspec's `dec_hook`, for types that it does not know.
        writable: Whether arrays by value may be written to. They lie in memory of their own, or in that of `frames`.
    """

    def __init__(
        self, type_: type[T] | Any = Any, hook: Callable[[type, Any], Any] | None = None, *, writable: bool = True
    ) -> None:
        self._writable: Final = writable
        self._frames: Sequence[Buffer] = ()
        self._resolve: Callable[[WireRef | ClientArray], object] | None = None
        self._decoder: msgspec.msgpack.Decoder[T] = decoder(type_, ext_hook=self._extension, dec_hook=hook)
        self._type: Final = type_
        self._hook: Final = hook

    def decode(
        self,
        body: bytes,
        frames: Sequence[Buffer] = (),
        resolve: Callable[[WireRef | ClientArray], object] | None = None,
    ) -> T:
        """Return the value.

        Args:
            body: Its wire form.
            frames: Payload frames beside it.
            resolve: Returns the object for an array in shared memory, or raises a `RequestError`; None if there can be
                no such array.

        Raises:
            RequestError: `resolve` has raised it.
            InvalidRequest: The body is not msgpack, not of this decoder's type, or nested too deeply; the message
                names the place.
        """
        self._frames, self._resolve = frames, resolve
        try:
            value = self._of_packed(body[1:]) if body[:1] == PACKED_MARK else self._decoder.decode(body)
            if type(value) in CONTAINERS:
                _check_depth(value, MAX_DEPTH + AROUND)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise errors.InvalidRequest(f"the values cannot be decoded: {type_words.told(str(error))}") from error
        except RecursionError as error:
            raise errors.InvalidRequest(TOO_DEEP) from error
        finally:
            self._frames, self._resolve = (), None
        return value

    def _of_packed(self, body: bytes) -> T:
        """Return a value with packed texts in it, which msgspec takes for no text, bytes or list before they are there.

        Raises:
            DecodeError: It is of another type.
        """
        plain = decoder(Any, ext_hook=self._extension).decode(body)
        if self._type is Any:
            return cast("T", plain)
        hook = self._hook or _as_it_is
        return cast("T", msgspec.convert(plain, known(self._type), dec_hook=hook, builtin_types=_BUILTIN))

    def _extension(self, code: int, data: memoryview) -> object:
        if code == ARRAY:
            return self._array(data)
        if code == PACKED:
            return self._packed(data)
        decode = _SHARED.get(code)
        if decode is None:
            raise ValueError(f"unknown extension type {code}")
        if self._resolve is None:
            raise ValueError("a ref where there can be none")
        try:
            shared = decode(bytes(data))
        except (msgspec.DecodeError, RecursionError) as error:
            # Its place is within the ref, and must not be taken for one in the values.
            raise ValueError(f"an array in shared memory is described wrongly ({error})") from error
        return self._resolve(shared)

    def _packed(self, data: memoryview) -> object:
        try:
            content = decoder(tuple[str, Any, Any], ext_hook=self._extension).decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"a packed value is described wrongly ({error})") from error
        return unpacked(content)

    def _array(self, data: memoryview) -> np.ndarray[Any, Any]:
        try:
            dtype, shape, content = _ARRAY_DECODER.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:  # as with shared memory
            raise ValueError(f"an array is described wrongly ({error})") from error
        element = dtypes.to_numpy(dtype)
        import numpy as np

        source: Buffer
        if isinstance(content, int):
            if not 0 <= content < len(self._frames):
                raise ValueError(f"payload frame {content} of {len(self._frames)}")
            source = self._frames[content]
        else:
            source = content
        check_shape(tuple(shape), element.itemsize)
        expected = math.prod(shape) * element.itemsize
        if len(source) != expected:
            raise ValueError(f"an array of {dtype} and shape {shape} takes {expected} bytes, got {len(source)}")
        array = np.frombuffer(source, element).reshape(shape)
        if source is content or (self._writable and not array.flags.writeable):  # a body's bytes are not aligned
            array = array.copy()
        if not self._writable:
            array.flags.writeable = False
        return array


class _NeedsHookError(Exception):
    """The value holds something that is not plain; encode again with the hook that collects frames."""


def _needs_hook(_value: object) -> object:
    raise _NeedsHookError


_frame_of: Final[type[bytes]] = checks.CheckedFrame if checks.ON else bytes
"""Makes a payload frame; `bytes` returns what it is given."""

_encode_plain: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder(enc_hook=_needs_hook).encode
_ARRAY_DECODER: Final = decoder(tuple[str, list[int], bytes | int])
_SHARED: Final[dict[int, Callable[[bytes], WireRef | ClientArray]]] = {
    REF: decode_ref,
    CLIENT_ARRAY: decode_client_array,
}
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, JsonArguments})
CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})
"""Types whose values may be nested."""


_BUILTIN: Final = (bytes,)
"""Not from texts, as bytes in JSON are."""


def _as_it_is(_type: type, value: Any) -> Any:
    return value


def _encode_other(
    frames: list[bytes],
    placed: list[PlacedArray],
    place: Callable[[Any], PlacedArray | None] | None,
    value: object,
) -> object:
    if isinstance(value, Operand):
        placed.append(value)
        return value.to_wire().extension
    # Whoever holds a NumPy object has imported NumPy.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            _check_array(value)
            if place is not None and _is_shared(value.nbytes, frames):
                shared = place(value)
                if shared is not None:
                    placed.append(shared)
                    return shared.to_wire().extension
            return _encode_array(numpy, value, frames)
        if isinstance(value, numpy.generic) and dtypes.name_of(value.dtype) in DTYPES:
            return float(value) if value.dtype.kind == "V" else value.item()  # V: ml_dtypes' own
    if place is not None and hasattr(value, "__cuda_array_interface__"):
        shared = place(value)
        if shared is not None:
            placed.append(shared)
            return shared.to_wire().extension
    plain = foreign.plain(value)
    return _as_plain(value) if plain is value else plain


def _encode_large(
    value: object, nbytes: int, place: Callable[[Any], PlacedArray | None] | None
) -> tuple[bytes, list[bytes], list[PlacedArray]]:
    """Return the wire form of a value whose body was larger than may be, with its texts and bytes beside the body.

    Raises:
        InvalidRequest: It is too large even so.
    """
    frames: list[bytes] = []
    placed: list[PlacedArray] = []
    smaller = packed(value)
    if smaller is not value:
        hook = functools.partial(_encode_packed, frames, placed, place)
        body = PACKED_MARK + msgspec.msgpack.encode(smaller, enc_hook=hook)
        nbytes = len(body)
        if nbytes <= MAX_BODY_BYTES:
            return body, frames, placed
    raise errors.InvalidRequest(
        f"the values take {nbytes} bytes, more than the {MAX_BODY_BYTES} that a call may have beside arrays and "
        f"bytes and texts of up to {MAX_PACKED_BYTES}; send large data as NumPy arrays, or in several calls"
    )


def _encode_packed(
    frames: list[bytes],
    placed: list[PlacedArray],
    place: Callable[[Any], PlacedArray | None] | None,
    value: object,
) -> object:
    if type(value) is not PackedTexts:
        return _encode_other(frames, placed, place, value)
    hook = functools.partial(_encode_other, frames, placed, place)
    return msgspec.msgpack.Ext(PACKED, msgspec.msgpack.encode(value.parts(), enc_hook=hook))


def _as_plain(value: object) -> object:
    """Return a value of a plain type in the place of one of a subclass, or a complex number as an array.

    Raises:
        InvalidRequest: There is none.
    """
    if isinstance(value, complex):
        content = struct.pack("<2d", value.real, value.imag)
        return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(("complex128", (), content)))
    for base, plain in _PLAIN_OF:
        if isinstance(value, base):
            return plain(value)
    kind = type(value)
    why = why_not_sent(kind)
    if why:
        raise errors.InvalidRequest(why)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        raise errors.InvalidRequest(f"a numpy.{kind.__name__} cannot be sent; send {_INSTEAD[value.dtype.kind]}")
    raise errors.InvalidRequest(f"a {kind.__module__}.{kind.__qualname__} cannot be sent; use {foreign.instead(kind)}")


_INSTEAD: Final = defaultdict(
    lambda: "numbers",
    {
        "M": "text, by `numpy.datetime_as_string(x)`, or the count of its unit, by `x.astype('int64')`",
        "m": "the count of its unit, by `x.astype('int64')`",
        "f": "`x.astype('float64')`, whose precision is less",
        "c": "`x.astype('complex128')`, whose precision is less",
        "U": "`x.tolist()`",
        "S": "`x.tolist()`",
        "T": "`x.tolist()`",
        "O": "`x.tolist()`",
        "V": "its fields, each by itself",
    },
)
"""What to send instead of NumPy's values that cannot be sent, by the kind of their type."""

_PLAIN_OF: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (int, int.__index__),
    (float, float.__float__),
)
"""How a value of a subclass becomes one of the plain type, whatever its own methods say. Lists, tuples and maps
are left to msgspec."""


def _is_shared(nbytes: int, frames: Sequence[Buffer]) -> bool:
    """Whether an array travels in shared memory, for its size or because the message has too much already."""
    return nbytes >= SHARED_BYTES or (nbytes > INLINE_BYTES and _nbytes(frames) + nbytes > MAX_PAYLOAD_BYTES)


def _nbytes(frames: Sequence[Buffer]) -> int:
    return sum(map(len, frames))


def _check_array(array: np.ndarray[Any, Any]) -> None:
    if dtypes.name_of(array.dtype) not in DTYPES:
        raise errors.InvalidRequest(
            f"arrays of {array.dtype} cannot be sent; send {_INSTEAD[array.dtype.kind]}; arrays have one of "
            f"{', '.join(sorted(DTYPES))}"
        )
    if array.ndim > MAX_DIMENSIONS:
        raise errors.InvalidRequest(f"an array of {array.ndim} dimensions; the limit is {MAX_DIMENSIONS}")
    if hasattr(array, "mask"):
        raise errors.InvalidRequest("a masked array cannot be sent: its mask would be lost; send `filled()`, or both")


def _encode_array(numpy: Any, array: np.ndarray[Any, Any], frames: list[bytes]) -> msgspec.msgpack.Ext:
    if array.nbytes > MAX_PAYLOAD_BYTES:  # before it is copied
        raise errors.InvalidRequest(
            f"an array of {array.nbytes} bytes, and no shared memory for it; the limit is {MAX_PAYLOAD_BYTES}: send it "
            "in parts"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    copied = numpy.ndarray.tobytes(array)  # not by a subclass's own method, which may return what it keeps
    content: bytes | int = copied
    if array.nbytes > INLINE_BYTES:
        content = len(frames)
        frames.append(_frame_of(copied))
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((dtypes.name_of(array.dtype), array.shape, content)))


TOO_DEEP: Final = f"the values are nested deeper than {MAX_DEPTH}"


def check_depth(value: object) -> None:
    """Check a value whose type bounds nothing.

    Raises:
        InvalidRequest: It is nested deeper than `MAX_DEPTH`.
    """
    if type(value) in CONTAINERS:
        try:
            _check_depth(value, MAX_DEPTH)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from error


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise ValueError(TOO_DEEP)
    items: Collection[object] = value.values() if type(value) is dict else value  # type: ignore[assignment]
    if CONTAINERS.isdisjoint(map(type, items)):  # in C, for long lists of numbers
        return
    for item in items:
        if type(item) in CONTAINERS:
            _check_depth(item, left - 1)
