from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import math
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.flow.limits import AROUND, MAX_BODY_BYTES, MAX_DEPTH, MAX_FRAMES, MAX_PAYLOAD_BYTES
from atomr_mp.protocol.layout import MAX_DIMENSIONS
from atomr_mp.protocol.refs import CLIENT_ARRAY, REF, ClientArray, Operand, WireRef, decode_ref
from atomr_mp.protocol.token import TOKEN_BYTES
from atomr_mp.protocol.values import (
    ARRAY,
    DTYPES,
    INLINE_BYTES,
    SHARED_BYTES,
    Decoder,
    encode,
    encode_scalar,
)
from tests.fakes.fake_arrays import FakeArray
from tests.in_turn import in_turn

Array = npt.NDArray[Any]

ANY: Final = Decoder[Any]()

BEYOND_NUMPY: Final = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
"""Element types of ml_dtypes."""

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Draw an array of any element type and byte order: empty, of no dimension, strided, large, read-only."""
    dtype = dtypes.to_numpy(draw(st.sampled_from(sorted(DTYPES))))
    if dtype.isbuiltin == 1 and draw(st.booleans()):  # ml_dtypes' have no other byte order
        dtype = dtype.newbyteorder(">")
    shape = draw(
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
        | st.tuples(st.integers(INLINE_BYTES // dtype.itemsize - 1, 3 * INLINE_BYTES))
        | st.tuples(st.integers(90, 130), st.integers(90, 130))
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32), label="seed"))
    bits = random.integers(0, 2 if dtype.kind == "b" else 256, math.prod(shape) * dtype.itemsize, np.uint8)
    array: Array = bits.view(dtype).reshape(shape)
    match draw(st.sampled_from(["as it is", "transposed", "reversed", "every other", "read-only", "broadcast"])):
        case "transposed":
            array = array.T
        case "reversed":
            array = array[..., ::-1] if array.ndim else array
        case "every other":
            array = array[::2] if array.ndim else array
        case "read-only":
            array.flags.writeable = False
        case "broadcast":
            array = np.broadcast_to(array, (2, *array.shape))
    return array


def _scribble(array: Array) -> None:
    """Overwrite the memory that an array lies in, whatever view it is of it."""
    while array.base is not None:
        array = array.base
    array.flags.writeable = True
    array.view(np.uint8)[...] ^= 0xFF


def over_the_wire(value: object) -> Any:
    """Return what arrives of a value."""
    body, frames, placed = encode(value)
    assert not placed
    return ANY.decode(body, [bytes(payload) for payload in frames])


def assert_same(received: Array, sent: Array) -> None:
    """Compare bit for bit, NaNs included."""
    native = dtypes.to_numpy(sent.dtype.name)
    assert type(received) is np.ndarray
    assert received.dtype == native
    assert received.shape == sent.shape
    assert received.tobytes() == sent.astype(native).tobytes()


# --- round trips ---------------------------------------------------------------------------------------------


@given(plain)
def test_plain_values_survive_the_round_trip(value: object) -> None:
    """They take no frame. Encodings are compared, since a NaN equals itself there."""
    body, frames, placed = encode(value)
    assert not frames
    assert not placed
    assert encode(ANY.decode(body))[0] == body
    assert value != value or msgspec.msgpack.encode(value) == body  # noqa: PLR0124  # a NaN


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters()) | st.binary())
def test_a_scalar_s_own_way_is_the_way_of_all_values(value: object) -> None:
    """The shorter way gives the same bytes, or the same error."""
    found: list[object] = []
    for encoding in (encode, encode_scalar):
        try:
            found.append(encoding(value)[0])
        except errors.InvalidRequest as refused:
            found.append(str(refused))
    assert found[0] == found[1]


def test_a_large_scalar_lies_beside_the_body() -> None:
    """As a large array does."""
    body, frames, _ = encode_scalar(bytes(MAX_BODY_BYTES))
    assert len(body) < 100
    assert list(map(len, frames)) == [MAX_BODY_BYTES]


@given(arrays())
def test_an_array_survives_the_round_trip(array: Array) -> None:
    """Type, shape and layout are any. Large arrays travel beside the body, small ones inside."""
    body, frames, _ = encode(array)
    assert len(frames) == (array.nbytes > INLINE_BYTES)
    assert len(body) < INLINE_BYTES + 200
    received = ANY.decode(body, [bytes(payload) for payload in frames])
    assert_same(received, array)
    assert received.flags.aligned


@given(st.lists(arrays(), min_size=1, max_size=4))
def test_what_was_encoded_stays_as_it_was(drawn: list[Array]) -> None:
    """Whoever made a value may write to its arrays at once: what waits to be sent does not refer to them."""
    sent = [array.copy() for array in drawn]
    body, frames, _ = encode({"arrays": drawn, "deep": [[drawn[0]]]})
    for array in drawn:
        _scribble(array)
    received = ANY.decode(body, frames)
    for one, other in zip([*received["arrays"], received["deep"][0][0]], [*sent, sent[0]], strict=True):
        assert_same(one, other)


@given(st.lists(arrays(), min_size=1, max_size=4), st.sampled_from([bytes, bytearray]), st.booleans())
def test_arrays_may_be_written_or_not_whatever_their_size(
    drawn: list[Array],
    memory: type[bytes | bytearray],
    writable: bool,  # noqa: FBT001 - drawn
) -> None:
    """However they came: in the body, or in frames of either kind of memory. What is written has one owner."""
    body, frames, _ = encode(drawn)
    received = Decoder[Any](writable=writable).decode(body, [memoryview(memory(frame)) for frame in frames])
    assert all(array.flags.writeable is writable for array in received)
    if writable:
        for array in received:
            array[...] = 0
        for array, again in zip(drawn, ANY.decode(body, frames), strict=True):
            assert_same(again, array)


@given(st.lists(arrays(), max_size=4), plain)
def test_arrays_and_plain_values_mix(drawn: list[Array], value: object) -> None:
    """Each array comes back at its place."""
    received = over_the_wire({"arrays": drawn, "value": value, "deep": [[{"again": drawn}]]})
    for again in (received["arrays"], received["deep"][0][0]["again"]):
        assert len(again) == len(drawn)
        for one, other in zip(again, drawn, strict=True):
            assert_same(one, other)
    assert encode(received["value"]) == encode(value)


@given(arrays())
def test_numpy_scalars_travel_as_plain_numbers(array: Array) -> None:
    """Each becomes the Python number of the same value; complex ones become arrays without dimensions."""
    assume(array.size)
    scalar = array.astype(dtypes.to_numpy(array.dtype.name)).flat[0]
    received = over_the_wire([scalar])[0]
    if array.dtype.kind == "c":
        assert_same(received, np.asarray(complex(scalar)))
        return
    number = float(scalar) if array.dtype.name in BEYOND_NUMPY else scalar.item()
    assert type(received) is type(number)
    assert received == number or math.isnan(received)


@given(st.complex_numbers())
def test_complex_numbers_travel_as_arrays_without_dimensions(number: complex) -> None:
    """No plain value of msgpack's is one; both parts arrive bit for bit, and the array serves as a number."""
    received = over_the_wire({"deep": [number]})["deep"][0]
    assert_same(received, np.asarray(number, np.complex128))
    assert complex(received) == number or number != number  # noqa: PLR0124  # a NaN


