"""Values cross as the documentation says: none is changed silently."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.protocol.flow.limits import MAX_DEPTH
from tests.actors.crossing import VALUES, Level, nested
from tests.in_turn import in_turn
from tests.support import ACTORS, BACKEND

AS_TEXT: Final[dict[str, Any]] = {
    "datetime": VALUES["datetime"].isoformat(),
    "date": VALUES["date"].isoformat(),
    "time": VALUES["time"].isoformat(),
    "timedelta": VALUES["timedelta"].total_seconds(),
    "uuid": str(VALUES["uuid"]),
    "decimal": str(VALUES["decimal"]),
    "enum": VALUES["enum"].value,
}
"""What the errors say is to be sent."""

KEPT: Final[list[Any]] = [
    {1: 2},
    {"a": [{1: {2.5: None}}]},
    {None: 1, True: 2, b"x": 3},
    {(1, "two"): 3},
    bytes(3),
    [-(2**63), 2**64 - 1],
]
"""Arrives as it is."""

CHANGED: Final[list[tuple[Any, Any]]] = [
    ((1, (2,)), [1, [2]]),
    (bytearray(b"x"), b"x"),
    (collections.OrderedDict(a=1), {"a": 1}),
    ([Level.HIGH], [3]),
    ({7}, [7]),
]
"""What the documentation says arrives as something else."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool of one device, for all tests here: none of them ends a worker."""
    with atomr_mp.start(actors=[f"{ACTORS}/crossing.py:Crossing"], gpus=1, backend=BACKEND) as pool:  # type: ignore[arg-type]
        yield pool


@pytest.mark.parametrize("name", VALUES)
def test_an_argument_that_would_change_is_refused_in_the_caller(pool: Pool, name: str) -> None:
    """By position, by name, inside other values, in a batch, and even if an annotation would accept it."""
    value = VALUES[name]
    for method in ["plain", "several", *(f"of_{each}" for each in {name} & AS_TEXT.keys())]:
        for given in (value, [value], {"a": ({"b": value},)}, {value} if name not in {"key", "keys"} else [[value]]):
            with pytest.raises(errors.InvalidRequest, match=r"cannot be sent: .*; (send|use) "):
                pool.call(f"Crossing.{method}", given)
    with pytest.raises(errors.InvalidRequest, match="cannot be sent"):
        pool.call("Crossing.plain", kwargs={"value": value})


@pytest.mark.parametrize("name", VALUES)
def test_a_result_that_would_change_fails(pool: Pool, name: str) -> None:
    """Alone and inside other values; the error names a type to return instead."""
    for method in ("result", "nested"):
        error = pool.call(f"Crossing.{method}", name).exception()
        assert isinstance(error, errors.ActorFailed)
        assert "the result cannot be sent: a " in error.message
        assert "; send " in error.message or "; use " in error.message


@pytest.mark.parametrize("name", AS_TEXT)
def test_what_the_error_says_to_send_is_what_the_annotation_takes(pool: Pool, name: str) -> None:
    """The method gets the value itself."""
    sent = AS_TEXT[name]
    assert pool.call(f"Crossing.of_{name}", sent).result() is True


@pytest.mark.parametrize("method", ["plain", "several", "together"])
def test_a_map_fails_the_items_that_would_change_and_no_others(pool: Pool, method: str) -> None:
    """Even if many items are sent in one call."""
    items = [1, VALUES["date"], {1: 2}, [VALUES["uuid"]], "five", 6]
    done = list(pool.map(f"Crossing.{method}", items, return_failures=True))
    assert [done[at] for at in (0, 2, 4, 5)] == [1, {1: 2}, "five", 6]
    for at in (1, 3):
        assert isinstance(done[at].error, errors.InvalidRequest)
        assert "cannot be sent" in done[at].error.message


@pytest.mark.parametrize("method", ["result", "nested"])
def test_a_map_fails_with_results_that_would_change(pool: Pool, method: str) -> None:
    """Each by itself."""
    done = list(pool.map(f"Crossing.{method}", VALUES, return_failures=True))
    assert all(isinstance(each.error, errors.ActorFailed) for each in done)


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_what_the_documentation_names_arrives_as_it_is(pool: Pool, value: Any) -> None:
    """As an argument, as a result, and in a map."""
    for method in ("plain", "several", "together"):
        assert repr(pool.call(f"Crossing.{method}", value if method != "together" else [value]).result()) == repr(
            value if method != "together" else [value]
        )
    assert [repr(each) for each in pool.map("Crossing.plain", [value, [value]])] == [repr(value), repr([value])]
    assert pool.call("Crossing.numbered", {1: 2}).result() == {1: 2}


@pytest.mark.parametrize(("value", "arrives"), CHANGED, ids=repr)
def test_what_is_said_to_arrive_as_something_else_does(pool: Pool, value: Any, arrives: Any) -> None:
    """By type too."""
    for given, expected in ((value, arrives), ([value], [arrives])):
        assert repr(pool.call("Crossing.plain", given).result()) == repr(expected)


def _end_of(pool: Pool, depth: int) -> Any:
    stream = pool.stream("Crossing.deep_end", depth)
    assert list(stream) == [1]
    return stream.result()


WAYS: Final[dict[str, Callable[[Pool, int], Any]]] = {
    "a call": lambda pool, depth: pool.call("Crossing.deep", depth).result(),
    "a call in a batch": lambda pool, depth: pool.call("Crossing.deep_items", depth).result(),
    "an item": lambda pool, depth: next(iter(pool.map("Crossing.deep_items", [depth, 1, 2]))),
    "a part": lambda pool, depth: next(pool.stream("Crossing.deep_part", depth)),
    "a stream's result": _end_of,
    "an echo": lambda pool, depth: pool.call("Crossing.plain", nested(depth)).result(),
}
"""Ways of a result to its caller."""


@pytest.mark.parametrize("way", WAYS)
@in_turn("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, MAX_DEPTH + 3, 400])
def test_a_result_that_is_nested_too_deeply_fails_as_one_that_cannot_be_sent(pool: Pool, way: str, depth: int) -> None:
    """Whatever its way: its method ran, and the error says so."""
    if depth > MAX_DEPTH:
        with pytest.raises(errors.RequestError, match=f"nested deeper than {MAX_DEPTH}") as raised:
            WAYS[way](pool, depth)
        if way == "an echo":
            assert (type(raised.value), raised.value.maybe_executed) == (errors.InvalidRequest, False)
        else:
            assert (type(raised.value), raised.value.maybe_executed) == (errors.ActorFailed, True)
            assert "the result cannot be sent" in raised.value.message
        return
    found = WAYS[way](pool, depth)
    for _ in range(depth):
        (found,) = found
    assert found.tolist() == [0, 1, 2]
