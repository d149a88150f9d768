"""An actor whose kernels never end."""

from __future__ import annotations

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

    @method(thread=True)
    def launch_on_thread(self, gate: str) -> None:
        """Wait for it on the actor's thread."""
        self._forever((1,), (1,), (self._go,))
        announce(gate)
        self._cupy.asnumpy(self._go)