@pytest.mark.parametrize("number", [np.complex64(1 - 2j), np.complex128(1 - 2j)])
def test_numpys_complex_scalars_travel_as_pythons(number: Any) -> None:
    """They keep full precision, beside plain values and arrays."""
    one, two, _ = over_the_wire([number, 1, np.zeros(2)])
    assert (one.dtype, one.shape, complex(one), two) == (np.complex128, (), 1 - 2j, 1)


ELEMENT_TYPES: Final = [
    *("M8[s]", "M8[0s]", "M8[D]", "m8[0s]", "m8[ms]", "M8", "S", "S3", "U2", "V4", "O", "i4,M8[0s]", "i4,M8[s]"),
    *("?", "i1", "<u2", ">i4", "e", "f4", ">f8", "F", "c16", "g", "G", "q", "Q", "l", "L"),
]


def test_the_names_of_few_element_types_are_kept() -> None:
    """Programs may make types without end, such as those of strings of each length."""
    for length in range(1, 400):
        assert dtypes.name_of(np.dtype(f"S{length}")) == f"bytes{8 * length}"
    assert len(dtypes._NAMES) <= 64


@given(st.lists(st.sampled_from(ELEMENT_TYPES), min_size=1, max_size=8))
def test_types_are_named_without_being_compared(types: list[str]) -> None:
    """NumPy divides by zero, and so ends the process, when it compares dates of no step with others."""
    for each in types:
        dtype = np.dtype(each)
        assert dtypes.name_of(dtype) == dtype.name


