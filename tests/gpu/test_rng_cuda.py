from __future__ import annotations

import functools
import itertools
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from atomr_mp import errors
from atomr_mp.protocol.libraries import rng
from tests.cases.rng_cases import (
    DTYPES,
    KINDS,
    PARAMETERS,
    REQUESTS,
    assert_continues,
    assert_follows_its_law,
    numbers,
    requests,
)
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.in_turn import in_turn

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "rng")

BY_REJECTION: Final = {"gamma", "beta"}
LAWS: Final = [(name, dtype, given) for name in REQUESTS for dtype in DTYPES[name] for given in PARAMETERS[name]]


@pytest.mark.parametrize("kind", KINDS[:3])
@in_turn("name, dtype, given_", LAWS)
def test_numbers_follow_their_law(kind: rng.Kind, name: str, dtype: str, given_: dict[str, Any]) -> None:
    """Of each pseudo-random generator, at a stated significance, with a fixed seed; an odd count."""
    if kind == "philox4_32_10" or name not in BY_REJECTION:
        assert_follows_its_law(numbers(run, name, dtype, 100_001, rng.Source(kind, 20), **given_), name, given_)


@pytest.mark.parametrize("kind", ["sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64"])
@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in {*BY_REJECTION, "bits"}])
def test_points_follow_each_law(name: str, kind: rng.Kind) -> None:
    """Quasi-random numbers are made from one word each."""
    for dtype in DTYPES[name]:
        drawn = numbers(run, name, dtype, 2**14 - 1, rng.Source(kind, 0, 1), **PARAMETERS[name][-1])
        assert_follows_its_law(drawn, name, PARAMETERS[name][-1])


@pytest.mark.parametrize("kind", [*KINDS, "scrambled_sobol64"])
@in_turn("name, cut", itertools.product(REQUESTS, (1, 333, 4096, 5000)))
def test_an_offset_continues_what_comes_before(name: str, kind: rng.Kind, cut: int) -> None:
    """For each kind and law, bit for bit."""
    for dtype in DTYPES[name]:
        if kind != "philox4_32_10" and name in BY_REJECTION:
            continue
        if "sobol32" not in kind or dtype != "uint64":
            assert_continues(run, name, dtype, kind, cut)


@pytest.mark.parametrize("kind", ["sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64"])
def test_points_of_several_dimensions_lie_side_by_side_and_continue(kind: rng.Kind) -> None:
    """An offset counts points; each dimension is spread evenly, and no two are the same."""
    whole = numbers(run, "uniform", "float32", (4095, 3), rng.Source(kind, 0, 1, 3))
    np.testing.assert_array_equal(
        numbers(run, "uniform", "float32", (95, 3), rng.Source(kind, 0, 4001, 3)), whole[4000:]
    )
    for axis in range(3):
        assert_follows_its_law(whole[:, axis], "uniform", {})
    assert abs(np.corrcoef(whole.T)[np.triu_indices(3, 1)]).max() < 0.1


@pytest.mark.parametrize("name", REQUESTS)
def test_arrays_lie_anywhere_and_nothing_around_is_written(name: str) -> None:
    """Strides, gaps, odd and empty sizes; the numbers are those of an array without gaps, in row order."""

    @given(requests(REQUESTS[name]))
    @settings(max_examples=60, deadline=None)
    def agrees(request: Any) -> None:
        if name == "choice":
            request.p.array[...] = np.arange(request.p.size, 0, -1)
        before = request.out.slab.copy()
        run(request)
        dense = msgspec.structs.replace(request, out=FakeArray.of(np.zeros(request.size), request.out.dtype))
        run(dense)
        np.testing.assert_array_equal(request.out.array, dense.out.array)
        request.out.array[...] = FakeArray(request.out.layout, before).array
        np.testing.assert_array_equal(request.out.slab, before)

    agrees()


def test_more_generators_than_are_kept_leave_each_other_alone() -> None:
    """A generator that had to make room begins where its request says."""
    draw = functools.partial(numbers, run, "normal", "float32", 100)
    expected = [draw(rng.Source(seed=seed, offset=7)) for seed in range(12)]
    for seed in (0, 11, 0, 3, 5):
        np.testing.assert_array_equal(draw(rng.Source(seed=seed, offset=7)), expected[seed])
    assert len({each.tobytes() for each in expected}) == 12


def test_numbers_by_rejection_are_the_hosts_up_to_rounding() -> None:
    """Both compute them from the same words of Philox."""
    from atomr_mp_workers.libraries.rng import host

    actor: Any = host.Implementation.__new__(host.Implementation)

    def run_there(request: Any) -> None:
        getattr(actor, request.name)(request)

    for name in BY_REJECTION:
        for given_ in PARAMETERS[name]:
            here, there = (
                numbers(each, name, "float64", 1001, rng.Source(seed=3, offset=2**33), **given_)
                for each in (run, run_there)
            )
            np.testing.assert_allclose(here, there, rtol=1e-9)


@pytest.mark.parametrize("weights", [[1.0, -1.0, 3.0], [0.0, 0.0], [np.nan, 1.0], [1e308, 1e308], [np.inf]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    """Only the data show it; the next request is well."""
    made = rng.Choice(FakeArray.of(weights, "float64"), FakeArray.of(np.zeros(3), "int64"))
    with pytest.raises(errors.NumericalError, match="p has a weight"):
        run(made)
    assert_follows_its_law(numbers(run, "choice", "int64", 1000, rng.Source(seed=1)), "choice", {})
