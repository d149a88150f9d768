from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import scalar
from tests.fakes.fake_arrays import GUARD_BYTES, FakeArray
from tests.gpu import on_device

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "memory")

DTYPES: Final = sorted(dtypes.ITEM_BYTES)


def poisoned(dtype: str, shape: tuple[int, ...], order: str = "C") -> FakeArray:
    """Return an array of bytes that are all ones, with as many around."""
    array = FakeArray(Layout.contiguous(dtype, shape, GUARD_BYTES, order=order))
    array.slab[:] = 0xFF
    return array


def views(dtype: str) -> dict[str, FakeArray]:
    """Return arrays of 4 by 6 elements that lie in all kinds of ways."""
    return {
        "rows": poisoned(dtype, (4, 6)),
        "columns": poisoned(dtype, (4, 6), "F"),
        "sliced": poisoned(dtype, (8, 9))[1::2, 2:8],
        "backwards": poisoned(dtype, (6, 4)).transpose()[::-1, ::-1],
        "one row": poisoned(dtype, (24,))[None, :],
    }


def values(dtype: str) -> list[Scalar]:
    """Return numbers that a type holds exactly, and those at its ends."""
    if dtype == "bool":
        return [0, 1, 2.5]
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return [0, 7, int(limits.min), int(limits.max), 3.0]
    found: list[Scalar] = [0, -1, 0.5, float("nan"), float("inf")]
    return [*found, (0.25, -2.0)] if dtype.startswith("complex") else found


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_writes_the_number_into_every_element_and_nowhere_else(dtype: str) -> None:
    """Whatever the strides; as NumPy does."""
    for value in values(dtype):
        for kind, array in views(dtype).items():
            expected = array.slab.copy()
            like = FakeArray(array.layout, expected)
            like.array[...] = scalar(value)
            assert run(memory.Fill(array, value)) is None
            if scalar(value) != scalar(value):  # a NaN, which has many forms
                assert np.isnan(array.array.astype(np.complex128)).all()
                array.array[...] = like.array
            np.testing.assert_array_equal(array.slab, expected, f"{value} {kind}")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", (1.0, 0.0)), ("uint8", 256), ("int8", -129), ("int32", 1.5), ("bfloat16", (0.0, 1.0))],
)
def test_what_a_type_cannot_hold_is_refused(dtype: str, value: Scalar) -> None:
    """Nothing has been written then."""
    with pytest.raises(errors.InvalidRequest, match="cannot hold"):
        run(memory.Fill(poisoned(dtype, (3,)), value))


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_moves_every_element_whatever_the_strides(dtype: str) -> None:
    """Bits are unchanged; nothing around the target changes."""
    random = np.random.default_rng(5)
    for kind, source in views(dtype).items():
        content = random.integers(0, 2 if dtype == "bool" else 256, source.slab.size, np.uint8)
        for other, target in views(dtype).items():
            if source.shape != target.shape:
                continue
            source.slab[:] = content
            expected = target.slab.copy()
            bits = f"V{source.layout.item_bytes}"
            FakeArray(target.layout, expected).array.view(bits)[...] = source.array.view(bits)
            assert run(memory.Copy(source, target)) is None
            np.testing.assert_array_equal(target.slab, expected, f"{kind} to {other}")
            np.testing.assert_array_equal(source.slab, content)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_what_is_empty_are_copied_and_filled(shape: tuple[int, ...]) -> None:
    """One element, or none."""
    source, target = FakeArray.of(np.full(shape, 3.0), "float32"), poisoned("float32", shape)
    run(memory.Copy(source, target))
    np.testing.assert_array_equal(target.array, np.full(shape, 3.0))
    run(memory.Fill(target, 4))
    np.testing.assert_array_equal(target.array, np.full(shape, 4.0))


def test_strides_of_zero_repeat_an_element() -> None:
    """A broadcast source."""
    row = FakeArray.of(np.arange(4.0), "float64")
    source = FakeArray(row.layout._replace(shape=(3, 4), strides=(0, 8)), row.slab)
    target: Any = poisoned("float64", (3, 4))
    run(memory.Copy(source, target))
    np.testing.assert_array_equal(target.array, np.tile(np.arange(4.0), (3, 1)))
