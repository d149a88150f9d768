"""How the C library keeps memory that was freed. An edge; other libraries than glibc have no such settings."""

from __future__ import annotations

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3


def keep(freed_bytes: int, block_bytes: int) -> None:
    """Keep freed memory for the next blocks of this process, instead of giving it back to the kernel at once.

    Memory that comes from the kernel is cleared by it, page by page, which takes longer than to fill it.

    Args:
        freed_bytes: How much is kept at most, at the end of each thread's part of the memory.
        block_bytes: Blocks of this size or more are given back at once all the same.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, block_bytes)
        set_option(M_TRIM_THRESHOLD, freed_bytes)
