"""A client that gets stuck in the middle of a copy of a shared ref: says so, goes on when asked to, and says "ok".

Arguments: run directory, and the ref as shared, in hex.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import atomr_mp
from atomr_mp.interop import copying

run_dir, shared = sys.argv[1:]


class StuckNumpy:
    """NumPy, whose copies wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def copyto(self, target: Any, source: Any) -> None:
        """Copy half, wait, and copy all."""
        half = len(target) // 2
        np.copyto(target[:half], source[:half])
        print("reading", flush=True)
        sys.stdin.readline()
        np.copyto(target[half:], source[half:])


with atomr_mp.connect(run_dir=run_dir) as pool:
    pool.wait_ready()
    ref = pool.claim(bytes.fromhex(shared))
    setattr(copying, "np", StuckNumpy())  # noqa: B010 - a type checker knows it as a module
    read = ref.numpy()
    print("ok" if len(np.unique(read)) == 1 else "torn", flush=True)
    sys.stdin.readline()
