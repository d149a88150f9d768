"""Random numbers that depend on a seed and an offset, and on nothing else. Pure.

A request says where its numbers begin: the same request gives the same numbers, after a restart of the worker too.
Each number takes its fixed share of the generator's words, so that the numbers from an offset on continue those before
it, whatever their law. A uniform number u lies in (0, 1]: 0 is left out, as cuRAND does. Host and CUDA agree in law;
their numbers need not be equal.

Laws are computed from u by inversion, gamma and beta by rejection after Marsaglia and Tsang.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes, parameters_of, reads, writes
from atomr_mp.protocol.declaration.strides import vector
from atomr_mp.protocol.libraries.base import REAL, LibraryRequest, Moving, Shape
from atomr_mp.protocol.refs import Operand

Kind = Literal[
    "philox4_32_10",
    "xorwow",
    "mrg32k3a",
    "sobol32",
    "scrambled_sobol32",
    "sobol64",
    "scrambled_sobol64",
]
"""Generators, by cuRAND's names; those of Sobol are quasi-random."""

Floating = Literal["float32", "float64"]
Whole = Literal["uint32", "uint64"]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
AboveZero = Annotated[float, msgspec.Meta(gt=0)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=2**31)]
Seed = Annotated[int, msgspec.Meta(ge=0)]  # msgspec knows no larger bounds than those of 64 bits with a sign
Dimensions = Annotated[int, msgspec.Meta(ge=1, le=20_000)]

_LARGEST: Final = {"float32": (2 - 2**-23) * 2.0**127}
"""The largest number of the element types that cannot hold every parameter."""

NO_OFFSET: Final = ("mt19937", "mtgp32")
"""cuRAND's generators that take no offset to begin at: their state would be lost with the worker."""


