"""Elementwise arithmetic on the host backend, with NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.elementwise.base import ElementwiseLibrary

ASIDE: Final = frozenset({"negative"})
"""Functions whose results are copied to elements with gaps. NumPy 2.4 negates elements of 4 bytes that are 4 apart, and
of 8 bytes that are 8 apart, wrongly if it writes to such."""


class HostElementwise(ElementwiseLibrary):
    """Arithmetic on NumPy's arrays; infinities and NaNs are results, and no warnings."""

    module = np

    def _do(self, request: Any, *arrays: Any) -> None:
        with np.errstate(all="ignore"):
            if request.name in ASIDE and not all(each.flags.c_contiguous for each in (*arrays, array(request.out))):
                array(request.out)[...] = getattr(np, request.name)(*arrays)
            else:
                super()._do(request, *arrays)


Implementation: Final = HostElementwise
