"""Rows of requests: which can be joined, how they are, and how a result is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp_workers.requests.batches.rows import OtherRowsError, RowRules, joined, split

RULES = RowRules("Model.run", ("x", "names", "option"), 8)


def rows_of(x: Any, names: Any = None, option: Any = None) -> Any:
    """Return the rows and the key of arguments."""
    return RULES.rows_of((x, names, option))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from((0.0, -0.0, 1.0, float("nan"))) | st.text("ab"),
    lambda inner: st.dictionaries(st.text("ab"), inner, max_size=2),
)


@given(VALUES, VALUES)
def test_other_arguments_are_the_same_value_or_share_no_batch(one: Any, other: Any) -> None:
    """A method is called with one of them for all; 1, 1.0 and True are different, and so are 0.0 and -0.0."""
    x = np.zeros((1, 2))
    assert (rows_of(x, option=one) == rows_of(x, option=other)) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((1, 3)),
        np.zeros((1, 2), "float32"),
        np.zeros((1, 2), "int64"),
        np.zeros((1, 2, 1)),
        np.zeros(1),
        [[0.0, 0.0]],
    ],
)
def test_what_cannot_be_joined_has_another_key(other: Any) -> None:
    """By element type and lengths behind the first."""
    assert rows_of(np.zeros((1, 2)))[1] != rows_of(other)[1]
    assert rows_of(np.zeros((1, 2)))[1] == rows_of(np.ones((3, 2)))[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.zeros((2, 1)), ["a"]), "the same number of rows, and x has 2, names has 1"),
        ((np.zeros((9, 1)),), "from 1 to 8 rows (max_items of its Batch), not 9"),
        ((np.zeros((0, 1)),), "from 1 to 8 rows (max_items of its Batch), not 0"),
        ((np.zeros(()),), "x is an array without dimensions"),
        ((5, "text"), "no argument is an array or a list"),
        ((np.zeros((1, 1)), None, {1, 2}), "option has a set"),
        ((np.zeros((1, 1)), None, {"a": [np.zeros(1)]}), "option has a ndarray"),
    ],
)
def test_what_has_no_rows_is_refused_in_the_callers_words(arguments: tuple[Any, ...], said: str) -> None:
    """It names the method, the parameter and the numbers."""
    with pytest.raises(errors.InvalidRequest) as caught:
        rows_of(*arguments)
    assert said in str(caught.value)
    assert "Model.run" in str(caught.value)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.sampled_from(("float32", "int64", "bool", "complex128")))
def test_each_gets_back_what_it_has_given(counts: list[int], dtype: str) -> None:
    """Joined arguments that are returned are split where they were joined."""
    given_arrays = [
        (np.arange(3 * count).reshape(count, 3) + number).astype(dtype) for number, count in enumerate(counts)
    ]
    lists = [[f"{number}.{row}" for row in range(count)] for number, count in enumerate(counts)]
    arrays, names, option = joined([(a, names, "same") for a, names in zip(given_arrays, lists, strict=True)])
    assert option == "same"
    assert arrays.dtype == dtype
    result = split({"a": arrays, "b": (names)}, counts)
    pairs = split((arrays, names), counts)
    for at, (array, names) in enumerate(zip(given_arrays, lists, strict=True)):
        assert np.array_equal(result[at]["a"], array)
        assert result[at]["b"] == names
        assert np.array_equal(pairs[at][0], array)
        assert np.array_equal(split(arrays, counts)[at], array)


def test_joined_arrays_cannot_be_written_and_one_request_is_not_copied() -> None:
    """As arguments of any method."""
    x = np.zeros((1, 2))
    assert joined([(x, [1])])[0] is x
    with pytest.raises(ValueError, match="read-only"):
        joined([(x,), (x,)])[0][0] = 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.zeros(2), "2 rows"),
        ([1], "1 row"),
        ({"a": [1, 2, 3], "b": [1]}, "1 row as 'b'"),
        (([1, 2, 3], 7), "a int at [1]"),
        (None, "a NoneType"),
        (np.zeros(()), "a ndarray"),
        ({}, "nothing"),
        ("abc", "a str"),
    ],
)
def test_a_result_with_other_rows_is_told(result: Any, said: str) -> None:
    """By its number of rows and where it stands."""
    with pytest.raises(OtherRowsError) as caught:
        split(result, [1, 2])
    assert str(caught.value) == said


def test_tensors_are_joined_as_tensors() -> None:
    """Those with the same element type."""
    torch = pytest.importorskip("torch")
    one, other = torch.ones((2, 3)), torch.zeros((1, 3))
    assert rows_of(one)[1] == rows_of(other)[1] != rows_of(other.double())[1]
    (whole,) = joined([(one,), (other,)])
    assert torch.equal(whole, torch.cat([one, other]))
    assert torch.equal(split(whole, [2, 1])[1], other)
