"""How a lane follows its devices through their incarnations: it connects to each, goes over, and lets go of the last.

What becomes of the requests that were on one that has ended, `retry` says.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.client.lanes.device_link import CLOSED, Attached, DeviceLink, unavailable
from atomr_mp.client.lanes.door import LaneClient
from atomr_mp.client.lanes.outcomes import Outcomes
from atomr_mp.client.lanes.receiving import Receiver
from atomr_mp.client.lanes.retry import Retry
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.reply import ItemsReply, Reply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, StandbyInfo
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.transport.data import DataConnection

DRAIN_MS: Final = 1000
"""How long workers may take to end whose supervisor has; what they answer meanwhile stands."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Connections(Protocol):
    """Makes a lane's connections, and sees that they are read."""

    def connect(self, endpoint: str) -> DataConnection:
        """Connect to an incarnation; raises `OSError` if no descriptor is left."""

    def connected(self, link: DeviceLink, connection: DataConnection) -> None:
        """Watch a new connection's descriptor."""

    def disconnect(self, link: DeviceLink, connection: DataConnection) -> None:
        """Close a connection."""


class Failover:
    """A part of a lane, to be called with its lock held.

    Args:
        client: Whose lane it is.
        connections: The lane's.
        outcomes: Ends replies.
        sender: Sends requests.
        receiver: Takes in answers.
        retry: Sends again what an incarnation's end took along, or fails it.
    """

    def __init__(
        self,
        client: LaneClient,
        connections: Connections,
        outcomes: Outcomes,
        sender: Sender,
        receiver: Receiver,
        retry: Retry,
    ) -> None:
        self._client = client
        self._connections = connections
        self._outcomes = outcomes
        self._sender = sender
        self._receive = receiver.receive
        self._retry = retry

    # --- what the supervisor says ----------------------------------------------------------------------------------

    def changed(self, link: DeviceLink, info: DeviceInfo) -> None:
        """Follow a device to its incarnation; send what waited for it, or hold what comes."""
        new, link.info = info is not link.info, info
        reached = True
        if info.admitted and info.generation != link.generation:
            try:
                self._go_over(link, info)
            except OSError as error:  # no descriptor is left; it is tried again with the next call
                reached = False
                if new:
                    _LOG.error("device %d's new worker cannot be reached, calls wait: %s", link.device, error)
        prepared = 0 if link.standby is None else link.standby.generation
        if prepared != (0 if info.standby is None else info.standby.generation):
            self._prepare(link, info.standby)
        # Of one that this lane has let go of already there may be news that was true before.
        reached &= link.connection is not None
        link.sending = reached and info.admitted and info.state is DeviceState.READY
        if link.sending:
            self._sender.send_held(link)
            return
        link.hold()
        if info.state in CLOSED:
            for reply in [*link.held]:
                self._outcomes.feed(reply, ReplyEvent.FAIL, unavailable(info))

    def stopped(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        """If no answer of an incarnation can be on its way, it has ended for this lane: to wait is of no use."""
        former = link.former is not None and link.former.generation == ended.generation
        if not former and (link.generation != ended.generation or link.connection is None):
            return
        if ended.error.code == errors.WorkerHung.code:  # what it has answered is told apart only when all has come
            return
        self._receive(link, former=former)
        started, running = frozenset(ended.started), frozenset(ended.running)
        for request_id, reply in link.flight.items():
            if reply.done or not _is_on(reply, ended):
                continue  # of one that has expired the answer is of no interest
            answered = request_id in started and request_id not in running
            if answered or reply.sent_ns <= ended.known_since_ns or isinstance(reply, ItemsReply):
                return
        self._let_go(link, ended)

    def ended(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        """Take in an incarnation's last answers, and let go of it."""
        self._let_go(link, ended)

    def pool_lost(self, link: DeviceLink) -> None:
        """Take in the last answers of a device that is not coming back."""
        if not self._client.workers_live:
            for connection in (link.former and link.former.connection, link.connection):
                if connection is not None:
                    connection.wait_disconnected(DRAIN_MS)
        self._receive(link)
        self.disconnect(link)

    # --- connections -----------------------------------------------------------------------------------------------

    def reach(self, link: DeviceLink) -> None:
        """Try again to reach an incarnation for which no descriptor was left."""
        if link.info.admitted and link.info.generation != link.generation:
            self.changed(link, link.info)

    def disconnect(self, link: DeviceLink) -> None:
        """Close what is connected to a device's incarnations, past and to come."""
        self._close_former(link)
        self._prepare(link, None)
        self._close_current(link)

    def _go_over(self, link: DeviceLink, info: DeviceInfo) -> None:
        """Go over to a device's new incarnation; the one before it may still answer, until its end is told."""
        if link.standby is not None and link.standby.generation == info.generation:
            connection, link.standby = link.standby.connection, None
        else:
            connection = self._connections.connect(info.endpoint)
        if link.connection is not None:
            self._close_former(link)
            link.former = Attached(link.connection, link.generation, link.releases)
            self._receive(link, former=True)  # what was left unread, of which its descriptor tells no more
        link.connection, link.unread = connection, False
        link.generation = info.generation
        link.releases = self._client.releases(info.index, info.generation)
        link.token = link.releases.token
        self._connections.connected(link, connection)

    def _prepare(self, link: DeviceLink, standby: StandbyInfo | None) -> None:
        """Connect to a standby, so that nothing but a message is needed once it takes calls."""
        if link.standby is not None:
            self._connections.disconnect(link, link.standby.connection)
            link.standby = None
        if standby is not None:
            releases = self._client.releases(link.device, standby.generation)
            with contextlib.suppress(OSError):  # as above; it is tried again when it takes calls
                link.standby = Attached(self._connections.connect(standby.endpoint), standby.generation, releases)

    def _close_current(self, link: DeviceLink) -> None:
        if link.connection is not None:
            self._connections.disconnect(link, link.connection)
            link.connection = None
        link.unread = False

    def _close_former(self, link: DeviceLink) -> None:
        if link.former is not None:
            self._connections.disconnect(link, link.former.connection)
            link.former = None

    # --- ends ------------------------------------------------------------------------------------------------------

    def _let_go(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        # Whatever a process has sent that has ended is here to be received: nothing is waited for.
        if ended.error.code == errors.WorkerHung.code:  # what it may still have answered comes too late
            # Of a call with items some may be answered well, and it is never sent again by itself.
            self._settle(
                link, ended, {each for each in ended.running if not isinstance(link.flight.find(each), ItemsReply)}
            )
        if link.former is not None and link.former.generation == ended.generation:
            self._receive(link, former=True)
            self._close_former(link)
        elif ended.generation >= link.generation:
            link.hold()
        if link.generation == ended.generation and link.connection is not None:
            self._receive(link)
            self._close_current(link)
        self._settle(link, ended)

    def _settle(self, link: DeviceLink, ended: IncarnationEnded, only: set[int] | None = None) -> None:
        """Fail what was on an incarnation that has ended; what it certainly has not started, by intent, moves on.

        Args:
            link: The link.
            ended: What is known of the end.
            only: These requests, and no others; None for all.
        """
        started, running = frozenset(ended.started), frozenset(ended.running)
        back: list[Reply] = []
        lost: list[tuple[Reply, errors.RequestError]] = []
        for request_id, reply in link.flight.items():
            if not _is_on(reply, ended):
                continue
            if only is not None and request_id not in only:
                continue
            forgotten = reply.sent_ns <= ended.known_since_ns
            maybe_executed = request_id in started or forgotten
            if ended.planned and not maybe_executed and reply.state is not ReplyState.STRUCK:
                back.append(reply)
                continue
            error = reply.struck or ended.error.error()
            if not isinstance(error, errors.RequestError):
                error = errors.WorkerLost(str(error), device=ended.device, generation=ended.generation)
            reply.struck = None
            error.maybe_executed = maybe_executed
            if isinstance(error, errors.WorkerLost | errors.ContextPoisoned):
                error.was_running = request_id in running or (forgotten and request_id not in started)
            lost.append((reply, error))
        self._move_on(back)
        self._retry.settle(link, ended, lost)
        self._sender.flush_ready()

    def _move_on(self, replies: list[Reply]) -> None:
        """Hand what an incarnation has not started, and left by intent, to the next."""
        for reply in reversed(replies):
            error = errors.Cancelled("cancelled, and its worker has left without having started it")
            self._outcomes.feed(reply, ReplyEvent.LEFT, error)


def _is_on(reply: Reply, ended: IncarnationEnded) -> bool:
    """Return whether an incarnation has a request, as far as its end tells."""
    return reply.generation == ended.generation and reply.state is not ReplyState.PARKED
