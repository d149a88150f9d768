"""What a remote client's session keeps while it has no connection, and between two.

The relay of a remote client may end at any time, with all that it was about to pass on. Its session stays for the next
relay: leases, slabs and refs of its client are the session's. News of devices need not be kept, since the next
connection gets their states. Ends of incarnations are kept, also those that were sent: the client may not have them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.supervisor.loop import Timer

MOST_ENDS: Final = 8
"""Most ends of one device that are kept. A client that has missed more takes all requests of these for lost, and for
requests that may have run."""


class LastingSession:
    """The part of a session that outlives its connections."""

    def __init__(self) -> None:
        self.timer: Timer | None = None
        """Ends the session if no connection comes; None while it has one."""
        self._ends: Final[dict[int, deque[IncarnationEnded]]] = {}

    @property
    def is_cut(self) -> bool:
        """Whether it has no connection."""
        return self.timer is not None

    @property
    def ends(self) -> list[IncarnationEnded]:
        """The latest ends of each device, in their order."""
        return [ended for ends in self._ends.values() for ended in ends]

    def ended(self, ended: IncarnationEnded) -> None:
        """Keep the end of an incarnation."""
        self._ends.setdefault(ended.device, deque(maxlen=MOST_ENDS)).append(ended)

    def connected(self) -> None:
        """Stop the time that it is kept; may be called twice."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
