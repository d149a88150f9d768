"""cuBLASLt's values for element types and epilogues of requests: looked up once, when the library is loaded."""

from __future__ import annotations

from typing import Final, NamedTuple

from nvmath import CudaDataType
from nvmath.bindings import cublas, cublasLt

from atomr_mp_workers.libraries.factors import Factors

TYPES: Final = {
    "float16": int(CudaDataType.CUDA_R_16F),
    "bfloat16": int(CudaDataType.CUDA_R_16BF),
    "float32": int(CudaDataType.CUDA_R_32F),
    "float64": int(CudaDataType.CUDA_R_64F),
    "int8": int(CudaDataType.CUDA_R_8I),
    "int32": int(CudaDataType.CUDA_R_32I),
    "float8_e4m3fn": int(CudaDataType.CUDA_R_8F_E4M3),
    "float8_e5m2": int(CudaDataType.CUDA_R_8F_E5M2),
}


class Compute(NamedTuple):
    """The type in which products of an element type are computed."""

    compute: int
    scale: int
    """The type of factors."""
    factors: Factors


IN_FLOAT32: Final = Compute(int(cublas.ComputeType.COMPUTE_32F), TYPES["float32"], Factors("float32"))

IN_TF32: Final = IN_FLOAT32._replace(compute=int(cublas.ComputeType.COMPUTE_32F_FAST_TF32))

COMPUTES: Final = {
    "float64": Compute(int(cublas.ComputeType.COMPUTE_64F), TYPES["float64"], Factors("float64")),
    "int8": Compute(int(cublas.ComputeType.COMPUTE_32I), TYPES["int32"], Factors("int32")),
}
"""By the type of a; products of other types are computed in float32."""

EPILOGUES: Final = {each.name.lower(): int(each) for each in cublasLt.Epilogue}

SWAPPED: Final = {"bgrada": "bgradb", "bgradb": "bgrada"}
"""Epilogues with a and b exchanged: the caller's a is cuBLASLt's B in a transposed product."""

OPS: Final = {name: int(cublas.Operation[name]) for name in "NT"}

NOT_THERE: Final = frozenset({int(cublas.Status.NOT_SUPPORTED), int(cublas.Status.INVALID_VALUE)})
"""Statuses of a heuristic without a kernel for a request that has passed the check."""


HOST, DEVICE = int(cublasLt.PointerMode.HOST), int(cublasLt.PointerMode.DEVICE)

BY_ROW: Final = int(cublasLt.MatmulMatrixScale.OUTER_VEC_32F)

MATMUL: Final = cublasLt.MatmulDescAttribute
LAYOUT: Final = cublasLt.MatrixLayoutAttribute
PREFERENCE: Final = cublasLt.MatmulPreferenceAttribute
