"""Models of pydantic and tensors of torch as arguments and results; what does not cross is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pydantic
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client

MODELLED = f"{ACTORS}/modelled.py:Modelled"


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool of one process."""
    with Ledger() as ledger, ledger.start(MODELLED) as started:
        yield started


def call(pool: atomr_mp.Pool, name: str, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call."""
    return getattr(pool.actor("Modelled", deadline_s=DEADLINE_S), name)(*args, **kwargs).result(DEADLINE_S)


def test_a_map_becomes_the_model(pool: atomr_mp.Pool) -> None:
    """By name and by position, in lists, maps and structs, or as one of several; what may be missing may."""
    assert call(pool, "name", {"name": "a", "boxes": [{"left": 1}]}, 2) == "a 1 2 Picture"
    assert call(pool, "name", picture={"name": "a"}) == "a 0 1 Picture"
    assert call(pool, "widths", [{"left": 1, "width": 3}], {"x": {"left": 1, "width": 4}}, {"left": 1}) == [3, 4, 1]
    assert call(pool, "widths", []) == []
    assert call(pool, "either", {"name": "a"}) == "Picture"
    assert call(pool, "around", {"boxes": [{"left": 1}]}) == ["Box"]


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("name", [{"name": "a", "boxes": [{"left": 1}, {"left": "x"}]}], "- at `picture.boxes[1].left`"),
        ("name", [{}], "Field required - at `picture.name`"),
        ("name", [{"name": "a"}, 0], "greater than or equal to 1 - at `size`"),
        ("widths", [[{"left": 1, "width": 0}]], "greater than 0 - at `boxes[0].width`"),
        ("around", [{"boxes": [{"left": 1}, {}]}], "Field required - at `around.boxes[1].left`"),
        ("name", [3], "- at `picture`"),
    ],
)
def test_what_does_not_fit_a_model_is_refused_in_the_caller_s_words(
    pool: atomr_mp.Pool, name: str, args: list[Any], said: str
) -> None:
    """The place is that of the argument and the field."""
    with pytest.raises(errors.InvalidRequest) as refused:
        call(pool, name, *args)
    assert said in refused.value.message
    assert f"Modelled.{name}" in refused.value.message


def test_a_model_is_sent_as_what_its_serialisers_make_of_it(pool: atomr_mp.Pool) -> None:
    """As a result, in batches, and as an argument; the rules of other values hold for what is in it."""
    made = call(pool, "picture", 2)
    boxes = [{"left": 0, "width": 1}, {"left": 1, "width": 1}]
    assert made == {"name": "made", "taken": "2020-01-01T00:00:00+00:00", "boxes": boxes}
    assert call(pool, "lefts", {"left": 4}) == {"left": 5, "width": 1}
    assert list(pool.map("Modelled.lefts", boxes)) == [{"left": 1, "width": 1}, {"left": 2, "width": 1}]

    class Sent(pydantic.BaseModel):
        name: str = "sent"

    assert call(pool, "name", Sent()) == "sent 0 1 Picture"
    with pytest.raises(errors.ActorFailed, match="isoformat"):
        call(pool, "dated")


def test_tensors_come_of_arrays_and_refs_and_go_as_arrays(pool: atomr_mp.Pool) -> None:
    """Without a copy, though arguments are read-only; of every element type; also in batches."""
    ref = pool.device().put(np.full(3, 2.0))
    assert call(pool, "kinds", np.ones(2), [np.ones(3), ref], ref[::-1]) == [
        "Tensor 2",
        "Tensor 3",
        "Tensor 6",
        "Tensor 6",
    ]
    assert call(pool, "kinds", ref, []) == ["Tensor 6"]
    assert call(pool, "is_over", ref, ref)
    large = np.arange(100_000.0)
    assert call(pool, "kinds", large, []) == [f"Tensor {large.sum():g}"]
    with pytest.raises(errors.InvalidRequest, match="- at `x`"):
        call(pool, "kinds", 3, [])
    for dtype in ("float32", "int8", "complex64", "bool", "bfloat16"):
        for count in (3, 100_000):
            sent = call(pool, "tensors", count, dtype)
            assert sent["one"].dtype.name == dtype
            assert np.array_equal(sent["one"], np.arange(count).astype(sent["one"].dtype))
            assert np.array_equal(sent["others"][0], np.arange(float(count)))
    assert call(pool, "doubled", np.ones(2)).tolist() == [2.0, 2.0]


def test_what_does_not_cross_says_what_to_send_instead(pool: atomr_mp.Pool) -> None:
    """In the caller for an argument, as the method's error for a result."""
    table = type("DataFrame", (), {"__module__": "pandas"})()
    image = type("PngImageFile", (type("Image", (), {"__module__": "PIL.Image"}),), {"__module__": "PIL.Png"})()
    with pytest.raises(errors.InvalidRequest, match="records"):
        call(pool, "kinds", table, [])
    with pytest.raises(errors.InvalidRequest, match="bytes of the encoded image"):
        call(pool, "kinds", [image], [])
    with pytest.raises(errors.ActorFailed, match="records"):
        call(pool, "frame")


def test_numbers_and_handles_arrive_as_annotated(pool: atomr_mp.Pool) -> None:
    """A complex number is one, and what may be a handle or None is a handle."""
    assert call(pool, "number", 3 + 4j) == [5.0, "NoneType"]
    assert call(pool, "number", 3, pool.device().put(np.ones(2))) == [3.0, "DeviceArray"]


def test_schemas_of_models_are_pydantic_s(pool: atomr_mp.Pool) -> None:
    """With the definitions that they refer to, and the arrays among them."""
    methods = {each.name: json.loads(each.schema) for each in local_client(pool).actors[0].methods}
    name = methods["name"]
    assert name["arguments"]["properties"]["picture"]["title"] == "Picture"
    assert name["arguments"]["properties"]["size"] == {"minimum": 1, "type": "integer"}
    assert name["arguments"]["properties"]["picture"]["properties"]["boxes"]["items"] == {"$ref": "#/$defs/Box"}
    assert name["$defs"]["Box"]["properties"]["left"]["type"] == "integer"
    assert methods["picture"]["result"]["title"] == "Picture"
    assert methods["widths"]["arguments"]["properties"]["boxes"]["items"] == {"$ref": "#/$defs/Box"}
    assert methods["kinds"]["arguments"]["properties"]["x"] == {"type": "array", "format": "ndarray"}
