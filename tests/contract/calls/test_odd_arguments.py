"""Any arguments give a value or `InvalidRequest`, and the worker lives on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger

TYPED = f"{ACTORS}/typed.py:Typed"
METHODS = ("choose", "plain", "arrays", "handle", "made", "known", "anything", "rows")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


places = st.sampled_from(["`$[9]", "`$.mode`", "x - at `$[9]`", "$["])
texts = st.one_of(
    st.text(st.characters(), max_size=6),
    places,
    st.sampled_from(["\ud800", "fast", "a", "x" * 100_000]),
)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.sampled_from([2**63 - 1, 2**64, -(2**63)]))
arrays = st.builds(
    lambda dtype, n: np.zeros(n, dtype),
    st.sampled_from(["f4", "f8", ">f4", "O", "S3", "U2", "M8[s]", "c16", "?", "V4", "f2", [("a", "i4")]]),
    st.integers(0, 3),
)
leaves = st.one_of(st.none(), st.booleans(), texts, numbers, st.binary(max_size=5), st.complex_numbers(), arrays)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
deep = st.integers(1, 500).map(_nested)
fitting = st.sampled_from(["a", "fast", 1, "123e4567-e89b-12d3-a456-426614174000"])
"""Values that some parameter takes, so that what is behind them is looked at."""

arguments = st.one_of(
    st.lists(st.one_of(fitting, texts, values, deep), max_size=4),
    st.lists(st.one_of(fitting, texts), min_size=1, max_size=3),
    st.tuples(fitting, places, fitting).map(list),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool, whose worker has to live through all of it."""
    with Ledger() as ledger, ledger.start(TYPED) as started:
        yield started


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*METHODS, "choose", "choose"]), arguments, st.dictionaries(texts, values, max_size=2))
def test_any_arguments_give_a_value_or_are_refused(
    pool: atomr_mp.Pool, name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """By position and by name, with texts that look like places, lone surrogates, huge numbers and deep lists."""
    pid = pool.devices[0].pid
    try:
        error = getattr(pool.actor("Typed", deadline_s=DEADLINE_S), name)(*args, **kwargs).exception(DEADLINE_S)
    except errors.InvalidRequest as refused:
        error = refused
    assert error is None or type(error) in {errors.InvalidRequest, errors.ActorFailed}
    assert pool.call("Typed.pid").result(DEADLINE_S) == pid


names = st.one_of(leaves, st.lists(texts, max_size=2), st.dictionaries(texts, texts, max_size=1), st.just(object()))


@settings(max_examples=60, deadline=None)
@given(names)
def test_any_method_s_name_is_a_method_or_is_refused(pool: atomr_mp.Pool, name: Any) -> None:
    """At every door, and before anything is sent."""
    for door in (
        lambda: pool.call(name, 1),
        lambda: pool.stream(name, 1),
        lambda: pool.map(name, [1]),
        lambda: pool.amap(name, [1]),
        lambda: pool.method_info(name),
        lambda: pool.streams(name),
        lambda: pool.actor(name),
    ):
        with pytest.raises(errors.InvalidRequest) as refused:
            door()
        assert not refused.value.maybe_executed
    assert not pool.has(name)
