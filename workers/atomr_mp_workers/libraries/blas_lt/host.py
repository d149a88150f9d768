"""Products of matrices with epilogues on the host backend, with NumPy, rounded as cuBLASLt rounds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.dtypes import FLOAT8
from atomr_mp.protocol.libraries import blas_lt
from atomr_mp_workers.libraries.base import Library, array, number
from atomr_mp_workers.libraries.dnn.activations import ACTIVATIONS, DERIVATIVES

Array = npt.NDArray[Any]

LARGEST: Final = {blas_lt.E4M3: 448.0, blas_lt.E5M2: 57344.0}
"""Largest finite values; larger ones are clamped to these (OCP, "8-bit Floating Point Specification", saturating
conversion)."""

GELU: Final = "gelu_tanh"
"""The GELU of cublasLtEpilogue_t, note 5."""


class HostBlasLt(Library):
    """Products of NumPy's arrays."""

    def matmul(self, request: blas_lt.Matmul) -> None:
        """Compute a product and its epilogue."""
        with np.errstate(all="ignore"):
            a, b, out = _wide(array(request.a)), _wide(array(request.b)), array(request.out)
            total = _summed(request, np.matmul(a, b))
            if request.bias is not None:
                total += _wide(array(request.bias))
            total = _finished(request, total)
            if request.bias_grad is not None:
                summed = {"bgrada": lambda: a.sum(-1), "bgradb": lambda: b.sum(-2)}
                array(request.bias_grad)[...] = summed.get(request.epilogue, lambda: total.sum(-2))()
            if request.scale_out is not None:
                total = total * array(request.scale_out)
            out[...] = _rounded(total, blas_lt.dtype_of_out(request))


def _summed(request: blas_lt.Matmul, product: Array) -> Array:
    """Return alpha·scale_a·scale_b·product + beta·c."""
    alpha, beta = number(request.alpha).real, number(request.beta).real
    if request.a.dtype == "int8":
        total: Array = product.astype(np.int64) * int(alpha)
        return total + int(beta) * array(request.c).astype(np.int64) if beta else total
    total = product * product.dtype.type(alpha)
    if request.scale_a is not None:
        total = total * array(request.scale_a)[:, None]
    if request.scale_b is not None:
        total = total * array(request.scale_b)
    return total + product.dtype.type(beta) * _wide(array(request.c)) if beta else total


def _finished(request: blas_lt.Matmul, total: Array) -> Any:
    """Return the epilogue's result for a sum; store the array that the gradient needs."""
    name, n = request.epilogue, total.shape[-1]
    if request.aux_out is not None:
        aux = array(request.aux_out)
        aux[...] = 0
        stored = np.packbits(total > 0, axis=-1, bitorder="little") if "relu" in name else total
        aux[..., : stored.shape[-1]] = stored
    if name.startswith("drelu"):
        return np.where(np.unpackbits(array(request.aux), axis=-1, count=n, bitorder="little"), total, 0)
    if name.startswith("dgelu"):
        return total * DERIVATIVES[GELU](_wide(array(request.aux)[..., :n]))
    if name.startswith("relu"):
        return np.maximum(total, 0)
    return ACTIVATIONS[GELU](total) if name.startswith("gelu") else total


def _wide(values: Array) -> Array:
    """Return an array in the type of the computation; int8 in float64, which holds the sums exactly."""
    if values.dtype == np.int8:
        return values.astype(np.float64)
    return values if values.dtype == np.float64 else values.astype(np.float32)


def _rounded(total: Array, dtype: str) -> Array:
    """Return values of the result's type; integers wrap around."""
    if dtype in FLOAT8:
        return np.clip(total, -LARGEST[dtype], LARGEST[dtype])
    return total.astype(np.int32) if dtype == "int32" else total


Implementation: Final = HostBlasLt