def test_a_large_array_is_not_copied_when_it_comes() -> None:
    """Its memory is that of the message."""
    body, frames, _ = encode(np.zeros(INLINE_BYTES + 1, np.uint8))
    memory = bytearray(frames[0])
    received = ANY.decode(body, [memoryview(memory)])
    received[7] = 42
    assert memory[7] == 42


def test_a_small_array_arrives_with_memory_of_its_own() -> None:
    """It can be written to, whatever becomes of the body."""
    received = over_the_wire(np.zeros(3))
    received += 1
    assert received.tolist() == [1.0, 1.0, 1.0]


def test_a_process_that_sees_no_array_does_not_import_numpy() -> None:
    """NumPy takes longer to import than all of the rest."""
    program = (
        "import sys; from atomr_mp.protocol.values import Decoder, encode; "
        "Decoder().decode(encode({'a': [1, 'b', None]})[0]); assert 'numpy' not in sys.modules"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_a_decoder_of_a_type_checks_it() -> None:
    """The message names the place."""
    body = encode([1, [2.5, "x"]])[0]
    assert Decoder(tuple[int, tuple[float, str]]).decode(body) == (1, (2.5, "x"))
    with pytest.raises(errors.InvalidRequest, match=r"\$\[1\]\[0\]"):
        Decoder(tuple[int, tuple[str, str]]).decode(body)
    assert Decoder(np.ndarray).decode(encode(np.arange(3))[0]).tolist() == [0, 1, 2]
    with pytest.raises(errors.InvalidRequest, match="Expected `NumPy array`, got `int`"):
        Decoder(np.ndarray).decode(encode(1)[0])


class Text(str):
    """A text whose own methods say something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class Octets(bytes):
    """Bytes."""


class Whole(int):
    """A number whose own methods say something else."""

    def __int__(self) -> int:
        return 99


class Real(float):
    """A number."""


class Row(list[Any]):
    """A list."""


class Table(dict[Any, Any]):
    """A map."""


WRAPPERS: Final[dict[type, tuple[Callable[[Any], Any], ...]]] = {
    str: (Text, np.str_),
    bytes: (Octets, np.bytes_),
    int: (Whole, np.int64),
    float: (Real, np.float64),
    bool: (np.bool_,),
    list: (Row,),
    dict: (Table,),
}


@st.composite
def wrapped(draw: st.DrawFn, plain: Any) -> Any:
    """Draw a value that equals a plain one, with types of NumPy's and subclasses anywhere in it."""
    found = plain
    if isinstance(plain, list):
        found = [draw(wrapped(each)) for each in plain]
    elif isinstance(plain, dict):
        # A key of NumPy's bytes cannot be compared with one of a number, as a map may have to.
        found = {
            key if isinstance(key, bytes) else draw(wrapped(key)): draw(wrapped(each)) for key, each in plain.items()
        }
    kinds = WRAPPERS.get(type(plain), ())
    return draw(st.sampled_from([lambda value: value, *kinds]))(found) if kinds else found


SCALAR_VALUES: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    | st.binary().map(lambda value: value.rstrip(b"\0"))
)
"""What NumPy's scalars can hold."""

KEYS: Final = SCALAR_VALUES.filter(lambda key: key not in {"", b""})
"""NumPy would make a number of an empty text to compare it with one of the same hash."""


@given(
    st.recursive(
        SCALAR_VALUES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=12,
    ),
    st.data(),
)
def test_subclasses_and_numpys_scalars_arrive_as_the_plain_value(plain: Any, data: st.DataObject) -> None:
    """Anywhere in a value, as keys too; with the types of the plain value."""
    body, frames, placed = encode(data.draw(wrapped(plain)))
    found = ANY.decode(body, frames)
    assert (found, repr(found), placed) == (plain, repr(plain), [] if placed == [] else ())


