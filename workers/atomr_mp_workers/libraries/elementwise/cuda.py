"""Elementwise arithmetic on the CUDA backend, with CuPy."""

from __future__ import annotations

from typing import Final

import cupy

from atomr_mp_workers.libraries.elementwise.base import ElementwiseLibrary


class CudaElementwise(ElementwiseLibrary):
    """Arithmetic on CuPy's arrays."""

    module = cupy


Implementation: Final = CudaElementwise
