"""Requests for random numbers, and the laws that they must follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import scipy
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import requests_of, rng
from atomr_mp.protocol.libraries.base import LibraryRequest
from tests import declared
from tests.fakes.fake_arrays import GUARD_BYTES, FakeArray

Array = npt.NDArray[Any]
Run = Callable[[Any], Any]

REQUESTS: Final = requests_of("rng")

SIGNIFICANCE: Final = 1e-4
"""Probability with which a right generator fails a test of a law. Seeds are fixed: one that passes always does."""

PARAMETERS: Final[dict[str, list[dict[str, Any]]]] = {
    "bits": [{}],
    "uniform": [{}, {"low": -3.0, "high": 5.0}],
    "normal": [{}, {"loc": 7.0, "scale": 0.5}],
    "lognormal": [{}, {"mean": -1.0, "sigma": 0.25}],
    "exponential": [{}, {"scale": 4.0}],
    "cauchy": [{}, {"loc": 2.0, "scale": 3.0}],
    "gamma": [{"shape": 0.3}, {"shape": 1.0, "scale": 2.0}, {"shape": 12.5}],
    "beta": [{"a": 0.5, "b": 0.7}, {"a": 2.0, "b": 5.0}],
    "poisson": [{"lam": 0.0}, {"lam": 0.7}, {"lam": 30.0}, {"lam": 1e6}],
    "choice": [{}],
}
"""What requests are drawn with."""

DTYPES: Final[dict[str, tuple[str, ...]]] = {
    "bits": ("uint32", "uint64"),
    "poisson": ("uint32",),
    "choice": ("int64",),
} | dict.fromkeys(
    ("uniform", "normal", "lognormal", "exponential", "cauchy", "gamma", "beta"),
    ("float32", "float64"),
)
"""The element types of the outputs."""

KINDS: Final[tuple[rng.Kind, ...]] = ("philox4_32_10", "xorwow", "mrg32k3a", "sobol32", "scrambled_sobol32", "sobol64")

WEIGHTS: Final = (0.0, 1.0, 0.0, 5.0, 2.5, 0.0, 0.5, 0.0)


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest]) -> Any:
    """Draw a request: any kind that it can have, any shape and strides."""
    source = rng.Source(
        "philox4_32_10" if cls.name in {"gamma", "beta"} else draw(st.sampled_from(KINDS[:3])),
        draw(st.sampled_from([0, 1, 2**64 - 1])),
        draw(st.sampled_from([0, 1, 2, 3, 7, 2**33 + 5])),
    )
    fixed = {"size": draw(st.sampled_from([(), (0,), (1,), (5,), (2, 3), (3, 1, 2)])), "source": source}
    if "dtype" in cls.__struct_fields__:
        fixed["dtype"] = draw(st.sampled_from(DTYPES[cls.name]))
    found = draw(st.sampled_from(PARAMETERS[cls.name]))
    return draw(declared.requests(cls, lengths=(1, 2, 5), fixed=fixed | found))


def assert_agrees(made: Any, random: np.random.Generator, run: Run) -> None:
    """Check that a request gives the same numbers, however its output lies, and writes nothing else."""
    given: dict[str, FakeArray] = {}
    if made.name == "choice":
        given["p"] = FakeArray.of(random.uniform(0.5, 1, made.p.shape), made.p.dtype)
    made = msgspec.structs.replace(made, **given)
    packed = msgspec.structs.replace(
        made, out=FakeArray(Layout.contiguous(made.out.dtype, made.out.shape, GUARD_BYTES))
    )
    before = made.out.slab.copy()
    try:
        run(made)
    except errors.Unsupported:
        assert made.source.kind != "philox4_32_10"
        return
    run(packed)
    np.testing.assert_array_equal(made.out.array, packed.out.array)
    assert made.out.array.dtype.kind != "f" or np.isfinite(made.out.array).all()
    own = declared.positions(made.out).reshape(-1)
    before[own] = made.out.slab[own]
    np.testing.assert_array_equal(made.out.slab, before)


def request(name: str, dtype: str, count: int | tuple[int, ...], source: rng.Source, **parameters: Any) -> Any:
    """Return a request for numbers of a type, with memory for them."""
    shape = (count,) if isinstance(count, int) else count
    out = FakeArray(Layout.contiguous(dtype, shape, GUARD_BYTES))
    given: dict[str, Any] = {"dtype": dtype} if "dtype" in REQUESTS[name].__struct_fields__ else {}
    if name == "choice":
        given["p"] = FakeArray.of(WEIGHTS, "float64")
    made = REQUESTS[name](out=out, size=shape, source=source, **given, **parameters)
    made.check()
    return made


def numbers(run: Run, name: str, dtype: str, count: int | tuple[int, ...], source: rng.Source, **given: Any) -> Array:
    """Return random numbers."""
    made = request(name, dtype, count, source, **given)
    run(made)
    return made.out.array  # type: ignore[no-any-return]


# --- laws -------------------------------------------------------------------------------------------------------------


def law(name: str, given: dict[str, Any]) -> Any:
    """Return a continuous law as SciPy has it."""
    laws: dict[str, Callable[..., Any]] = {
        "uniform": lambda low=0.0, high=1.0: scipy.stats.uniform(low, high - low),
        "normal": lambda loc=0.0, scale=1.0: scipy.stats.norm(loc, scale),
        "lognormal": lambda mean=0.0, sigma=1.0: scipy.stats.lognorm(sigma, scale=np.exp(mean)),
        "exponential": lambda scale=1.0: scipy.stats.expon(scale=scale),
        "cauchy": lambda loc=0.0, scale=1.0: scipy.stats.cauchy(loc, scale),
        "gamma": lambda shape, scale=1.0: scipy.stats.gamma(shape, scale=scale),
        "beta": scipy.stats.beta,
    }
    return laws[name](**given)


def assert_follows_its_law(drawn: Array, name: str, given: dict[str, Any]) -> None:
    """Compare numbers with their law: Kolmogorov and Smirnov's test, or chi-square; and the first two moments."""
    assert np.isfinite(drawn).all()
    if name == "bits":
        _assert_bits(drawn)
    elif name == "poisson":
        _assert_counts(drawn, scipy.stats.poisson(given["lam"]))
    elif name == "choice":
        _assert_weighed(drawn)
    else:
        expected = law(name, given)
        wide = drawn.astype(np.float64)
        assert scipy.stats.kstest(wide, expected.cdf).pvalue > SIGNIFICANCE
        if name in {"uniform", "normal", "exponential", "gamma", "beta"}:
            mean, variance, kurtosis = (float(each) for each in expected.stats(moments="mvk"))
            bound = scipy.stats.norm.isf(SIGNIFICANCE / 2)
            assert abs(wide.mean() - mean) < bound * (variance / drawn.size) ** 0.5
            assert abs(wide.var() - variance) < bound * variance * ((kurtosis + 2) / drawn.size) ** 0.5