# --- what cannot be sent -------------------------------------------------------------------------------------

endless: list[Any] = []
endless.append(endless)


class Dated(msgspec.Struct):
    """Has a date, which would arrive as text."""

    when: dt.date = dt.date(2026, 11, 23)


@dataclasses.dataclass(slots=True)
class DatedClass:
    """A dated class without a dictionary."""

    when: dt.date = dt.date(2026, 11, 23)


class Dates(list[dt.date]):
    """A kind of list."""


@pytest.mark.parametrize("beside", [[], [np.zeros(3)]], ids=["alone", "beside an array"])
@in_turn(
    "value",
    [
        pytest.param(object(), id="an object"),
        pytest.param(int, id="a class"),
        pytest.param(np.clongdouble(1j), id="a complex scalar of a type that does not cross"),
        pytest.param(np.longdouble(1), id="a scalar of a type that does not cross"),
        pytest.param(2**64, id="an int of more than 64 bits"),
        pytest.param(-(2**63) - 1, id="a negative int of more than 64 bits"),
        pytest.param("\udc80", id="a string that is not UTF-8"),
        pytest.param(endless, id="a list that holds itself"),
        pytest.param(np.array(["a"]), id="an array of strings"),
        pytest.param(np.array([object()]), id="an array of objects"),
        pytest.param(np.array([(1, 2)], dtype="i4,i4"), id="an array of records"),
        pytest.param(np.array(["2020"], dtype="datetime64[D]"), id="an array of dates"),
        pytest.param(np.ma.masked_array([1, 2], [True, False]), id="a masked array"),
        pytest.param(np.zeros((1,) * (MAX_DIMENSIONS + 1)), id="an array of too many dimensions"),
        pytest.param(np.broadcast_to(np.uint8(0), MAX_PAYLOAD_BYTES + 1), id="an array above the limit"),
        pytest.param([[7] * (MAX_BODY_BYTES + 1)], id="a body above the limit"),
        pytest.param({"a": (Dated(),)}, id="a struct with a date"),
        pytest.param([DatedClass()], id="a dataclass with a date"),
        pytest.param(Dates([dt.date(2026, 11, 23)]), id="a list of a kind of its own with a date"),
        pytest.param([{1, uuid.UUID(int=1)}], id="a set with a UUID"),
        pytest.param({(1, (2,)): 1}, id="a tuple in a tuple as a key"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_the_caller(value: object, beside: list[Any]) -> None:
    """Typed, at once, and before anything is on its way."""
    with pytest.raises(errors.InvalidRequest):
        encode([*beside, value])


def test_more_large_arrays_than_a_call_may_have_are_refused() -> None:
    """The limit itself is within the limit."""
    array = np.zeros(INLINE_BYTES + 1, np.uint8)
    assert len(encode([array] * MAX_FRAMES)[1]) == MAX_FRAMES
    with pytest.raises(errors.InvalidRequest, match=str(MAX_FRAMES)):
        encode([array] * (MAX_FRAMES + 1))


# --- what cannot be received ---------------------------------------------------------------------------------


def nested(depth: int, kind: str) -> bytes:
    """Return a body of `depth` containers, one in the other."""
    opening = {"lists": b"\x91", "maps": b"\x81\xa1a", "keys": b"\x81"}[kind]
    return opening * depth + b"\x01"


@pytest.mark.parametrize("kind", ["lists", "maps"])
def test_values_may_be_nested_to_the_limit_and_no_deeper(kind: str) -> None:
    """Whoever walks them afterwards needs no more stack than that."""
    assert ANY.decode(nested(MAX_DEPTH + AROUND, kind))
    with pytest.raises(errors.InvalidRequest, match=f"deeper than {MAX_DEPTH}"):
        ANY.decode(nested(MAX_DEPTH + AROUND + 1, kind))


class Boxed(msgspec.Struct):
    """A struct in a result."""

    content: Any


DEEPER: Final[list[Callable[[Any], Any]]] = [
    lambda value: [value],
    lambda value: [1, value, "two"],
    lambda value: (value,),
    lambda value: {"a": value, "b": []},
    lambda value: collections.OrderedDict(a=value),
    lambda value: {(1, "two"): value},
    Boxed,
]
"""Each puts a value one level deeper."""


def depth_of(value: Any) -> int:
    """Return how deep a decoded value is nested."""
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


LEAVES: Final[list[Any]] = [None, 1, "a", b"x", [], {}, 1j, np.zeros(3), np.float32(1), (), {1}, bytearray(b"x")]
"""Values with no level of their own, and empty ones with one."""


@given(
    value=st.sampled_from(LEAVES),
    wrappers=st.lists(st.sampled_from(DEEPER), min_size=1, max_size=4),
    around=st.integers(0, AROUND),
    levels=st.integers(1, 5) | st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3) | st.integers(100, 400),
)
def test_what_is_encoded_within_the_depth_is_decoded(
    value: Any, wrappers: list[Callable[[Any], Any]], around: int, levels: int
) -> None:
    """And what is deeper is refused where it is encoded, to the level; so no result is lost by the way back."""
    for number in range(levels):
        value = wrappers[number % len(wrappers)](value)
    deep = depth_of(msgspec.msgpack.decode(encode(value)[0], ext_hook=lambda *_: None)) > MAX_DEPTH
    with pytest.raises(errors.InvalidRequest, match="deeper than") if deep else contextlib.nullcontext():
        encode(value, around=0)
    if not deep:
        for _ in range(around):
            value = [value]
        body, frames, _ = encode(value, around=around)
        ANY.decode(body, frames)


@given(value=st.binary(max_size=9), code=st.integers(-128, 127), around=st.sampled_from([None, *DEEPER]))
def test_a_piece_of_a_message_is_no_value(value: bytes, code: int, around: Callable[[Any], Any] | None) -> None:
    """Its receiver could not read it, or would take it for an array."""
    for piece in (msgspec.Raw(value or b"\xc1"), msgspec.msgpack.Ext(code, value)):
        with pytest.raises(errors.InvalidRequest, match="cannot be sent"):
            encode(piece if around is None else around(piece))


@given(
    content=st.binary(min_size=2, max_size=24).map(lambda content: content[: len(content) // 2 * 2]),
    step=st.sampled_from([1, 2, -1, -2]),
    format_=st.sampled_from("BbcH"),
    inside=st.booleans(),
)
def test_a_view_of_memory_crosses_as_its_bytes_or_is_refused(
    content: bytes, step: int, format_: str, *, inside: bool
) -> None:
    """Whatever its strides and its format."""
    view = memoryview(content).cast(format_)[::step]  # type: ignore[call-overload]
    value = [view] if inside else view
    if view.c_contiguous:
        assert ANY.decode(encode(value)[0]) == ([bytes(view)] if inside else bytes(view))
    else:
        with pytest.raises(errors.InvalidRequest, match=r"bytes\(\)"):
            encode(value)


@pytest.mark.parametrize("kind", ["lists", "maps", "keys"])
def test_no_depth_ends_the_process(kind: str) -> None:
    """A body full of opening brackets is refused."""
    with pytest.raises(errors.InvalidRequest):
        ANY.decode(nested(1_000_000, kind))


def extension(*content: object, code: int = ARRAY) -> bytes:
    """Return a body that claims to be an array."""
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content)))


@in_turn(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="the byte that msgpack never uses"),
        pytest.param(b"\x01\x01", id="two values"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four billion"),
        pytest.param(b"\x81\x80\x01", id="a key that cannot be one"),
        pytest.param(b"\x81" + extension("int8", [1], b"a") + b"\x01", id="an array as a key"),
        pytest.param(extension("int8", [1], b"a", code=4), id="an unknown extension"),
        pytest.param(extension("int8", [1], b"a", code=-1), id="msgpack's own extension, a time"),
        pytest.param(extension("int8", [1], b"a", code=REF), id="an array that claims to be a ref"),
        pytest.param(extension("int8", [1], b"a", code=CLIENT_ARRAY), id="an array that claims to be a client's"),
        pytest.param(extension("int8", [1]), id="an array without content"),
        pytest.param(extension("int8", [1], b"a", None), id="an array with more than content"),
        pytest.param(extension("object", [1], b"abcdefgh"), id="an array of objects"),
        pytest.param(extension("int9", [1], b"a"), id="an unknown element type"),
        pytest.param(extension("int8", "1", b"a"), id="a shape that is no list"),
        pytest.param(extension("int8", [1.0], b"a"), id="a shape of floats"),
        pytest.param(extension("int8", [2], b"a"), id="too few bytes"),
        pytest.param(extension("int8", [1], b"ab"), id="too many bytes"),
        pytest.param(extension("int8", [-1], b"a"), id="a negative size"),
        pytest.param(extension("int8", [-1, -1], b"a"), id="two negative sizes"),
        pytest.param(extension("int8", [2**64 - 1], b"a"), id="a huge size"),
        pytest.param(extension("int8", [0, 2**64 - 1], b""), id="a huge size of nothing"),
        pytest.param(extension("int8", [0, 2**62, 2**62], b""), id="two huge sizes of nothing"),
        pytest.param(extension("int8", [1] * (MAX_DIMENSIONS + 1), b"a"), id="too many dimensions"),
        # The product of these sizes has millions of digits.
        pytest.param(extension("int8", [2**64 - 1] * 400_000, b"a"), id="far too many dimensions"),
        pytest.param(extension("int8", [1], 2), id="a frame that is not there"),
        pytest.param(extension("int8", [1], -1), id="the last frame from behind"),
        pytest.param(extension("int8", [1], 2**64 - 1), id="a frame of a huge number"),
        pytest.param(extension("int8", [4], 0), id="a frame that is too short"),
        pytest.param(extension("int8", [1], "a"), id="content that is text"),
    ],
)
def test_a_body_that_is_no_value_is_refused(body: bytes) -> None:
    """Typed, cheaply, and whatever it claims about itself."""
    with pytest.raises(errors.InvalidRequest):
        ANY.decode(body, [b"abc", b"a"])


