"""cuBLAS's values for element types, words and factors of requests: looked up once, when the library is loaded.

The values are plain integers: converting an enum's member each time would take a part of a small request's time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cublas

from atomr_mp_workers.libraries.factors import Factors


class ElementKind(NamedTuple):
    """cuBLAS's values for an element type."""

    data: int
    scale: int
    """The type of factors."""
    compute: int
    factors: Factors
    """Factors of requests; sums have their type too."""
    reals: Factors
    """Factors of the type of its norms."""
    routines: Any
    """Routines named by the type; None for half precision, which has none."""

    @property
    def is_complex(self) -> bool:
        """Whether a conjugate differs."""
        return self.factors is not self.reals


def _routines(prefix: str) -> SimpleNamespace:
    """Return the routines of an element type, "s", "d", "c" or "z", for 64-bit sizes: products of sizes overflow 32."""
    real = prefix in "sd"
    norm = {"c": "sc", "z": "dz"}.get(prefix, prefix)
    same = ("axpy", "scal", "copy", "swap", "rot", "gemv", "geam", "syrk", "trsm")
    names = {name: prefix + name for name in same}
    names |= {"nrm2": f"{norm}nrm2", "asum": f"{norm}asum", "iamax": f"i{prefix}amax", "iamin": f"i{prefix}amin"}
    for name in ("dot", "ger"):
        names |= {name: prefix + name + ("" if real else "u"), f"{name}c": prefix + name + ("" if real else "c")}
    return SimpleNamespace(**{name: getattr(cublas, f"{called}_64") for name, called in names.items()})


INDEX: Final = np.dtype(np.int64)
"""The routine with 64-bit sizes."""

_IN_32: Final = int(cublas.ComputeType.COMPUTE_32F)
_IN_64: Final = int(cublas.ComputeType.COMPUTE_64F)
_R32, _R64 = int(CudaDataType.CUDA_R_32F), int(CudaDataType.CUDA_R_64F)
_C32, _C64 = int(CudaDataType.CUDA_C_32F), int(CudaDataType.CUDA_C_64F)
_F32, _F64, _C64F, _C128F = (Factors(dtype) for dtype in ("float32", "float64", "complex64", "complex128"))

KINDS: Final = {
    "float16": ElementKind(int(CudaDataType.CUDA_R_16F), _R32, _IN_32, _F32, _F32, None),
    "bfloat16": ElementKind(int(CudaDataType.CUDA_R_16BF), _R32, _IN_32, _F32, _F32, None),
    "float32": ElementKind(_R32, _R32, _IN_32, _F32, _F32, _routines("s")),
    "float64": ElementKind(_R64, _R64, _IN_64, _F64, _F64, _routines("d")),
    "complex64": ElementKind(_C32, _C32, _IN_32, _C64F, _F32, _routines("c")),
    "complex128": ElementKind(_C64, _C64, _IN_64, _C128F, _F64, _routines("z")),
}

OPS: Final = {name: int(cublas.Operation[name]) for name in "NTC"}
LOWER, UPPER = int(cublas.FillMode.LOWER), int(cublas.FillMode.UPPER)
LEFT, RIGHT = int(cublas.SideMode.LEFT), int(cublas.SideMode.RIGHT)
UNIT, NON_UNIT = int(cublas.DiagType.UNIT), int(cublas.DiagType.NON_UNIT)
HOST, DEVICE = int(cublas.PointerMode.HOST), int(cublas.PointerMode.DEVICE)
# Sums of half-precision products are not rounded on the way (cublasMath_t).
MATH: Final = int(cublas.Math.DEFAULT_MATH) | int(cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION)
NOT_SUPPORTED: Final = int(cublas.Status.NOT_SUPPORTED)
ALGORITHM: Final = int(cublas.GemmAlgo.DFALT)
