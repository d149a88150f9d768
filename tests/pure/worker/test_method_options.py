"""What `method`, `Batch` and `Steps` take, and what error anything else gets."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp_workers import Actor, Batch, DeviceArray, Live, Steps, method
from atomr_mp_workers.loading import load

ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.sampled_from(["", "3", "yes", "never", "chat", "key", b"x", [], ["items"], {}, {1}, int, len, 1j, ...]),
    st.sampled_from(
        [np.int64(3), np.float32(0.5), np.bool_(1), np.zeros(2), np.str_("items"), Batch, Batch(), Steps()]
    ),
)
OPTIONS = (
    "idempotent thread deadline_s writes batch queue hang_timeout_s resend openai exclusive resumable example".split()  # noqa: SIM905
)
OF_BATCH = ("max_items", "max_bytes", "max_wait_s", "key", "rows")


class Built(Actor):
    """An actor whose one method is made anew for each example."""


def loaded(function: Callable[..., Any], options: dict[str, Any]) -> ActorInfo:
    """Load an actor with one method, as a worker does; return what clients hear of it."""
    made = type("Made", (Built,), {"right": method(**options)(function), "__module__": __name__})
    setattr(sys.modules[__name__], "Made", made)  # noqa: B010 - the loader finds it by its name
    actor = load(ActorSpec("Made", f"{__name__}:Made"))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(actor.info), type=ActorInfo)


def kinds() -> dict[str, Callable[..., Any]]:
    """Return new functions of each kind."""

    def plain(_self: Actor, items: list[int]) -> list[int]:
        return items

    def generator(_self: Actor, start: int) -> Any:
        yield start

    def stepping(_self: Actor, live: Live[int, int]) -> None:
        pass

    async def coroutine(_self: Actor, items: list[int]) -> list[int]:
        return items

    return {each.__name__: each for each in (plain, generator, stepping, coroutine)}


KINDS = st.sampled_from(["plain", "generator", "stepping", "coroutine"])


@given(kind=KINDS, options=st.dictionaries(st.sampled_from(OPTIONS), ANY, max_size=3))
def test_any_option_is_taken_whole_or_refused_by_name(kind: str, options: dict[str, Any]) -> None:
    """Clients read what they get of the method, and no operator restarts a worker whose code must change."""
    check(kinds()[kind], options, OPTIONS)


@given(rules=st.dictionaries(st.sampled_from(OF_BATCH), ANY), of_steps=ANY)
def test_any_rule_of_a_batch_is_taken_or_refused_by_name(rules: dict[str, Any], of_steps: Any) -> None:
    """By the method's name too, which the rules do not know where they are written."""
    check(kinds()["plain"], {"batch": Batch(**rules)}, OF_BATCH)
    check(kinds()["stepping"], {"batch": Steps(of_steps), "thread": True}, ("max_items",))


def check(function: Callable[..., Any], options: dict[str, Any], names: Any) -> None:
    """Load a method: it keeps what was given, or the error names method and option."""
    try:
        info = loaded(function, options).methods[0]
    except errors.ActorLoadFailed as error:
        told = error.message
    else:
        for name in ("idempotent", "deadline_s"):
            if name in options:
                assert getattr(info, name) == options[name]
        batch = options.get("batch")
        assert info.batch_items == (0 if batch is None else batch.max_items)
        return
    assert "Made.right" in told
    said = [name for name in names if re.search(rf"\b{name}\b", told)]
    assert said or re.search("generator|asynchronous|step over|batches' key|parameter|stream", told), told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 16}, "batch is 16; it is Batch(...), as batch=Batch(max_items=16)"),
        ({"batch": True}, "batch is True; it is Batch(...)"),
        ({"idempotent": "yes"}, "idempotent is 'yes'; it is True or False"),
        ({"queue": 1.5}, "queue must be at least 1, a whole number; got 1.5"),
        ({"deadline_s": math.inf}, "deadline_s must be a positive number"),
        ({"writes": "items"}, "writes is 'items'; it is a list of parameters' names, as writes=['items']"),
        (
            {"batch": Batch(max_items="3")},  # type: ignore[arg-type]
            "max_items of its Batch(...) must be from 1 to 1024, a whole number; got '3'",
        ),
        ({"batch": Batch(max_wait_s=61)}, "max_wait_s of its Batch(...) must be 0 or a positive number of seconds"),
        ({"batch": Batch(max_bytes=0)}, "max_bytes of its Batch(...) must be at least 1"),
        ({"batch": Batch(rows="yes")}, "rows of its Batch(...) is 'yes'; it is True or False"),  # type: ignore[arg-type]
        (
            {"batch": Batch(rows=True), "openai": "embeddings"},
            "a request in OpenAI's form has no rows: leave out rows=",
        ),
        ({"batch": Batch(rows=True), "writes": ["items"]}, "parameter items takes refs, whose memory is not joined"),
    ],
)
def test_what_is_wrong_is_told_in_words(options: dict[str, Any], said: str) -> None:
    """With what to write instead."""
    with pytest.raises(errors.ActorLoadFailed, match=re.escape(f"Made.right: {said}")):
        loaded(kinds()["plain"], options)


def test_rows_are_of_arrays_by_value() -> None:
    """Those of refs cannot be joined; a method without parameters has none."""

    def of_refs(_self: Actor, x: list[int], _ref: DeviceArray) -> list[int]:
        return x

    def of_nothing(_self: Actor) -> list[int]:
        return []

    def of_rows(_self: Actor, x: NDArray[np.float32], _scale: float = 1.0) -> NDArray[np.float32]:
        return x

    with pytest.raises(errors.ActorLoadFailed, match=r"right: parameter _ref takes refs, whose memory is not joined"):
        loaded(of_refs, {"batch": Batch(rows=True)})
    with pytest.raises(errors.ActorLoadFailed, match="at least one parameter, an array or a list of rows"):
        loaded(of_nothing, {"batch": Batch(rows=True)})
    (info,) = loaded(of_rows, {"batch": Batch(7, max_wait_s=0.5, rows=True)}).methods
    assert (info.batch_items, info.batches_rows, info.batch_wait_s, info.call_items) == (7, True, 0.5, 0)
    schema = json.loads(info.schema)
    assert schema["arguments"]["required"] == ["x"], "callers send what the method takes"
    assert schema["result"] == {"type": "array", "format": "ndarray", "dtype": "float32"}


def test_numbers_of_numpy_are_taken() -> None:
    """Clients get numbers of Python's own types."""
    batch = Batch(np.int64(7), max_wait_s=np.float32(0.5))  # type: ignore[arg-type]
    info = loaded(kinds()["plain"], {"batch": batch, "queue": np.int32(3), "deadline_s": np.float32(2)}).methods[0]
    assert (info.batch_items, info.deadline_s) == (7, 2.0)


def test_a_method_without_self_is_told_so() -> None:
    """A restart would not help."""

    def right() -> int:
        return 1

    with pytest.raises(errors.ActorLoadFailed, match=r"Made.right: .*def right\(self, \.\.\.\)"):
        loaded(right, {})


@pytest.mark.parametrize(
    "wrong", [3, "text", property(len), staticmethod(len), classmethod(print)], ids=lambda each: type(each).__name__
)
def test_what_is_no_function_cannot_be_a_method(wrong: Any) -> None:
    """A method under which another decorator is would not be found."""
    with pytest.raises(errors.WrongArgument, match="decorates a function"):
        method(wrong)
