"""EDGE: arrays handed on to other libraries by DLPack (https://dmlc.github.io/dlpack/latest/)."""

from __future__ import annotations

from typing import Any, Final

CPU: Final = (1, 0)
"""kDLCPU and the device's number, which is 0 for the processor's memory."""


def on_gpu(uuid: str) -> tuple[int, int]:
    """Return kDLCUDA and the number by which this process knows a GPU."""
    from atomr_mp.interop import cuda

    return cuda.CUDA, cuda.ordinal_of(uuid)


def export(
    view: Any,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule over an array, NumPy's or CuPy's; it holds the array.

    Raises:
        BufferError: The array is read-only and the consumer's DLPack is older than 1.0, which cannot say so; or NumPy
            has no DLPack type for its elements.
        ValueError: Another device is asked for, or of the processor a stream.
    """
    return view.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
