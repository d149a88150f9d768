"""Texts and bytes beyond a body's size arrive as they were, and damaged ones are refused."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import packing, values
from atomr_mp.protocol.flow.limits import MAX_BODY_BYTES
from atomr_mp.protocol.packing import PACKED, PACKED_MARK, packed, unpacked
from atomr_mp.protocol.refs import ClientArray

SMALL: Final = 20
"""Stands for `PACK_BYTES`."""

ONE = st.one_of(st.binary(max_size=60), st.text(max_size=60), st.lists(st.binary(max_size=9)), st.lists(st.text()))
DEEP = st.recursive(
    ONE, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3))
)
OTHER = st.one_of(DEEP, st.none(), st.integers(0, 9), st.lists(st.one_of(st.binary(), st.text(), st.integers(0, 9))))


class Arguments(msgspec.Struct, array_like=True):
    """The typed arguments of a method."""

    images: list[bytes]
    names: list[str] = []
    whole: bytes = b""
    text: str = ""
    array: Any = None
    number: Annotated[int, msgspec.Meta(le=9)] = 0


def round_trip(value: Any, type_: Any = Any) -> Any:
    """Return what arrives of a value, whose texts and bytes are packed from `PACK_BYTES` on."""
    is_packed = packed(value) is not value
    body, frames, _ = values._encode_large(value, 0, None) if is_packed else values.encode(value)
    return values.Decoder(type_).decode(body, frames)


@given(st.lists(st.one_of(ONE, OTHER), max_size=4), st.sampled_from(("position", "name", "result")))
def test_what_is_packed_arrives_as_it_was(given_values: list[Any], how: str) -> None:
    """By position, by name, inside others, and as a result by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACK_BYTES", SMALL)
        if how == "position":
            assert round_trip(tuple(given_values)) == given_values
        elif how == "name":
            by_name = {str(at): each for at, each in enumerate(given_values)}
            assert round_trip(by_name) == by_name
        else:
            for each in given_values:
                assert round_trip(each) == each


