"""What element types are to cuSOLVER and cuBLAS: looked up once, when the library is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from nvmath import CudaDataType
from nvmath.bindings import cublas, cusolver, cusolverDn

OF_CUBLAS: Final = ("getrf_batched", "getrs_batched", "trsm_batched_64")
OF_CUSOLVER: Final = ("potrf_batched",)
"""Routines that are named by the element type."""


class SolverKind(NamedTuple):
    """What an element type is to the libraries."""

    data: int
    cublas: Any
    """cuBLAS' routines for batches."""
    cusolver: Any
    """cuSOLVER's routines that have no 64-bit form."""


def _kind(prefix: str, data: int) -> SolverKind:
    return SolverKind(
        data,
        SimpleNamespace(**{name: getattr(cublas, prefix + name) for name in OF_CUBLAS}),
        SimpleNamespace(**{name: getattr(cusolverDn, prefix + name) for name in OF_CUSOLVER}),
    )


KINDS: Final = {
    "float32": _kind("s", int(CudaDataType.CUDA_R_32F)),
    "float64": _kind("d", int(CudaDataType.CUDA_R_64F)),
    "complex64": _kind("c", int(CudaDataType.CUDA_C_32F)),
    "complex128": _kind("z", int(CudaDataType.CUDA_C_64F)),
}

VALUES_ONLY, VECTORS = int(cusolver.EigMode.NOVECTOR), int(cusolver.EigMode.VECTOR)
