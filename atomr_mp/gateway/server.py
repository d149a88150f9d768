"""The gateway at work: connections, sessions, keys, and the supervisor's messages."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.client.client import Client
from atomr_mp.client.sent_room import MAX_SENT_BYTES, SentRoom
from atomr_mp.gateway.admission import AdmittedKeys
from atomr_mp.gateway.bulk import BULK_TURN, BULK_UNSENT, BulkConnections
from atomr_mp.gateway.channel import SupervisorChannel
from atomr_mp.gateway.peers import RemotePeer
from atomr_mp.gateway.probe import check_refuses
from atomr_mp.gateway.sockets import Received, RouterSocket, SendOutcome
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import GATEWAY_PROBE
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.flow.flight import MAX_STREAMS, Window
from atomr_mp.protocol.messages import operators, remote, session
from atomr_mp.protocol.messages.session import check_version
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.remote.keys import AdmittedKey, ServerKeys, read_server
from atomr_mp.remote.resumption import Tally
from atomr_mp.remote.wire import check_library
from atomr_mp.transport.session import SessionConnection
from atomr_mp.wire.courier import Courier

_LOG: Final = logging.getLogger("atomr_mp.gateway")

FIND_S: Final = 10.0
"""How long the supervisor may take to say whether it knows a session."""

NO_SESSION: Final = "the gateway has no such session of this key: its client was away for too long, or has ended it"

TICK_S: Final = 1.0
"""How often connections are tried: libzmq tells of a lost connection only at a send."""

STOP_S: Final = 0.5
"""How long clients may take to hear of the pool's end."""

TOLD_SESSIONS: Final = 256
"""Most sessions that the supervisor is told of."""

QUESTIONS: Final = 4
"""Most questions of a session that are answered at a time."""


