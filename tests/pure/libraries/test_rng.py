from __future__ import annotations

import itertools
import threading
import warnings
from typing import Any, Final, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.libraries.rng import Generator, Reference
from atomr_mp.protocol.libraries import rng
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.rng import host, laws, philox, sobol
from tests.cases.rng_cases import (
    DTYPES,
    PARAMETERS,
    REQUESTS,
    assert_continues,
    assert_follows_its_law,
    numbers,
    requests,
)
from tests.direct import host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.in_turn import in_turn

run: Final = run_by(host_actor("rng"))
PHILOX: Final = rng.Source(seed=20)


class Device:
    """A device that keeps the requests that a generator sends."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Reply:
        """Keep a request."""
        assert (library, deadline_s) == ("rng", None)
        self.requests.append(request)
        return cast("Reply", None)

    @property
    def sources(self) -> list[rng.Source]:
        """Where the numbers of each request begin."""
        return [request.source for request in self.requests]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: tuple[int, ...], key: int, expected: tuple[int, ...]) -> None:
    """Its authors publish them with Random123."""
    words: Any = tuple(np.array([word], np.uint64) for word in counter)
    assert tuple(int(word[0]) for word in philox.blocks(words, key)) == expected


@given(st.integers(0, 2**40), st.integers(0, 70), st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_words_are_those_of_their_positions(offset: int, count: int, seed: int) -> None:
    """Whatever comes before; wherever in a block it begins."""
    expected = philox.words(seed, offset - offset % 4, count + 4)
    np.testing.assert_array_equal(philox.words(seed, offset, count), expected[offset % 4 :][:count])


def test_words_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of Philox nor the parts of an array."""
    expected = numbers(run, "normal", "float64", 1001, PHILOX)
    points = numbers(run, "uniform", "float32", (333, 3), rng.Source("sobol32", 0, 5, 3))
    monkeypatch.setattr(philox, "CHUNK_BLOCKS", 3)
    monkeypatch.setattr(laws, "CHUNK", 17)
    np.testing.assert_array_equal(numbers(run, "normal", "float64", 1001, PHILOX), expected)
    np.testing.assert_array_equal(numbers(run, "uniform", "float32", (333, 3), rng.Source("sobol32", 0, 5, 3)), points)


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "given_"),
    [(name, dtype, given) for name in REQUESTS for dtype in DTYPES[name] for given in PARAMETERS[name]],
)
def test_numbers_follow_their_law(name: str, dtype: str, given_: dict[str, Any]) -> None:
    """The test states its significance and has a fixed seed."""
    assert_follows_its_law(numbers(run, name, dtype, 50_000, PHILOX, **given_), name, given_)


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in {"gamma", "beta", "bits"}])
def test_points_follow_each_law(name: str) -> None:
    """Quasi-random numbers are made from one word each, so that they are spread evenly under any law."""
    given = PARAMETERS[name][-1]
    for dtype in DTYPES[name]:
        drawn = numbers(run, name, dtype, 2**14 - 1, rng.Source("sobol32", 0, 1), **given)
        assert np.isfinite(drawn).all()
        assert_follows_its_law(drawn, name, given)


@given(st.sampled_from((1, 2, 3, 17, 500, 20_000)), st.integers(0, 3000), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_points_are_those_of_sobol(dimensions: int, first: int, count: int) -> None:
    """They are SciPy's, in order, wherever they begin; all dimensions of a point lie side by side."""
    sampler = qmc.Sobol(dimensions, scramble=False, bits=32)
    if first:
        sampler.fast_forward(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first points should be a power of 2
        expected = sampler.random(count)
    drawn = numbers(run, "bits", "uint32", (count, dimensions), rng.Source("sobol32", 0, first, dimensions))
    np.testing.assert_array_equal(drawn / 2.0**32, expected)


@given(st.integers(0, 2**32 - 600), st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=40)
def test_a_point_depends_on_its_number_alone(first: int, count: int, more: int) -> None:
    """The last number of all is one like any other."""
    for at in (first, 2**32 - count - more):
        together = sobol.points(3, at, count + more)
        np.testing.assert_array_equal(sobol.points(3, at, count), together[:count])
        np.testing.assert_array_equal(sobol.points(3, at + count, more), together[count:])


def test_a_scipy_without_direction_numbers_is_told_to_who_asks_for_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in a file of SciPy's own."""
    monkeypatch.setattr(sobol, "NUMBERS", "stats/elsewhere.npz")
    sobol.load.cache_clear()
    sobol._directions.cache_clear()
    with pytest.raises(errors.Unsupported, match=r"SciPy 1\.17"):
        numbers(run, "bits", "uint32", (4, 3), rng.Source("sobol32", dimensions=3))
    monkeypatch.undo()
    assert numbers(run, "bits", "uint32", (4, 3), rng.Source("sobol32", dimensions=3)).any()


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2**32 - 1, 2**64 - 1)])
def test_the_lower_end_of_a_uniform_number_is_open(low: int, high: int) -> None:
    """Of all words the smallest is above 0, and the largest is 1: no logarithm is infinite."""
    for word in (np.array([low], np.uint32), np.array([high], np.uint64)):
        (drawn,) = laws.uniform(word)
        assert 0 < drawn < 1e-9 if low == 0 else drawn == 1
        (normal,) = laws.standard_normal(word)
        assert -9 < normal < -6 if low == 0 else 6 < normal < 9