claims = st.tuples(
    st.sampled_from(sorted(DTYPES)) | st.text(max_size=8),
    st.lists(st.integers(-2, 9) | st.integers(-(2**63), 2**64 - 1), max_size=40) | plain,
    st.binary(max_size=64) | st.integers(-3, 5) | plain,
)
hostile = st.recursive(
    plain | claims.map(lambda claim: msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(claim))),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)


@given(
    body=st.binary() | hostile.map(msgspec.msgpack.encode),
    frames=st.lists(st.binary(max_size=64), max_size=3),
    damage=st.none() | st.tuples(st.integers(0, 100), st.binary(max_size=3)),
)
def test_any_body_is_a_value_or_an_invalid_request(
    body: bytes, frames: list[bytes], damage: tuple[int, bytes] | None
) -> None:
    """Noise, claims about arrays that do not hold, and either of them damaged."""
    if damage:
        at, noise = damage
        body = body[:at] + noise + body[at + len(noise) :]
    for decoder in (ANY, Decoder(list[Any]), Decoder(dict[str, np.ndarray]), Decoder(tuple[int, float])):
        with contextlib.suppress(errors.InvalidRequest):
            decoder.decode(body, frames)


def test_a_decoder_keeps_no_frames() -> None:
    """Neither after a success nor after a failure: they are large."""
    decoder = Decoder[Any]()
    decoder.decode(encode(1)[0], [b"large"])
    with pytest.raises(errors.InvalidRequest):
        decoder.decode(b"\xc1", [b"large"])
    assert decoder._frames == ()


