"""The meaning of CUDA libraries' errors: one table from their statuses to `atomr_mp.errors`.

No library is imported: an exception is recognised by the names of its classes and by its status. After a *sticky*
status nothing in the process can be trusted any more, and only a new process helps (CUDA Driver API, `cudaError_enum`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.exceptions import causes_of, name_of

STICKY: Final = frozenset({226, 700, 702, 710, *range(714, 720), 721, 810, 911, 214, 220, 709})
"""Statuses of a context that is lost."""

UNKNOWN: Final = 999
"""A status that is sticky if the context reports it again."""

OUT_OF_MEMORY: Final = 2

LIBRARIES: Final = {
    "CUDARuntimeError": "runtime",
    "CUDADriverError": "driver",
    "CUDAError": "driver",
    "CUBLASError": "cublas",
    "cuBLASError": "cublas",
    "cuBLASLtError": "cublaslt",
    "cuFFTError": "cufft",
    "CuFFTError": "cufft",
    "CURANDError": "curand",
    "cuRANDError": "curand",
    "CUSOLVERError": "cusolver",
    "cuSOLVERError": "cusolver",
    "CuSparseError": "cusparse",
    "cuSPARSEError": "cusparse",
    "cuTENSORError": "cutensor",
    "CuTensorError": "cutensor",
    "NVRTCError": "nvrtc",
    "NcclError": "nccl",
    "cudnnGraphNotSupportedError": "cudnn",
    "CudnnError": "cudnn",
    "AcceleratorError": "torch",
    "OutOfMemoryError": "torch",
}
"""Names of exception classes, of CuPy, nvmath, cuda-bindings, cuda-core, torch and of our own calls of cuDNN, and which
library they speak for."""

NVIDIA_NAMES: Final = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "cudaErrorIllegalAddress": 700,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_ASSERT": 710,
    "cudaErrorAssert": 710,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "cudaErrorMisalignedAddress": 716,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
    "cudaErrorLaunchFailure": 719,
    "an illegal memory access was encountered": 700,
    "device-side assert triggered": 710,
    "misaligned address": 716,
    "unspecified launch failure": 719,
    "an illegal instruction was encountered": 715,
}
"""Names of statuses in texts that carry no number."""


def translate(error: BaseException, status_of_context: Callable[[], int]) -> errors.RequestError | None:
    """Return the meaning of a CUDA library's exception, None for any other.

    Args:
        error: The exception of a library's call; its causes are checked too.
        status_of_context: Asks the context for its status, without waiting; 0 if it is well.
    """
    for each in _chain(error):
        library = _library(each)
        if library is None:
            continue
        status = _status(each)
        now = status_of_context()  # an earlier fault may have surfaced in this call
        for code in (status, now):
            if code in STICKY or (code == UNKNOWN and now):
                return poisoned(code, each)
        if name_of(each).endswith("OutOfMemoryError") or (
            status == OUT_OF_MEMORY and library in {"runtime", "driver", "torch"}
        ):
            return errors.OutOfMemory(f"the device has no memory left: {each}")
        return errors.LibraryError(str(each), library=library, status=status, name=_name(each))
    if name_of(error) == "OutOfMemoryError":
        return errors.OutOfMemory(f"the device has no memory left: {error}")
    return None


def poisoned(status: int, cause: object) -> errors.ContextPoisoned:
    """Return the error for a lost context."""
    return errors.ContextPoisoned(f"the CUDA context is lost (status {status}): {cause}", status=status)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = next(causes_of(error), None)


def _library(error: BaseException) -> str | None:
    root = type(error).__module__.partition(".")[0]
    if root in {
        "cupy",
        "cupy_backends",
        "cupyx",
        "cuda",
        "nvmath",
        "cudnn",
        "nccl",
        "torch",
        __name__.partition(".")[0],
    }:
        return next((LIBRARIES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in LIBRARIES), None)
    # torch reports a device's fault as a RuntimeError of Python's own.
    return "torch" if type(error) is RuntimeError and str(error).startswith("CUDA error") else None


def _status(error: Any) -> int:
    for attribute in ("status", "error_code"):
        value = getattr(error, attribute, None)
        if value is not None:
            try:
                return int(value)
            except (TypeError, ValueError):
                continue
    text = str(error)
    for name, status in NVIDIA_NAMES.items():
        if name in text:
            return status
    found = re.search(r"\((\d{1,3})\)", text)
    return int(found.group(1)) if found else 0


def _name(error: BaseException) -> str:
    found = re.search(r"\b(?:CU[A-Z]++_(?:ERROR|STATUS)_[A-Z_]++|cudaError[A-Za-z]++|NCCL_[A-Z_]++)\b", str(error))
    return found.group(0) if found else ""
