"""All channels of the relay: which connection has which, how each begins and goes on, and how many a key may have.

A channel whose connection has ended is kept for a time, with what its client has not received. It is found again by its
name, which its client has chosen at random, and by its client's key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import operators
from atomr_mp.protocol.messages.session import check_version
from atomr_mp.protocol.messages.tunnel import CONTROL, ChannelEnded, ChannelKind, OpenChannel, ResumeChannel
from atomr_mp.protocol.tunnel.budget import MOST, SESSIONS, ChannelGrant, KeyBudgets, KeyLimits
from atomr_mp.protocol.tunnel.packets import PacketKind, pack, pack_control, unpack
from atomr_mp.protocol.values import Buffer
from atomr_mp.relay.channel import RelayChannel, Send
from atomr_mp.relay.lane import LaneChannel
from atomr_mp.relay.memory import MemoryChannel, SessionMemory, SlabRoom
from atomr_mp.relay.rights import SessionRights
from atomr_mp.relay.router import Origin
from atomr_mp.relay.session import SessionChannel
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.supervisor.loop import Loop

ROUTE_BYTES: Final = 5
"""Length of the routing ids that libzmq gives to connections. They begin with a zero byte; one that a client has chosen
does not, and is not taken: it may have been another client's."""

MOST_WAYS: Final = 8
"""Most living connections of a channel: a client that comes back has closed the one before."""

MOST_LAPSED: Final = 1024
"""Most sessions, ended while their clients were away, whose ends clients still hear when they come back."""

Found = Callable[[str], AdmittedKey | None]
"""Returns the admitted key of a connection by its `User-Id`."""
Tell = Callable[[str, str, str, str], object]
"""Notes an event: its name, its text, the client, and its key."""


AWAY: Final = "the client was away for more than {:g} s (`remote_grace_s`), so the relay has ended the session"


class UnknownSessionError(Exception):
    """A channel belongs to a session that is not here, or not yet."""


class TooManyWaysError(Exception):
    """A channel has too many living connections for one more, on which nothing is said."""


class NamedChannel(NamedTuple):
    """A channel that can be taken up again."""

    channel: RelayChannel
    opened: OpenChannel
    user_id: str
    """The connection's, which stands for the client's key."""


