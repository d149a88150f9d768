"""Layers that a standby computes for itself, so that a client finds kernels compiled and handles made."""

from __future__ import annotations

from collections.abc import Iterator

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.memory.blocks import Holder


def layers(context: LibraryContext, holder: Holder) -> Iterator[LibraryRequest]:
    """Yield some layers in a holder's memory, whose content does not matter."""
    buffers = context.store.buffers
    for dtype in ("float32", "bfloat16"):
        image, weight, heads, vector = (
            buffers.allocate(holder, dtype, shape) for shape in ((2, 8, 16, 16), (8, 8, 3, 3), (1, 2, 16, 64), (16,))
        )
        yield dnn.Conv(image, weight, padding=(1,), activation="relu")
        yield dnn.WindowPool(image, kernel_size=(2,))
        yield dnn.Softmax(image)
        yield dnn.Activation(image, kind="gelu")
        yield dnn.Dropout(image, seed=0)
        yield dnn.LayerNorm(image, vector, vector, normalized_shape=(16,))
        yield dnn.Attention(heads, heads, heads)
