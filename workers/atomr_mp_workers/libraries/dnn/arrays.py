"""All requests of neural networks by functions of arrays."""

from __future__ import annotations

from atomr_mp_workers.libraries.dnn.attention import Attentions
from atomr_mp_workers.libraries.dnn.convolutions import Convolutions
from atomr_mp_workers.libraries.dnn.norms import Norms
from atomr_mp_workers.libraries.dnn.pointwise import Pointwise
from atomr_mp_workers.libraries.dnn.pooling import Windows
from atomr_mp_workers.libraries.dnn.recurrent import Recurrence


class ArrayDnn(Convolutions, Windows, Pointwise, Norms, Attentions, Recurrence):
    """All requests of neural networks; infinities and NaNs are results, and no warnings."""
