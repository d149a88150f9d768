"""The supervisor's sessions: the connected clients, messages to them, and their requests."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import select
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from atomr_mp import checks, errors
from atomr_mp.protocol.codec import VERSION, ErrorInfo, clip
from atomr_mp.protocol.exceptions import traceback_of
from atomr_mp.protocol.messages import control, operators, session, suspects
from atomr_mp.protocol.messages.devices import ActorInfo, WorldInfo
from atomr_mp.protocol.messages.rights import kernels_refusal, refusal_of, without_tracebacks
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.actor_homes import actors_of_pool
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.suspicion import Death
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.device.listener import Tell
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import Plan
from atomr_mp.supervisor.sessions import slabs
from atomr_mp.supervisor.sessions.descriptor_limit import check_room
from atomr_mp.supervisor.sessions.lasting import LastingSession
from atomr_mp.supervisor.sessions.result_slabs import KeptResultSlabs
from atomr_mp.supervisor.sessions.session_reclaim import SessionReclaim
from atomr_mp.supervisor.sessions.slabs import workers_of
from atomr_mp.supervisor.sessions.suspects import Suspects
from atomr_mp.supervisor.sessions.traces import PoolTraces
from atomr_mp.transport.descriptors import Descriptor
from atomr_mp.transport.session import SessionListener, SessionPeer, refusal


class SessionWorlds(Protocol):
    """The worlds that sessions make."""

    def make(self, session: int, devices: Sequence[int], answer: Callable[[int | errors.AtomrError], None]) -> None:
        """Make a world of a session; answer with its number, or with the error if it cannot be."""

    def close(self, session: int, number: int) -> None:
        """End a world of a session; do nothing if it has none of this number."""

    def session_ended(self, session: int) -> None:
        """End all worlds of a session."""


_LOG: Final = logging.getLogger("atomr_mp.supervisor")

HELLO_S: Final = 10.0
"""How long a connection may stay silent before its hello."""

NAME_CHARS: Final = 40
"""Longest name of a client in an inventory, which has one for each session."""

ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a failed accept: the waiting client would be tried without end otherwise."""


Order = (
    operators.RestartRequest
    | operators.ReloadRequest
    | operators.StopRequest
    | operators.ListResidents
    | operators.FreeResident
    | operators.AdmitRequest
    | operators.ReadKeys
)
"""Messages of operators, and messages that may change a status."""

Question = operators.StatusRequest | operators.InventoryRequest
"""Messages that are answered with a snapshot of the pool."""

Respond = Callable[[session.FromSupervisor], None]
"""Answers a client's message, now or later; a client that has gone gets no answer."""


class ClientSession:
    """A connected client."""

    def __init__(self, number: int, peer: SessionPeer, *, owner: bool) -> None:
        self.number: Final = number
        self.peer = peer
        """Its connection; of a session that lasts, the latest."""
        self.owner: Final = owner
        self.name = ""
        """Empty before the hello."""
        self.observer = True
        self.shared_memory = False
        """Whether it can open slabs."""
        self.slab_offers = False
        """Whether it maps slabs before it needs them."""
        self.weight = 1.0
        """Its share of a busy device's time, beside others."""
        self.origin: session.RemoteOrigin | None = None
        """The client on another machine that it serves, if any."""
        self.lasting: LastingSession | None = None
        """What it keeps for further connections, if there may be some."""
        self.hello_timer: Timer | None = None
        self.session: Final = os.urandom(16)
        self.secret: Final = os.urandom(16)
        self.closed = False
        self.away = False
        """Whether its remote client cannot be reached, as the relay says."""
        self.unreached: dict[int, session.Reach] = {}
        """Devices to which its attempts to connect fail, by its last report."""

    def take_reach(self, message: session.Reach, devices: int) -> None:
        """Keep its report on connections to a device, if there is such a device."""
        self.unreached.pop(message.device, None)
        if message.failures and message.device < devices:
            self.unreached[message.device] = message

    @property
    def may_call(self) -> bool:
        """Whether the workers know this session."""
        return bool(self.name) and not self.observer

    @property
    def key(self) -> str:
        """The name of a remote client's key, whose sessions share one weight; empty for others."""
        return "" if self.origin is None else self.origin.key

    @property
    def sees_tracebacks(self) -> bool:
        """Whether errors show its client the inside of actors."""
        return self.origin is None or self.origin.operate

    @property
    def is_cut(self) -> bool:
        """Whether it has no connection, and waits for another."""
        return self.lasting is not None and self.lasting.is_cut

    @property
    def pid(self) -> int | None:
        """The process at the other end; None without a connection."""
        return None if self.is_cut else self.peer.credentials.pid

    @property
    def state(self) -> str:
        """Its purpose, in a word."""
        if self.is_cut:
            return "cut"
        return "calls" if self.may_call else "observes" if self.name else "connects"


