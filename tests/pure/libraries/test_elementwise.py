from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.elementwise import Reference
from atomr_mp.protocol.declaration.arguments import declared
from atomr_mp.protocol.libraries.elementwise import broadcast
from tests import layouts
from tests.cases.elementwise_cases import REQUESTS, assert_agrees
from tests.declared import check
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

STRIDES: Final = (1, 2, 3, 4, 8, 16, -1, -4, -8)
"""Strides of vectors, in elements."""

run: Final = run_by(host_actor("elementwise"))
ELEMENTWISE: Final[Any] = Reference(DirectDevice(run))


@pytest.mark.parametrize("name", REQUESTS)
def test_every_pair_of_strides_gives_the_same_numbers(name: str) -> None:
    """Of two vectors, and in place too: NumPy has loops of their own for some strides."""
    cls: Any = REQUESTS[name]
    names = [each for each in ("x", "y") if each in cls.__struct_fields__]
    fixed: dict[str, Any] = {"dtype": "float64"} if name == "cast" else {}
    random = np.random.default_rng(5)
    for dtype in {"float32", "float64", "int32", "int64", "complex64"} & set(cls.types["T"]):
        for step, out_step in itertools.product(STRIDES, STRIDES):
            arrays: dict[str, Any] = {each: layouts.vector(dtype, 5, step) for each in names}
            if name == "where":
                arrays["condition"] = layouts.vector("bool", 5, out_step)
            left_out = cls(**arrays, **fixed)
            ((_, made),) = left_out.results().items()
            outputs = [layouts.vector(made.dtype, 5, out_step)]
            if step == out_step and made.dtype == dtype and "x" in declared(cls).arrays["out"].alias:
                outputs.append(arrays["x"])
            for out in outputs:
                assert_agrees(msgspec.structs.replace(left_out, out=out), random, run)


def test_integers_wrap_around_and_half_precision_is_rounded_once() -> None:
    """A GPU does the same."""
    x, out = FakeArray.of([250, 3], "uint8"), FakeArray.of([0, 0], "uint8")
    ELEMENTWISE.add(x, x, out)
    np.testing.assert_array_equal(out.array, [244, 6])
    one, third = FakeArray.of([1.0], "float16"), FakeArray.of([3.0], "float16")
    ELEMENTWISE.divide(one, third, one)
    assert one.array == np.float16(1 / 3)


def test_a_number_is_an_array_without_dimensions() -> None:
    """It is broadcast, as any array with dimensions of length 1."""
    x, two = FakeArray.of(np.arange(6.0).reshape(2, 3), "float32"), FakeArray.of(2.0, "float32")
    ELEMENTWISE.multiply(x, two, x)
    np.testing.assert_array_equal(x.array, np.arange(6.0).reshape(2, 3) * 2)


@given(st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=3))
def test_shapes_are_broadcast_as_numpy_does(shapes: list[tuple[int, ...]]) -> None:
    """Others are refused, with the shapes."""
    try:
        wanted = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(errors.InvalidRequest, match="cannot be broadcast together"):
            broadcast(*shapes)
    else:
        assert broadcast(*shapes) == wanted


def test_types_are_not_promoted() -> None:
    """The error names both, and `cast` is at hand."""
    x, y = FakeArray.of([1.0], "float32"), FakeArray.of([1.0], "float64")
    with pytest.raises(errors.InvalidRequest, match="x is float32 and y is float64; they must be the same"):
        ELEMENTWISE.add(x, y)
    with pytest.raises(errors.InvalidRequest, match="divide is not defined for int32"):
        ELEMENTWISE.divide(FakeArray.of([1], "int32"), FakeArray.of([1], "int32"))
    with pytest.raises(errors.InvalidRequest, match="out is float32; it must be bool"):
        ELEMENTWISE.less(x, x, x)
    with pytest.raises(errors.InvalidRequest, match="dtype is 'float8'"):
        ELEMENTWISE.cast(x, dtype="float8")
    check(REQUESTS["cast"](x, "float64"))