def test_tails_of_normal_numbers_are_alike() -> None:
    """A word and its complement give a number and its opposite."""
    for dtype in (np.uint32, np.uint64):
        word = np.random.default_rng(2).integers(0, np.iinfo(dtype).max, 1000, dtype)
        np.testing.assert_array_equal(laws.standard_normal(word), -laws.standard_normal(~word))


# --- where numbers begin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REQUESTS)
@in_turn("kind, cut", itertools.product(("philox4_32_10", "sobol32"), (0, 1, 333, 4096)))
def test_an_offset_continues_what_comes_before(name: str, kind: rng.Kind, cut: int) -> None:
    """This holds for each kind and law, bit for bit."""
    if kind == "sobol32" and name in {"gamma", "beta"}:
        with pytest.raises(errors.InvalidRequest, match="philox4_32_10"):
            numbers(run, name, "float32", 3, rng.Source(kind), **PARAMETERS[name][0])
        return
    for dtype in DTYPES[name]:
        if (name, kind, dtype) != ("bits", "sobol32", "uint64"):
            assert_continues(run, name, dtype, kind, cut, 5000)


@pytest.mark.parametrize("name", REQUESTS)
def test_arrays_lie_anywhere_and_nothing_around_is_written(name: str) -> None:
    """Strides, gaps, odd and empty sizes; the numbers are those of an array without gaps, in row order."""

    @given(requests(REQUESTS[name]))
    @settings(max_examples=40, deadline=None)
    def agrees(request: Any) -> None:
        source = msgspec.structs.replace(request.source, kind="philox4_32_10")
        request = msgspec.structs.replace(request, source=source)
        if name == "choice":
            request.p.array[...] = np.arange(request.p.size, 0, -1)
        before = request.out.slab.copy()
        run(request)
        after = request.out.slab.copy()
        dense = msgspec.structs.replace(request, out=FakeArray.of(np.zeros(request.size), request.out.dtype))
        run(dense)
        np.testing.assert_array_equal(request.out.array, dense.out.array)
        request.out.array[...] = FakeArray(request.out.layout, before).array
        np.testing.assert_array_equal(request.out.slab, before)
        assert after.size == before.size

    agrees()


def test_a_seed_is_another_sequence() -> None:
    """All 64 bits of it count."""
    drawn = [numbers(run, "bits", "uint32", 8, rng.Source(seed=seed)).tolist() for seed in (0, 1, 2**32, 2**64 - 1)]
    assert len({tuple(each) for each in drawn}) == 4


# --- generators -------------------------------------------------------------------------------------------------------


def test_a_generator_moves_by_what_each_request_takes() -> None:
    """Nothing is taken twice, and nothing is left out."""
    generator = Reference(device := Device()).generator(seed=5, offset=10)
    out = FakeArray.of(np.zeros((2, 3)), "float64")
    generator.normal(size=7)
    generator.random(out)
    generator.bits(size=(2, 2), dtype="uint64")
    generator.gamma(shape=2.0, size=3, dtype="float64")
    generator.poisson(lam=3.0, size=())
    assert [source.offset for source in device.sources] == [10, 17, 29, 37, 40]
    assert {(source.kind, source.seed) for source in device.sources} == {("philox4_32_10", 5)}
    assert generator.offset == 42
    points = generator.generator(kind="sobol32", dimensions=3)
    points.uniform(size=(5, 3), dtype="float64")
    assert (points.offset, points.seed, points.dimensions, points.kind) == (5, 0, 3, "sobol32")
    assert "seed=5 offset=42" in repr(generator)


