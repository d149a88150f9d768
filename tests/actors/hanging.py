"""An actor whose methods hang, in every way, and some that only seem to."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from typing import Any

from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp_workers import Actor, Batch, Context, method
from tests.actors.probe import announce, arrive, note


class Unlimited(Actor):
    """Has no limit of its own."""

    @method
    def wait_for_nobody(self, gate: str) -> None:
        """Wait for an event that never comes."""
        announce(gate)
        threading.Event().wait()

    @method
    def hold(self, gate: str) -> int:
        """Wait at a gate; return our pid."""
        arrive(gate)
        return os.getpid()


class Hanging(Unlimited):
    """Gives its methods a second."""

    hang_timeout_s = 1.0

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    @method
    def where(self) -> list[int]:
        """Return pid and generation."""
        return [os.getpid(), self._context.generation]

    @method
    def note(self, tag: str) -> str:
        """Record that this ran."""
        note(tag)
        return tag

    @method(hang_timeout_s=math.inf)
    def make(self) -> Any:
        """Return memory that needs a slab of its own, and not one that a standby has ready."""
        return self._context.empty((2 * SLAB_BYTES,), "uint8")

    @method
    def spin(self, gate: str) -> None:
        """Never end."""
        announce(gate)
        while True:
            pass

    @method
    def lock_in_c(self, gate: str) -> None:
        """Never come back from C code, which keeps the interpreter's lock, the GIL."""
        lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t that nobody has, and then we
        announce(gate)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(lock)

    @method(thread=True)
    def spin_on_thread(self, gate: str) -> None:
        """Never end, beside the loop."""
        self.spin(gate)

    @method(batch=Batch(max_wait_s=0.0))
    def wait_in_batch(self, gates: list[str]) -> list[None]:
        """Wait for an event that never comes, in a batch."""
        self.wait_for_nobody(gates[0])
        return [None for _ in gates]

    @method(hang_timeout_s=math.inf)
    def hold(self, gate: str) -> int:
        """Wait at a gate for as long as it takes; return our pid."""
        return super().hold(gate)

    @method(hang_timeout_s=5.0)
    def hold_for_a_while(self, gate: str) -> int:
        """Wait at a gate for five seconds at most."""
        arrive(gate)
        return os.getpid()

    @method(hang_timeout_s=2.0)
    def compute(self, seconds: float) -> float:
        """Use so much processor time; return how long that took."""
        began, until = time.monotonic(), time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return time.monotonic() - began


class SlowToSetUp(Actor):
    """Takes longer to set up than a request may."""

    hang_timeout_s = 0.5

    def setup(self, context: Context) -> None:  # noqa: ARG002 - not needed
        """Take long."""
        time.sleep(2.5)  # longer than a request may take: that set-up may is what is tested

    @method
    def where(self) -> int:
        """Return our pid."""
        return os.getpid()
