"""Truth values are no numbers, whether they are Python's or NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol import amounts


@pytest.mark.parametrize("truth", [True, False, np.True_, np.False_, np.array(True)], ids=repr)
@pytest.mark.parametrize(
    "check",
    [
        lambda value: amounts.duration("deadline_s", value, zero=True),
        lambda value: amounts.deadline(value, 1.0),
        lambda value: amounts.real("weight", value, 0.0, 2.0),
        lambda value: amounts.whole("ahead", value, 0, 2),
    ],
)
def test_a_truth_value_is_refused_where_a_number_is_asked_for(check: Callable[[Any], Any], truth: Any) -> None:
    """It is a flag in the wrong place."""
    with pytest.raises(errors.InvalidRequest, match="got "):
        check(truth)


@pytest.mark.parametrize("number", [1, 1.0, np.float32(1), np.int8(1), np.array(1.0)], ids=repr)
def test_a_number_of_any_kind_is_a_duration(number: Any) -> None:
    """NumPy's, too."""
    assert amounts.duration("deadline_s", number) == 1.0
