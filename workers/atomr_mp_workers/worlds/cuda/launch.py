"""Launches of kernels: their parameters, in the form in which the driver takes them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final, NamedTuple

from cuda.bindings import driver

from atomr_mp_workers.device.cuda_resident import checked

_AT: Final = 96
"""Where the parameters that differ by kernel begin; those of the world and its mailboxes are before them."""

_CALL_AT: Final = 16
_LAYOUT_AT: Final = 32
_SIGNATURE: Final = struct.Struct("=QQ")


class KernelForm(NamedTuple):
    """The parameters that differ by kernel."""

    packed: struct.Struct
    sizes: tuple[int, ...]
    """Bytes of each parameter; one may be a structure of several numbers."""


BEGIN: Final = KernelForm(struct.Struct("=QQQQ"), (8, 8, 8, 8))
"""The table, the gang call, the collective behind which it goes on, and how long kernels wait, in nanoseconds."""
PUSH: Final = KernelForm(struct.Struct("=QQQII"), (8, 8, 8, 4, 4))
"""From where, to where, how many elements, the operator, whether the result is wanted."""
PULL: Final = KernelForm(struct.Struct("=QQQQII"), (24, 8, 4, 4))
"""Rows, to where, the operator, what the rank does."""
MOVE: Final = KernelForm(struct.Struct("=QQQQiI"), (24, 8, 4, 4))
"""Rows, to where, from whom, what the rank does."""
SCALE: Final = KernelForm(struct.Struct("=QQQddq"), (8, 8, 8, 8, 8, 8))
"""From where, to where, how many elements, the factor's real and imaginary part, and the factor if it is whole."""


class Launch:
    """Launches of kernels of one form, by one thread.

    Args:
        shared: The parameters that all kernels of a world get first, b"" for none.
        form: The others.
    """

    def __init__(self, shared: bytes, form: KernelForm) -> None:
        self._packed: Final = form.packed
        self._buffer: Final = ctypes.create_string_buffer(shared, _AT + form.packed.size)
        base = ctypes.addressof(self._buffer)
        starts = [base, base + _LAYOUT_AT] if shared else []
        at = base + _AT
        for size in form.sizes:
            starts.append(at)
            at += size
        self._pointers: Final = (ctypes.c_void_p * len(starts))(*starts)
        self._address: Final = ctypes.addressof(self._pointers)

    def __call__(
        self, function: Any, blocks: int, threads: int, stream: int, signature: tuple[int, int] | None, *values: Any
    ) -> None:
        """Put a kernel on a stream.

        Args:
            function: The driver's handle of it.
            blocks: Number of blocks.
            threads: Threads of a block.
            stream: CUDA's name of the stream.
            signature: What the ranks have to agree on, if they meet in it.
            *values: The parameters of the form.

        Raises:
            CUDADriverError: It was not launched.
        """
        if signature is not None:
            _SIGNATURE.pack_into(self._buffer, _CALL_AT, *signature)
        self._packed.pack_into(self._buffer, _AT, *values)
        checked(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, self._address, 0))
