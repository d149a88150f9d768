"""Elementwise arithmetic on the host backend, with NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp_workers.libraries.elementwise.base import ElementwiseLibrary


class HostElementwise(ElementwiseLibrary):
    """Arithmetic on NumPy's arrays; infinities and NaNs are results, and no warnings."""

    module = np

    def _do(self, request: Any, *arrays: Any) -> None:
        with np.errstate(all="ignore"):
            super()._do(request, *arrays)


Implementation: Final = HostElementwise
