"""The base of the requests of neural networks that are done by functions of arrays.

They are written with NumPy's functions. CuPy's arrays come to the same functions: NumPy hands these on to CuPy's by its
protocols (NEPs 13, 18 and 35). So a new array is made `like` one that is there, and nothing is read on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp import errors
from atomr_mp_workers.libraries.base import Library
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
