"""Schemas of methods: an annotation that cannot be shown takes nothing away from the others."""

from __future__ import annotations

import json
import types
from typing import Any, Final, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_mp_workers.schemas import Described, schema_of

Numbers = NDArray[np.int64]


class Odd:
    """A class that no schema knows."""


class Broken(type):
    """The class of classes whose attributes cannot be looked up."""

    def __getattribute__(cls, name: str) -> Any:
        if name == "__class__":
            return type.__getattribute__(cls, name)
        raise RuntimeError("no attribute of this class can be read")


ODD: Final = (
    object,
    Odd,
    dict[str, object],
    dict[str, Odd] | None,
    list[object],
    tuple[Odd, ...],
    type,
    Any,
    "a text",
    types.SimpleNamespace,
    Literal["a"],
    Broken("Broken", (), {}),
)


@given(st.lists(st.sampled_from(ODD), min_size=1, max_size=3), st.sampled_from(ODD))
def test_an_odd_annotation_leaves_the_others_as_they_are(odd: list[Any], result: Any) -> None:
    """The arrays' element types are there, and so are the names of all parameters."""
    others = [Described(f"odd{at}", each, each, required=False) for at, each in enumerate(odd)]
    found = json.loads(schema_of([others[0], Described("x", Numbers, Numbers, required=True), *others[1:]], result))
    assert found["arguments"]["properties"]["x"] == {"type": "array", "format": "ndarray", "dtype": "int64"}
    assert set(found["arguments"]["properties"]) == {"x", *(each.name for each in others)}
    assert found["arguments"]["required"] == ["x"]


@pytest.mark.parametrize("annotation", [dict[str, object], dict[str, Odd]])
def test_a_map_of_anything_is_a_map(annotation: Any) -> None:
    """As `dict[str, Any]` is."""
    found = json.loads(schema_of([Described("m", annotation, annotation, required=True)], Any))
    assert found["arguments"]["properties"]["m"]["type"] == "object"
