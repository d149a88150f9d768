"""Products that a process on standby does for itself, so that the first of a client finds all in place.

The handle and its workspace, the threads of a BLAS on the host, and kernels of cuBLAS, which are loaded when they are
first launched.
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
    """Yield some, of a holder's memory, whose content is of no interest."""
    buffers = context.store.buffers
    for dtype in ("float32", "float64"):
        for n in SIZES:
            a, b = (buffers.allocate(holder, dtype, (n, n)) for _ in "ab")
            yield blas.Gemm(a, b)
    yield blas.Dot(a[0], b[0])
