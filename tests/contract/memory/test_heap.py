"""Freed memory that a process keeps, in a process of its own: the setting is for good."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

LOOK = """
import ctypes
from atomr_mp.process import heap

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
heap.keep(16 * 2**20, 2**20)
for _ in range(2):  # the first round takes memory from the kernel
    begun = libc.sbrk(0)
    blocks = [libc.malloc(300 * 1024) for _ in range(20)]
    taken = libc.sbrk(0)
    for block in blocks:
        libc.free(block)
    kept = libc.sbrk(0)
large = libc.malloc(2**20)
print(taken - begun, kept - taken, libc.sbrk(0) - kept)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library without this setting")
def test_freed_memory_is_used_again() -> None:
    """Blocks of the size of chunks take nothing from the kernel a second time; large ones lie apart."""
    found = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["0", "0", "0"]