@given(st.binary(max_size=60), st.lists(st.binary(max_size=30)), st.lists(st.text(max_size=30)), st.text(max_size=60))
def test_a_typed_method_gets_them_as_its_types(whole: bytes, images: list[bytes], names: list[str], text: str) -> None:
    """Beside arrays and numbers, whose own rules hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACK_BYTES", SMALL)
        array = np.arange(5)
        found = round_trip((images, names, whole, text, array, 7), Arguments)
        assert (found.images, found.names, found.whole, found.text, found.number) == (images, names, whole, text, 7)
        assert np.array_equal(found.array, array)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["x" * 30],), "Expected `bytes`, got `str` - at `$[0][0]`"),
        (([b"x" * 30], [b"y" * 30]), "Expected `str`, got `bytes` - at `$[1][0]`"),
        ((b"x" * 30,), "Expected `list`, got `bytes`"),
        (([b"x" * 30], [], "text" * 9), "Expected `bytes`, got `str` - at `$[2]`"),
        (([b"x" * 30], [], b"", "", None, 10), "Expected `int` <= 9"),
    ],
)
def test_what_does_not_fit_is_refused_as_if_it_was_small(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], said: str
) -> None:
    """With the place of the fault."""
    monkeypatch.setattr(packing, "PACK_BYTES", SMALL)
    with pytest.raises(errors.InvalidRequest) as caught:
        round_trip(arguments, Arguments)
    assert said in str(caught.value)


def test_more_than_a_body_may_have_is_sent() -> None:
    """Of bytes and texts; of other values it is refused as before."""
    large = [b"x" * 3_000_000] * 4
    body, frames, _ = values.encode((large, 1))
    assert values.Decoder(Any).decode(body, frames) == [large, 1]
    assert len(body) < 1000
    assert sum(map(len, frames)) == 12_000_000
    assert round_trip({"text": "é" * 3_000_000}) == {"text": "é" * 3_000_000}
    deep: Any = {"rows": [{"text": "é" * 1_500_000, "image": b"x" * 3_000_000, "at": (1, 2)}, [["y" * 3_000_000]]]}
    assert round_trip((deep,)) == [{"rows": [{**deep["rows"][0], "at": [1, 2]}, deep["rows"][1]]}]
    for other in (bytearray, type("Own", (bytes,), {})):
        assert round_trip((other(b"x" * 5_000_000),)) == [b"x" * 5_000_000]
    for value in ([7] * 5_000_000, b"x" * (packing.MAX_PACKED_BYTES + 1), "é" * (packing.MAX_PACKED_BYTES // 2 + 1)):
        with pytest.raises(errors.InvalidRequest, match=f"more than the {MAX_BODY_BYTES} .* texts of up to 67108864"):
            values.encode((value,))


def extension(kind: Any, lengths: Any, whole: Any) -> bytes:
    """Return a body that is one packed value."""
    content, _, _ = values.encode((kind, lengths, whole))
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(PACKED, content))


BYTES = np.zeros(4, np.uint8)


@pytest.mark.parametrize(
    "body",
    [
        extension("list[bytes]", np.array([3], np.uint64), BYTES),
        extension("list[bytes]", np.array([5], np.uint64), BYTES),
        extension("list[bytes]", np.array([2**64 - 1, 5], np.uint64), BYTES),
        extension("list[bytes]", np.array([4], np.int64), BYTES),
        extension("list[bytes]", np.array([[4]], np.uint64), BYTES),
        extension("list[bytes]", [4], BYTES),
        extension("list[bytes]", np.array([4], np.uint64), b"four"),
        extension("list[bytes]", np.zeros(packing.MAX_PACKED_ELEMENTS + 1, np.uint64), np.zeros(0, np.uint8)),
        extension("bytes", np.array([2, 2], np.uint64), BYTES),
        extension("bytes", np.array([], np.uint64), np.zeros(0, np.uint8)),
        extension("list[str]", np.array([1], np.uint64), np.array([255], np.uint8)),
        extension("set", np.array([4], np.uint64), BYTES),
        extension(7, np.array([4], np.uint64), BYTES),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(PACKED, b"")),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(PACKED, msgspec.msgpack.encode((1, 2)))),
    ],
)
def test_a_damaged_one_is_refused(body: bytes) -> None:
    """Whatever another process has written into it, by untyped and typed methods."""
    for type_, mark in itertools.product((Any, list[bytes], Arguments), (b"", PACKED_MARK)):
        with pytest.raises(errors.InvalidRequest):
            values.Decoder(type_).decode(mark + body, [np.zeros(2**21 + 8, np.uint8).data])


def test_each_array_in_memory_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second view of a client's memory would tell it that the first is out of use."""
    monkeypatch.setattr(packing, "PACK_BYTES", SMALL)
    memory: dict[int, Any] = {}

    class Placed:
        """An array in a client's memory."""

        def __init__(self, array: Any) -> None:
            self.number = len(memory)
            memory[self.number] = array

        def to_wire(self) -> ClientArray:
            """Return its name."""
            array = memory[self.number]
            return ClientArray(self.number, 1, array.dtype.name, array.shape, 0)

    def resolve(ref: Any) -> Any:
        return memory.pop(ref.id)

    arguments = (["é" * 40_000] * 3, np.arange(40_000.0), b"x" * 200_000)
    body, frames, placed = values._encode_large(arguments, 0, Placed)
    assert len(placed) == 3
    found: Any = values.Decoder(Any).decode(body, frames, resolve)
    texts, array, whole = found
    assert (texts, whole) == (arguments[0], arguments[2])
    assert np.array_equal(array, arguments[1])
    assert not memory


def test_more_than_a_loop_may_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By who sends it and by who gets it."""
    monkeypatch.setattr(packing, "PACK_BYTES", SMALL)
    body = extension("bytes", np.array([31], np.uint64), np.zeros(31, np.uint8))
    assert values.Decoder(Any).decode(body) == bytes(31)
    monkeypatch.setattr(packing, "MAX_PACKED_BYTES", 30)
    assert packed((bytes(30),)) != (bytes(30),)
    for large in ((bytes(31),), ([b"x" * 16] * 2,), (["x" * 16] * 2,)):
        assert packed(large) is large
    with pytest.raises(errors.InvalidRequest, match="31 bytes; the limit is 30"):
        values.Decoder(Any).decode(body)


def test_nested_ones_end() -> None:
    """An extension in an extension in an extension is refused before the stack ends."""
    content = msgspec.msgpack.Ext(PACKED, b"")
    for _ in range(2000):
        content = msgspec.msgpack.Ext(PACKED, msgspec.msgpack.encode(("bytes", content, 1)))
    with pytest.raises(errors.InvalidRequest):
        values.Decoder(Any).decode(msgspec.msgpack.encode(content))


def test_nothing_is_packed_that_is_small_or_something_else() -> None:
    """Such values are the ones that were given."""
    deep: Any = [b"x" * packing.PACK_BYTES]
    for _ in range(packing.MOST_DEPTH + 1):
        deep = [deep]
    for value in ((1, "a", [b"x"]), {"a": [1, "x" * 9]}, {b"x" * packing.PACK_BYTES}, deep, "a", (), {}):
        assert packed(value) is value
    with pytest.raises(ValueError, match="unknown kind"):
        unpacked(("no", 1, 2))
