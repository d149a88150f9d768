"""Any arguments are decoded or refused, whatever texts and numbers are in them and whatever the annotations are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.refs import CLIENT_ARRAY, REF
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.loading import load
from tests.pure.worker.test_dispatch import TOKEN, Worker

HUGE = (-1, 0, 1, 9, 2**31, 2**32, 2**47, 2**47 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
METHODS: dict[str, LoadedMethod] = {
    each.name.partition(".")[2]: each for each in load(ActorSpec("Typed", "tests.actors.typed:Typed")).methods
}

places = st.sampled_from(
    ["`$[9]", "`$[1]`", "`$.mode`", " - at `$[9]`", " - at `$[0]`", "`$[99999999999999999999]`", "$[", "%s{}"]
)
texts = st.one_of(
    places, st.builds("{}{}{}".format, st.text(max_size=5), places, st.text(max_size=5)), st.text(max_size=9)
)
known = st.sampled_from(
    ["fast", "exact", "a", "x", "float32", "2020-01-01T00:00:00", "1e999", "12345678-1234-5678-1234-567812345678"]
)
numbers = st.one_of(st.sampled_from(HUGE), st.integers(-(2**63), 2**64 - 1))
dtypes = st.one_of(
    texts, st.sampled_from(["float32", "float64", "bool", "bfloat16", "float8_e5m2", "object", "V3", "<f4"])
)
lengths = st.lists(st.one_of(st.integers(0, 4), numbers), max_size=4)


def extension(code: int, fields: Any) -> msgspec.msgpack.Ext:
    """Return an array in one of its forms."""
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(fields))


arrays = st.one_of(
    st.builds(extension, st.just(values.ARRAY), st.tuples(dtypes, lengths, st.one_of(st.binary(max_size=40), numbers))),
    st.builds(
        extension,
        st.just(REF),
        st.tuples(
            st.sampled_from([TOKEN, bytes(len(TOKEN)), b""]),
            numbers,
            numbers,
            dtypes,
            lengths,
            lengths,
            numbers,
            st.booleans(),
        ),
    ),
    st.builds(extension, st.just(CLIENT_ARRAY), st.tuples(numbers, numbers, dtypes, lengths, numbers)),
    st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20)),
)
leaves = st.one_of(st.none(), st.booleans(), texts, known, numbers, st.floats(), st.binary(max_size=9), arrays)
keys = st.one_of(texts, st.sampled_from(["mode", "text", "x", "deep", "checked", "number", "value"]), numbers)
arguments = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=3)), max_leaves=8
)
calls = st.one_of(st.lists(arguments, max_size=5), st.dictionaries(keys, arguments, max_size=4), arguments)
deep = st.integers(1, 3000).map(lambda depth: b"\x91" * depth + b"\xc0")
bodies = st.one_of(calls.map(msgspec.msgpack.encode), deep, st.binary(max_size=40))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(METHODS)), bodies, st.lists(st.binary(max_size=16), max_size=2))
def test_any_arguments_are_decoded_or_refused(name: str, body: bytes, frames: list[bytes]) -> None:
    """Nothing else is ever raised: not by what the words of a refusal repeat, nor by what an annotation's code does."""
    method, worker = METHODS[name], _worker()
    resolve = worker.peers.of(1).resolve  # type: ignore[union-attr]
    views = [memoryview(frame) for frame in frames]
    decode: list[Callable[[], object]] = [lambda: method.arguments(body, views, resolve)]
    if method.items is not None:
        items = method.items
        decode.append(lambda: items(body, views))
    for each in decode:
        with contextlib.suppress(errors.RequestError):
            assert isinstance(each(), tuple | list)


@pytest.mark.parametrize("text", ["`$[9]", "`$.mode`", " - at `$[9]`", "x - at `$[0]`"])
def test_a_refusal_names_the_parameter_and_repeats_the_text_as_it_was(text: str) -> None:
    """The place is msgspec's, at the end; what looks like one in the caller's own text stays as it is."""
    with pytest.raises(errors.InvalidRequest) as refused:
        METHODS["choose"].arguments(msgspec.msgpack.encode(["a", text]), (), _never)
    assert text in refused.value.message
    assert refused.value.message.endswith(" - at `mode`")


def test_a_place_within_an_array_s_description_is_not_taken_for_an_argument() -> None:
    """The seventh field of a ref is no seventh argument."""
    array = extension(CLIENT_ARRAY, (1, 1, "float32", [1], 2**63 - 1))
    with pytest.raises(errors.InvalidRequest, match="an array in shared memory is described wrongly"):
        METHODS["arrays"].arguments(msgspec.msgpack.encode([array]), (), _never)


def _never(_ref: object) -> object:
    raise AssertionError


_made: list[Worker] = []


def _worker() -> Worker:
    """Return a worker's parts with one client; one for all examples."""
    if not _made:
        worker = Worker()
        worker.client(1)
        _made.append(worker)
    return _made[0]
