from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import scalar, to_scalar
from atomr_mp_workers.libraries.memory.base import number_for

EDGES = [2**bits + more for bits in (7, 8, 15, 16, 31, 32, 63, 64) for more in (-1, 0, 1)]
NUMBERS = (
    st.sampled_from([*EDGES, *(-edge for edge in EDGES)])
    | st.integers(-300, 300)
    | st.floats()
    | st.complex_numbers()
    | st.booleans()
    | st.sampled_from([float(edge) for edge in EDGES])
)


@pytest.mark.parametrize(
    ("dtype", "value", "number"),
    [
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int64", -(2**63), -(2**63)),
        ("int8", 3.0, 3),
        ("float32", 1e300, 1e300),
        ("bool", 2.5, 2.5),
        ("complex64", (1.0, 2.0), 1 + 2j),
        ("complex64", 3, 3),
    ],
)
def test_numbers_stay_exact(dtype: str, value: Scalar, number: complex) -> None:
    """Whole numbers of integer types are integers, to the last bit."""
    found = number_for(dtype, value)
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int64", 2**63),
        ("int64", 2.0**63),
        ("int32", 1.5),
        ("int32", float("nan")),
        ("int32", float("inf")),
        ("float32", (1.0, 0.0)),
        ("bool", (1.0, 0.0)),
    ],
)
def test_what_a_type_cannot_hold_is_refused(dtype: str, value: Scalar) -> None:
    """Every backend refuses it, before anything is written."""
    with pytest.raises(errors.InvalidRequest, match=f"an array of {dtype} cannot hold"):
        number_for(dtype, value)


@given(st.sampled_from(sorted(dtypes.ITEM_BYTES)), NUMBERS)
def test_a_caller_is_refused_what_a_worker_refuses(dtype: str, value: complex) -> None:
    """The same numbers, so that nothing is sent that would leave an array without defined content."""
    refusals: list[str] = []
    checks: list[Callable[[], object]] = [
        lambda: number_for(dtype, to_scalar(value)),
        lambda: dtypes.check_holds(dtype, scalar(to_scalar(value))),
    ]
    for check in checks:
        try:
            check()
            refusals.append("")
        except errors.InvalidRequest as error:
            refusals.append(error.message)
    assert refusals[0] == refusals[1]
