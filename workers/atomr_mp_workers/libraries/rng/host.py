"""Random numbers on the host backend, with NumPy: Philox 4x32-10 and Sobol's points."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp import errors
from atomr_mp.protocol.libraries import rng
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.rng import laws, philox, sobol

Array = npt.NDArray[Any]

NEAREST: Final = {
    "xorwow": "philox4_32_10",
    "mrg32k3a": "philox4_32_10",
    "scrambled_sobol32": "sobol32",
    "sobol64": "sobol32",
    "scrambled_sobol64": "sobol32",
}
"""Generators that the host does not have, each with the host's most similar one."""


class HostRng(Library):
    """Random numbers in NumPy's arrays."""

    slow = frozenset({"poisson"})  # the table of a large mean takes 50 ms

    def open(self) -> None:
        """Load the numbers that Sobol's points are made of."""
        sobol.load()

    def bits(self, request: rng.Bits) -> None:
        """Draw whole numbers whose every bit is random."""
        out = array(request.out)
        for part, word in self._words(request, out, out.dtype.itemsize):
            part[...] = word

    def uniform(self, request: Any) -> None:
        """Draw numbers that are made from one word each."""
        out = array(request.out)
        with np.errstate(over="ignore"):
            for part, word in self._words(request, out, out.dtype.itemsize):
                part[...] = laws.from_words(request, word)

    normal = lognormal = exponential = cauchy = uniform

    def prepare_poisson(self, request: rng.Poisson) -> tuple[int, Array]:
        """Return the table of the law."""
        return laws.poisson_table(request.lam)

    def poisson(self, request: rng.Poisson, plan: tuple[int, Array]) -> None:
        """Draw counts from Poisson's law."""
        low, table = plan
        for part, word in self._words(request, array(request.out), 8):
            part[...] = low + np.searchsorted(table, laws.uniform(word))

    def choice(self, request: rng.Choice) -> None:
        """Draw indices by weight."""
        p = array(request.p).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            table = np.cumsum(p)
        if not ((p >= 0).all() and 0 < table[-1] < math.inf):
            raise errors.NumericalError(rng.BAD_WEIGHTS, undefined="out")
        for part, word in self._words(request, array(request.out), 8):
            part[...] = np.searchsorted(table, laws.uniform(word) * table[-1])

    def gamma(self, request: rng.Gamma | rng.Beta) -> None:
        """Draw numbers by rejection."""
        out = array(request.out)
        for begin, part in _parts(out, laws.CHUNK):
            with np.errstate(over="ignore", under="ignore"):
                if isinstance(request, rng.Gamma):
                    part[...] = laws.gamma(request, begin, part.size)
                else:
                    part[...] = laws.beta(request, begin, part.size)

    beta = gamma

    # --- words --------------------------------------------------------------------------------------------------------

    def _words(self, request: Any, out: Array, item_bytes: int) -> Iterator[tuple[Array, Array]]:
        """Return the parts of an array, and a word of 32 or 64 bits for each element of them."""
        source: rng.Source = request.source
        if source.kind in NEAREST:
            raise errors.Unsupported(
                f"the host has no generator {source.kind}; the nearest that it has is {NEAREST[source.kind]}"
            )
        for begin, part in _parts(out, laws.CHUNK - laws.CHUNK % source.dimensions):
            if source.is_quasi:
                first, count = source.offset + begin // source.dimensions, part.size // source.dimensions
                if first + count > 2**sobol.BITS:
                    raise errors.InvalidRequest(f"sobol32 has 2^32 points; {count} from {first} on were asked for")
                word = sobol.points(source.dimensions, first, count).reshape(-1)
                yield part, word if item_bytes == 4 else word.astype(np.uint64) << np.uint64(32) | np.uint64(2**31)
            else:
                each = item_bytes // 4
                word = philox.words(source.seed, source.offset + begin * each, part.size * each)
                yield part, word.view(f"u{item_bytes}")


def _parts(out: Array, most: int) -> Iterator[tuple[int, Array]]:
    """Return writable flat parts of an array in order, each with the number of elements before it."""
    flat = out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, out.dtype)
    for begin in range(0, flat.size, most):
        yield begin, flat[begin : begin + most]
    if not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)


Implementation: Final = HostRng
