"""Carries out the actions of a link's life: connections, and the fates of the requests on them.

`retry` decides the fate of each request that is lost with an incarnation.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.client.lanes.admission import BacklogAdmission
from atomr_mp.client.lanes.device_link import Attached, DeviceLink, unavailable
from atomr_mp.client.lanes.link_life import LinkAction, LinkEvent, LinkState, failed, heard, retry_s, step
from atomr_mp.client.lanes.outcomes import Outcomes
from atomr_mp.client.lanes.receiving import Receiver
from atomr_mp.client.lanes.retry import Retry
from atomr_mp.client.lanes.retry_policy import EndFacts
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.lanes.session import PoolSession
from atomr_mp.client.reply import ItemsReply, Reply, StreamReply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, StandbyInfo
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.wire.ends import NEVER, ClientEnd

DRAIN_MS: Final = 1000
"""How long workers may take to end after their supervisor. Answers until then stand."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class ConnectionCalls(NamedTuple):
    """Makes a lane's connections, has them read, and keeps its timers."""

    connect: Callable[[DeviceLink, str], ClientEnd]
    """Connects to an incarnation's endpoint; raises `OSError` if no descriptor is left."""
    connected: Callable[[DeviceLink, ClientEnd], None]
    """Watches a new connection's descriptor."""
    disconnect: Callable[[DeviceLink, ClientEnd], None]
    """Closes a connection."""
    repeat_releases: Callable[[DeviceLink], None]
    """Repeats the releases of this lane that the incarnation has not acknowledged."""
    retry_later: Callable[[DeviceLink, int, float], None]
    """Has `Failover.retry` called with a number, after a time."""


