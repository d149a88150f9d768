"""The base of the requests of neural networks that are done by functions of arrays.

They are written with NumPy's functions. CuPy's arrays come to the same functions: NumPy hands these on to CuPy's by its
protocols (NEPs 13, 18 and 35). So a new array is made `like` one that is there, and nothing is read on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp import errors
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, goes_by_places, spots, taps
from atomr_mp_workers.libraries.base import Library
from atomr_mp_workers.libraries.dnn.activations import ACTIVATIONS, DERIVATIVES
from atomr_mp_workers.libraries.dnn.numbers import full
from atomr_mp_workers.libraries.rng import philox

Array = npt.NDArray[Any]
Product = Callable[[Array, Array], Array]
"""Multiplies matrices, or batches of them that are broadcast."""

CHUNK: Final = 2**18
"""Elements whose masks are made at a time."""


class ArrayLibrary(Library):
    """What differs between NumPy's arrays and CuPy's: here, NumPy's."""

    scores_at_once = 2**20
    """Most scores of attention in memory, unless a single query has more."""

    elements_at_once = 2**18
    """Most elements of temporaries, unless a part that is computed as one has more."""

    def parts(self, shape: tuple[int, ...]) -> Iterator[Any]:
        """Return indices of parts of an array, along its first dimension."""
        step = max(1, self.elements_at_once // max(1, math.prod(shape[1:])))
        if not shape or step >= shape[0]:
            yield ...
            return
        for begin in range(0, shape[0], step):
            yield slice(begin, begin + step)

    def kept(self, p: float, seed: int, offset: int, count: int) -> Array:
        """Return for each of some elements whether it is kept: its word of Philox, divided by 2³², is not below p."""
        found = np.empty(count, bool)
        for begin in range(0, count, CHUNK):
            part = found[begin : begin + CHUNK]
            np.greater_equal(philox.words(seed, offset + begin, part.size), least(p), out=part)
        return found

    def products(self, request: Any) -> Product:  # noqa: ARG002 - for what rounds factors, where that is allowed
        """Return the function that multiplies matrices for a request."""
        return np.matmul

    def activated(self, kind: str, x: Array) -> Array:
        """Return an activation of each element."""
        found: Array = ACTIVATIONS[kind](x)
        return found

    def derived(self, kind: str, x: Array, dy: Array) -> Array:
        """Return gradients by the elements, from those by their activations."""
        found: Array = dy * DERIVATIVES[kind](x)
        return found

    def maxima(self, x: Array, sweeps: Sequence[Sweep], shape: tuple[int, ...]) -> Array:
        """Return the largest elements of windows, in an array of a shape."""
        found, ways = full(shape, -math.inf, x.dtype, like=x), (sweeps, x.shape[2:], shape[2:])
        if goes_by_places(*ways):
            for at, here, _ in spots(*ways):
                found[at] = x[here].max(tuple(range(2, x.ndim)))
            return found
        for _, there, here in taps(*ways):
            part = found[there]
            np.maximum(part, x[here], out=part)
        return found

    def demand(self, right: Any, message: str) -> Any:
        """Refuse a request unless something is right, an array without dimensions.

        Returns:
            What the request's method returns: where the array cannot be read yet, the request goes on, and the error
            comes after its work.

        Raises:
            NumericalError: It is not right.
        """
        if not right:
            raise errors.NumericalError(message)


def least(p: float) -> np.uint64:
    """Return the least word of an element that is kept."""
    return np.uint64(round(p * 2**32))