class Source(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The words that a request takes: a generator, and a place in its sequence."""

    kind: Kind = "philox4_32_10"
    seed: Seed = 0
    offset: Moving = 0
    """Words that come before; for a quasi-random generator, points."""
    dimensions: Dimensions = 1
    """Dimensions of a quasi-random generator's points."""

    @property
    def is_quasi(self) -> bool:
        """Whether it fills space evenly instead of looking random."""
        return "sobol" in self.kind

    @property
    def word_bits(self) -> int:
        """Bits of a word."""
        return 64 if self.kind.endswith("64") else 32


def _as_told(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """`size`, or any shape where it is left out."""
    if request.size is not None:
        return tuple(request.size)
    out = getattr(request, "out", None)
    return () if out is None else out.shape


def _floating(request: Any) -> str:
    """Return the type of the output: `dtype`, or the output's own."""
    return _dtype(request, REAL)


def _whole(request: Any) -> str:
    """Return the type of the output: `dtype`, or the output's own."""
    return _dtype(request, ("uint32", "uint64"))


def _count(_request: Any) -> str:
    """Return the type of the output."""
    return "uint32"


def _index(_request: Any) -> str:
    """Return the type of the output."""
    return "int64"


def _dtype(request: Any, types: tuple[str, ...]) -> str:
    out = getattr(request, "out", None)
    if out is not None and out.dtype not in types:
        raise errors.InvalidRequest(f"out is {out.dtype}; it may be {', '.join(types)}")
    if request.dtype is not None:
        return str(request.dtype)
    return types[0] if out is None else str(out.dtype)


def shape_of_out(request: Any) -> tuple[int, ...]:
    """Return the shape of a request's numbers."""
    return _as_told(request, {})


def taken(request: Any) -> int:
    """Return how far a request moves its generator: in words, a quasi-random one in points."""
    numbers = math.prod(shape_of_out(request))
    source: Source = request.source
    if source.is_quasi:
        return numbers // source.dimensions
    return numbers * (request.words or words_for(dtype_of(request)))


def dtype_of(request: Any) -> str:
    """Return the element type of a request's numbers."""
    return str(_DTYPES[request.name](request))


def words_for(dtype: str) -> int:
    """Return how many words of 32 bits a number of a type takes."""
    return 2 if dtype.endswith("64") else 1


def _is_finite(request: Any, _sizes: Sizes) -> bool:
    """Parameters must be finite, in the element type too."""
    largest = _LARGEST.get(dtype_of(request), sys.float_info.max)
    return all(abs(value) <= largest for _, value in parameters_of(request) if isinstance(value, float))


def _ascends(request: Any, _sizes: Sizes) -> bool:
    """Low must not be above high, and their difference be finite."""
    return bool(0 <= request.high - request.low <= _LARGEST.get(dtype_of(request), sys.float_info.max))


def _has_no_seed_if_quasi(request: Any, _sizes: Sizes) -> bool:
    """A quasi-random generator has no seed; leave it 0."""
    return not request.source.is_quasi or request.source.seed == 0


def _has_a_seed_of_64_bits(request: Any, _sizes: Sizes) -> bool:
    """The seed must be less than 2^64."""
    return bool(request.source.seed < 2**64)


def _has_whole_points(request: Any, _sizes: Sizes) -> bool:
    """Only points of a quasi-random generator have dimensions; the last length of size must be their number then."""
    source, shape = request.source, shape_of_out(request)
    return source.dimensions == 1 or (source.is_quasi and shape[-1:] == (source.dimensions,))


def _has_bits_enough(request: Any, _sizes: Sizes) -> bool:
    """Points of sobol32 have 32 bits; take dtype uint32, or sobol64."""
    source = request.source
    return not (source.is_quasi and source.word_bits == 32 and dtype_of(request) == "uint64")


def _is_philox(request: Any, _sizes: Sizes) -> bool:
    """The kind must be philox4_32_10: how many words rejection takes depends on the words, and only it can skip."""
    return bool(request.source.kind == "philox4_32_10")


def _is_not_empty(_request: Any, sizes: Sizes) -> bool:
    """There must be a weight in p."""
    return bool(sizes["k"])


BAD_WEIGHTS: Final = "p has a weight that is negative or no number, or its sum is 0 or infinite"

COMMON: Final = (_is_finite, _has_a_seed_of_64_bits, _has_no_seed_if_quasi, _has_whole_points)


class Random(LibraryRequest, frozen=True):
    """Base of the requests of this library.

    CUDA cannot record cuRAND's generators: setting an offset is refused, and their state moves with each launch.
    """

    held: ClassVar = ("source",)
    captured: ClassVar[bool] = False
    words: ClassVar[int] = 0
    """Words of 32 bits that a number takes; 0 stands for as many as its type has."""


class Bits(Random, frozen=True):
    """Draw whole numbers whose every bit is random: all values of the type, equally likely.

    Those of mrg32k3a fall short of 2³² by 209 values.
    """

    name: ClassVar = "bits"
    types: ClassVar = {"T": ("uint32", "uint64")}
    rules: ClassVar = (*COMMON, _has_bits_enough)
    out: Annotated[Operand | None, writes(_as_told, dtype=_whole)] = None
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Whole | None = None
    """The element type, uint32 if both it and out are left out."""
    source: Source = Source()


class Uniform(Random, frozen=True):
    """Draw from the uniform law: low + (high - low)·u, with u in (0, 1]."""

    name: ClassVar = "uniform"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = (*COMMON, _ascends)
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    low: float = 0.0
    """The lower end, which is left out, but for rounding."""
    high: float = 1.0
    """The upper end, which is not left out."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Normal(Random, frozen=True):
    """Draw from the normal law."""

    name: ClassVar = "normal"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = COMMON
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    loc: float = 0.0
    """The mean."""
    scale: NotNegative = 1.0
    """The standard deviation."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Lognormal(Random, frozen=True):
    """Draw numbers whose logarithm follows the normal law."""

    name: ClassVar = "lognormal"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = COMMON
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    mean: float = 0.0
    """The mean of the logarithm."""
    sigma: NotNegative = 1.0
    """The standard deviation of the logarithm."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Exponential(Random, frozen=True):
    """Draw from the exponential law: -scale·ln(u)."""

    name: ClassVar = "exponential"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = COMMON
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    scale: NotNegative = 1.0
    """The mean: one divided by the rate."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Cauchy(Random, frozen=True):
    """Draw from Cauchy's law: loc + scale·tan(π·(u - ½))."""

    name: ClassVar = "cauchy"
    types: ClassVar = {"T": REAL}
    rules: ClassVar = COMMON
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    loc: float = 0.0
    """The median."""
    scale: NotNegative = 1.0
    """Half the distance between the quartiles."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Gamma(Random, frozen=True):
    """Draw from the gamma law of a shape and a scale; with philox4_32_10 only."""

    name: ClassVar = "gamma"
    types: ClassVar = {"T": REAL}
    captured: ClassVar = True
    rules: ClassVar = (*COMMON, _is_philox)
    words: ClassVar = 1
    shape: AboveZero
    """The law's shape, k."""
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    scale: NotNegative = 1.0
    """The law's scale, θ; the mean is k·θ."""
    size: Shape | None = None
    """The shape of the array; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Beta(Random, frozen=True):
    """Draw from the beta law; with philox4_32_10 only."""

    name: ClassVar = "beta"
    types: ClassVar = {"T": REAL}
    captured: ClassVar = True
    rules: ClassVar = (*COMMON, _is_philox)
    words: ClassVar = 1
    a: AboveZero
    """The first exponent; the mean is a / (a + b)."""
    b: AboveZero
    """The second exponent."""
    out: Annotated[Operand | None, writes(_as_told, dtype=_floating)] = None
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    dtype: Floating | None = None
    """The element type, float32 if both it and out are left out."""
    source: Source = Source()


class Poisson(Random, frozen=True):
    """Draw counts from Poisson's law, as uint32."""

    name: ClassVar = "poisson"
    types: ClassVar = {"T": ("uint32",)}
    rules: ClassVar = COMMON
    words: ClassVar = 2
    out: Annotated[Operand | None, writes(_as_told, dtype=_count)] = None
    lam: Rate = 1.0
    """The mean, up to 2³¹."""
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    source: Source = Source()


class Choice(Random, frozen=True):
    """Draw indices, as int64, each as often as its weight says.

    Weights are not negative, and need not sum up to 1.
    """

    name: ClassVar = "choice"
    types: ClassVar = {"W": REAL}
    undefined: ClassVar = "A weight is negative or no number, or their sum is 0 or infinite."
    rules: ClassVar = (*COMMON, _is_not_empty)
    words: ClassVar = 2
    p: Annotated[Operand, reads("k", dtype="W", lies=vector)]
    out: Annotated[Operand | None, writes(_as_told, dtype=_index)] = None
    size: Shape | None = None
    """The shape; that of out if it is left out."""
    source: Source = Source()


_DTYPES: Final = {"bits": _whole, "poisson": _count, "choice": _index} | dict.fromkeys(
    ("uniform", "normal", "lognormal", "exponential", "cauchy", "gamma", "beta"), _floating
)