# --- arrays in shared memory ---------------------------------------------------------------------------------


class Shared:
    """A copy of an array, as `place` returns it."""

    def __init__(self, array: Array, wire: WireRef | ClientArray) -> None:
        self.array = array.copy()
        self.wire = wire

    def to_wire(self) -> WireRef | ClientArray:
        """Return what crosses the wire."""
        return self.wire


def a_ref(number: int) -> WireRef:
    """Return a ref."""
    return WireRef(bytes(TOKEN_BYTES), number, 1, "uint8", (4,), (1,), 0)


def test_arrays_take_no_more_of_a_message_than_they_may() -> None:
    """Further arrays go where large arrays go, or are refused. A journal has a limit of its own."""
    array = np.zeros(SHARED_BYTES - 1, np.uint8)
    fit = MAX_PAYLOAD_BYTES // array.nbytes
    assert len(encode([array] * fit)[1]) == fit
    with pytest.raises(errors.InvalidRequest, match=str(MAX_PAYLOAD_BYTES)):
        encode([array] * (fit + 1))
    placed = Shared(array, a_ref(1))
    _, frames, elsewhere = encode([array] * (fit + 2), lambda _: placed)
    assert (len(frames), elsewhere) == (fit, [placed] * 2)
    assert len(encode([array] * (fit + 1), payload_bytes=2 * MAX_PAYLOAD_BYTES)[1]) == fit + 1


