"""A lane's connection to one device, through all its incarnations, and the requests on it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.client.lanes.link_life import LinkState
from atomr_mp.client.lanes.retry_policy import Lost
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol import token
from atomr_mp.protocol.flow.flight import Flight
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import DeviceInfo
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.wire.ends import ClientEnd


class Attached(NamedTuple):
    """A connection to the incarnation before or after the one that takes calls."""

    connection: ClientEnd
    generation: int
    releases: Releases
    number: int
    """Number that distinguishes it from the session's other connections."""


class DeviceLink:
    """A lane's connection to one device, through all its incarnations."""

    def __init__(self, info: DeviceInfo, flight: Flight[Reply], number: int) -> None:
        self.device: Final = info.index
        self.number = number
        """Distinguishes its connections from those of the session's other lanes, and from those that were lost."""
        self.info = info
        self.flight: Final = flight
        """Requests without an answer, sent or held."""
        self.held: deque[Reply] = deque()
        """Requests that wait for an incarnation, in order."""
        self.parked: dict[Reply, Lost] = {}
        """Requests of an ended incarnation that wait for the supervisor's verdict."""
        self.outbox: list[Reply] = []
        """Requests that wait to be sent together."""
        self.gated: dict[Reply, int] = {}
        """Requests that must not be sent yet, each with how much it waits for. Those behind them wait too."""
        self.in_order = False
        """Whether there may be gated requests, or ones in the outbox that go by themselves: it is sent step by step."""
        self.connection: ClientEnd | None = None
        self.generation = 0
        """The incarnation of `connection`."""
        self.former: Attached | None = None
        """The incarnation that a standby has replaced: it may still answer."""
        self.standby: Attached | None = None
        """The standby, which may become the next incarnation. Connected beforehand, and unused until then."""
        self.token = token.pack(bytes(16), info.index, 0)
        self.releases = Releases(self.token)
        """Releases due to the incarnation of `connection`."""
        self.state = LinkState.HOLDING
        self.sending = False
        """Whether the state is `SERVING`: requests may be sent now. If not, they are held, or refused."""
        self.failures = 0
        """Failed attempts to connect, in a row."""
        self.told_failures = 0
        """How many of these failures were reported to the supervisor."""
        self.lacks_descriptor = False
        """Whether the last attempt failed because this process had no descriptor left; the next call tries again."""
        self.lost: list[int] = []
        """Numbers of lost connections to this incarnation; the worker may not know of the loss."""
        self.lost_parts: dict[int, int] = {}
        """The epochs of worlds with parts that were lost with these, by world."""
        self.awaited: dict[int, IncarnationEnded] = {}
        """Ends of incarnations, by generation, whose last answers are on their way on a connection that is carried."""
        self.timer = 0
        """Number of the timer that runs for the next attempt."""
        self.unread = False
        """Whether replies may have arrived that the connection's descriptor no longer signals."""

    def incarnations(self) -> list[Releases]:
        """Return the releases of the incarnations that may have requests."""
        former = [] if self.former is None else [self.former.releases]
        return [*former, self.releases] if self.generation else former

    def connection_to(self, generation: int) -> ClientEnd | None:
        """Return the connection to an incarnation that takes calls, or has done so."""
        if self.former is not None and self.former.generation == generation:
            return self.former.connection
        return self.connection if self.generation == generation else None

    def leads_to(self, generation: int) -> bool:
        """Return whether a request for one incarnation may be sent, or wait for that incarnation to be heard of."""
        if self.generation == generation:
            return self.state not in {LinkState.HOLDING, LinkState.CLOSED}  # else it leaves, or has ended
        return self.generation < generation and not self.sending

    def hold(self) -> None:
        """Move the requests of the outbox to those that wait for the device."""
        self.held.extend(self.outbox)
        self.outbox.clear()

    def dequeue(self, reply: Reply) -> None:
        """Take a request that was not sent out of its queue."""
        if reply in self.outbox:
            self.outbox.remove(reply)
        elif reply in self.held:
            self.held.remove(reply)

    def free(self, reply: Reply) -> None:
        """Give a request's credit back."""
        if isinstance(reply, StreamReply):
            self.flight.take_stream(reply.id)
        else:
            self.flight.take(reply.id)

    def tell_cancelled(self, reply: Reply) -> None:
        """Ask the worker that has a request not to start it, or to end its stream."""
        connection, current = self._connection_of(reply)
        if connection is not None:
            connection.send(data.FROM_CLIENT.encode(data.Cancel(current, [reply.id])), [])

    def grant(self, streams: Iterable[StreamReply]) -> None:
        """Tell the workers that have these streams how far they may go on."""
        due: dict[bytes, tuple[ClientEnd, list[data.Grant]]] = {}
        for stream in streams:
            connection, current = self._connection_of(stream)
            if connection is not None:
                _, grants = due.setdefault(current, (connection, []))
                grants.append(data.Grant(stream.id, stream.credit.parts, stream.credit.nbytes))
        for current, (connection, grants) in due.items():
            connection.send(data.FROM_CLIENT.encode(data.Credit(current, grants)), [])

    def _connection_of(self, reply: Reply) -> tuple[ClientEnd | None, bytes]:
        """Return the connection to the incarnation that has a request, if there is one, and the incarnation's token."""
        if self.former is not None and self.former.generation == reply.generation:
            return self.former.connection, self.former.releases.token
        return self.connection if self.generation == reply.generation else None, self.token


def stale(method: str, link: DeviceLink, generation: int) -> errors.StaleGeneration:
    """Return the error of a request for one incarnation alone that a link cannot send there."""
    return errors.StaleGeneration(
        f"{method} was not sent: it is for incarnation {generation} of device {link.device}, which has ended or leaves",
        maybe_executed=False,
        device=link.device,
        generation=generation,
        current=link.generation,
    )


def unavailable(link: DeviceLink) -> errors.DeviceUnavailable:
    """Return the error for a device that takes no work, or cannot be reached."""
    info = link.info
    why = f"is {info.state.value}: {info.reason or 'no reason given'}"
    retry_after_s = info.retry_after_s(time.time())
    if retry_after_s:
        why += f"; call again in {retry_after_s:.1f} s"
    if link.state in {LinkState.UNREACHABLE, LinkState.PROBING}:
        why = (
            f"cannot be reached by this client: {link.failures} connections to its worker in a row have ended at once, "
            "though the supervisor has told no end of that worker; this client goes on trying"
        )
    who = f"{info.name}, {info.place}" if info.place else info.name
    return errors.DeviceUnavailable(
        f"device {info.index} ({who}) {why}", device=info.index, retry_after_s=retry_after_s
    )
