"""A session's channel: a remote client's messages to the supervisor, and the answers.

Messages are decoded, since descriptors cannot travel: the relay maps memory in the client's place (`memory`). What a
client says of itself in its hello is replaced by what its key says (`rights`); the supervisor enforces that. Paths of
workers' sockets stay here.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.devices import DeviceInfo
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.process_tags import client_slab_name
from atomr_mp.protocol.tunnel.endpoints import carried
from atomr_mp.protocol.tunnel.ranges import SlabKey
from atomr_mp.relay.channel import RelayChannel, Send
from atomr_mp.relay.lane import UnixEnd
from atomr_mp.relay.memory import SessionMemory
from atomr_mp.relay.rights import SessionRights
from atomr_mp.supervisor.loop import Loop
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Incoming
from atomr_mp.transport.session import carrier_to_client


class SessionChannel(RelayChannel):
    """Carries a session's messages.

    Args:
        kind: Whether it may call.
        route: Its connection.
        send: Sends a packet.
        ended: Called with this when it has ended.
        loop: The relay's loop.
        path: The supervisor's socket.
        rights: What the supervisor is told of its rights.
        memory: Its memory.

    Raises:
        OSError: The supervisor does not listen, or its queue of connections is full.
    """

    def __init__(
        self,
        kind: ChannelKind,
        route: bytes,
        send: Send,
        ended: Callable[[Any], object],
        loop: Loop,
        path: Path,
        rights: SessionRights,
        memory: SessionMemory,
    ) -> None:
        super().__init__(kind, route, send, ended)
        self.rights: Final = rights
        self.client = ""
        """The client's name, from its hello."""
        self.resumes = False
        """Whether its client goes on with a session of another relay's."""
        self.is_whole = False
        """Whether the supervisor has said all with which the session begins: what belongs to it can be opened."""
        self._is_away = False
        """Whether the supervisor counts its client as away."""
        self.why = ""
        """Why it has ended, unless its client wanted it."""
        self._goodbye: errors.AtomrError | None = None
        """Why the supervisor ends it, once it has said so."""
        self.memory: Final = memory
        self.lanes: Final[set[RelayChannel]] = set()
        """Its channels to workers and for memory, which end with it."""
        self._endpoints: dict[int, dict[int, str]] = {}
        """Paths of workers' sockets, by device and generation."""
        self._opening: Final[dict[int, SlabKey]] = {}
        """Slabs that the client has asked for, by the question's id."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            connected.connect(str(path))
        except OSError:
            connected.close()
            raise
        self._far: Final = UnixEnd(loop, connected, self._on_ready)
        self._heard: Final = Incoming(connected, session.FROM_SUPERVISOR.decode, carrier_to_client)
        self._framing: Final = session.Framing()
        self._up: Final[deque[tuple[memoryview, int | None]]] = deque()
        """What the supervisor has not read yet, with descriptors that are closed once they are sent."""
        self._rest = memoryview(b"")
        """The rest of a message whose beginning was sent."""
        self._held_bytes = 0
        """Bytes of the client that are acknowledged once all of it is sent."""
        self._down = memoryview(b"")
        """What the client's window has no room for."""
        self._look()

    def look_for_client(self, own_s: float) -> None:
        """Tell the supervisor whether its client is away, if that has changed; `own_s` is the relay's own time."""
        away = self.away_s(own_s) > 0
        if away != self._is_away and self.client and not self.over:
            self._is_away = away
            self._tell(session.ClientAway(away))
            self._flush()

    def endpoint(self, device: int, generation: int) -> str:
        """Return the path of an incarnation's socket.

        Raises:
            DeviceUnavailable: The session was told of no such incarnation, or of its end.
        """
        found = self._endpoints.get(device, {}).get(generation)
        if found is None:
            raise errors.DeviceUnavailable(f"device {device} has no incarnation {generation}", device=device)
        return found

    def end(
        self, error: errors.AtomrError | None = None, *, tell: bool = True, keep: bool = True, say: bool = True
    ) -> None:
        """End it; the client gets an error as a goodbye of the supervisor, unless `say` is false: it has said one."""
        if not self.over and self._goodbye is not None:
            self.why = f"the supervisor has ended it: {self._goodbye.message}"
        elif not self.over and error is not None:
            self.why = error.message
        if error is not None and tell and say and not self.over:
            goodbye = session.frame(session.FROM_SUPERVISOR.encode(session.Goodbye(ErrorInfo.of(error))))
            if not self._down and len(goodbye) <= self._outgoing.room:
                self._say(goodbye)
        super().end(error, tell=tell, keep=keep)

    # --- from the client -------------------------------------------------------------------------------------------

    def _receive(self, payload: memoryview) -> None:
        self._held_bytes += len(payload)
        for framed in self._framing.feed(bytes(payload)):
            self._take_message(session.from_client(framed))
            if self.over:
                return
        self._flush()

    def _take_message(self, message: session.FromClient) -> None:
        if not self.client:
            if not isinstance(message, session.Hello):
                raise errors.ProtocolError("a session begins with a hello")
            self.client, self.resumes = message.client, message.resume is not None
            self._tell(self.rights.hello(message))
            return
        match message:
            case session.OpenSlab(number, device, generation, slab):
                self._opening[number] = SlabKey(slab, device, generation)
            case session.RegisterSlab(number, slab, nbytes):
                try:
                    self._tell(message, self.memory.make(slab, nbytes))
                except errors.AtomrError as error:
                    self._pass_down([session.Answer(number, ErrorInfo.of(error))])
                return
            case session.ForgetSlab(slab):
                self.memory.close(SlabKey(slab))
            case session.Bye():
                self.end(tell=True)
                return
            case session.ClientAway():
                raise errors.ProtocolError("only the relay says that a client is away")
        self._tell(message)

    def _tell(self, message: session.FromClient, descriptor: int | None = None) -> None:
        self._up.append((memoryview(session.frame(session.FROM_CLIENT.encode(message))), descriptor))

    def _flush(self) -> None:
        """Send what waits for the supervisor; acknowledge the client's bytes once nothing waits."""
        while self._up:
            data, descriptor = self._up[0]
            try:
                sent = descriptors.send(self._far.socket, data, descriptor)
            except BlockingIOError:
                break
            except OSError:
                self._drop_unsent()
                break
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                self._rest = data[sent:]
                self._up[0] = self._rest, None
            else:
                self._rest = memoryview(b"")
                self._up.popleft()
        if not self._up:
            self._passed_on(self._held_bytes)
            self._held_bytes = 0
            self._acknowledge()
        self._look()

    # --- from the supervisor ---------------------------------------------------------------------------------------

    def _on_ready(self, _events: int) -> None:
        self._flush()
        if self.over or self._down:
            return
        try:
            messages = self._heard.read()
        except BlockingIOError:
            return
        except (OSError, errors.ProtocolError):
            messages = None
        if messages is None:
            self._supervisor_left()
        else:
            self._pass_down([self._translate(message) for message in messages])

    def _supervisor_left(self) -> None:
        """End it for the reason that the supervisor gave. Without one, only the end of the connection is known."""
        said = self._goodbye
        if said is None:
            self.end(errors.PoolLost(ENDED_UNTOLD))
            return
        self.end(said, say=False)

    def _translate(self, message: session.FromSupervisor) -> session.FromSupervisor:
        match message:
            case session.Welcome(epoch=epoch, devices=devices):
                self.memory.name = client_slab_name(epoch)
                self.is_whole = not self.resumes
                return msgspec.structs.replace(message, devices=[self._note(device) for device in devices])
            case session.DeviceChanged(device):
                return msgspec.structs.replace(message, device=self._note(device))
            case session.SlabKept():
                self._restore(message)
            case session.SessionResumed():
                self.is_whole = True
            case session.Goodbye(error):
                self._goodbye = error.error()
            case session.SlabOpened(number):
                return self._map(message, self._opening.pop(number, None))
            case session.Answer(number):
                self._opening.pop(number, None)
        return message

    def _note(self, device: DeviceInfo) -> DeviceInfo:
        """Note where a device's incarnations listen; return what the client is to know of the device."""
        standby = device.standby
        found = {} if not device.endpoint else {device.generation: device.endpoint.removeprefix(IPC)}
        if standby is not None:
            found[standby.generation] = standby.endpoint.removeprefix(IPC)
            standby = msgspec.structs.replace(standby, endpoint=carried(device.index, standby.generation))
        self._endpoints[device.index] = found
        endpoint = carried(device.index, device.generation) if device.endpoint else ""
        return msgspec.structs.replace(device, endpoint=endpoint, standby=standby, retry_at=0.0)

    def _map(self, opened: session.SlabOpened, key: SlabKey | None) -> session.FromSupervisor:
        """Map a slab that the client has asked for."""
        descriptor = self._heard.take(opened.id)
        try:
            if key is None or descriptor is None:
                raise errors.Unsupported("this memory cannot be reached from another machine")
            with descriptor:
                self.memory.take(key, descriptor.fileno(), opened.nbytes)
        except errors.AtomrError as error:
            return session.Answer(opened.id, ErrorInfo.of(error))
        return session.SlabOpened(opened.id, opened.nbytes)

    def _restore(self, kept: session.SlabKept) -> None:
        """Map a slab that another relay has made for the client."""
        descriptor = self._heard.take(kept)
        if descriptor is not None:
            with descriptor:
                self.memory.restore(kept.slab, descriptor.fileno(), kept.nbytes)

    def _pass_down(self, messages: list[session.FromSupervisor]) -> None:
        framed = [session.frame(session.FROM_SUPERVISOR.encode(message)) for message in messages]
        self._down = memoryview(b"".join((self._down, *framed)))
        self._has_room()

    def _has_room(self) -> None:
        while self._down and not self.over and (room := self._outgoing.room) > 0:
            piece, self._down = self._down[:room], self._down[room:]
            self._say(piece)
        if not self.over:
            self._look()

    def _look(self) -> None:
        if not self.over:
            self._far.want(read=not self._down, write=bool(self._up))

    def _drop_unsent(self) -> None:
        for _, descriptor in self._up:
            if descriptor is not None:
                os.close(descriptor)
        self._up.clear()

    def _close(self) -> None:
        """Close all that belongs to the session, then tell the supervisor that its memory is unmapped."""
        for lane in list(self.lanes):
            lane.end()
        self.memory.close_all()
        self._drop_unsent()
        self._heard.close()
        bye = session.frame(session.FROM_CLIENT.encode(session.Bye(mapped=False))) if self.client else b""
        self._far.close_after(bytes(self._rest) + bye)


IPC: Final = "ipc://"

ENDED_UNTOLD: Final = (
    "the connection to the pool's supervisor has ended without a word: it was killed, or its log says why it has ended "
    "this session"
)
