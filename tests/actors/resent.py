"""An actor that keeps nothing between calls, so that what has not started may be sent to its next process."""

from __future__ import annotations

from atomr_mp_workers import Actor, method
from tests.actors.probe import arrive, die, note


class Resent(Actor):
    """Runs on the loop."""

    resend = "unstarted"

    @method
    def note(self, tag: str) -> str:
        """Record that this ran, and return what was noted."""
        note(tag)
        return tag

    @method(resend="never")
    def note_here(self, tag: str) -> str:
        """Do the same, in the process that this was sent to or not at all."""
        note(tag)
        return tag

    @method
    def hold(self, tag: str, gate: str) -> None:
        """Record that this ran, and wait at the gate."""
        note(tag)
        arrive(gate)

    @method
    def fail(self, how: str) -> None:
        """Die."""
        die(how)
