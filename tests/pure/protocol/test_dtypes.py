"""The element type of a ref is a name for us, and NumPy's type for NumPy's users."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol import dtypes, values

NAMES = sorted(dtypes.ITEM_BYTES)


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(["", "type", "numpy", "code"]))
def test_an_element_type_is_equal_to_each_form_of_itself_only(name: str, other: str, form: str) -> None:
    """The name, NumPy's type and class, and codes such as "<f4"; from either side, and by hash to the name."""
    found, theirs = dtypes.element_type(name), dtypes.to_numpy(other)
    forms: dict[str, Any] = {"": other, "type": theirs.type, "numpy": theirs, "code": theirs.str}
    if form == "code" and not hasattr(np, other):
        return  # of NumPy's own types only
    assert (found == forms[form]) == (forms[form] == found) == (name == other)
    assert (found != forms[form]) == (name != other)
    assert {name: 1}[found] == 1
    assert hash(found) == hash(name)
    assert (dtypes.to_numpy(found) in {theirs: 1}) == (name == other)


@pytest.mark.parametrize("name", NAMES)
def test_an_element_type_has_what_numpys_type_has(name: str) -> None:
    """Its attributes, and its place in NumPy's functions."""
    found, numpy_s = dtypes.element_type(name), dtypes.to_numpy(name)
    assert (found.itemsize, found.kind, found.type, found.name) == (
        numpy_s.itemsize,
        numpy_s.kind,
        numpy_s.type,
        name,
    )
    assert np.empty(2, found).dtype == numpy_s
    assert dtypes.name_for(found) == name
    assert type(dtypes.name_for(found)) is str
    assert f"{found}" == str(found) == name
    assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == name
    assert values.Decoder[Any]().decode(*values.encode(found)[:2]) == name
    for nothing in (None, 5, [], "no type", object()):
        assert (found == nothing) is False
        assert (found != nothing) is True


def test_a_name_that_numpy_lacks_stays_a_name_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its size, and is equal to its name."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.to_numpy.cache_clear()
    try:
        found = dtypes.element_type("bfloat16")
        assert (found, found.itemsize) == ("bfloat16", 2)
        assert found != np.float32
        assert found != "float32"
        assert dtypes.name_for(found) == "bfloat16"
    finally:
        dtypes.to_numpy.cache_clear()
