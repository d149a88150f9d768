"""Requests of neural networks by cuDNN."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.dnn.cudnn.classic_plans import ClassicEngine
from atomr_mp_workers.libraries.dnn.engine import DnnEngine

engines: Final[list[type[DnnEngine]]] = [ClassicEngine]
"""In the order in which they are asked for a request."""
