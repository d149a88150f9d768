"""Engines that have cuDNN do requests of neural networks."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.dnn.cudnn.attention_plans import GraphAttentions
from atomr_mp_workers.libraries.dnn.cudnn.classic_plans import ClassicEngine
from atomr_mp_workers.libraries.dnn.cudnn.convolution_plans import GraphConvolutions
from atomr_mp_workers.libraries.dnn.cudnn.norm_plans import GraphNorms
from atomr_mp_workers.libraries.dnn.engine import DnnEngine

engines: Final[list[type[DnnEngine]]] = [GraphConvolutions, GraphNorms, GraphAttentions, ClassicEngine]
"""In the order in which they are asked for a request."""
