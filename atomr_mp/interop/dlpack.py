"""EDGE: arrays handed on to other libraries by DLPack (https://dmlc.github.io/dlpack/latest/)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

CPU: Final = (1, 0)
"""kDLCPU and the device's number, which is 0 for the processor's memory."""


def export(
    view: np.ndarray[Any, Any],
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule over an array in host memory; it holds the array.

    Raises:
        BufferError: The array is read-only and the consumer's DLPack is older than 1.0, which cannot say so; or NumPy
            has no DLPack type for its elements.
        ValueError: A stream, or another device than the processor, is asked for.
    """
    return view.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