def test_a_generator_of_another_kind_leaves_the_seed_of_the_first() -> None:
    """Neither the seed nor the offset of one is reset by making or using the other."""
    first = Reference(device := Device()).generator(seed=5)
    first.normal(size=4)
    second = first.generator(seed=6, kind="xorwow")
    second.normal(size=2)
    first.normal(size=4)
    assert device.sources[1:] == [rng.Source("xorwow", 6, 0), rng.Source("philox4_32_10", 5, 4)]


def test_a_generator_of_another_seed_leaves_the_kind() -> None:
    """The kind of a generator is what it was made with, whatever others are made with."""
    first = Reference(device := Device()).generator(seed=5, kind="mrg32k3a")
    first.generator(seed=9).normal(size=1)
    first.normal(size=1)
    assert [(source.kind, source.seed) for source in device.sources] == [("philox4_32_10", 9), ("mrg32k3a", 5)]


def test_a_request_that_is_refused_takes_no_numbers() -> None:
    """The generator stands where it stood."""
    generator = Reference(device := Device()).generator(seed=1)
    for refused in ({"size": -1}, {"scale": -1.0, "size": 3}, {"loc": float("nan"), "size": 3}):
        with pytest.raises(errors.InvalidRequest):
            generator.normal(**refused)
    assert (generator.offset, device.requests) == (0, [])


def test_a_generator_ends() -> None:
    """Its last words can be drawn, and then there are no more: it does not begin again."""
    generator = Reference(device := Device()).generator(seed=1, offset=2**63 - 4)
    generator.random(size=3)
    with pytest.raises(errors.InvalidRequest, match="ends before 1 more"):
        generator.random(size=1)
    assert (generator.offset, len(device.requests)) == (2**63 - 1, 1)
    assert_follows_its_law(
        numbers(run, "uniform", "float32", 1001, rng.Source(seed=1, offset=2**63 - 1002)), "uniform", {}
    )


def test_threads_share_a_generator() -> None:
    """No thread gets the numbers of another."""
    generator: Generator = Reference(device := Device()).generator(seed=1)

    def draw() -> None:
        for _ in range(200):
            generator.random(size=5)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(source.offset for source in device.sources) == list(range(0, 4000, 5))


def test_seeds_come_from_the_operating_system_unless_given() -> None:
    """Two generators differ."""
    made = [Reference(Device()).generator() for _ in range(2)]
    assert made[0].seed != made[1].seed
    assert Reference(Device()).seed != Reference(Device()).seed


@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        ({"kind": "mt19937"}, errors.Unsupported, "nearest that can is philox4_32_10"),
        ({"kind": "mtgp32"}, errors.Unsupported, "nearest that can is philox4_32_10"),
        ({"kind": "philox"}, errors.InvalidRequest, "did you mean philox4_32_10"),
        ({"seed": -1}, errors.InvalidRequest, "seed is -1"),
        ({"seed": 2**64}, errors.InvalidRequest, "seed must be less than"),
        ({"seed": 1.5}, errors.InvalidRequest, "seed is 1.5; it must be a whole number"),
        ({"offset": -1}, errors.InvalidRequest, "offset is -1"),
        ({"kind": "sobol32", "seed": 3}, errors.InvalidRequest, "has no seed"),
        ({"kind": "sobol32", "dimensions": 0}, errors.InvalidRequest, "dimensions is 0"),
        ({"dimensions": 2}, errors.InvalidRequest, "Only points"),
    ],
)
def test_what_is_no_generator_is_refused(given_: dict[str, Any], error: type[Exception], message: str) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(error, match=message):
        Reference(Device()).generator(**given_)


def test_the_host_names_the_nearest_of_what_it_does_not_have() -> None:
    """No generator is passed off as another."""
    for kind, nearest in host.NEAREST.items():
        with pytest.raises(errors.Unsupported, match=f"no generator {kind}; the nearest that it has is {nearest}"):
            numbers(run, "uniform", "float32", 3, rng.Source(cast("rng.Kind", kind)))


@pytest.mark.parametrize("weights", [[1.0, -1.0, 3.0], [0.0, 0.0], [np.nan, 1.0], [1e308, 1e308], [np.inf]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    """Only the data show it."""
    made = rng.Choice(FakeArray.of(weights, "float64"), FakeArray.of(np.zeros(3), "int64"), source=PHILOX)
    with pytest.raises(errors.NumericalError, match="p has a weight"):
        run(made)


def test_points_end() -> None:
    """Sobol's sequence of 32 bits has 2^32 points."""
    with pytest.raises(errors.InvalidRequest, match=r"2\^32 points"):
        numbers(run, "uniform", "float32", 3, rng.Source("sobol32", 0, 2**32 - 2))
