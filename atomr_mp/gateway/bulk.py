"""The gateway's bulk connections, which carry chunks of large calls and answers.

They have a port and a libzmq I/O thread of their own, so that small calls do not wait behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from atomr_mp import checks, errors
from atomr_mp.gateway.peers import RemotePeer
from atomr_mp.gateway.sockets import Received, RouterSocket
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.remote.blobs import chunk_message

BULK_UNSENT: Final = 64
"""Most chunks that wait for a client that does not read."""


BULK_TURN: Final = 2
"""Most chunks that are taken before the loop serves small calls."""


class BulkHost(Protocol):
    """The gateway, as its bulk connections see it."""

    @property
    def epoch(self) -> bytes:
        """The id of this life of the gateway."""

    def session_of(self, number: bytes, user_id: str | None) -> RemotePeer | None:
        """Return a session that belongs to a key."""

    def end(self, peer: RemotePeer, error: errors.AtomrError) -> None:
        """End a session."""


@checks.owned(by_maker=True)
class BulkConnections:
    """All bulk connections.

    Args:
        host: The gateway.
        make: Makes the socket, from the function that takes its messages.
    """

    def __init__(self, host: BulkHost, make: Callable[[Callable[[Received], None]], RouterSocket]) -> None:
        self._host = host
        self.socket: Final = make(self._take)
        self._peers: dict[bytes, RemotePeer] = {}
        """Sessions by routing id."""
        self._routing_ids: dict[bytes, bytes] = {}
        """Routing ids by session."""

    def pull(self, peer: RemotePeer) -> None:
        """Ask for chunks of a session's uploads, if it has a bulk connection."""
        routing_id = self._routing_ids.get(peer.id)
        if routing_id is None:
            return
        for number, offset, nbytes in peer.uploads.wants():
            self._send(routing_id, remote.BulkWant(self._host.epoch, number, offset, nbytes))

    def forget(self, peer: RemotePeer) -> None:
        """Drop a session that has ended."""
        routing_id = self._routing_ids.pop(peer.id, None)
        if routing_id is not None:
            self._peers.pop(routing_id, None)

    def _take(self, received: Received) -> None:
        peer = self._peers.get(received.routing_id)
        try:
            if received.content is None:
                raise errors.ProtocolError("a message of several frames")
            header, frames = unpack(received.content)
            message = remote.FROM_REMOTE_BULK.decode(header)
            if isinstance(message, remote.BulkHello):
                self._greet(received, message)
            elif peer is None or peer.ended or message.epoch != self._host.epoch:
                self._send(received.routing_id, remote.HelloWanted())
            elif isinstance(message, remote.BulkWant):
                self._serve(received.routing_id, peer, message)
            elif len(frames) == 1 and not message.part:
                peer.uploads.take_chunk(message.id, message.offset, frames[0])
                self.pull(peer)
            else:
                raise errors.ProtocolError("a chunk has one payload frame")
        except errors.AtomrError as error:
            if peer is not None and not peer.ended:
                self._host.end(peer, error)
            else:
                self._send(received.routing_id, remote.RemoteGoodbye(ErrorInfo.of(error)))

    def _greet(self, received: Received, hello: remote.BulkHello) -> None:
        peer = self._host.session_of(hello.session, received.user_id)
        if peer is None or hello.epoch != self._host.epoch:
            self._send(received.routing_id, remote.HelloWanted())
            return
        self.forget(peer)
        self._peers[received.routing_id] = peer
        self._routing_ids[peer.id] = received.routing_id
        self._send(received.routing_id, remote.BulkWelcome())
        peer.uploads.restart()
        self.pull(peer)

    def _serve(self, routing_id: bytes, peer: RemotePeer, want: remote.BulkWant) -> None:
        blob = peer.blob(want.id, want.part)
        if blob is None:  # the client has settled the call meanwhile
            return
        try:
            data = blob.pieces(want.offset, want.nbytes)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        self._send(routing_id, remote.BulkData(self._host.epoch, want.id, want.offset, want.part), data)

    def _send(self, routing_id: bytes, message: remote.ToRemoteBulk, data: Sequence[Buffer] = ()) -> None:
        """Send a message. A receiver asks again, on the next connection, for a message that was lost."""
        header = remote.TO_REMOTE_BULK.encode(message)
        self.socket.send(routing_id, chunk_message(header, data) if data else [header])