@checks.owned()
class Failover:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        session: The session with the supervisor.
        new_number: Returns a number that no other connection of the session has.
        connections: Makes the lane's connections.
        outcomes: Ends replies.
        sender: Sends requests.
        receiver: Takes in answers.
        retry: Sends the requests again that are lost with an incarnation, or fails them.
        admission: Sends waiting calls.
    """

    def __init__(
        self,
        session: PoolSession,
        new_number: Callable[[], int],
        connections: ConnectionCalls,
        outcomes: Outcomes,
        sender: Sender,
        receiver: Receiver,
        retry: Retry,
        admission: BacklogAdmission,
    ) -> None:
        self._session = session
        self._new_number = new_number
        self._connections = connections
        self._outcomes = outcomes
        self._sender = sender
        self._receive = receiver.receive
        self._retry = retry
        self._admission = admission
        self._events: Final[deque[tuple[DeviceLink, LinkEvent, IncarnationEnded | errors.PoolLost | None]]] = deque()
        self._feeding = False

    # --- events ----------------------------------------------------------------------------------------------------

    def changed(self, link: DeviceLink, info: DeviceInfo) -> None:
        """React to a device's new state."""
        link.info = info
        event = heard(link.generation, info)
        if event is LinkEvent.OFFERED:
            link.failures = 0
        self._feed(link, event)
        if event is LinkEvent.HOLDS and info.state in _LEAVING and info.generation == link.generation:
            self._retry.move(link)
            self._admission.settle()
        prepared = 0 if link.standby is None else link.standby.generation
        if prepared != (0 if info.standby is None else info.standby.generation):
            self._prepare(link, info.standby)

    def ends(self, link: DeviceLink) -> None:
        """React to an incarnation's answer that it ends."""
        self._feed(link, LinkEvent.FATAL)

    def stopped(self, link: DeviceLink, ended: IncarnationEnded, *, sends: bool) -> None:
        """End an incarnation early for this lane, if no answer of it can be on its way.

        If nothing of it runs any more (not `sends`), all that it has sent on a socket of this machine can be received.
        What has ended there without that will not be answered.

        Its connection may have ended before anything else was heard of its end, even before the next incarnation was
        connected to: then its answers are here, though it is neither the current incarnation nor the former one.
        """
        connection = link.connection_to(ended.generation)
        former = link.former is not None and link.former.generation == ended.generation
        if ended.error.code == errors.WorkerHung.code:  # earlier answers are known only when all have come
            return
        if connection is not None:
            self._receive(link, former=former)
        if former:
            self._admission.settle()  # its answers have made room, and perhaps nothing else is heard of the device
        done = connection is None or not (sends or connection.late)
        if done or not self._answers_may_come(link, ended):
            self._over(link, ended)

    def ended(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        """React to an incarnation's end.

        All that it has sent can be received; but on a connection that is carried it may still be on its way, so its
        requests are settled at the end of that.
        """
        connection = link.connection_to(ended.generation)
        former = link.former is not None and link.former.connection is connection
        if connection is None or not connection.late or not (former or link.state in _WITH_LAST_ANSWERS):
            self._over(link, ended)
            return
        self._condemn(link, ended)
        self._receive(link, former=former)
        if connection.ended or not self._answers_may_come(link, ended):
            self._over(link, ended)
            return
        link.awaited[ended.generation] = ended
        if connection is link.connection:
            self.ends(link)

    def _answers_may_come(self, link: DeviceLink, ended: IncarnationEnded) -> bool:
        """Return whether an answer of an incarnation that has stopped may be on its way to this machine."""
        facts = EndFacts(ended)
        for request_id, reply in link.flight.items():
            if reply.is_over or not _is_on(reply, ended.generation):
                continue  # the answer to an expired request does not matter
            if facts.may_be_answered(request_id, reply.sent_ns) or isinstance(reply, ItemsReply | StreamReply):
                return True
        return False

    def _over(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        """Settle the requests of an ended incarnation."""
        link.awaited.pop(ended.generation, None)
        current = ended.generation == link.generation
        self._feed(link, LinkEvent.ENDED if current else LinkEvent.FORMER_ENDED, ended)

    def pool_lost(self, link: DeviceLink, lost: errors.PoolLost) -> None:
        """React to the loss of the pool: the device does not come back."""
        for ended in list(link.awaited.values()):
            self._over(link, ended)
        self._feed(link, LinkEvent.POOL_LOST, lost)

    def cut(self, link: DeviceLink, connection: ClientEnd) -> None:
        """React to a connection's end, after everything sent on it was received."""
        if link.awaited and not self._feeding:  # else this is found at the end of that
            self._over_with_connections(link)
        if connection is not link.connection:
            return
        if link.state in _ATTEMPTS:
            self._failed(link)
            return
        if link.number in link.releases.read:  # the worker has been told of the connections before
            link.lost.clear()
            link.lost_parts.clear()
        if link.number not in link.lost:
            link.lost.append(link.number)
        if connection.ready:  # else what was given to it is lost with it
            self._unsend(link)
        self._feed(link, LinkEvent.CUT)

    def broken(self, link: DeviceLink, replies: Sequence[Reply]) -> None:
        """Take back the requests of a message that was not sent, or only in part: their connection is lost."""
        for reply in reversed(replies):
            self._outcomes.feed(reply, ReplyEvent.LEFT)
        self._receive(link)  # answers to requests that were sent before
        if link.state is LinkState.SERVING and link.connection is not None:
            self.cut(link, link.connection)

    def login_over(self, link: DeviceLink, connection: ClientEnd) -> None:
        """React to a login: the worker has admitted a connection, or refused it."""
        if connection is not link.connection:
            return
        if connection.ended:
            self._receive(link)
        elif link.state in _ATTEMPTS or link.state is LinkState.SERVING:
            self._admitted(link)

    def retry(self, link: DeviceLink, number: int) -> None:
        """React to a timer that has run out."""
        if number == link.timer and link.state in _BETWEEN_ATTEMPTS:
            self._feed(link, LinkEvent.RETRY)

    def reach(self, link: DeviceLink) -> None:
        """Connect again now, if the last attempt failed because this process had no descriptor left."""
        if link.lacks_descriptor and link.state in _BETWEEN_ATTEMPTS:
            self._feed(link, LinkEvent.RETRY)

    def leave(self, link: DeviceLink) -> None:
        """Close the connections of a lane that was left, after taking in the answers that have arrived.

        The worker cannot send meanwhile, and takes back the answers that it would have sent. Blocks for a round trip if
        it is behind a relay.
        """
        self._unsend(link)
        if link.connection is not None:
            if link.flight.requests or link.connection.has_message:
                link.connection.stop()
            self._retire(link)
        self.disconnect(link)

    def disconnect(self, link: DeviceLink) -> None:
        """Close the connections to a device's incarnations, past and future."""
        link.timer += 1
        link.awaited.clear()
        self._close_former(link)
        self._prepare(link, None)
        self._close(link)

    def _feed(self, link: DeviceLink, event: LinkEvent, told: IncarnationEnded | errors.PoolLost | None = None) -> None:
        """Carry out an event's actions for a link, and then the events that follow from them."""
        self._events.append((link, event, told))
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                link, event, told = self._events.popleft()
                link.state, actions = step(link.state, event)
                link.sending = link.state is LinkState.SERVING
                for action in actions:
                    self._act(link, action, told)
        finally:
            self._feeding = False
        if link.awaited:
            self._over_with_connections(link)
        self._retry.spread()
        self._admission.settle()

    def _over_with_connections(self, link: DeviceLink) -> None:
        """Settle the requests of those ended incarnations whose last answers have come."""
        for generation, ended in list(link.awaited.items()):
            connection = link.connection_to(generation)
            if connection is None or connection.ended:
                self._over(link, ended)

    # --- actions ---------------------------------------------------------------------------------------------------

    def _act(  # noqa: C901, PLR0912 - one line for each action
        self, link: DeviceLink, action: LinkAction, told: IncarnationEnded | errors.PoolLost | None
    ) -> None:
        match action:
            case LinkAction.HOLD:
                link.hold()
            case LinkAction.SEND_HELD:
                self._sender.send_held(link)
            case LinkAction.REFUSE_HELD:
                self._retry.spread()
                for reply in [*link.held]:
                    self._outcomes.feed(reply, ReplyEvent.FAIL, unavailable(link))
            case LinkAction.RETIRE:
                self._retire(link)
            case LinkAction.CONNECT:
                self._connect(link)
            case LinkAction.CONDEMN if isinstance(told, IncarnationEnded):
                self._condemn(link, told)
            case LinkAction.TAKE_LAST:
                self._receive(link)
            case LinkAction.CLOSE:
                self._close(link)
            case LinkAction.TAKE_FORMER if isinstance(told, IncarnationEnded):
                if link.former is not None and link.former.generation == told.generation:
                    self._receive(link, former=True)
                    self._close_former(link)
            case LinkAction.RESOLVE if isinstance(told, IncarnationEnded):
                self._resolve_requests(link, told)
            case LinkAction.UNSEND:
                self._unsend(link)
            case LinkAction.LOSE:
                self._note_lost_parts(link)
                self._retry.lose(link, _lost(link))
            case LinkAction.REPEAT:
                self._repeat(link)
            case LinkAction.TELL:
                if link.failures or link.told_failures:
                    link.told_failures = link.failures
                    self._session.tell_reach(link.device, link.generation, link.failures)
            case LinkAction.ARM:
                link.timer += 1
                self._connections.retry_later(link, link.timer, retry_s(link.failures))
            case LinkAction.DRAIN:
                self._drain(link)
            case LinkAction.FAIL_ALL if isinstance(told, errors.PoolLost):
                for reply in _requests(link):
                    self._outcomes.feed(reply, ReplyEvent.FAIL, told.again(maybe_executed=False))
            case _:
                raise AssertionError(f"{action} without what was told")

    def _retire(self, link: DeviceLink) -> None:
        """Keep the connection for the answers that the incarnation may still give."""
        if link.connection is not None:
            if link.awaited and link.former is not None:
                self._receive(link, former=True)
            self._close_former(link)
            link.former = Attached(link.connection, link.generation, link.releases, link.number)
            link.connection = None
            self._receive(link, former=True)  # unread bytes that its descriptor does not signal any more

    def _connect(self, link: DeviceLink) -> None:
        """Connect to the latest known incarnation, and feed the result."""
        info, standby = link.info, link.standby
        if link.generation != info.generation:
            link.lost.clear()
            link.lost_parts.clear()
            link.told_failures = 0
            link.generation = info.generation
            link.releases = self._session.releases(info.index, info.generation)
            link.token = link.releases.token
        link.unread = False
        try:
            if standby is not None and standby.generation == info.generation and not standby.connection.ended:
                link.connection, link.number, link.standby = standby.connection, standby.number, None
            else:
                if link.state in _ATTEMPTS:
                    link.number = self._new_number()
                link.connection = self._connections.connect(link, info.endpoint)
        except OSError as error:
            if not link.lacks_descriptor:
                _LOG.error("device %d's worker cannot be reached, calls wait: %s", link.device, error)
            link.lacks_descriptor = True
            self._failed(link)
            return
        link.lacks_descriptor = False
        self._connections.connected(link, link.connection)
        self._feed(link, LinkEvent.CONNECTED)
        if link.connection.ready and link.state in _ATTEMPTS:
            self._admitted(link)

    def _admitted(self, link: DeviceLink) -> None:
        link.failures = 0
        self._feed(link, LinkEvent.ADMITTED)

    def _repeat(self, link: DeviceLink) -> None:
        """Name what was lost with connections; repeat the releases that the worker may have missed.

        It may never have read the parts of worlds' calls, and the other ranks have theirs: only it can end their epoch.
        """
        connection, releases = link.connection, link.releases
        assert connection is not None
        self._note_lost_parts(link)
        parts = [data.LostParts(world, epoch) for world, epoch in link.lost_parts.items()]
        for number in link.lost:
            unread = data.Unread(link.token, number, releases.read.get(number, 0), parts)
            connection.send(data.FROM_CLIENT.encode(unread), [])
        self._connections.repeat_releases(link)

    def _note_lost_parts(self, link: DeviceLink) -> None:
        for reply in _lost(link):
            if reply.gang is not None:
                link.lost_parts[reply.gang.world] = max(reply.gang.epoch, link.lost_parts.get(reply.gang.world, 0))

    def _failed(self, link: DeviceLink) -> None:
        link.failures += 1
        # A first connection to a new incarnation is not a further attempt.
        self._feed(link, failed(link.failures) if link.state in _ATTEMPTS else LinkEvent.REFUSED)

    def _prepare(self, link: DeviceLink, standby: StandbyInfo | None) -> None:
        """Connect to a standby beforehand, so that calls can go to it at once."""
        if link.standby is not None:
            self._connections.disconnect(link, link.standby.connection)
            link.standby = None
        if standby is not None:
            releases = self._session.releases(link.device, standby.generation)
            with contextlib.suppress(OSError):  # the standby is tried again when it takes calls
                connection = self._connections.connect(link, standby.endpoint)
                link.standby = Attached(connection, standby.generation, releases, link.number)

    def _close(self, link: DeviceLink) -> None:
        if link.connection is not None:
            self._connections.disconnect(link, link.connection)
            link.connection = None
        link.unread = False

    def _close_former(self, link: DeviceLink) -> None:
        if link.former is not None:
            self._connections.disconnect(link, link.former.connection)
            link.former = None

    def _drain(self, link: DeviceLink) -> None:
        if not self._session.workers_live:
            for connection in (link.former and link.former.connection, link.connection):
                if connection is not None:
                    connection.wait_disconnected(DRAIN_MS)
        self._receive(link)
        self.disconnect(link)

    def _unsend(self, link: DeviceLink) -> None:
        """Put back requests that have not left this process: they wait for an unfinished login, or for arguments."""
        if link.connection is None:
            return
        since_ns = link.connection.take_back() if link.connection.ready else 0
        if since_ns == NEVER:
            return
        lost = errors.Cancelled("cancelled before it was sent")
        for reply in reversed(_requests(link)):
            if _is_on(reply, link.generation) and reply.sent_ns >= since_ns:
                self._outcomes.feed(reply, ReplyEvent.LEFT, lost)

    # --- ends ------------------------------------------------------------------------------------------------------

    def _condemn(self, link: DeviceLink, ended: IncarnationEnded) -> None:
        if ended.error.code == errors.WorkerHung.code:
            # Some items of a call may be answered well, and parts of a stream may be on their way.
            in_parts = (ItemsReply, StreamReply)
            self._resolve_requests(
                link, ended, {each for each in ended.running if not isinstance(link.flight.find(each), in_parts)}
            )

    def _resolve_requests(self, link: DeviceLink, ended: IncarnationEnded, only: Container[int] | None = None) -> None:
        """Fail the requests of an ended incarnation; after a planned end, unstarted ones move on.

        Args:
            link: The link.
            ended: The report of the end.
            only: These requests, and no others; None for all.
        """
        facts = EndFacts(ended)
        back: list[Reply] = []
        lost: list[tuple[Reply, errors.RequestError]] = []
        for reply in _requests(link):
            if not _is_on(reply, ended.generation) or (only is not None and reply.id not in only):
                continue
            fate = facts.fate(reply.id, reply.sent_ns)
            if fate.moves_on and reply.state is not ReplyState.POISONED:
                back.append(reply)
                continue
            error = reply.poison_error or ended.error.error()
            if not isinstance(error, errors.RequestError):
                error = errors.WorkerLost(str(error), device=ended.device, generation=ended.generation)
            reply.poison_error = None
            error.maybe_executed = fate.maybe_executed
            if isinstance(error, errors.WorkerLost | errors.ContextPoisoned):
                error.was_running = fate.was_running
            lost.append((reply, error))
        for reply in reversed(back):
            error = errors.Cancelled("cancelled, and its worker has left without having started it")
            self._outcomes.feed(reply, ReplyEvent.LEFT, error)
        self._retry.resolve(link, ended, lost)
        if only is None:
            self._sender.end_stale(link, ended.generation)


def _requests(link: DeviceLink) -> list[Reply]:
    return [reply for _, reply in link.flight.items()]


def _lost(link: DeviceLink) -> list[Reply]:
    """Return the requests that were lost with a connection to the current incarnation."""
    return [reply for reply in _requests(link) if _is_on(reply, link.generation)]


def _is_on(reply: Reply, generation: int) -> bool:
    """Return whether an incarnation has a request, as far as this lane knows."""
    return reply.generation == generation and reply.state is not ReplyState.PARKED


_LEAVING: Final = frozenset({DeviceState.DRAINING, DeviceState.RETIRING})
"""States in which a worker finishes its requests."""

_WITH_LAST_ANSWERS: Final = frozenset({LinkState.SERVING, LinkState.HOLDING, LinkState.CLOSED})
"""States in which a connection may still bring an ended incarnation's answers."""

_ATTEMPTS: Final = frozenset({LinkState.TRYING, LinkState.PROBING})
_BETWEEN_ATTEMPTS: Final = frozenset({LinkState.CUT, LinkState.UNREACHABLE})
