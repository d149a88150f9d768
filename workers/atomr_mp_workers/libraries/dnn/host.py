"""Neural networks on the host backend, with NumPy."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.dnn.convolutions import Convolutions


class HostDnn(Convolutions):
    """All requests of neural networks on NumPy's arrays; infinities and NaNs are results, and no warnings."""


Implementation: Final = HostDnn
