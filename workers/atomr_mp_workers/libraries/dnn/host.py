"""Neural networks on the host backend, with NumPy."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.dnn.attention import Attentions
from atomr_mp_workers.libraries.dnn.convolutions import Convolutions
from atomr_mp_workers.libraries.dnn.norms import Norms
from atomr_mp_workers.libraries.dnn.pointwise import Pointwise
from atomr_mp_workers.libraries.dnn.pooling import Windows
from atomr_mp_workers.libraries.dnn.recurrent import Recurrence


class HostDnn(Convolutions, Windows, Pointwise, Norms, Attentions, Recurrence):
    """All requests of neural networks on NumPy's arrays; infinities and NaNs are results, and no warnings."""


Implementation: Final = HostDnn
