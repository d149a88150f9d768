"""All channels of the relay: which connection has which, how each is opened, and how many a key may have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import operators
from atomr_mp.protocol.messages.session import check_version
from atomr_mp.protocol.messages.tunnel import CONTROL, ChannelEnded, ChannelKind, OpenChannel
from atomr_mp.protocol.tunnel.packets import PacketKind, pack_control, unpack
from atomr_mp.protocol.values import Buffer
from atomr_mp.relay.channel import RelayChannel
from atomr_mp.relay.lane import LaneChannel
from atomr_mp.relay.memory import MemoryChannel
from atomr_mp.relay.rights import SessionRights
from atomr_mp.relay.router import Origin
from atomr_mp.relay.session import SessionChannel
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.supervisor.loop import Loop

_LOG: Final = logging.getLogger("atomr_mp.relay")

MAX_LANES: Final = 4096
"""Most channels that belong to one session: as many lanes as a client may have, to some devices and their standbys."""

ROUTE_BYTES: Final = 5
"""Length of the routing ids that libzmq gives to connections. They begin with a zero byte; one that a client has chosen
does not, and is not taken: it may have been another client's."""

Found = Callable[[str], AdmittedKey | None]
"""Returns the admitted key of a connection by its `User-Id`."""
Send = Callable[[bytes, bytes], bool]
"""Sends a packet to a connection; False if that has ended."""
Tell = Callable[[str, str, str, str], object]
"""Notes an event: its name, its text, the client, and its key."""


class RelayChannels:
    """The channels of all clients.

    Args:
        loop: The relay's loop.
        send: Sends a packet to a connection.
        find_key: Returns a connection's key.
        session_socket: The supervisor's socket.
        max_sessions: Most sessions at a time, of all keys.
        tell: Notes events.
    """

    def __init__(
        self, loop: Loop, send: Send, find_key: Found, session_socket: Path, max_sessions: int, tell: Tell
    ) -> None:
        self._loop = loop
        self._send = send
        self._find_key = find_key
        self._session_socket = session_socket
        self._max_sessions = max_sessions
        self._tell = tell
        self._by_route: Final[dict[bytes, RelayChannel]] = {}
        self._sessions: Final[dict[bytes, tuple[SessionChannel, str]]] = {}
        """Sessions and the `User-Id` of their keys, by the names of their channels."""
        self.refused = 0
        """Packets and channels that were refused."""

    def take(self, route: bytes, packet: Buffer) -> bool:
        """Take a packet of a connection in; False if the connection has no channel."""
        channel = self._by_route.get(route)
        if channel is None:
            return False
        channel.take(packet)
        return True

    def take_first(self, route: bytes, packet: Buffer, origin: Origin) -> None:
        """Take the first packet of a connection in, which opens a channel; tell the client if it is refused."""
        try:
            if len(route) != ROUTE_BYTES or route[0]:
                raise errors.ProtocolError("a connection with a routing id of its own choice")
            key = self._find_key(origin.user_id)
            if key is None:  # it was admitted at the handshake, and has been revoked
                raise errors.NotAuthorized("this client's key is not admitted any more")
            kind, _, payload = unpack(packet)
            opened = CONTROL.decode(payload) if kind is PacketKind.CONTROL else None
            if isinstance(opened, ChannelEnded):
                return  # of a channel that has ended here meanwhile
            if not isinstance(opened, OpenChannel):
                raise errors.ProtocolError("this channel has ended, or was never opened")
            check_version(opened.version)
            self._open(route, opened, key, origin)
        except (errors.AtomrError, OSError) as error:
            self.refused += 1
            refusal = (
                error if isinstance(error, errors.AtomrError) else errors.Overloaded(f"the pool: {error.strerror}")
            )
            self._send(route, pack_control(ChannelEnded(ErrorInfo.of(refusal)), 0))

    def revoke(self) -> None:
        """End the sessions whose keys were revoked."""
        for channel, user_id in list(self._sessions.values()):
            if self._find_key(user_id) is None:
                channel.end(errors.SessionLost(f"key {channel.rights.key.name} was revoked"))

    def end_all(self, error: errors.AtomrError) -> None:
        """End all sessions, and tell their clients why."""
        for channel, _ in list(self._sessions.values()):
            channel.end(error)

    def probe(self) -> None:
        """End the channels whose connections have ended."""
        for channel in list(self._by_route.values()):
            channel.probe()

    def statuses(self) -> Iterator[operators.RemoteSessionStatus]:
        """Yield the sessions that may call."""
        for channel, _ in list(self._sessions.values()):
            if channel.kind is ChannelKind.SESSION and channel.client:
                kept = channel.kept_bytes + sum(lane.kept_bytes for lane in channel.lanes)
                yield operators.RemoteSessionStatus(
                    channel.client, channel.rights.key.name, connected=True, open_calls=0, kept_bytes=kept, refs=0
                )

    def _open(self, route: bytes, opened: OpenChannel, key: AdmittedKey, origin: Origin) -> None:
        send = partial(self._send, route)
        ended = partial(self._ended, route)
        channel: RelayChannel
        if opened.kind in _SESSIONS:
            if opened.channel in self._sessions:
                raise errors.ProtocolError("a session of this name is open")
            self._check_room(opened.kind, key)
            rights = SessionRights(key, opened.kind, opened.channel)
            channel = SessionChannel(opened.kind, send, ended, self._loop, self._session_socket, rights)
            self._sessions[opened.channel] = channel, origin.user_id
            if opened.kind is ChannelKind.SESSION:
                self._tell("remote_start", f"a remote client connects from {origin.address}", key.name, key.name)
        else:
            of, user_id = self._sessions.get(opened.session, (None, ""))
            if of is None or user_id != origin.user_id or of.kind is not ChannelKind.SESSION:
                raise errors.SessionLost("the relay has no such session of this key")
            if len(of.lanes) >= MAX_LANES:
                raise errors.Overloaded(f"this session has {MAX_LANES} connections")
            if opened.kind is ChannelKind.LANE:
                key_of_lane = opened.device, opened.generation
                channel = LaneChannel(send, ended, self._loop, of.endpoint(*key_of_lane), key_of_lane)
            else:
                channel = MemoryChannel(send, ended, of.memory)
            of.lanes.add(channel)
        self._by_route[route] = channel
        channel.open()

    def _check_room(self, kind: ChannelKind, key: AdmittedKey) -> None:
        of_key = sum(each.rights.key.name == key.name and each.kind is kind for each, _ in self._sessions.values())
        of_kind = sum(each.kind is kind for each, _ in self._sessions.values())
        if of_key >= key.sessions or of_kind >= self._max_sessions:
            raise errors.Overloaded(
                f"key {key.name} has {of_key} sessions of {key.sessions}, the pool {of_kind} of {self._max_sessions}: "
                "close some, or allow more",
                retry_after_s=1.0,
            )

    def _ended(self, route: bytes, channel: RelayChannel) -> None:
        self._by_route.pop(route, None)
        if isinstance(channel, SessionChannel):
            name = next((name for name, (each, _) in self._sessions.items() if each is channel), None)
            if name is not None:
                del self._sessions[name]
            if channel.kind is ChannelKind.SESSION and channel.client:
                why = f": {channel.why}" if channel.why else ""
                text = f"the session of remote client {channel.client} has ended{why}"
                self._tell("remote_end", text, channel.client, channel.rights.key.name)
            return
        for each, _ in self._sessions.values():
            each.lanes.discard(channel)


_SESSIONS: Final = frozenset({ChannelKind.SESSION, ChannelKind.OPERATOR})
