"""A stand-in for torch: tensors that come and go by DLPack alone, as a version reads it that knows no read-only memory.

`sys.modules["torch"]` has it where an actor or a test needs tensors and torch is not installed.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

int16: Final = "torch.int16"
uint8: Final = "torch.uint8"
bfloat16: Final = "torch.bfloat16"


class Tensor:
    """A tensor; its memory is `array`, whatever has made it."""

    __module__ = "torch"

    def __init__(self, array: np.ndarray[Any, Any], *, requires_grad: bool = False) -> None:
        self.array: Final = array
        self.requires_grad: Final = requires_grad

    @property
    def dtype(self) -> str:
        """The element type, as torch writes it."""
        return f"torch.{self.array.dtype.name}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return tuple(self.array.shape)

    def detach(self) -> Tensor:
        """Return it without its gradient."""
        return Tensor(self.array)

    def view(self, dtype: str) -> Tensor:
        """Return it as one of another element type of the same size."""
        name = dtype.removeprefix("torch.")
        return Tensor(self.array.view(ml_dtypes.bfloat16 if name == "bfloat16" else name))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.array.__dlpack__(**options)


class _Old:
    """What a consumer that knows only DLPack before 1.0 asks for."""

    def __init__(self, source: Any) -> None:
        self._capsule = source.__dlpack__()
        self.__dlpack_device__ = source.__dlpack_device__

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor over the memory of another library's array."""
    if any(step < 0 for step in source.strides):
        raise RuntimeError("negative strides")
    return Tensor(np.from_dlpack(_Old(source)))