@checks.owned(by_maker=True)
class Sessions:
    """All connected clients.

    Args:
        plan: The pool's plan.
        epoch: The pool's epoch.
        loop: The supervisor's loop.
        devices: The pool's devices, by index; complete before the first client comes.
        describe: Returns the snapshot that a client asks for.
        carry_out: Carries out an order; takes the client's name, the order, and what answers it.
        unreached: Called when a client cannot connect to a worker: its socket's file may have been removed.
        owner_gone: Called when the session to which the pool's life is bound has ended.
        worlds: Returns the worlds that a session may use, by its number.
        made_worlds: Returns the worlds of sessions; None if sessions make none.
    """

    def __init__(
        self,
        plan: Plan,
        epoch: bytes,
        loop: Loop,
        devices: Sequence[SupervisedDevice],
        *,
        describe: Callable[[Question], operators.Status | operators.Inventory],
        carry_out: Callable[[str, Order, Respond], None],
        unreached: Callable[[], None],
        owner_gone: Callable[[], None],
        worlds: Callable[[int], list[WorldInfo]] = lambda _session: [],
        made_worlds: Callable[[], SessionWorlds | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._epoch = epoch
        self._loop = loop
        self._devices = devices
        self._describe = describe
        self._carry_out = carry_out
        self._unreached = unreached
        self._owner_gone = owner_gone
        self._worlds = worlds
        self._made_worlds = made_worlds
        self._sessions: dict[int, ClientSession] = {}
        self.results: Final = KeptResultSlabs(loop, lambda device: plan.devices[device].execution.memory_bytes)
        self._slabs = slabs.Slabs(devices, self._reply, self.results)
        self.suspects: Final = Suspects(plan.settings.max_suspicions, loop, devices, self._announce)
        self._reclaim = SessionReclaim(loop, devices)
        self._traces: Final = PoolTraces(loop, devices, lambda message: self._tell_all(lambda _: message))
        self._last_number = 0
        self._keeps = True
        """Whether sessions that can go on are kept without a connection."""
        self._listener: SessionListener | None = None
        """The listener whose connections are taken."""
        self._actors: list[ActorInfo] = []
        self._snapshots: dict[type[Question], operators.Status | operators.Inventory] = {}
        """Snapshots for all questions of one read, so that a client that asks without end does not keep the others
        waiting."""
        self.refused = 0

    def __len__(self) -> int:
        return sum(1 for each in self._sessions.values() if each.may_call)

    def held(self) -> list[operators.SessionHeld]:
        """Return all sessions, and ended ones whose memory was not given back yet."""
        living = [
            operators.SessionHeld(each.number, clip(each.name, NAME_CHARS) or "?", each.pid, each.state, each.weight)
            for each in self._sessions.values()
        ]
        return living + [operators.SessionHeld(number, "?", pid, state) for number, state, pid in self._reclaim.waiting]

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of clients' memory that are kept open."""
        return self._slabs.descriptors

    def client_of(self, number: int) -> str:
        """Return words for the client of a session."""
        each = self._sessions.get(number)
        if each is None:
            return f"session {number}, which has ended"
        name = clip(each.name, NAME_CHARS) or "?"
        if each.origin is None:
            return f"client {name} (pid {each.pid})"
        return f"remote client {name} (key {each.key}{', away' if each.away or each.is_cut else ''})"

    def listen(self, listener: SessionListener) -> None:
        """Accept new connections."""
        self._listener = listener

        def accept(_events: int) -> None:
            try:
                peer = listener.accept()
            except OSError as error:  # no descriptor is left: the client waits in the backlog
                _LOG.warning("a client cannot be accepted: %s", error)
                self._loop.forget(listener.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, watch)
                return
            if peer is not None:
                self.add(peer, owner=False)

        def watch() -> None:
            if listener is self._listener:  # or its socket was made anew
                self._loop.watch(listener.fileno(), select.EPOLLIN, accept)

        watch()

    def add(self, peer: SessionPeer, *, owner: bool) -> None:
        """Take a connection in, if its process may connect.

        Args:
            peer: The connection.
            owner: Whether the pool's life is bound to this session.
        """
        self._last_number += 1
        added = self._sessions[self._last_number] = ClientSession(self._last_number, peer, owner=owner)
        refused = refusal(peer.credentials) or _crowded(peer)
        if refused is not None:
            self.refused += 1
            self._end(added, refused)
            return
        self._loop.watch(peer.fileno(), select.EPOLLIN, lambda events: self._on_ready(added, events))

        def expect_hello() -> None:
            self.refused += 1
            self._end(added, errors.ProtocolError(f"no hello within {HELLO_S:g} s"))

        added.hello_timer = self._loop.call_later(HELLO_S, expect_hello)

    def drain(self) -> None:
        """End the sessions that have no connection, now and from now on: the pool stops, and waits for none of them."""
        self._keeps = False
        for each in [each for each in self._sessions.values() if each.is_cut]:
            self._end(each, None)

    def close(self, error: errors.AtomrError) -> None:
        """End all sessions."""
        for each in list(self._sessions.values()):
            self._end(each, error)
        self._reclaim.close()

    # --- what devices tell -----------------------------------------------------------------------------------------

    def introductions(self, device: int) -> Iterable[tuple[control.FromSupervisor, Descriptor | None]]:
        """Yield the messages that introduce every client to a device's worker; the descriptors are the receiver's."""
        for each in list(self._sessions.values()):
            if each.may_call:
                yield self._introduction(each), None
                if each.away:
                    yield control.SessionAway(each.number, away=True), None
                yield from self._slabs.introductions(each.number, device)
        yield from self._traces.introductions(device)

    def device_changed(self, device: int, *, published: bool = False) -> None:
        """Tell every client the device's new state, and the pool's actors if a worker that is ready has changed them.

        Args:
            device: The device's index.
            published: Whether a worker of it is ready from now on.
        """
        actors = None
        if published:
            found = actors_of_pool([each.known_actors for each in self._devices], device)
            if found != self._actors:
                self._actors = actors = found
        self._tell_all(lambda number: session.DeviceChanged(self._devices[device].info(number), actors))
        for each in list(self._sessions.values()):
            self._offer(each, device)

    def incarnation_stopped(self, make: Callable[[int], session.IncarnationEnded], *, sends: bool) -> None:
        """Tell every client how an incarnation ends."""
        self._tell_all(lambda number: session.IncarnationStopped(make(number), sends))

    def incarnation_ended(self, make: Callable[[int], session.IncarnationEnded]) -> None:
        """Tell every client that an incarnation has ended."""
        for each in self._sessions.values():
            if each.lasting is not None:
                each.lasting.ended(make(each.number))
        self._tell_all(make)

    def world_changed(self, world: WorldInfo) -> None:
        """Tell every client that a world has changed."""
        self._tell_all(lambda _: session.WorldChanged(world))

    def own_world_changed(self, number: int, world: WorldInfo) -> None:
        """Tell a session that a world which it has made has changed."""
        each = self._sessions.get(number)
        if each is not None:
            self._send(each, session.WorldChanged(world))

    def _tell_all(self, make: Callable[[int], session.FromSupervisor]) -> None:
        """Send each welcomed client a message of its own, made from the session's number."""
        for each in list(self._sessions.values()):
            if each.name:
                self._send(each, make(each.number))

    def died(self, worker: Worker, death: Death) -> None:
        """An incarnation, or a standby, has ended, maybe by one of its requests."""
        self.suspects.ended(worker, death)

    @property
    def reports_due_s(self) -> float:
        """Longest wait, in seconds, for clients' reports on ends that may be forgiven; 0 if none is due."""
        return self.suspects.reports_due_s

    def incarnation_over(self, worker: Worker) -> None:
        """Release the memory of an ended incarnation that clients and other workers had."""
        self._slabs.incarnation_over(*worker)
        self._reclaim.worker_ended(worker)

    def acknowledged(self, worker: Worker, number: int) -> None:
        """Give a session's memory back if this worker was the last to work for it."""
        self._reclaim.acknowledged(number, worker)

    def exported(self, worker: Worker, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """Hand a slab on to the session or worker that has asked for it; the descriptor is owned from here on."""
        self._slabs.exported(worker, message, descriptor)

    def memory_wanted(self, device: int, number: int, tell: Tell) -> None:
        """Introduce a session's memory once more to a device's worker that could not map some of it."""
        for message, descriptor in self._slabs.introductions(number, device):
            tell(message, descriptor)

    def admitted(self, device: int, number: int) -> None:
        """Tell a client that it may call a device, or connect to its standby."""
        each = self._sessions.get(number)
        if each is not None:
            self._send(each, session.DeviceChanged(self._devices[device].info(number)))
            self._offer(each, device)

    def result_slab(
        self, worker: Worker, message: control.ResultSlab | control.ResultSlabFreed, descriptor: Descriptor | None
    ) -> None:
        """Keep a slab with results for its session, or close it; the descriptor is the caller's."""
        if isinstance(message, control.ResultSlabFreed):
            self.results.freed(worker, message)
        elif message.number in self._sessions:
            self.results.hand_in(worker, message, descriptor)
            self._offer(self._sessions[message.number], worker[0])

    def _offer(self, each: ClientSession, device: int) -> None:
        """Give a client the slabs that the standby of a device has made for its results, once it may connect there."""
        if each.slab_offers and not each.closed:
            with contextlib.suppress(errors.Overloaded):  # the client asks for a slab when it needs one
                self._slabs.offer(each.number, device, lambda: self._reclaim.may_map(each.number, each.peer))

    def violated(self, number: int, reason: str) -> None:
        """End a session that broke the rules of the data plane."""
        each = self._sessions.get(number)
        if each is not None:
            self.refused += 1
            self._end(each, errors.ProtocolError(f"this client broke the rules of the data plane: {reason}"))

    # --- what clients say ------------------------------------------------------------------------------------------

    def _on_ready(self, each: ClientSession, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(each)
        if not events & ~select.EPOLLOUT:
            return
        try:
            messages = each.peer.receive()
            if messages is None:
                self._cut(each)
                return
            self._snapshots.clear()
            for message in messages:
                if isinstance(message, session.Hello) and message.resume is not None:
                    each = self._resume(each, message, message.resume)
                else:
                    self._hear(each, message)
                if each.closed:
                    return
        except errors.AtomrError as error:
            self.refused += 1
            self._end(each, error)
        except Exception as fault:  # noqa: BLE001 - ours; it costs this session
            self._end(each, _noted(each, fault))

    def _flush(self, each: ClientSession) -> None:
        """Send what waits for a client."""
        each.peer.flush()
        if not each.peer.wants_to_write:
            self._loop.rewatch(each.peer.fileno(), select.EPOLLIN)

    def notes(self, device: int, generation: int) -> list[str]:
        """Return the clients that cannot reach a device's worker, for an operator."""
        told = [(each.name, each.unreached.get(device)) for each in self._sessions.values()]
        return [
            f"client {name} cannot reach its worker: {counted(reach.failures, 'connection')} in a row failed"
            for name, reach in told
            if reach is not None and reach.generation == generation
        ]

    def _hear(self, each: ClientSession, message: session.FromClient) -> None:  # noqa: C901, PLR0912 - one case for each kind
        match message:
            case session.Hello() if not each.name:
                session.check_version(message.version)
                self._welcome(each, message)
            case _ if not each.name or isinstance(message, session.Hello):
                raise errors.ProtocolError("a session begins with one hello")
            case _ if each.origin is not None and (refused := refusal_of(message, each.origin)) is not None:
                self._send(each, refused)
            case operators.StatusRequest() | operators.InventoryRequest():
                snapshot = self._snapshots.get(type(message)) or self._describe(message)
                self._snapshots[type(message)] = snapshot
                self._send(each, msgspec.structs.replace(snapshot, id=message.id))
            case operators.TraceRequest():
                self._traces.begin(each.number, message, functools.partial(self._send, each))
            case _ if isinstance(message, Order):
                self._snapshots.pop(operators.StatusRequest, None)
                self._carry_out(each.name, message, functools.partial(self._send, each))
            case suspects.Suspect() | suspects.Acquit():
                self.suspects.hear(each.number, message)
            case session.Reach():
                self._snapshots.pop(operators.StatusRequest, None)
                each.take_reach(message, len(self._devices))
                if message.failures:
                    self._unreached()
            case session.ClientAway(away):
                if each.origin is None:
                    raise errors.ProtocolError("only the relay says that a client is away")
                self._set_away(each, away=away)
            case session.MakeWorld() | session.CloseWorld():
                self._make_world(each, message)
            case session.Bye(mapped):
                self._end(each, None, bye=True, mapped=mapped)
            case _ if isinstance(message, slabs.Request):
                if each.observer:
                    raise errors.ProtocolError("slabs are for sessions that may call, and this is an observer's")
                self._relay(each, message)

    def _set_away(self, each: ClientSession, *, away: bool) -> None:
        """Tell the workers whether the client of a session can be reached."""
        if each.away != away and each.may_call:
            each.away = away
            for device in self._devices:
                for worker in device.roles.all:
                    worker.tell(control.SessionAway(each.number, away))

    def _make_world(self, each: ClientSession, request: session.MakeWorld | session.CloseWorld) -> None:
        """Make or close a world of a session."""
        made = self._made_worlds()
        if each.observer or made is None:
            raise errors.ProtocolError("worlds are for sessions that may call, and this is an observer's")
        if isinstance(request, session.CloseWorld):
            made.close(each.number, request.world)
            self._send(each, session.Answer(request.id))
            return

        def answer(found: int | errors.AtomrError) -> None:
            if isinstance(found, int):
                self._send(each, session.WorldMade(request.id, found))
            else:
                self._send(each, session.Answer(request.id, ErrorInfo.of(found)))

        made.make(each.number, request.devices, answer)

    def _relay(self, each: ClientSession, request: slabs.Request) -> None:
        descriptor = None
        match request:
            case session.RegisterSlab(request_id):
                descriptor = each.peer.take_descriptor(request_id)
            case session.OpenSlab(request_id):
                try:
                    self._reclaim.may_map(each.number, each.peer)
                except errors.Overloaded as error:
                    self._send(each, session.Answer(request_id, ErrorInfo.of(error)))
                    return
        self._slabs.hear(each.number, request, descriptor)

    def _welcome(self, each: ClientSession, hello: session.Hello) -> None:
        session.check_weight(hello.weight, self._plan.settings.max_weight)
        if not hello.observer:
            check_room(each.peer.fileno(), operator=hello.probe)
        each.name, each.observer, each.shared_memory = hello.client, hello.observer, hello.shared_memory
        each.weight, each.slab_offers = hello.weight, hello.slab_offers and hello.shared_memory
        each.origin = hello.origin
        if hello.origin is not None and not hello.observer:
            each.lasting = LastingSession()
        _cancel_hello_timer(each)
        self._send(each, self._welcome_of(each))
        if self._traces.is_on:
            self._send(each, session.TraceChanged(on=True))
        if each.may_call and not (each.closed or each.peer.gone):  # else workers need not know it
            for worker in workers_of(self._devices):
                worker.tell(self._introduction(each))

    def _introduction(self, each: ClientSession) -> control.SessionOpened:
        return control.SessionOpened(
            each.number,
            each.session,
            each.secret,
            each.shared_memory,
            each.weight,
            each.key,
            each.peer.credentials.pid,
            tracebacks=each.sees_tracebacks,
            relayed=each.origin is not None,
            no_kernels=kernels_refusal(self._plan.settings.kernels, each.origin),
        )

    def _welcome_of(self, each: ClientSession) -> session.Welcome:
        return session.Welcome(
            version=VERSION,
            pool=self._plan.settings.pool,
            epoch=self._epoch,
            supervisor_pid=os.getpid(),
            session=each.session,
            secret=each.secret,
            window=self._plan.settings.window,
            devices=[device.info(each.number) for device in self._devices],
            actors=self._actors,
            suspicions=self.suspects.known,
            max_replays=self._plan.settings.max_replays,
            worlds=self._worlds(each.number),
        )

    def _cut(self, each: ClientSession) -> None:
        """The connection of a session has ended: keep a session that lasts for the next one, and end any other."""
        lasting = each.lasting
        if lasting is None or not self._keeps:
            self._end(each, None)
            return
        self._loop.forget(each.peer.fileno())
        each.peer.close()
        each.unreached.clear()
        lasting.timer = self._loop.call_later(self._plan.settings.remote_grace_s, lambda: self._end(each, None))
        if self._reclaim.cut(each.number):
            for device in self._devices:
                for worker in device.roles.all:
                    worker.tell(control.SessionUnmapped(each.number))

    def _resume(self, new: ClientSession, hello: session.Hello, proof: session.SessionProof) -> ClientSession:
        """Go on with a session, on a new connection; return it.

        Raises:
            SessionLost: There is no such session of this client's key.
            PoolLost: So it is because the pool stops.
            ProtocolError: The connection has a session.
        """
        session.check_version(hello.version)
        if new.name:
            raise errors.ProtocolError("a session begins with one hello")
        each = next((each for each in self._sessions.values() if each.session == proof.session), None)
        if each is None or each.lasting is None or not _proves(each, hello.origin, proof):
            if not self._keeps:
                raise errors.PoolLost("the pool was stopped")
            raise errors.SessionLost(
                "the pool has ended this session, or never had it: after the end of its connection it is kept for "
                f"{self._plan.settings.remote_grace_s:g} s (`remote_grace_s`)"
            )
        if not each.is_cut:
            self._cut(each)
        _cancel_hello_timer(new)
        del self._sessions[new.number]
        new.closed = True
        self._loop.forget(new.peer.fileno())
        each.peer, each.origin = new.peer, hello.origin
        each.lasting.connected()
        self._set_away(each, away=False)
        self._loop.watch(each.peer.fileno(), select.EPOLLIN, lambda events: self._on_ready(each, events))
        self._send(each, self._welcome_of(each))
        for message, descriptor in self._slabs.kept(each.number):
            self._send(each, message, descriptor)
        for ended in each.lasting.ends:
            self._send(each, ended)
        living = [(device.index, worker.generation) for device in self._devices for worker in device.roles.all]
        self._send(each, session.SessionResumed([session.LivingIncarnation(*worker) for worker in living]))
        if self._traces.is_on:
            self._send(each, session.TraceChanged(on=True))
        return each

    def _announce(self, message: suspects.Suspicions, number: int) -> None:
        for each in list(self._sessions.values()):
            if each.may_call and number in {0, each.number}:
                self._send(each, message)

    def _reply(self, number: int, message: session.FromSupervisor, descriptor: Descriptor | None) -> None:
        each = self._sessions.get(number)
        if each is not None:
            self._send(each, message, descriptor)
        elif descriptor is not None:
            descriptor.close()

    def _send(self, each: ClientSession, message: session.FromSupervisor, descriptor: Descriptor | None = None) -> None:
        if each.closed or each.is_cut:
            if descriptor is not None:
                descriptor.close()
            return
        if not each.sees_tracebacks:
            message = without_tracebacks(message)
        if not each.peer.send(message, descriptor):
            _LOG.warning("client %s does not read its events; its session is over", each.name)
            self._end(each, None)
        elif each.peer.wants_to_write:
            self._loop.rewatch(each.peer.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _end(
        self, each: ClientSession, error: errors.AtomrError | None, *, bye: bool = False, mapped: bool = False
    ) -> None:
        """End a session, telling the client why if it is still there.

        Args:
            each: The session.
            error: The reason, unless the client wants it.
            bye: The client wants it.
            mapped: It has said that it has slabs mapped, and closes the connection once it has none.
        """
        if each.closed:
            return
        each.closed = True
        _cancel_hello_timer(each)
        del self._sessions[each.number]
        peer = self._hang_up(each, error)
        self._slabs.session_ended(each.number)
        self._traces.session_ended(each.number)
        if (made := self._made_worlds()) is not None:
            made.session_ended(each.number)
        if each.may_call:
            told = []
            for device in self._devices:
                for worker in device.roles.all:  # a standby too: it knows the session, and may be called next
                    if worker.withdraw(each.number):
                        continue
                    worker.tell(control.SessionEnded(each.number))
                    told.append((device.index, worker.generation))
            self._reclaim.ended(each.number, told, peer, bye=bye, mapped=mapped)
        elif peer is not None:
            peer.close()
        if each.owner:
            # Later, since the caller may be in the middle of a device's step.
            self._loop.call_later(0, self._owner_gone)

    def _hang_up(self, each: ClientSession, error: errors.AtomrError | None) -> SessionPeer | None:
        """Say the last to a session's client; return the connection, if it has one, which the caller has to close."""
        if each.lasting is not None and each.is_cut:
            each.lasting.connected()
            return None
        if error is not None:
            each.peer.send(session.Goodbye(ErrorInfo.of(error)))
        self._loop.forget(each.peer.fileno())
        return each.peer


def _proves(each: ClientSession, origin: session.RemoteOrigin | None, proof: session.SessionProof) -> bool:
    """Return whether who connects is the session's client."""
    same = origin is not None and each.origin is not None and origin.key == each.origin.key
    return same and secrets.compare_digest(proof.secret, each.secret)


def _crowded(peer: SessionPeer) -> errors.Overloaded | None:
    """Return why there is no room for a session, whichever it will be; None if there is."""
    try:
        check_room(peer.fileno(), operator=True)
    except errors.Overloaded as error:
        return error
    return None


def _cancel_hello_timer(each: ClientSession) -> None:
    if each.hello_timer is not None:
        each.hello_timer.cancel()
        each.hello_timer = None  # the timer holds the session


def _noted(each: ClientSession, fault: Exception) -> errors.InternalError:
    """Log a fault of ours in handling a client's message; return its error."""
    reference = secrets.token_hex(4)
    _LOG.error("internal error %s with a message of client %r:\n%s", reference, each.name, traceback_of(fault))
    why = f"the supervisor met a fault of its own with this client's message; its log has it under {reference}"
    return errors.InternalError(why, maybe_executed=True, reference=reference)
