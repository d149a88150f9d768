"""An actor whose kernels fail in every way that poisons a context."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method

KERNELS: Final = r"""
extern "C" __global__ void illegal() { *(volatile int*)0x10 = 1; }
extern "C" __global__ void misaligned(char* memory) { *(volatile int*)(memory + 1) = 1; }
extern "C" __global__ void trap() { asm("trap;"); }
extern "C" __global__ void check() { assert(threadIdx.x > 1000); }
extern "C" __global__ void spin(long long cycles) { long long until = clock64() + cycles; while (clock64() < until); }
"""


class Faulty(Actor):
    """Runs on its own CUDA stream."""

    def setup(self, context: Context) -> None:
        """Compile the kernels."""
        import cupy

        self._cupy: Any = cupy
        self._context = context
        module = cupy.RawModule(code=KERNELS, options=("-DNDEBUG=0", "-UNDEBUG"))
        self._kernels: dict[str, Any] = {
            name: module.get_function(name) for name in ("illegal", "misaligned", "trap", "check", "spin")
        }
        self._weights = cupy.arange(1024, dtype=cupy.float32)

    @method
    def nothing(self) -> None:
        """Do nothing."""

    @method
    def fault(self, how: str) -> int:
        """Launch a kernel that goes wrong; return at once, as if nothing had happened."""
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        arguments = (self._cupy.zeros(16, "uint8"),) if how == "misaligned" else ()
        self._kernels[how]((1,), (1,), arguments)
        return 1

    @method
    def fault_and_wait(self, how: str, number: int = 0) -> int:  # noqa: ARG002 - tells one request from another
        """Launch a kernel that goes wrong, and meet its error in this very call."""
        self._kernels[how]((1,), (1,), ())
        self._cupy.cuda.Device().synchronize()
        return 1

    @method(thread=True)
    def fault_on_thread(self, how: str) -> int:
        """Launch a kernel that goes wrong on the actor's thread."""
        self._kernels[how]((1,), (1,), ())
        return 1

    @method(idempotent=True)
    def double(self, array: Any) -> Any:
        """Return twice the argument, in its own memory."""
        return self._cupy.asarray(array) * 2

    @method
    def total(self, array: Any) -> float:
        """Return the sum."""
        return float(self._cupy.asarray(array).sum())

    @method
    def spin(self, cycles: int) -> Any:
        """Return something that the device takes long to compute."""
        self._kernels["spin"]((1,), (1,), (cycles,))
        return self._weights * 2

    @method
    def exhaust(self) -> int:
        """Ask for more memory than there is."""
        return int(self._cupy.empty(2**50, "uint8").nbytes)

    @method
    def address(self, array: Any) -> int:
        """Return where an argument lies in this process."""
        return int(array.data.ptr)

    @method
    def raise_from(self, library: str) -> None:
        """Raise an error of a library that is not a fault of the device."""
        if library == "cupy":
            self._cupy.cuda.runtime.memcpy(0, 0, 10, 77)  # no such direction
        raise ValueError(library)
