"""An actor that tells how many threads numeric libraries have in its process."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import numpy as np

from atomr_mp_workers import Actor, method

NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Limited(Actor):
    """Looks at its own process."""

    @method
    def variables(self) -> dict[str, str | None]:
        """Return the variables that limit threads."""
        return {name: os.environ.get(name) for name in NAMES}

    @method
    def blas_threads(self) -> list[int]:
        """Return the number of threads of each BLAS in this process, as that tells it."""
        np.zeros((500, 500)) @ np.zeros((500, 500))
        found = []
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        for path in sorted(set(re.findall(r"/\S*numpy\S*openblas\S*\.so\S*", maps))):
            library = ctypes.CDLL(path)
            for name in (
                "scipy_openblas_get_num_threads64_",
                "openblas_get_num_threads64_",
                "openblas_get_num_threads",
            ):
                if hasattr(library, name):
                    found.append(int(getattr(library, name)()))
                    break
        return found
