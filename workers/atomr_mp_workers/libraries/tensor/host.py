"""Tensors on the host backend, with NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp_workers.libraries.tensor.base import Enqueue, TensorLibrary


class HostTensor(TensorLibrary):
    """Operations on NumPy's arrays; infinities and NaNs are results, and no warnings."""

    module = np

    def do(self, request: Any, plan: Enqueue) -> None:
        """Do a request by its plan."""
        with np.errstate(all="ignore"):
            plan(request)


Implementation: Final = HostTensor
