"""Factors in host memory, where a library reads them before its call returns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import scalar

FACTORS_KEPT: Final = 1024


class Factors(dict[Scalar, tuple[int, Any]]):
    """Factors in host memory by value: each one's address, and its owner, to keep until the call that reads it returns.

    Requested factors are kept, since making one takes longer than a small request.

    Args:
        dtype: Their type.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        super().__init__()
        self.dtype: Final[np.dtype[Any]] = np.dtype(dtype)

    def __missing__(self, value: Scalar) -> tuple[int, Any]:
        if len(self) >= FACTORS_KEPT:
            self.clear()
        number = np.array(scalar(value), self.dtype)
        made = self[value] = number.ctypes.data, number
        return made
