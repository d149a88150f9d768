"""A lane's connection to one device, through all its incarnations, and what is on its way there."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.client.lanes.retry_policy import Lost
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import Reply
from atomr_mp.protocol import token
from atomr_mp.protocol.flight import Flight
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.transport.data import DataConnection

CLOSED: Final = frozenset({DeviceState.STOPPED, DeviceState.STOPPING, DeviceState.QUARANTINED})
"""States in which a device takes no work, nor will by itself."""


class Attached(NamedTuple):
    """A connection to another incarnation than the one that is called."""

    connection: DataConnection
    generation: int
    releases: Releases


class DeviceLink:
    """A lane's connection to one device, through all its incarnations."""

    def __init__(self, info: DeviceInfo, flight: Flight[Reply]) -> None:
        self.device: Final = info.index
        self.info = info
        self.flight: Final = flight
        """Requests without an answer, sent or held."""
        self.held: deque[Reply] = deque()
        """Requests that wait for an incarnation, in order."""
        self.parked: dict[Reply, Lost] = {}
        """Requests of an ended incarnation, until the supervisor has said what is held of them."""
        self.outbox: list[Reply] = []
        """Requests that wait to be sent together."""
        self.connection: DataConnection | None = None
        self.generation = 0
        """The incarnation of `connection`."""
        self.former: Attached | None = None
        """The incarnation before it, whose place a standby has taken: it may still answer."""
        self.standby: Attached | None = None
        """What may be the next incarnation: connected to beforehand, and not used before."""
        self.token = token.pack(bytes(16), info.index, 0)
        self.releases = Releases(self.token)
        """What is to be given back to the incarnation of `connection`."""
        self.sending = False
        """Whether requests may be sent now; if not, they are held."""
        self.unread = False
        """Replies may have arrived of which the connection's descriptor does not tell any more."""

    def hold(self) -> None:
        """Send nothing more for now; what waits to be sent is held."""
        self.sending = False
        self.held.extend(self.outbox)
        self.outbox.clear()

    def dequeue(self, reply: Reply) -> None:
        """Take a request that was not sent out of its queue."""
        if reply in self.outbox:
            self.outbox.remove(reply)
        elif reply in self.held:
            self.held.remove(reply)

    def tell_cancelled(self, reply: Reply) -> None:
        """Ask the worker that has a request not to start it."""
        connection, current = self.connection, self.token
        if self.former is not None and self.former.generation == reply.generation:
            connection, current = self.former.connection, self.former.releases.token
        if connection is not None:
            connection.send(data.FROM_CLIENT.encode(data.Cancel(current, [reply.id])), [])


def unavailable(info: DeviceInfo) -> errors.DeviceUnavailable:
    """Return what is raised for a device that takes no work."""
    return errors.DeviceUnavailable(
        f"device {info.index} ({info.name}) is {info.state.value}: {info.reason or 'no reason given'}",
        device=info.index,
    )
