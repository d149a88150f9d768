"""NumPy's scalars cross as the same value of a plain type, or are refused with what to send instead."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from atomr_mp import errors
from atomr_mp.protocol import values

CROSS: Final = {"b": bool, "i": int, "u": int, "f": float, "U": str, "S": bytes}
"""The type that arrives for each kind of scalar; a complex number arrives as an array."""

SCALARS: Final = st.one_of(npst.scalar_dtypes(), st.just(np.dtype("g")), st.just(np.dtype("G"))).flatmap(
    lambda dtype: npst.from_dtype(dtype).map(dtype.type if dtype.kind in "US" else lambda value: value)
)


def crossed(value: object) -> Any:
    """Return what arrives."""
    body, frames, _ = values.encode(value)
    return values.Decoder[Any]().decode(body, [memoryview(frame) for frame in frames])


@given(SCALARS)
def test_a_scalar_arrives_as_it_is_or_is_refused_in_words(value: Any) -> None:
    """Alone, in a list, in a map, and as a key of one."""
    kind = np.asarray(value).dtype.kind
    if kind in "Mm" or isinstance(value, np.longdouble | np.clongdouble):
        for sent in (value, [value], {"x": value}):
            with pytest.raises(errors.InvalidRequest, match=r"numpy.*cannot be sent; send "):
                crossed(sent)
        return
    found = crossed(value)
    assert type(found) is (np.ndarray if kind == "c" else CROSS[kind])
    assert found == value or value != value  # noqa: PLR0124 - no number equals itself if it is NaN
    if kind in "USbiu":
        assert crossed([value]) == [value]
        assert crossed({value: 1}) == {value: 1}


@pytest.mark.parametrize("dtype", ["M8[D]", "m8[s]", "g", "G", "U2", "S2", "O", [("a", "i4"), ("b", "f8")], "V3"])
def test_an_array_that_cannot_be_sent_is_refused_in_words(dtype: Any) -> None:
    """Whatever its type; and so is its element."""
    array = np.zeros(2, dtype)
    with pytest.raises(errors.InvalidRequest, match="cannot be sent; send "):
        crossed(array)
    if array.dtype.kind == "V":
        with pytest.raises(errors.InvalidRequest, match=r"numpy\.void cannot be sent; send its fields"):
            crossed(array[0])