class Gateway:
    """Serves remote clients.

    Args:
        settings: Its settings.
    """

    def __init__(self, settings: remote.GatewaySettings) -> None:
        self._settings = settings
        self.epoch: Final = os.urandom(16)
        self.tally: Final = Tally()
        self.loop: asyncio.AbstractEventLoop
        self._admission: Final = AdmittedKeys(Path(settings.keys_dir) if settings.keys_dir else None)
        self._peers: dict[bytes, RemotePeer] = {}
        """Sessions by their ids."""
        self._connections: dict[bytes, RemotePeer] = {}
        """Sessions by the routing ids of their connections."""
        self._reopening: dict[bytes, Received] = {}
        """Latest hellos for former gateways' sessions that are being taken over, by the sessions' ids."""
        self._opening: set[bytes] = set()
        """Routing ids of connections whose local session is being made."""
        self._asking: Counter[bytes] = Counter()
        """Number of questions being answered, by session."""
        self._courier: Final = Courier("atomr-mp gateway courier")
        self._sent_room: Final = SentRoom(max(MAX_SENT_BYTES, settings.max_bytes // 4))
        """Room for the parts of all sessions' streams, kept in case a worker ends."""
        self._router: RouterSocket
        self._bulk: BulkConnections
        self._channel: SupervisorChannel
        self._listening = False
        self._offences = 0
        self._told: remote.GatewayFigures | None = None
        self._parting: dict[bytes, asyncio.Future[None]] = {}
        """Connections whose clients have to hear of the pool's end."""
        self._finding: dict[int, asyncio.Future[bool]] = {}
        self._asked: dict[int, RemotePeer] = {}
        """Sessions of former gateways for which the supervisor was asked about started calls, by question."""
        self._questions = 0
        self._full = False
        self._told_to_listen: asyncio.Future[None]
        self._stopped: asyncio.Future[str]

    async def serve(self) -> int:
        """Make everything ready, listen when told to, and serve until the pool ends; return the process's status."""
        loop = self.loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self._told_to_listen = loop.create_future()
        self._channel = SupervisorChannel(loop, self._settings.control, self._hear)
        check_library()
        keys = self._keys()
        await self._make_sockets(keys)
        await asyncio.wait((self._told_to_listen, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not self._stopped.done():
            if self._keys() != keys:  # the operator has made other keys while this gateway stood by
                self._close_sockets()
                await self._make_sockets(self._keys())
            self._admission.read()
            self._listen()
        why = await self._stopped
        for peer in list(self._peers.values()):
            if peer.routing_id is not None:
                self._parting[peer.routing_id] = loop.create_future()
            self.end(peer, errors.PoolLost(why))
        # When a connection ends, libzmq drops messages that its client has not read: so each client confirms them.
        if self._parting:
            await asyncio.wait(self._parting.values(), timeout=STOP_S)
        self._close_sockets()
        return 0

    def _keys(self) -> ServerKeys | None:
        return read_server(Path(self._settings.keys_dir)) if self._settings.keys_dir else None

    async def _make_sockets(self, keys: ServerKeys | None) -> None:
        """Make the sockets, which do not listen yet, and check that each refuses a random key."""
        self._router = RouterSocket(self.loop, self._admission, keys, self._take)
        self._bulk = BulkConnections(
            self, lambda take: RouterSocket(self.loop, self._admission, keys, take, BULK_UNSENT, BULK_TURN)
        )
        if keys is not None:
            await self._probe(self._router, keys.public)
            await self._probe(self._bulk.socket, keys.public)

    def _close_sockets(self) -> None:
        self._router.close()
        self._bulk.socket.close()

    def _listen(self) -> None:
        self._router.listen_on(self._settings.listener, self._settings.endpoint)
        host = self._settings.endpoint.rpartition(":")[0]
        self._bulk.socket.listen_on(self._settings.bulk_listener, f"{host}:{self._settings.bulk_port}")
        self._listening = True
        self._tick()

    async def _probe(self, socket: RouterSocket, server_public: str) -> None:
        """Check that a random key is refused, before any client can connect.

        Raises:
            NotAuthorized: It was not refused.
        """
        path = Path(self._settings.run_dir) / GATEWAY_PROBE
        socket.bind(f"ipc://{path}")
        try:
            await asyncio.to_thread(check_refuses, f"ipc://{path}", server_public)
        finally:
            socket.unbind(f"ipc://{path}")
            path.unlink(missing_ok=True)
        self._admission.refused = 0

    # --- for sessions ------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether all sessions together keep less than they may."""
        return self.tally.nbytes < self._settings.max_bytes

    def send(self, peer: RemotePeer, parts: Sequence[Buffer]) -> None:
        """Send a message, if the session has a connection."""
        if peer.routing_id is None:
            return
        match self._router.send(peer.routing_id, parts):
            case SendOutcome.GONE:
                self._cut(peer)
            case SendOutcome.STUCK:
                self.end(peer, errors.SessionLost("this client does not read what the gateway sends"))
            case SendOutcome.SENT:
                pass

    def pull(self, peer: RemotePeer) -> None:
        """Ask for chunks of a session's uploads, if it has a bulk connection."""
        self._bulk.pull(peer)

    def session_of(self, number: bytes, user_id: str | None) -> RemotePeer | None:
        """Return a session that belongs to a key."""
        peer = self._peers.get(number)
        return peer if peer is not None and peer.key == user_id and self._admission.find(user_id) else None

    def end(self, peer: RemotePeer, error: errors.AtomrError) -> None:
        """End a session, and tell its client why."""
        if peer.ended:
            return
        self._bulk.forget(peer)
        del self._peers[peer.id]
        routing_id = peer.routing_id
        if routing_id is not None:
            self._connections.pop(routing_id, None)
            self._say(routing_id, remote.RemoteGoodbye(ErrorInfo.of(error)))
        peer.close()
        self._tell("remote_end", f"the session of remote client {peer.name} has ended: {error.message}", peer)

    # --- messages --------------------------------------------------------------------------------------------------

    def _take(self, received: Received) -> None:
        peer = self._connections.get(received.routing_id)
        admitted = self._admission.find(received.user_id)
        try:
            if admitted is None:  # the key was admitted at the handshake, and has been revoked
                raise errors.NotAuthorized("this client's key is not admitted any more")
            if received.content is None:
                raise errors.ProtocolError("a message of several frames")
            header, frames = unpack(received.content)
            message = remote.FROM_REMOTE.decode(header)
            if (
                message.__class__ is remote.RemoteCalls
                and peer is not None
                and peer.ready
                and message.epoch == self.epoch
            ):
                peer.take_requests(message.settled, message.calls, frames)
            else:
                self._take_any(received, peer, admitted, message, frames)
        except errors.AtomrError as error:
            self._offend(received.routing_id, peer, error)
        except Exception as error:  # noqa: BLE001 - a message that we are not up to ends its session, and no other
            _LOG.exception("a message of a remote client")
            self._offend(received.routing_id, peer, errors.ProtocolError(f"the gateway failed: {error!r}"))

    def _take_any(
        self,
        received: Received,
        peer: RemotePeer | None,
        admitted: AdmittedKey,
        message: remote.FromRemote,
        frames: list[memoryview],
    ) -> None:
        if isinstance(message, remote.RemoteHello):
            self._greet(received, message, admitted)
        elif isinstance(message, remote.RemoteBye) and received.routing_id in self._parting:
            parted = self._parting[received.routing_id]
            if not parted.done():
                parted.set_result(None)
        elif peer is None or message.epoch != self.epoch:
            if received.routing_id not in self._opening:
                self._say(received.routing_id, remote.HelloWanted())
        else:
            self._take_from(peer, message, frames)

    def _offend(self, routing_id: bytes, peer: RemotePeer | None, error: errors.AtomrError) -> None:
        self._offences += 1
        if peer is not None:
            self.end(peer, error)
        else:
            self._say(routing_id, remote.RemoteGoodbye(ErrorInfo.of(error)))

    def _take_from(self, peer: RemotePeer, message: remote.FromRemote, frames: list[memoryview]) -> None:
        match message:
            case remote.Resume():
                peer.resume(message)
            case remote.RemoteBye():
                self.end(peer, errors.PoolLost("this client was closed"))
            case _ if not peer.ready:
                raise errors.ProtocolError("a connection begins with a hello and a resumption")
            case remote.RemoteQuestion():
                self._ask(peer, message.question)
            case _:
                peer.take(message, frames)

    def _greet(self, received: Received, hello: remote.RemoteHello, admitted: AdmittedKey) -> None:
        """Open a session, or give a connection the session that its client comes back to.

        Raises:
            AtomrError: The session is refused.
        """
        check_version(hello.version)
        routing_id = received.routing_id
        if routing_id in self._opening:
            return  # a repeated hello: its welcome is under way
        greeted = self._connections.get(routing_id)
        if greeted is not None:  # by a client that has taken this connection for two
            if hello.session not in (None, greeted.id):
                raise errors.ProtocolError("a connection has one session")
            greeted.attach(routing_id)
            greeted.welcome(self._settings.grace_s, self._settings.max_replays, self._settings.bulk_port)
            return
        if hello.session is not None:
            peer = self._peers.get(hello.session)
            before = self._reopening.get(hello.session)
            if peer is None and (before is None or before.user_id == received.user_id):
                self._opening.add(routing_id)
                self._reopening[hello.session] = received
                if before is None:
                    self.loop.create_task(self._reopen(received, hello, admitted, hello.session))
                else:  # that connection was cut meanwhile
                    self._opening.discard(before.routing_id)
                return
            if peer is None or peer.key != received.user_id:
                raise errors.SessionLost(NO_SESSION)
            if peer.routing_id is not None:
                self._connections.pop(peer.routing_id, None)
            peer.attach(routing_id)
            self._connections[routing_id] = peer
            peer.welcome(self._settings.grace_s, self._settings.max_replays, self._settings.bulk_port)
            return
        of_key = sum(peer.admitted.name == admitted.name for peer in self._peers.values())
        if of_key >= admitted.sessions or len(self._peers) + len(self._opening) >= self._settings.max_sessions:
            raise errors.Overloaded(
                f"key {admitted.name} has {of_key} sessions of {admitted.sessions}, the gateway "
                f"{len(self._peers)} of {self._settings.max_sessions}: close some, or allow more",
                retry_after_s=1.0,
            )
        self._opening.add(routing_id)
        self.loop.create_task(self._open(received, hello, admitted, os.urandom(16), former=False))

    async def _reopen(
        self, received: Received, hello: remote.RemoteHello, admitted: AdmittedKey, number: bytes
    ) -> None:
        """Take a session over from a gateway that has ended, if the supervisor knows it."""
        self._questions += 1
        question = self._questions
        found = self._finding[question] = self.loop.create_future()
        self._channel.tell(remote.FindSession(question, admitted.name, number))
        try:
            known = await asyncio.wait_for(found, FIND_S)
        except TimeoutError:
            known = False
        finally:
            del self._finding[question]
        if known:
            await self._open(received, hello, admitted, number, former=True)
        else:
            received = self._reopening.pop(number)
            self._opening.discard(received.routing_id)
            self._say(received.routing_id, remote.RemoteGoodbye(ErrorInfo.of(errors.SessionLost(NO_SESSION))))

    async def _open(
        self, received: Received, hello: remote.RemoteHello, admitted: AdmittedKey, number: bytes, *, former: bool
    ) -> None:
        """Make the local session, in a thread, since the supervisor has to answer."""
        origin = session.RemoteOrigin(admitted.name, number)
        try:
            client = await asyncio.to_thread(self._open_client, hello.client, admitted, origin)
        except (errors.AtomrError, OSError) as error:
            received = self._reopening.pop(number, received)
            self._opening.discard(received.routing_id)
            refused = error if isinstance(error, errors.AtomrError) else errors.Overloaded(str(error))
            self._say(received.routing_id, remote.RemoteGoodbye(ErrorInfo.of(refused)))
            return
        received = self._reopening.pop(number, received)
        self._opening.discard(received.routing_id)
        window = client.login.window
        streams = min(window.streams * len(client.devices), MAX_STREAMS)
        peer = RemotePeer(
            self,
            number,
            received.user_id,
            admitted,
            client,
            Window(
                min(window.requests * len(client.devices), remote.MAX_REMOTE_IDS - streams),
                min(window.payload_bytes * len(client.devices), admitted.max_bytes),
                streams,
            ),
            hello.client,
            former=former,
        )
        self._peers[number] = peer
        peer.attach(received.routing_id)
        self._connections[received.routing_id] = peer
        self._tell("remote_start", f"remote client {hello.client} connects from {received.address}", peer)
        peer.welcome(self._settings.grace_s, self._settings.max_replays, self._settings.bulk_port)

    def _open_client(self, name: str, admitted: AdmittedKey, origin: session.RemoteOrigin) -> Client:
        connection = SessionConnection.connect(Path(self._settings.session_socket), patient=False)  # others wait
        return Client(
            connection, name, weight=admitted.weight, courier=self._courier, sent_room=self._sent_room, origin=origin
        )

    # --- questions and orders --------------------------------------------------------------------------------------

    def _ask(self, peer: RemotePeer, question: remote.Question) -> None:
        try:
            if isinstance(question, operators.StopRequest):
                raise errors.Unsupported("a pool is stopped on its own machine (`atomr-mp stop`)")
            if not isinstance(question, _QUESTIONS) and not peer.admitted.operate:
                raise errors.NotAuthorized(f"key {peer.admitted.name} may not give orders (`keys admit --operate`)")
            if self._asking[peer.id] >= QUESTIONS:
                raise errors.Overloaded(f"{QUESTIONS} questions of this session are being answered")
        except errors.AtomrError as error:
            answer = session.Answer(question.id, ErrorInfo.of(error))
            self.send(peer, [remote.TO_REMOTE.encode(remote.RemoteTold(question.id, answer))])
            return
        self._asking[peer.id] += 1
        self.loop.create_task(self._answer(peer, question))

    async def _answer(self, peer: RemotePeer, question: remote.Question) -> None:
        answer: operators.Status | operators.Reloaded | operators.Residents | operators.Inventory | session.Answer
        try:
            answer = await asyncio.to_thread(self._relay, question)
        except (errors.AtomrError, TimeoutError, OSError) as error:
            found = error if isinstance(error, errors.AtomrError) else errors.Overloaded(str(error))
            answer = session.Answer(question.id, ErrorInfo.of(found))
        self._asking -= Counter([peer.id])
        encoded = remote.TO_REMOTE.encode(remote.RemoteTold(question.id, answer))
        if len(encoded) > remote.MAX_REMOTE_MESSAGE_BYTES:
            refused = errors.Unsupported(f"the answer takes {len(encoded)} bytes, more than a message may have")
            encoded = remote.TO_REMOTE.encode(
                remote.RemoteTold(question.id, session.Answer(question.id, ErrorInfo.of(refused)))
            )
        if not peer.ended:
            self.send(peer, [encoded])

    def _relay(
        self, question: remote.Question
    ) -> operators.Status | operators.Reloaded | operators.Residents | operators.Inventory | session.Answer:
        with OperatorSession(Path(self._settings.session_socket)) as observer:
            return observer.ask(question, 600.0 if isinstance(question, operators.ReloadRequest) else 10.0)

    # --- time, and the supervisor ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        ping = [remote.TO_REMOTE.encode(remote.RemotePing())]
        for peer in list(self._peers.values()):
            lost = peer.lost
            if lost is not None:
                self.end(peer, errors.SessionLost(f"the session in the pool has ended: {lost.message}"))
            elif peer.routing_id is not None:
                self.send(peer, ping)
            elif now - peer.cut_at > self._settings.grace_s:
                self.end(peer, errors.SessionLost(f"its client was away for more than {self._settings.grace_s:g} s"))
        self._look_at_descriptors()
        self._tell_figures()
        self._channel.tell(remote.GatewayAlive())
        self.loop.call_later(TICK_S, self._tick)

    def _cut(self, peer: RemotePeer) -> None:
        """Take in that a connection has ended; the session is kept for a time."""
        if peer.routing_id is not None:
            self._connections.pop(peer.routing_id, None)
        peer.detach()

    def _hear(self, message: remote.ToGateway) -> None:  # noqa: C901 - one case for each kind
        match message:
            case remote.KeysChanged(number):
                try:
                    self._admission.read()
                except errors.ConfigurationError as error:
                    self._channel.tell(remote.KeysRead(number, ErrorInfo.of(error)))
                    return
                for peer in list(self._peers.values()):
                    if self._admission.find(peer.key) is None:
                        self.end(peer, errors.SessionLost(f"key {peer.admitted.name} was revoked"))
                self._tell_figures()
                self._channel.tell(remote.KeysRead(number))
            case remote.SessionFound(number, found):
                waiting = self._finding.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(found)
            case remote.FatesKnown(number, started, known_since_ns):
                self._of_former(number, lambda peer: peer.fates_known(started, known_since_ns))
            case remote.SessionQuiet(number):
                self._of_former(number, RemotePeer.former_quiet)
                self._asked.pop(number, None)
            case remote.GatewayListens():
                if not self._told_to_listen.done():
                    self._told_to_listen.set_result(None)
            case remote.GatewayStops(why):
                if not self._stopped.done():
                    self._stopped.set_result(why)

    def ask_fates(self, peer: RemotePeer, unanswered: list[int]) -> None:
        """Ask the supervisor which of a former gateway's calls have started."""
        self._questions += 1
        self._asked[self._questions] = peer
        self._channel.tell(remote.AskFates(self._questions, peer.admitted.name, peer.id, unanswered))

    def _of_former(self, number: int, take: Callable[[RemotePeer], object]) -> None:
        peer = self._asked.get(number)
        if peer is not None and not peer.ended:
            try:
                take(peer)
            except errors.AtomrError as error:
                self.end(peer, error)

    def _look_at_descriptors(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        full = used > limit * 0.95
        if full and not self._full:
            self._channel.tell(
                remote.GatewayEvent(
                    "gateway_full",
                    f"the gateway has {used} of {limit} descriptors open: new connections wait, and its thread is busy "
                    "until some close; strangers may be the cause: put the gateway behind a firewall",
                )
            )
        self._full = full

    def _tell_figures(self) -> None:
        sessions = [peer.status() for peer in list(self._peers.values())[:TOLD_SESSIONS]]
        figures = remote.GatewayFigures(self._listening, sessions, self._admission.refused + self._offences)
        if figures != self._told:
            self._told = figures
            self._channel.tell(figures)

    def _tell(self, event: str, text: str, peer: RemotePeer) -> None:
        self._channel.tell(remote.GatewayEvent(event, text, peer.name, peer.admitted.name))
        self._tell_figures()

    def _say(self, routing_id: bytes, message: remote.ToRemote) -> None:
        self._router.send(routing_id, [remote.TO_REMOTE.encode(message)])


_QUESTIONS: Final = (operators.StatusRequest, operators.InventoryRequest, operators.ListResidents)
"""Questions that every key may ask."""