class RelayChannels:
    """The channels of all clients.

    Args:
        loop: The relay's loop.
        send: Sends a packet to a connection.
        find_key: Returns a connection's key.
        session_socket: The supervisor's socket.
        max_sessions: Most sessions at a time, of all keys.
        max_bytes: Most bytes that all clients' slabs may take.
        grace_s: How long a channel is kept without a connection.
        tell: Notes events.
    """

    def __init__(
        self,
        loop: Loop,
        send: Send,
        find_key: Found,
        session_socket: Path,
        max_sessions: int,
        max_bytes: int,
        grace_s: float,
        tell: Tell,
    ) -> None:
        self._loop = loop
        self._send = send
        self._find_key = find_key
        self._session_socket = session_socket
        self._budget: Final = KeyBudgets(max_sessions)
        self._room: Final = SlabRoom(max_bytes)
        self._grants: Final[dict[RelayChannel, ChannelGrant]] = {}
        """Windows of the channels that are not forgotten."""
        self.grace_s = grace_s
        self._looked_s = 0.0
        """The relay's own time at the last look."""
        self._tell = tell
        self._by_route: Final[dict[bytes, RelayChannel]] = {}
        """Channels by their connections, also by those that another has taken the place of: nothing that still comes
        from there counts."""
        self._dead: Final[set[bytes]] = set()
        """Connections that had ended at the last look."""
        self._by_name: Final[dict[bytes, NamedChannel]] = {}
        """Channels that can be taken up again; those of memory cannot, and need not."""
        self._sessions: Final[dict[bytes, tuple[SessionChannel, str]]] = {}
        """Sessions that are not over and the `User-Id` of their keys, by the names of their channels."""
        self._done: Final[set[bytes]] = set()
        """Connections whose channel has ended or was not opened, and that live. What an honest client has sent before
        it hears of that still comes, and is dropped."""
        self._lapsed: Final[dict[bytes, tuple[str, ChannelEnded]]] = {}
        """By name, the `User-Id` and the end of sessions that were forgotten before their clients could hear of it."""
        self._over: errors.AtomrError | None = None
        """Why nothing more is opened."""
        self.refused = 0
        """Channels and packets beyond a limit or the rules."""

    def take(self, route: bytes, packet: Buffer) -> bool:
        """Take a packet of a connection in; False if the connection has no channel."""
        channel = self._by_route.get(route)
        if channel is None:
            return route in self._done
        if channel.route == route:
            channel.take(packet)
            if channel.over and not channel.kept:
                self._forget(channel)
        return True

    def take_first(self, route: bytes, packet: Buffer, origin: Origin) -> None:
        """Take the first packet of a connection in, which opens a channel; tell the client if it is refused."""
        try:
            refusal = self._take_opening(route, packet, origin)
        except TooManyWaysError:
            self.refused += 1
            return
        except UnknownSessionError:  # another relay may have had it, and its client is about to go on with it here
            lost = errors.SessionLost("the relay has no such session of this key")
            refusal = ChannelEnded(ErrorInfo.of(lost), unknown=True)
        except OSError as error:  # what it leads to has ended, or is busy
            refusal = ChannelEnded(ErrorInfo.of(errors.Overloaded(f"the pool: {error.strerror}")))
        except errors.AtomrError as error:
            if not isinstance(error, errors.DeviceUnavailable | errors.PoolLost):  # no client could know of these
                self.refused += 1
            refusal = ChannelEnded(ErrorInfo.of(error))
        if refusal is not None:
            self._send(route, pack_control(refusal, 0))
        if route not in self._by_route and _is_own(route):
            self._done.add(route)

    def _take_opening(self, route: bytes, packet: Buffer, origin: Origin) -> ChannelEnded | None:
        """Open a channel, or take one up; return what a client hears whose channel has ended."""
        if not _is_own(route):
            raise errors.ProtocolError("a connection with a routing id of its own choice")
        key = self._find_key(origin.user_id)
        if self._over is not None:
            raise errors.unraised(self._over)
        if key is None:  # it was admitted at the handshake, and has been revoked
            raise errors.NotAuthorized("this client's key is not admitted any more")
        kind, acknowledged, payload = unpack(packet)
        message = CONTROL.decode(payload) if kind is PacketKind.CONTROL else None
        match message:
            case ChannelEnded():
                return None  # of a channel that has ended here meanwhile
            case OpenChannel(version):
                check_version(version)
                self._open(route, message, key, origin)
                return None
            case ResumeChannel(version):
                check_version(version)
                return self._resume(route, message, acknowledged, origin)
        raise errors.ProtocolError("this channel has ended, or was never opened")

    def revoke(self) -> None:
        """End the sessions whose keys were revoked, or have lost a right with which the session began."""
        for channel, user_id in list(self._sessions.values()):
            before, now = channel.rights.key, self._find_key(user_id)
            if now is None:
                channel.end(errors.SessionLost(f"key {before.name} was revoked"))
            elif lost := before.rights - now.rights:
                channel.end(
                    errors.SessionLost(f"key {before.name} is admitted without {' and '.join(sorted(lost))} now")
                )

    def end_all(self, error: errors.AtomrError) -> None:
        """End all sessions, and tell their clients why; open nothing more."""
        self._over = error
        for channel, _ in list(self._sessions.values()):
            channel.end(error)

    @property
    def is_telling(self) -> bool:
        """Whether a client that can be reached has not heard yet that a channel of it has ended."""
        return any(named.channel.kept and named.channel.connected for named in self._by_name.values())

    def look(self, own_s: float) -> None:
        """Find out which connections have ended, and end the channels that were without one for too long.

        Args:
            own_s: The relay's own time.
        """
        for route, channel in list(self._by_route.items()):
            if channel.route == route and channel.connected:
                channel.probe()
            elif self._is_over(route):
                self._by_route.pop(route, None)
        self._done.difference_update([route for route in self._done if self._is_over(route)])
        self._looked_s = own_s
        for session_of, _ in list(self._sessions.values()):
            session_of.look_for_client(own_s)
        for channel, _, user_id in list(self._by_name.values()):
            if channel.away_s(own_s) > self.grace_s:
                self._lapse(channel, user_id)

    def _is_over(self, route: bytes) -> bool:
        """Whether a connection had ended at the last look, so that all that had come from there was read since."""
        if self._send(route, pack(b"", 0)):
            self._dead.discard(route)
            return False
        over = route in self._dead
        if over:
            self._dead.discard(route)
        else:
            self._dead.add(route)
        return over

    def _lapse(self, channel: RelayChannel, user_id: str) -> None:
        """End a channel whose client was away for too long."""
        is_session = channel.kind in SESSIONS
        channel.end(errors.SessionLost(AWAY.format(self.grace_s)), tell=is_session, keep=False)
        channel.kept = False
        self._forget(channel)
        if is_session and channel.ending is not None:
            self._lapsed[channel.name] = user_id, channel.ending
            if len(self._lapsed) > MOST_LAPSED:
                del self._lapsed[next(iter(self._lapsed))]

    def statuses(self) -> Iterator[operators.RemoteSessionStatus]:
        """Yield the sessions that may call."""
        for channel, _ in list(self._sessions.values()):
            if channel.kind is ChannelKind.SESSION and channel.client:
                kept = channel.kept_bytes + sum(lane.kept_bytes for lane in channel.lanes)
                here = channel.connected and not channel.away_s(self._looked_s)
                yield operators.RemoteSessionStatus(
                    channel.client, channel.rights.key.name, connected=here, kept_bytes=kept
                )

    def _open(self, route: bytes, opened: OpenChannel, key: AdmittedKey, origin: Origin) -> None:
        before = self._by_name.get(opened.channel)
        if before is not None:  # the client was cut before it has heard that it is open
            if before.user_id != origin.user_id or before.opened != opened:
                raise errors.ProtocolError("a channel of this name is open")
            if self._ways_of(before.channel) > MOST_WAYS:
                raise TooManyWaysError
            self._by_route[route] = before.channel
            before.channel.reopen(route, self.grace_s)
            if before.channel.over and not before.channel.kept:
                self._forget(before.channel)
            return
        if opened.kind is ChannelKind.MEMORY:
            self._end_oldest(opened.session, origin.user_id)
        limits = KeyLimits(key.name, key.sessions, key.max_bytes)
        grant = self._budget.admit(limits, opened.kind, opened.session)
        try:
            channel = self._new(route, opened, key, origin)
        except BaseException:
            self._budget.release(grant)
            raise
        self._grants[channel] = grant
        channel.limit(grant.window)
        self._by_route[route] = channel
        if opened.kind is not ChannelKind.MEMORY:
            channel.name = opened.channel
            self._by_name[channel.name] = NamedChannel(channel, opened, origin.user_id)
        channel.open(self.grace_s)

    def _end_oldest(self, session: bytes, user_id: str) -> None:
        """Make room for another channel of memory: the oldest may be of a connection whose end was not noticed yet."""
        if self._sessions.get(session, (None, ""))[1] != user_id:
            return
        of_session = [each for each, grant in self._grants.items() if grant[1:3] == (ChannelKind.MEMORY, session)]
        for each in of_session[: max(0, len(of_session) + 1 - MOST[ChannelKind.MEMORY])]:
            each.end()

    def _new(self, route: bytes, opened: OpenChannel, key: AdmittedKey, origin: Origin) -> RelayChannel:
        if opened.kind in SESSIONS:
            rights = SessionRights(key, opened.kind)
            session_of = SessionChannel(
                opened.kind,
                route,
                self._send,
                self._ended,
                self._loop,
                self._session_socket,
                rights,
                SessionMemory(key.max_bytes, self._room),
            )
            self._sessions[opened.channel] = session_of, origin.user_id
            if opened.kind is ChannelKind.SESSION:
                self._tell("remote_start", f"a remote client connects from {origin.address}", key.name, key.name)
            return session_of
        of, user_id = self._sessions.get(opened.session, (None, ""))
        if of is None or user_id != origin.user_id or not of.is_whole or of.kind is not ChannelKind.SESSION:
            raise UnknownSessionError
        channel: RelayChannel
        if opened.kind is ChannelKind.LANE:
            key_of_lane = opened.device, opened.generation
            path = of.endpoint(*key_of_lane)
            channel = LaneChannel(route, self._send, self._ended, self._loop, path, key_of_lane)
        else:
            channel = MemoryChannel(route, self._send, self._ended, of.memory)
        of.lanes.add(channel)
        return channel

    def _resume(self, route: bytes, resumed: ResumeChannel, acknowledged: int, origin: Origin) -> ChannelEnded | None:
        """Go on with a channel on another connection; return its end if it has ended."""
        found = self._by_name.get(resumed.channel)
        if found is None:
            user_id, ending = self._lapsed.get(resumed.channel, ("", None))
            if ending is not None and user_id == origin.user_id:
                return ending
        if found is None or found.user_id != origin.user_id:
            lost = errors.SessionLost("the relay does not know this channel: it was cut for too long, or is another's")
            return ChannelEnded(ErrorInfo.of(lost), unknown=True)
        if self._ways_of(found.channel) > MOST_WAYS:
            raise TooManyWaysError
        self._by_route[route] = found.channel
        found.channel.resume(route, acknowledged, resumed.received)
        if found.channel.over and not found.channel.kept:
            self._forget(found.channel)
        return None

    def _ways_of(self, channel: RelayChannel) -> int:
        """Return how many connections of a channel live: what was sent on each of them waits until its client reads."""
        return sum(self._send(route, pack(b"", 0)) for route, each in list(self._by_route.items()) if each is channel)

    def _ended(self, channel: RelayChannel) -> None:
        if isinstance(channel, SessionChannel):
            name = next((name for name, (each, _) in self._sessions.items() if each is channel), None)
            if name is not None:
                del self._sessions[name]
            if channel.kind is ChannelKind.SESSION and channel.client:
                why = f": {channel.why}" if channel.why else ""
                text = f"the session of remote client {channel.client} has ended{why}"
                self._tell("remote_end", text, channel.client, channel.rights.key.name)
        else:
            for each, _ in self._sessions.values():
                each.lanes.discard(channel)
        if not channel.kept:
            self._forget(channel)

    def _forget(self, channel: RelayChannel) -> None:
        """Forget a channel: its client has everything, or is refused it."""
        if self._by_route.pop(channel.route, None) is not None and channel.connected:
            self._done.add(channel.route)
        self._dead.discard(channel.route)
        self._by_name.pop(channel.name, None)
        grant = self._grants.pop(channel, None)
        if grant is not None:
            self._budget.release(grant)


def _is_own(route: bytes) -> bool:
    """Whether libzmq has chosen a routing id."""
    return len(route) == ROUTE_BYTES and not route[0]