def test_arrays_from_a_size_on_are_placed() -> None:
    """Smaller ones travel beside the body; what was placed is named in order, to be kept."""
    asked: list[int] = []

    def place(array: Array) -> Shared:
        asked.append(array.nbytes)
        wire = ClientArray(len(asked), 1, "uint8", (len(array),), 0) if len(asked) % 2 else a_ref(len(asked))
        return Shared(array, wire)

    sent = [np.zeros(n, np.uint8) for n in (SHARED_BYTES, SHARED_BYTES - 1, INLINE_BYTES, SHARED_BYTES + 1)]
    body, frames, placed = encode(sent, place)
    assert asked == [SHARED_BYTES, SHARED_BYTES + 1]
    assert [len(payload) for payload in frames] == [SHARED_BYTES - 1]
    assert len(body) < INLINE_BYTES + 500
    resolved = iter(placed)
    wires: list[WireRef | ClientArray] = []

    def resolve(wire: WireRef | ClientArray) -> object:
        wires.append(wire)
        shared = next(resolved)
        assert isinstance(shared, Shared)
        return shared.array

    received = ANY.decode(body, frames, resolve)
    assert wires == [each.to_wire() for each in placed]
    assert [type(wire) for wire in wires] == [ClientArray, WireRef]
    for one, other in zip(received, sent, strict=True):
        assert_same(one, other)


def test_what_cannot_be_placed_travels_beside_the_body() -> None:
    """There may be no room, or no placer."""
    array = np.zeros(SHARED_BYTES, np.uint8)
    for _, frames, placed in (encode(array), encode(array, lambda _: None)):
        assert not placed
        assert [len(payload) for payload in frames] == [SHARED_BYTES]


def test_an_array_that_does_not_cross_is_not_placed_either() -> None:
    """It is refused before anybody copies it."""
    for array in (np.zeros(SHARED_BYTES, "datetime64[s]"), np.ma.masked_array(np.zeros(SHARED_BYTES), True)):
        with pytest.raises(errors.InvalidRequest):
            encode(array, lambda _: pytest.fail("was placed"))


def test_an_error_in_placing_is_the_callers() -> None:
    """As it is: it says what to do."""

    def place(_: Array) -> Shared:
        raise errors.OutOfMemory("no room")

    with pytest.raises(errors.OutOfMemory, match="no room"):
        encode(np.zeros(SHARED_BYTES, np.uint8), place)


def test_refs_travel_as_refs_whatever_their_size() -> None:
    """Inside lists and maps too; each is named, once for each place where it stands."""
    array = FakeArray.of(np.arange(6).reshape(2, 3), "float32")
    view = array[:, ::-1].transpose()
    body, frames, placed = encode({"one": array, "more": [view, array]})
    assert not frames
    assert placed == [array, view, array]
    received = ANY.decode(body, (), array.from_wire)
    assert (received["more"][0].array == np.arange(6).reshape(2, 3)[:, ::-1].T).all()
    assert received["one"].layout == array.layout


def test_a_ref_that_comes_again_is_asked_for_again() -> None:
    """It is recognised, and still the receiver decides each time: by then it may have been freed."""
    array = FakeArray.of([1, 2], "int8")
    body = encode([array, array])[0]
    asked: list[object] = []

    def resolve(wire: object) -> object:
        asked.append(wire)
        return len(asked)

    assert ANY.decode(body, (), resolve) == [1, 2]
    assert ANY.decode(body, (), resolve) == [3, 4]
    assert all(wire is asked[0] for wire in asked)
    assert asked[0] == array.to_wire()


