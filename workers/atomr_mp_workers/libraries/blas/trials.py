"""Products that a standby computes for itself, so that a client's first product finds everything prepared.

They make the handle and its workspace, start the threads of a BLAS on the host, and load kernels of cuBLAS, which are
loaded at their first launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.memory.blocks import Holder

SIZES: Final = (16, 512)


def products(context: LibraryContext, holder: Holder) -> Iterator[LibraryRequest]:
    """Yield some products in a holder's memory, whose content does not matter."""
    buffers = context.store.buffers
    for dtype in ("float32", "float64"):
        for n in SIZES:
            a, b = (buffers.allocate(holder, dtype, (n, n)) for _ in "ab")
            yield blas.Gemm(a, b)
    yield blas.Dot(a[0], b[0])
