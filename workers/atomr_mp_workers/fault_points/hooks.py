"""Named places in a worker at which a test can have it fail. In production each is a look at `hook`, which is None.

What is called for every request looks by itself, `if points.hook is not None`; other places call `point`.
"""

from __future__ import annotations

import os
from typing import Protocol

from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.injection import DIRECTORY, Point


class Hook(Protocol):
    """What carries faults out."""

    in_kernel: bool
    """On the host backend: what stands for a kernel runs."""

    def begin(self, start: control.Start) -> None:
        """Learn what this process is."""

    def __call__(self, at: Point, of: str) -> None:
        """Come by a point; raises, never returns, or ends the process if that is what a test wants there."""


hook: Hook | None = None


def point(at: Point, of: str = "") -> None:
    """Come by a point.

    Args:
        at: Which.
        of: The request, "Actor.method", or the actor.
    """
    if hook is not None:
        hook(at, of)


def arm() -> None:
    """Have faults carried out from here on, if this process is a test's."""
    global hook  # noqa: PLW0603 - one look at a module's name is all that production is to pay
    directory = os.environ.get(DIRECTORY)
    if directory is not None:
        from atomr_mp_workers.fault_points.injection import FaultHook

        hook = FaultHook(directory)
