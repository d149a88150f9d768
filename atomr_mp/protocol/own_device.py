"""The worker that this process is, for a client in it: which calls to its own device would wait for themselves. Pure.

A worker sets `here`; in any other process it is None, and costs a call no more than to see that.
"""

from __future__ import annotations

from typing import Protocol


class OwnDevice(Protocol):
    """A device's process, as a client in it sees it."""

    @property
    def epoch(self) -> bytes:
        """The pool's epoch."""

    @property
    def device(self) -> int:
        """The device's index in the pool."""

    @property
    def generation(self) -> int:
        """The incarnation that this process is, or will be."""

    def refusal(self, method: str) -> str:
        """Return why a call of a method on this device, made here and now, could not begin before its caller ends.

        Empty if it can begin.
        """


here: OwnDevice | None = None
"""The device of this process."""
