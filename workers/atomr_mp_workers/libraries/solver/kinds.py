"""cuSOLVER's and cuBLAS's values for element types: looked up once, when the library is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from nvmath import CudaDataType
from nvmath.bindings import cublas, cusolver, cusolverDn

OF_CUBLAS: Final = ("getrf_batched", "getrs_batched", "trsm_batched_64")
OF_CUSOLVER: Final = {
    "potrf_batched": "potrf_batched",
    "orgqr": "ungqr",
    "orgqr_buffer_size": "ungqr_buffer_size",
    "ormqr": "unmqr",
    "ormqr_buffer_size": "unmqr_buffer_size",
    "sygvd": "hegvd",
    "sygvd_buffer_size": "hegvd_buffer_size",
    "gesvdj_batched": "gesvdj_batched",
    "gesvdj_batched_buffer_size": "gesvdj_batched_buffer_size",
}
"""Routines without a 64-bit form, by their names for reals, with their names for complex numbers."""


class SolverKind(NamedTuple):
    """The libraries' values for an element type."""

    data: int
    real: int
    """The type of absolute values."""
    cublas: Any
    """cuBLAS' routines for batches."""
    cusolver: Any
    """cuSOLVER's routines named by the type."""


def _kind(prefix: str, data: int, real: int) -> SolverKind:
    named = {name: prefix + (name if prefix in "sd" else called) for name, called in OF_CUSOLVER.items()}
    return SolverKind(
        data,
        real,
        SimpleNamespace(**{name: getattr(cublas, prefix + name) for name in OF_CUBLAS}),
        SimpleNamespace(**{name: getattr(cusolverDn, called) for name, called in named.items()}),
    )


_R32, _R64 = int(CudaDataType.CUDA_R_32F), int(CudaDataType.CUDA_R_64F)

KINDS: Final = {
    "float32": _kind("s", _R32, _R32),
    "float64": _kind("d", _R64, _R64),
    "complex64": _kind("c", int(CudaDataType.CUDA_C_32F), _R32),
    "complex128": _kind("z", int(CudaDataType.CUDA_C_64F), _R64),
}

VALUES_ONLY, VECTORS = int(cusolver.EigMode.NOVECTOR), int(cusolver.EigMode.VECTOR)
