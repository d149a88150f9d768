"""How a lane follows its devices through their incarnations: it connects to each, goes over, and lets go of the last.

What becomes of the requests that were on one that has ended, `retry` says.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.client.lanes.device_link import CLOSED, Attached, DeviceLink, unavailable
from atomr_mp.client.reply import ItemsReply
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, StandbyInfo
from atomr_mp.protocol.messages.session import IncarnationEnded

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.lanes.base import Lane
    from atomr_mp.client.lanes.retry import Retry
    from atomr_mp.client.reply import Reply

DRAIN_MS: Final = 1000
"""How long workers may take to end whose supervisor has; what they answer meanwhile stands."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Failover:
    """A part of a lane, to be called with its lock held.

    Args:
        lane: The lane.
        client: Whose lane it is.
        retry: Sends again what an incarnation's end took along, or fails it.
    """

    def __init__(self, lane: Lane, client: Client, retry: Retry) -> None:
        self._lane = lane
        self._client = client
        self._retry = retry

    # --- what the supervisor says ----------------------------------------------------------------------------------

    def changed(self, link: DeviceLink, info: DeviceInfo) -> None:
        """Follow a device to its incarnation; send what waited for it, or hold what comes."""
        lane = self._lane
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
            held, link.held = link.held, deque()
            for reply in held:
                lane._put(link, reply)
            lane._flush(link)
            return
        lane._hold(link)
        if info.state in CLOSED:
            while link.held:
                reply = link.held.popleft()
                link.flight.take(reply.id)
                lane._end(reply, unavailable(info))

    def stopped(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        """If no answer of an incarnation can be on its way, it has ended for this lane: to wait is of no use."""
        former = link.former is not None and link.former.generation == ended.generation
        if not former and (link.generation != ended.generation or link.connection is None):
            return
        if ended.error.code == errors.WorkerHung.code:  # what it has answered is told apart only when all has come
            return
        self._lane._receive(link, former=former)
        started, running = frozenset(ended.started), frozenset(ended.running)
        for request_id, reply in link.flight.items():
            if reply.done or reply._sent_generation != ended.generation or reply in link.parked:
                continue  # of one that has expired the answer is of no interest
            answered = request_id in started and request_id not in running
            if answered or reply._sent_ns <= ended.known_since_ns or isinstance(reply, ItemsReply):
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
        self._lane._receive(link)
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
            connection = self._lane._connect(info.endpoint)
        if link.connection is not None:
            self._close_former(link)
            link.former = Attached(link.connection, link.generation, link.releases)
            self._lane._receive(link, former=True)  # what was left unread, of which its descriptor tells no more
        link.connection, link.unread = connection, False
        link.generation = info.generation
        link.releases = self._client.releases(info.index, info.generation)
        link.token = link.releases.token
        self._lane._connected(link, connection)

    def _prepare(self, link: DeviceLink, standby: StandbyInfo | None) -> None:
        """Connect to a standby, so that nothing but a message is needed once it takes calls."""
        if link.standby is not None:
            self._lane.disconnect(link, link.standby.connection)
            link.standby = None
        if standby is not None:
            releases = self._client.releases(link.device, standby.generation)
            with contextlib.suppress(OSError):  # as above; it is tried again when it takes calls
                link.standby = Attached(self._lane._connect(standby.endpoint), standby.generation, releases)

    def _close_current(self, link: DeviceLink) -> None:
        if link.connection is not None:
            self._lane.disconnect(link, link.connection)
            link.connection = None
        link.unread = False

    def _close_former(self, link: DeviceLink) -> None:
        if link.former is not None:
            self._lane.disconnect(link, link.former.connection)
            link.former = None

    # --- ends ------------------------------------------------------------------------------------------------------

    def _let_go(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        lane = self._lane
        # Whatever a process has sent that has ended is here to be received: nothing is waited for.
        aside = []
        if ended.error.code == errors.WorkerHung.code:  # what it may still have answered comes too late
            # Of a call with items some may be answered well, and it is never sent again by itself.
            alone = [each for each in ended.running if not isinstance(link.flight.find(each), ItemsReply)]
            self._settle(link, ended, frozenset(alone))
            # What is sent again is not to take it either.
            aside = [reply for each in alone if (reply := link.flight.take(each)) is not None]
        if link.former is not None and link.former.generation == ended.generation:
            lane._receive(link, former=True)
            self._close_former(link)
        elif ended.generation >= link.generation:
            lane._hold(link)
        if link.generation == ended.generation and link.connection is not None:
            lane._receive(link)
            self._close_current(link)
        for reply in aside:
            link.flight.add(reply.id, reply, len(reply._body) + sum(map(len, reply._payload)))
        self._settle(link, ended)

    def _settle(self, link: DeviceLink, ended: IncarnationEnded, only: frozenset[int] | None = None) -> None:
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
            if reply._sent_generation != ended.generation or reply in link.parked:
                continue
            if only is not None and request_id not in only:
                continue
            forgotten = reply._sent_ns <= ended.known_since_ns
            maybe_executed = request_id in started or forgotten
            if ended.planned and not maybe_executed:
                back.append(reply)
                continue
            error = reply._struck or ended.error.error()
            if not isinstance(error, errors.RequestError):
                error = errors.WorkerLost(str(error), device=ended.device, generation=ended.generation)
            reply._struck = None
            error.maybe_executed = maybe_executed
            if isinstance(error, errors.WorkerLost | errors.ContextPoisoned):
                error.was_running = request_id in running or (forgotten and request_id not in started)
            lost.append((reply, error))
        self._move_on(link, back)
        self._retry.settle(link, ended, lost)
        self._lane._flush_ready()

    def _move_on(self, link: DeviceLink, replies: list[Reply]) -> None:
        """Hand what an incarnation has not started, and left by intent, to the next."""
        for reply in reversed(replies):
            reply._sent_generation = 0
            if reply._cancelled or reply.done:  # the next worker knows nothing of that
                link.flight.take(reply.id)
                self._lane._end(reply, errors.Cancelled("cancelled, and its worker has left without having started it"))
            else:
                self._lane._put(link, reply, first=True)