def _assert_bits(drawn: Array) -> None:
    """Each bit is set half of the time, and so is the exclusive or of neighbours."""
    for words in (drawn, drawn[1:] ^ drawn[:-1]):
        bits = np.unpackbits(words.view(np.uint8).reshape(words.size, -1), axis=1).sum(axis=0, dtype=np.float64)
        score = (2 * bits - words.size) / words.size**0.5
        assert abs(score).max() < scipy.stats.norm.isf(SIGNIFICANCE / 2 / bits.size), score
    _assert_frequent(np.bincount((drawn >> drawn.dtype.type(8 * drawn.itemsize - 8)).astype(np.int64)), np.ones(256))


def _assert_counts(drawn: Array, expected: Any) -> None:
    if expected.var() == 0:
        assert (drawn == expected.mean()).all()
        return
    edges = np.unique(expected.ppf(np.linspace(0.02, 0.98, 25)))
    below = np.concatenate([[0.0], expected.cdf(edges), [1.0]])
    _assert_frequent(np.bincount(np.searchsorted(edges, drawn), minlength=edges.size + 1), np.diff(below))


def _assert_weighed(drawn: Array) -> None:
    weights = np.array(WEIGHTS)
    found = np.bincount(drawn, minlength=weights.size)
    assert not found[weights == 0].any()
    _assert_frequent(found[weights > 0], weights[weights > 0])


def _assert_frequent(found: Array, weights: Array) -> None:
    assert scipy.stats.chisquare(found, found.sum() * weights / weights.sum()).pvalue > SIGNIFICANCE


# --- offsets ----------------------------------------------------------------------------------------------------------


def assert_continues(run: Run, name: str, dtype: str, kind: rng.Kind, cut: int, count: int = 10_000) -> None:
    """Check that the numbers from an offset on are those that come after the ones before it, bit for bit."""
    seed = 0 if "sobol" in kind else 77
    given = PARAMETERS[name][-1]

    def draw(amount: int, source: rng.Source) -> Array:
        return numbers(run, name, dtype, amount, source, **given)

    start = rng.Source(kind, seed, 3)
    whole = draw(count, start)
    first = request(name, dtype, cut, start, **given)
    after = rng.Source(kind, seed, 3 + rng.taken(first))
    rest = draw(count - cut, after)  # with nothing before it
    np.testing.assert_array_equal(rest, whole[cut:])
    run(first)
    np.testing.assert_array_equal(first.out.array, whole[:cut])
    np.testing.assert_array_equal(draw(count - cut, after), whole[cut:])  # where the last one has ended
