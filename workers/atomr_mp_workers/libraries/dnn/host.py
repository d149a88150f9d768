"""Neural networks on the host backend, with NumPy."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.dnn.arrays import ArrayDnn

Implementation: Final = ArrayDnn
