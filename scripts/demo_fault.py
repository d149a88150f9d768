"""The actor by which scripts/demo poisons a GPU's context."""

from __future__ import annotations

from atomr_mp_workers import Actor, method

WRITE_NOWHERE = 'extern "C" __global__ void write_nowhere() { *(volatile int*)0x10 = 1; }'


class Saboteur(Actor):
    """Does harm."""

    @method
    def poison(self) -> None:
        """Launch a kernel that writes to an invalid address, after which the context is lost for good."""
        import cupy

        cupy.RawKernel(WRITE_NOWHERE, "write_nowhere")((1,), (1,), ())
