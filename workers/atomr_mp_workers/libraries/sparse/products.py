"""Products of sparse matrices on CUDA. cuSPARSE makes them in parts, and waits for the device in between.

So they are made on a thread of their own, by calls that release the interpreter's lock. CuPy's `spgemm` keeps it while
it waits (CuPy 14). nvmath (1.0) lacks one function, and its binding of another does not return the size of its buffer.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import cupy
import numpy as np
from cuda import pathfinder
from nvmath.bindings import cusparse

from atomr_mp import errors
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp_workers.libraries.blas.kinds import ElementKind

NONE: Final = int(cusparse.Operation.NON_TRANSPOSE)
INDEX: Final = int(cusparse.IndexType.INDEX_32I)
ZERO_BASED: Final = int(cusparse.IndexBase.ZERO)
DEFAULT, FRUGAL = int(cusparse.SpGEMMAlg.DEFAULT), int(cusparse.SpGEMMAlg.ALG3)
"""Algorithms: the usual one, and one that takes a part of the products at a time, which frees the others' memory."""

PART: Final = 0.2
"""Share of the products that the frugal algorithm makes at a time."""
SHORT: Final = frozenset({int(cusparse.Status.ALLOC_FAILED), int(cusparse.Status.INSUFFICIENT_RESOURCES)})
LEAST_BYTES: Final = 16
"""Memory that is given where cuSPARSE may want none, since it must not get a null address."""


class CsrRows(NamedTuple):
    """A matrix in csr, with indices of 32 bits."""

    shape: tuple[int, int]
    data: Any
    indices: Any
    indptr: Any


def multiply(a: CsrRows, b: CsrRows, kind: ElementKind, alpha: Scalar) -> CsrRows:
    """Return alpha·a·b, after waiting for the current stream's earlier work.

    Args:
        a: The first matrix; both have elements.
        b: The second.
        kind: Their element type.
        alpha: The factor.

    Raises:
        OutOfMemory: There is too little memory, or the product is too large for cuSPARSE.
        cuSPARSEError: cuSPARSE has failed otherwise.
    """
    for algorithm in (DEFAULT, FRUGAL):
        try:
            return _multiplied(a, b, kind, alpha, algorithm)
        except cusparse.cuSPARSEError as error:
            if error.status not in SHORT:
                raise
    raise errors.OutOfMemory(
        "cuSPARSE has too little memory for this product, or it is too large for cuSPARSE: multiply blocks of rows",
        maybe_executed=False,
    )


def _multiplied(a: CsrRows, b: CsrRows, kind: ElementKind, alpha: Scalar, algorithm: int) -> CsrRows:
    stream, handle = cupy.cuda.get_current_stream(), _handle()
    cusparse.set_stream(handle, stream.ptr)
    shape = a.shape[0], b.shape[1]
    indptr = cupy.zeros(shape[0] + 1, np.int32)
    factor, _keep = kind.factors[alpha]
    nothing, _keep_nothing = kind.factors[0.0]
    with ExitStack() as made:
        descr = cusparse.sp_gemm_create_descr()
        made.callback(cusparse.sp_gemm_destroy_descr, descr)
        first, second = (_described(made, each.shape, each.indptr, each.indices, each.data, kind) for each in (a, b))
        product = cusparse.create_csr(*shape, 0, indptr.data.ptr, 0, 0, INDEX, INDEX, ZERO_BASED, kind.data)
        made.callback(cusparse.destroy_sp_mat, product)
        of = handle, NONE, NONE, factor, first, second, nothing, product, kind.scale, algorithm, descr
        size = np.zeros(1, np.uint64)
        _call("workEstimation", *of, size.ctypes.data, 0)
        estimating = cupy.empty(max(int(size[0]), LEAST_BYTES), np.uint8)
        _call("workEstimation", *of, size.ctypes.data, estimating.data.ptr)
        if algorithm == FRUGAL:  # without this it would answer with zeros (CUDA 13.2)
            parts = np.zeros(1, np.uint64)
            _call("estimateMemory", *of, PART, parts.ctypes.data, 0, size.ctypes.data)
            dividing = cupy.empty(max(int(parts[0]), LEAST_BYTES), np.uint8)
            _call("estimateMemory", *of, PART, parts.ctypes.data, dividing.data.ptr, size.ctypes.data)
        else:
            cusparse.sp_gemm_compute(*of, size.ctypes.data, 0)
        computing = cupy.empty(max(int(size[0]), LEAST_BYTES), np.uint8)
        cusparse.sp_gemm_compute(*of, size.ctypes.data, computing.data.ptr)
        _, _, count = cusparse.sp_mat_get_size(product)
        indices, data = cupy.empty(count, np.int32), cupy.empty(count, a.data.dtype)
        if count:
            cusparse.csr_set_pointers(product, indptr.data.ptr, indices.data.ptr, data.data.ptr)
            cusparse.sp_gemm_copy(*of)
        stream.synchronize()  # memory released here is in use until then
    return CsrRows(shape, data, indices, indptr)


def _described(made: ExitStack, shape: tuple[int, int], indptr: Any, indices: Any, data: Any, kind: ElementKind) -> int:
    descr: int = cusparse.create_csr(
        *shape, data.size, indptr.data.ptr, indices.data.ptr, data.data.ptr, INDEX, INDEX, ZERO_BASED, kind.data
    )
    made.callback(cusparse.destroy_sp_mat, descr)
    return descr


def _handle() -> int:
    """Return the calling thread's handle."""
    handle: int = getattr(_threads, "handle", 0)
    if not handle:
        handle = _threads.handle = cusparse.create()
    return handle


_threads = threading.local()


def _call(name: str, *arguments: Any) -> None:
    """Call a function of cusparseSpGEMM's, without the interpreter's lock.

    Raises:
        cuSPARSEError: The call has failed.
    """
    status = _function(name)(*arguments)
    if status:
        raise cusparse.cuSPARSEError(status)


@functools.cache
def _function(name: str) -> Any:
    """Return a function from the library that the bindings have loaded."""
    library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cusparse").abs_path)
    found = getattr(library, f"cusparseSpGEMM_{name}")
    found.restype, found.argtypes = ctypes.c_int, ARGUMENTS[name]
    return found


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int
_COMMON: Final = [_POINTER, _NUMBER, _NUMBER, *[_POINTER] * 5, _NUMBER, _NUMBER, _POINTER]
ARGUMENTS: Final = {
    "workEstimation": [*_COMMON, _POINTER, _POINTER],
    "estimateMemory": [*_COMMON, ctypes.c_float, _POINTER, _POINTER, _POINTER],
}
"""Types of the arguments of functions that are called without the bindings, as cusparse.h has them."""
