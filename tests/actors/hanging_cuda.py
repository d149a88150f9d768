"""An actor whose kernels never end."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import announce

KERNEL: Final = r"""
extern "C" __global__ void forever(volatile int* go) { while (!*go); }
"""


class HangingOnDevice(Actor):
    """Gives its methods a second."""

    hang_timeout_s = 1.0

    def setup(self, context: Context) -> None:
        """Compile the kernel."""
        import cupy

        self._cupy: Any = cupy
        self._context = context
        self._forever = cupy.RawModule(code=KERNEL).get_function("forever")
        self._go = cupy.zeros(1, dtype=cupy.int32)

    @method
    def where(self) -> list[int]:
        """Return pid and generation."""
        return [os.getpid(), self._context.generation]

    @method
    def launch(self, gate: str) -> Any:
        """Return something that the device never has."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        return self._go + 1

    @method
    def launch_and_copy(self, gate: str) -> Any:
        """Wait for it here, in Python code of CuPy's."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        return self._cupy.asnumpy(self._go)

    @method
    def launch_and_synchronise(self, gate: str) -> None:
        """Wait for it here, in C code."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        self._cupy.cuda.get_current_stream().synchronize()

    @method
    def lock_in_c(self, gate: str) -> None:
        """Never come back from C code; the device has nothing to do."""
        lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t that nobody has, and then we
        announce(gate)
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(lock)

    @method
    def spin_beside_a_kernel(self, gate: str) -> None:
        """Never come back from Python code, while the device never comes to an end either."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        while True:
            pass

    @method(thread=True)
    def launch_on_thread_and_synchronise(self, gate: str) -> None:
        """Wait for it on the actor's thread, in C code."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        self._cupy.cuda.get_current_stream().synchronize()

    @method(thread=True)
    def launch_on_thread(self, gate: str) -> None:
        """Wait for it on the actor's thread."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        self._cupy.asnumpy(self._go)