def test_what_is_refused_as_a_ref_is_not_remembered() -> None:
    """A name of an element type cannot be so long that remembering it would matter."""
    name = "x" * 100_000
    body = msgspec.msgpack.encode(WireRef(bytes(TOKEN_BYTES), 1, 1, name, (4,), (1,), 0).extension)
    before = decode_ref.cache_info().currsize
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest, match="length <= "):
            ANY.decode(body, (), lambda wire: wire)
    assert decode_ref.cache_info().currsize == before


def test_a_field_for_refs_takes_nothing_else() -> None:
    """An array by value where a ref must be is refused, with the place."""
    array = FakeArray.of([1, 2], "int8")
    decoder = Decoder[list[Operand]](list[Operand])
    assert decoder.decode(encode([array])[0], (), array.from_wire)[0].shape == (2,)
    with pytest.raises(errors.InvalidRequest, match=r"Operand.*\$\[0\]"):
        decoder.decode(encode([np.zeros(2)])[0])


def test_a_ref_where_there_can_be_none_is_refused() -> None:
    """Refs are not resolved there."""
    array = FakeArray.of([1, 2], "int8")
    with pytest.raises(errors.InvalidRequest, match="can be none"):
        ANY.decode(encode(array)[0])


@pytest.mark.parametrize(
    "error",
    [
        errors.GpuRefReleased("gone", device=3),
        errors.GpuRefStale("old", device=1, generation=2, current=3),
        errors.InvalidRequest("no slab"),
    ],
)
def test_why_a_ref_is_refused_is_the_callers_to_know(error: errors.RequestError) -> None:
    """The error is the resolver's own, facts and all; and the decoder can be used again."""

    def resolve(_: object) -> object:
        raise error

    decoder = Decoder[dict[str, Any]](dict[str, Any])
    body = encode({"a": FakeArray.of([1, 2], "int8")})[0]
    with pytest.raises(type(error)) as caught:
        decoder.decode(body, [b"large"], resolve)
    assert caught.value is error
    assert decoder._resolve is None
    assert decoder._frames == ()
    assert decoder.decode(body, (), lambda _: 1) == {"a": 1}


wires = st.builds(
    WireRef,
    token=st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES),
    buffer=st.integers(0, 2**63 - 1),
    slab=st.integers(0, 2**32 - 1),
    dtype=st.text(max_size=8),
    shape=st.lists(st.integers(0, 2**47), max_size=3).map(tuple),
    strides=st.lists(st.integers(-(2**47), 2**47), max_size=3).map(tuple),
    offset=st.integers(0, 2**47),
    value=st.booleans(),
) | st.builds(
    ClientArray,
    id=st.integers(0, 2**63 - 1),
    slab=st.integers(0, 2**32 - 1),
    dtype=st.text(max_size=8),
    shape=st.lists(st.integers(0, 2**47), max_size=3).map(tuple),
    offset=st.integers(0, 2**47),
)


@given(wires, st.binary(max_size=4), st.integers(0, 100))
def test_a_ref_arrives_as_it_was_sent_or_not_at_all(wire: WireRef | ClientArray, noise: bytes, at: int) -> None:
    """Damage may make it another; never anything else than a ref."""
    body, _, placed = encode(np.zeros(SHARED_BYTES, np.uint8), lambda array: Shared(array, wire))
    assert len(placed) == 1
    assert ANY.decode(body, (), lambda received: received) == wire
    damaged = body[:at] + noise + body[at + len(noise) :]
    with contextlib.suppress(errors.InvalidRequest):
        ANY.decode(damaged, (), lambda received: received)


@pytest.mark.parametrize("name", sorted(BEYOND_NUMPY))
def test_an_element_type_of_ml_dtypes_needs_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.to_numpy.cache_clear()
    body = msgspec.msgpack.encode(
        msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((name, [2], bytes(2 * dtypes.item_bytes(name)))))
    )
    with pytest.raises(errors.Unsupported, match=r"pip install 'atomr-mp\[host\]'"):
        ANY.decode(body)
    monkeypatch.undo()
    dtypes.to_numpy.cache_clear()
    assert ANY.decode(body).tolist() == [0, 0]
