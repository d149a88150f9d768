"""Errors that only the device's data show, on the CUDA backend: they come after the work."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp_workers.libraries.dnn.kernels import TOLD
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.requests.request import Later


class Verdicts:
    """What the device has found right or wrong; the loop's thread only."""

    def __init__(self) -> None:
        self._slots: Final = Slots()

    def demand(self, right: Any, message: str) -> Later:
        """Return a `Later` that raises `NumericalError` unless the device has found something to be right.

        Args:
            right: An array of CuPy's without dimensions.
            message: The error's.
        """
        slot = self._slots.take()
        TOLD(right, np.uint64(slot.address))

        def read() -> None:
            if not self._slots.read(slot, np.dtype(np.uint64)):
                raise errors.NumericalError(message)

        return Later(read)
