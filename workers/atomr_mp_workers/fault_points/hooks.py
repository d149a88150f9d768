"""Named places at which a test can make a worker fail. In production each only checks `hook`, which is None.

Code that runs for every request checks `if points.hook is not None` itself; other places call `point`.
"""

from __future__ import annotations

import os
from typing import Protocol

from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.injection import DIRECTORY, Point


class Hook(Protocol):
    """Carries out faults."""

    in_kernel: bool
    """Whether a stand-in for a kernel runs, on the host backend."""

    def begin(self, start: control.Start) -> None:
        """Learn which process this is."""

    def __call__(self, at: Point, of: str) -> None:
        """Pass a point: raise, never return, or end the process if a test wants that here."""


hook: Hook | None = None


def point(at: Point, of: str = "") -> None:
    """Pass a point.

    Args:
        at: The point.
        of: The request, "Actor.method", or the actor.
    """
    if hook is not None:
        hook(at, of)


def arm() -> None:
    """Carry faults out from here on, if this process belongs to a test."""
    global hook  # noqa: PLW0603 - one look at a module's name is all that production is to pay
    directory = os.environ.get(DIRECTORY)
    if directory is not None:
        from atomr_mp_workers.fault_points.injection import FaultHook

        hook = FaultHook(directory)
