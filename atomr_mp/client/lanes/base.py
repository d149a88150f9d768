"""The base of both kinds of lanes, which puts their parts together. The package's docstring has the theory."""

from __future__ import annotations

import copy
import functools
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from atomr_mp import checks, errors, tracing
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.admission import BacklogAdmission
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink, stale, unavailable
from atomr_mp.client.lanes.failover import ConnectionCalls, Failover
from atomr_mp.client.lanes.gangs import Gangs
from atomr_mp.client.lanes.homes import Home, home_for
from atomr_mp.client.lanes.link_life import REFUSING, LinkState
from atomr_mp.client.lanes.outcomes import Callback, Outcomes, forget_forked
from atomr_mp.client.lanes.receiving import Receiver
from atomr_mp.client.lanes.retry import Retry
from atomr_mp.client.lanes.retry_policy import NEVER, key_of
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.lanes.services import LaneServices
from atomr_mp.client.lanes.session import SupervisorNews
from atomr_mp.client.memory.leases import Lease, NotOpenError
from atomr_mp.client.reply import SEND_RESULT, ItemsReply, Reply, StreamReply, Undeclared, decode_leased
from atomr_mp.client.reply_life import AT_WORKER, ReplyEvent, ReplyState
from atomr_mp.client.worlds.arguments import encoded, encoded_by_rank
from atomr_mp.client.worlds.gang_reply import GangPart
from atomr_mp.client.worlds.gang_stream import GANGS, PARTS, AnyGang, GangStream
from atomr_mp.protocol import own_device, values
from atomr_mp.protocol.flow.flight import Flight
from atomr_mp.protocol.messages.devices import WorldInfo
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded, IncarnationStopped, WorldChanged
from atomr_mp.protocol.messages.suspects import RequestKey, Suspicions
from atomr_mp.protocol.own_device import OwnDevice
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.wire.ends import ClientEnd

if TYPE_CHECKING:
    import asyncio

    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.client.programs import ProgramRun

FORKED: Final = "this process was forked from the client's; connect again in the child"


class Lane(ABC):
    """Base of both kinds of lanes: sends requests, and ends them.

    Args:
        services: What the client's lanes share.
        number: Distinguishes the lane's connections from those of the session's other lanes.
    """

    # The encoder, which knows structs, finds it in a reply.
    __reduce__ = refusal(CONNECT, SEND_RESULT, name="Reply")

    def __init__(self, services: LaneServices, number: int) -> None:
        session = self._session = services.session
        memory = self._memory = services.memory
        self._courier = services.courier
        self._connect_to: Final = services.connect
        self.number: Final = number
        self._lock = checks.lock()
        self._place_at_once: Final = memory.place
        self._suspicions: Final = session.suspicions
        window = session.login.window
        links = self._links = [DeviceLink(info, Flight(window, info.index), number) for info in session.devices]
        flights = [link.flight for link in links]
        backlog = self._backlog = Backlog(flights, services.max_waiting, window.payload_bytes)
        outcomes = self._outcomes = Outcomes(services.sent_room, memory, session.acquit, links, backlog, self._finished)
        sender = self._sender = Sender(links, self._give_back, self._reach, self._broken, session.clock, self._stray)
        gangs = self._gangs = Gangs(
            functools.partial(GangPart, self),
            session,
            memory,
            links,
            outcomes,
            sender,
            backlog,
            self._settle_gangs,
            self._read_for_room,
            self.settle_gangs_later,
        )
        admission = self._admission = BacklogAdmission(links, backlog, outcomes, sender, gangs.settle)
        ended = self._on_fatal, self._ended, self._admitted
        receiver = Receiver(memory, outcomes, *ended, backlog, admission.admit, admission.settle)
        self._receive: Final = receiver.receive
        self._send: Final = sender.send
        self._retry: Final = Retry(session, memory, links, outcomes, sender, backlog, admission)
        self._failover: Final = Failover(
            session,
            services.new_number,
            ConnectionCalls(self.connect, self.connected, self.disconnect, self.repeat_releases, self.retry_later),
            outcomes,
            sender,
            receiver,
            self._retry,
            admission,
        )
        self._parts: Final = sender, backlog, admission, outcomes, receiver, self._retry, self._failover, gangs
        """What is used with the lock held."""
        checks.entrust(self._lock, *self._parts)
        self._lost: errors.PoolLost | None = None
        self._undeclared: weakref.WeakSet[Reply] = weakref.WeakSet()
        """Requests whose methods are not known yet."""

    # --- for replies and the client --------------------------------------------------------------------------------

    # Each call takes this way, so its steps are written out here instead of coming from the table.
    def submit(  # noqa: C901, PLR0912, PLR0915 - a further call would cost more
        self,
        request_id: int,
        device: int | None,
        method: str,
        arguments: object,
        deadline_ns: int,
        priority: int = 0,
        replays: int = 0,
        wait: bool = False,  # noqa: FBT001, FBT002 - by position, which costs less
        program: ProgramRun | None = None,
        blocks: bool = False,  # noqa: FBT001, FBT002
        to_generation: int = 0,
    ) -> Reply:
        """Send a request, or hold it while its device comes back, or there is no room for it.

        Args:
            request_id: Unique in the session.
            device: The target; None for the device with the fewest unanswered requests of this lane, among those that
                have the actor.
            method: "Actor.method".
            arguments: A sequence by position, or a mapping by name.
            deadline_ns: CLOCK_MONOTONIC.
            priority: Its priority in the worker.
            replays: Ends of workers that count against it already, see `Reply.replays`.
            wait: Whether it waits for room if the window is full.
            program: The program that it runs, if it runs one.
            blocks: Whether its caller waits for room, so that it may always wait.
            to_generation: The only incarnation of the device that it may go to; 0 for any.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: The window is full, or too many wait for room.
            StaleGeneration: The incarnation leaves or has ended, or this lane has not heard of it yet.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more.
        """
        alone = self._suspicions.admit(key_of(method, arguments)) if method in self._suspicions.methods else None
        body, payload, placed = values.encode(arguments, self._place_array)
        reply = Reply(self, request_id, method, deadline_ns, body)
        if self._session.is_traced:
            reply.submitted_ns = time.monotonic_ns()
        if priority:
            reply.priority = priority
        if replays:
            reply.replays = replays
        foreign: Sequence[GpuRef] = ()
        if placed:
            reply.kept, reply.copies, reply.refs, device, foreign = self._memory.get().attach(placed, device)
        payload_bytes = len(body)
        if payload:
            reply.payload = payload
            payload_bytes += sum(map(len, payload))
        if program is not None:
            reply.kept = (*reply.kept, program)
            if program.tells:
                reply.callbacks = [program.answered]
            else:
                payload_bytes += len(program.definition)  # a worker that does not know the program gets all of it later
        home = home_for(homes, method, device) if (homes := self._session.homes) else None
        if own_device.here is not None:
            device = self._apart(own_device.here, method, device, home, foreign)
        if foreign:
            assert device is not None
            self._lend(reply, foreign, device)
        with self._lock:
            if self._lost is not None:
                raise self._lost.again(maybe_executed=False)
            link = self._sender.choose(home) if device is None else self._links[device]
            if to_generation:
                if not link.leads_to(to_generation):
                    raise stale(method, link, to_generation)
                reply.to_generation = to_generation
            if not link.sending:
                if link.state in REFUSING:
                    raise unavailable(link)
                self._failover.reach(link)
            in_flight = link.flight.let_in(request_id, reply, payload_bytes)
            if not in_flight and self._read_for_room(link):
                if link.state in REFUSING:
                    raise unavailable(link)
                in_flight = link.flight.let_in(request_id, reply, payload_bytes)
            if not in_flight:
                if not wait:
                    raise link.flight.full()
                self._hold(reply, device, home, payload_bytes, alone, bounded=not blocks)
            else:
                reply.device = link.device
                if device is not None:
                    reply.pinned = True
                if (tracer := tracing.tracer) is not None:
                    reply.trace, reply.span = tracer.begin(method)
                if alone is not None:
                    self._retry.isolate(reply, alone)
                    self._sender.put(link, reply)
                elif not link.sending:
                    link.held.append(reply)
                elif in_flight == 1 and not link.in_order:
                    self._send(link, [reply])  # the worker has no other request of this lane
                else:
                    link.outbox.append(reply)
                    self._queued(link)
        if foreign:
            self.watch(reply)  # other clients may wait for its answer, whenever this one looks at it
        return reply

    @interrupts.defer_interrupts
    def learn_later(self, reply: Reply, undeclared: Undeclared) -> None:
        """Have a request whose method is not known yet take what it has to know, before it is sent."""
        with self._lock:
            reply.undeclared = undeclared
            self._undeclared.add(reply)
            moved = self._declare()
        for each in moved:
            self._deadline_moved(each)

    @interrupts.defer_interrupts
    def date_back(self, stream: StreamReply, passed_ns: int) -> None:
        """Have a stream's deadlines end earlier, which was asked for before it was opened."""
        with self._lock:
            stream.deadline_ns -= passed_ns
            stream.until_ns -= passed_ns
            if stream.undeclared is not None:
                stream.undeclared = stream.undeclared._replace(called_ns=stream.undeclared.called_ns - passed_ns)
        self._deadline_moved(stream)

    def _declare(self) -> list[Reply]:
        """Let requests learn of their methods as far as these are known now; return those. With the lock held."""
        methods = self._session.methods
        found = [reply for reply in self._undeclared if reply.method in methods]
        for reply in found:
            self._undeclared.discard(reply)
            if not reply.is_over:
                reply.learn(methods[reply.method])
                self._outcomes.tell_news(reply)
        return found

    def _deadline_moved(self, reply: Reply) -> None:
        """Watch a request's new deadline. Call it without the lock."""
        if not reply.is_over:
            self.watch(reply)

    def _place_array(self, array: Any) -> values.PlacedArray | None:
        """Place an argument in shared memory, if need be in that of calls whose answers have come and are unread."""
        try:
            return self._place_at_once(array)
        except errors.Overloaded:
            if not self._take_in():
                raise
        return self._place_at_once(array)

    def _take_in(self) -> bool:
        """Take in the answers that have arrived; False if somebody else does that."""
        return False

    def _apart(
        self, here: OwnDevice, method: str, device: int | None, home: Home | None, foreign: Sequence[GpuRef] = ()
    ) -> int | None:
        """Return the target of a call that is made in a worker: a device that does not wait for its caller.

        Args:
            here: This process's own device.
            method: "Actor.method".
            device: The target that is asked for; None for any.
            home: The devices that have the actor; None for all.
            foreign: Refs of other devices among the arguments, which those devices have to lend.

        Raises:
            InvalidRequest: Only this process could answer, which cannot before the caller ends.
        """
        why = here.refusal(method) if here.epoch == self._session.epoch else ""
        own = self._links[here.device] if why else None
        if own is None or own.info.generation != here.generation:  # this process is a standby
            return device
        if device == own.device or any(ref.device == own.device for ref in foreign):
            raise errors.InvalidRequest(why)
        allowed = self._links if home is None else [self._links[each] for each in home]
        others = [link for link in allowed if link is not own and link.state not in REFUSING]
        if device is None and not others:
            raise errors.InvalidRequest(why)
        if device is not None:
            return device
        return min(others, key=lambda link: (not link.sending, len(link.flight.requests))).device

    def submit_stream(self, stream: StreamReply, device: int | None, arguments: object) -> None:
        """Send the request of a stream, or hold it while its device comes back; see `submit`.

        Args:
            stream: The stream, with its method and deadlines.
            device: The target; None for the device with the fewest unanswered requests of this lane.
            arguments: As those of a call.
        """
        method = stream.method
        alone = self._suspicions.admit(key_of(method, arguments)) if method in self._suspicions.methods else None
        stream.body, stream.payload, placed = values.encode(arguments, self._place_array)
        foreign: Sequence[GpuRef] = ()
        if placed:
            stream.kept, stream.copies, stream.refs, device, foreign = self._memory.get().attach(placed, device)
        if own_device.here is not None:
            home = home_for(self._session.homes, method, device)
            device = self._apart(own_device.here, method, device, home, foreign)
        if foreign:
            assert device is not None
            home_for(self._session.homes, method, device)
            self._lend(stream, foreign, device)
        self._open_stream(stream, device, alone)

    def _open_stream(self, stream: StreamReply, device: int | None, alone: RequestKey | None) -> None:
        home = home_for(homes, stream.method, device) if (homes := self._session.homes) else None
        with self._lock:
            if self._lost is not None:
                raise self._lost.again(maybe_executed=False)
            link = self._sender.choose(home) if device is None else self._links[device]
            if not link.sending:
                if link.state in REFUSING:
                    raise unavailable(link)
                self._failover.reach(link)
            if self._session.is_traced:
                stream.submitted_ns = time.monotonic_ns()
            waits = link.flight.closed  # it must not overtake calls that wait for room
            if waits:
                link.flight.check_streams(self._backlog.streams)
                self._hold(stream, device, home, len(stream.body), alone)
            else:
                link.flight.add_stream(stream.id, stream)
                stream.device = link.device
                stream.pinned = device is not None
                if (tracer := tracing.tracer) is not None:
                    stream.trace, stream.span = tracer.begin(stream.method)
                if alone is not None:
                    self._retry.isolate(stream, alone)
                self._sender.put(link, stream)
        if waits:
            self.watch(stream)  # it has to be sent even if nobody reads it yet
        else:
            self.watch_stream(stream)

    @interrupts.defer_interrupts
    def go_on(self, stream: StreamReply) -> None:
        """Let a stream's worker go on, as far as the stream's credit says."""
        with self._lock:
            carrier = stream.carrier
            if carrier.state is ReplyState.STREAMING:
                stream.expect_next(time.monotonic_ns())
                self._links[carrier.device].grant((carrier,))

    def grant(self, stream: StreamReply, parts: int, nbytes: int) -> None:
        """Let a stream go on as far as a remote reader grants, which gets the parts through this process."""
        stream.credit.extend(parts, nbytes)
        if not stream.is_over:
            self.go_on(stream)

    @interrupts.defer_interrupts
    def close_stream(self, stream: StreamReply) -> None:
        """Close a stream, and tell its worker that its reader has gone. May be called on any thread."""
        with self._lock:
            if isinstance(stream, GangStream):
                self._gangs.give_up(stream, errors.Cancelled("closed"))
                self._make_room()
            elif not stream.is_over:
                self._outcomes.feed(stream, ReplyEvent.EXPIRE, errors.Cancelled("closed"))
            stream.arrived.clear()
        self.call_back()

    def close_streams(self, error: errors.AtomrError) -> None:
        """Close all streams, which end with an error. May be called on any thread."""
        with self._lock:
            for link in self._links:
                for _, reply in link.flight.items():  # noqa: PERF102 - no dict
                    if isinstance(reply, StreamReply) and not reply.is_over and reply.gang is None:
                        self._outcomes.feed(reply, ReplyEvent.EXPIRE, copy.copy(error))
            for gang in self._gangs.open():
                if isinstance(gang, GangStream):
                    self._gangs.give_up(gang, copy.copy(error))
        self.call_back()

    def watch_stream(self, _stream: StreamReply) -> None:  # noqa: B027 - threads look at deadlines when they wait
        """Watch a stream's deadline."""

    def _hold(
        self,
        reply: Reply,
        device: int | None,
        home: Home | None,
        payload_bytes: int,
        alone: RequestKey | None,
        *,
        bounded: bool = True,
    ) -> None:
        """Let a call wait for room: on a device that it names, or else on any of its home. With the lock held.

        Raises:
            Overloaded: Too many wait.
        """
        nbytes = payload_bytes + sum([copied.nbytes for copied in reply.copies])
        reply.state = ReplyState.BACKLOG
        devices = home if device is None else (device,)
        is_first = self._backlog.add(reply, devices, payload_bytes, nbytes, bounded=bounded)
        reply.pinned = device is not None
        if (tracer := tracing.tracer) is not None:
            reply.trace, reply.span = tracer.begin(reply.method)
        if alone is not None:
            self._retry.isolate(reply, alone)
        if is_first:
            self._admission.admit()  # another device than the one that was chosen may have room in bytes

    def submit_items(
        self, request_id: int, method: str, items: Sequence[Sequence[Any]], deadline_ns: int, priority: int
    ) -> ItemsReply:
        """Send many requests as one; see `submit`, and `Client.submit_items`."""
        if method in self._suspicions.methods:
            raise errors.InvalidRequest(f"some request of {method} has ended workers")
        body, payload, placed = values.encode(items, _refuse)
        if placed:
            raise errors.InvalidRequest("a ref among the items of a call")
        reply = ItemsReply(self, request_id, method, deadline_ns, body)
        if self._session.is_traced:
            reply.submitted_ns = time.monotonic_ns()
        reply.items, reply.replays, reply.priority, reply.payload = len(items), NEVER, priority, payload
        reply.open.update(range(len(items)))
        home = home_for(self._session.homes, method, None)
        device = None if own_device.here is None else self._apart(own_device.here, method, None, home)
        with self._lock:
            if self._lost is not None:
                raise self._lost.again(maybe_executed=False)
            link = self._sender.choose(home) if device is None else self._links[device]
            link.flight.add(request_id, reply, len(body) + sum(map(len, payload)))
            reply.device = link.device
            if (tracer := tracing.tracer) is not None:
                reply.trace, reply.span = tracer.begin(method)
            self._sender.put(link, reply)
            if link.sending:
                self._queued(link)
        return reply

    def submit_gang(
        self, gang: AnyGang, arguments: object, *, waits: bool, blocks: bool, world: WorldInfo | None = None
    ) -> None:
        """Send a call or a stream of a world, or hold it while the world has no ready epoch, or no room for it.

        Args:
            gang: The call, new.
            arguments: A sequence by position, or a mapping by name; of a collective on refs, those of each rank.
            waits: Whether it waits for room.
            blocks: Whether its caller waits for room, so that it may always wait.
            world: Its world, as the session knows it, which may have been made since this lane has heard the news.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            Overloaded: There is no room, on one member at least; or too many calls wait.
            DeviceUnavailable: The world is closed, or a member takes no work.
            PoolLost: There is no pool any more.
        """
        if gang.once:
            gang.arguments = encoded_by_rank(cast("Sequence[tuple[Any, ...]]", arguments), self._place_array)
        else:
            gang.arguments = encoded(gang.method, arguments, self._place_array)
        with self._lock:
            if self._lost is not None:
                raise self._lost.again(maybe_executed=False)
            if world is not None:
                self._gangs.learn(world)
            for link in self._gangs.links_of(gang):
                if not link.sending:
                    self._failover.reach(link)
            self._gangs.enter(gang, waits=waits, blocks=blocks)

    @interrupts.defer_interrupts
    def _settle_gangs(self, _part: Reply) -> None:
        """Send the calls of worlds that have come back to their queues."""
        with self._lock:
            self._gangs.settle()

    @interrupts.defer_interrupts
    def _settle_held_gangs(self) -> None:
        """Send the calls of worlds that were held for news which has not come."""
        with self._lock:
            self._gangs.settle_late()
        self.call_back()

    def _stray(self, reply: Reply) -> None:
        """End a request that was not sent: the incarnation that it was meant for is no longer the device's."""
        if isinstance(reply, PARTS):
            self._gangs.stray(reply)
        else:
            self._outcomes.feed(
                reply, ReplyEvent.FAIL, stale(reply.method, self._links[reply.device], reply.to_generation)
            )

    def _enter_link(self, reply: Reply, link: DeviceLink) -> None:
        """Queue a request of the lane's own, which names its device, or let it wait for room. With the lock held."""
        if self._lost is not None:
            raise self._lost.again(maybe_executed=False)
        if not link.sending:
            if link.state in REFUSING:
                raise unavailable(link)
            self._failover.reach(link)
        reply.pinned = True
        if not link.flight.let_in(reply.id, reply, len(reply.body)):
            self._hold(reply, link.device, None, len(reply.body), None, bounded=False)
            return
        reply.device = link.device
        self._sender.put(link, reply)
        if link.sending:
            self._queued(link)

    @abstractmethod
    def _lend(self, reply: Reply, foreign: Sequence[GpuRef], device: int) -> None:
        """Let a request's device use refs of other devices, before it is sent or once it is: then it is gated."""

    @interrupts.defer_interrupts
    def cancel(self, reply: Reply) -> None:
        """Ask the worker not to start a request."""
        with self._lock:
            if isinstance(reply, GANGS):
                self._gangs.cancel(reply)
                self._make_room()
            elif not reply.is_over:
                again = " again" if reply.may_have_run else ""
                unsent = errors.Cancelled(f"cancelled before it was sent{again}")
                self._outcomes.feed(reply, ReplyEvent.CANCEL, reply.poison_error or unsent)
                self._make_room()
        self.call_back()

    @interrupts.defer_interrupts
    def add_callback(self, reply: Reply, callback: Callback) -> bool:
        """Run `callback` once the reply is there; return False if it is there already."""
        with self._lock:
            if reply.is_over:
                return False
            if reply.callbacks is None:
                reply.callbacks = []
            reply.callbacks.append(callback)
        self.watch(reply)
        return True

    @abstractmethod
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Wait until the reply is there.

        Raises:
            TimeoutError: It did not come in time.
        """

    @abstractmethod
    def look(self, reply: Reply) -> None:
        """Take in what has arrived, without waiting, and end a reply whose deadline has passed."""

    def belongs_to(self, _loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the lane is driven by this event loop."""
        return False

    def awaits(self, device: int, generation: int) -> bool:
        """Return whether answers of an incarnation may still arrive."""
        link = self._links[device]
        with self._lock:
            return any(reply.generation == generation for _, reply in link.flight.items())

    @property
    def unanswered(self) -> int:
        """Number of this lane's requests that are unanswered, or wait for their device."""
        return sum(len(link.flight.requests) for link in self._links)

    def numbers(self) -> set[int]:
        """Return the numbers of the lane's connections."""
        return {self.number, *[link.number for link in self._links]}

    def forget_in_child(self) -> None:
        """End all replies in a forked child. Use no socket, and no lock that the parent's threads may hold."""
        self._lock = checks.lock()
        checks.entrust(self._lock, *self._parts)
        with self._lock:
            self._lost = errors.PoolLost(FORKED)
            for link in self._links:
                link.sending, link.state = False, LinkState.OVER
                for _, reply in link.flight.items():  # noqa: PERF102 - no dict
                    forget_forked(reply, FORKED)
            for reply in self._backlog.all():
                forget_forked(reply, FORKED)
            self._gangs.forget_in_child(FORKED)

    # --- messages of the supervisor --------------------------------------------------------------------------------

    @abstractmethod
    def take(self, message: SupervisorNews) -> None:
        """Take a lifecycle event. The thread that has received it calls this, and then `call_back`."""

    def _apply(self, message: SupervisorNews) -> None:
        moved: Sequence[Reply] = ()
        with self._lock:
            if self._undeclared:
                moved = self._declare()  # first: the same message may have them sent
            match message:
                case DeviceChanged(info):
                    self._failover.changed(self._links[info.index], info)
                case WorldChanged(world):
                    self._gangs.changed(world)
                    self._gangs.settle()
                case IncarnationStopped(ended, sends):
                    self._failover.stopped(self._links[ended.device], ended, sends=sends)
                case IncarnationEnded():
                    self._failover.ended(self._links[message.device], message)
                    self._gangs.sweep()  # a worker that has left in good order has put parts back
                    self._gangs.settle()
                case Suspicions():
                    self._retry.judged(message)
                case errors.PoolLost():
                    self._pool_lost(message)
        for reply in moved:
            self._deadline_moved(reply)

    def connect(self, link: DeviceLink, endpoint: str) -> ClientEnd:
        """Connect to an incarnation; raises `OSError` if no descriptor is left."""
        courier, lock = self._courier, self._lock

        def pending(writer: ClientEnd) -> None:
            courier.pending(writer, lock, lambda: self._flushed(link, writer))

        return self._connect_to(endpoint, self._session.login, link.number, pending)

    def disconnect(self, link: DeviceLink, connection: ClientEnd) -> None:
        """Close a connection. With the lock held."""
        self._disconnecting(link, connection)
        self._courier.forget(connection)
        connection.close()

    def _pool_lost(self, lost: errors.PoolLost) -> None:
        self._lost = lost
        for reply in self._backlog.all():
            self._outcomes.feed(reply, ReplyEvent.FAIL, lost.again(maybe_executed=False))
        for link in self._links:
            self._failover.pool_lost(link, lost)
        self._gangs.pool_lost(lost)

    # --- events of connections, with the lock held -----------------------------------------------------------------

    def _reach(self, link: DeviceLink) -> None:
        self._failover.reach(link)

    def _on_fatal(self, link: DeviceLink) -> None:
        self._failover.ends(link)

    def _broken(self, link: DeviceLink, replies: Sequence[Reply]) -> None:
        self._failover.broken(link, replies)

    def _ended(self, link: DeviceLink, connection: ClientEnd) -> None:
        self._disconnecting(link, connection)
        self._failover.cut(link, connection)

    def _admitted(self, link: DeviceLink, connection: ClientEnd) -> None:
        self._failover.login_over(link, connection)

    # --- on whichever thread, without the lock ---------------------------------------------------------------------

    def _flushed(self, link: DeviceLink, connection: ClientEnd) -> None:
        """Record that a connection has no bytes left to send: its worker has admitted it, or it has ended."""
        with self._lock:
            self._failover.login_over(link, connection)
        self.call_back()

    @interrupts.defer_interrupts
    def _retry_link(self, link: DeviceLink, number: int) -> None:
        """React to a timer that has run out."""
        with self._lock:
            self._failover.retry(link, number)
        self.call_back()

    # --- for the kinds, with the lock held -------------------------------------------------------------------------

    @abstractmethod
    def connected(self, link: DeviceLink, connection: ClientEnd) -> None:
        """Watch a new connection's descriptor."""

    def repeat_releases(self, link: DeviceLink) -> None:  # noqa: B027 - a loop's lane sends none
        """Repeat the releases of this lane that the incarnation has not acknowledged."""

    @abstractmethod
    def retry_later(self, link: DeviceLink, number: int, delay_s: float) -> None:
        """Call `_retry_link` with this number, after a time."""

    @abstractmethod
    def settle_gangs_later(self, delay_s: float) -> None:
        """Call `_settle_held_gangs` after a time. There is one such call at a time."""

    @abstractmethod
    def _disconnecting(self, _link: DeviceLink, connection: ClientEnd) -> None:
        """Stop watching a connection's descriptor, if it is watched."""

    @abstractmethod
    def _finished(self, reply: Reply) -> None:
        """Wake the threads that wait for a reply."""

    @abstractmethod
    def _give_back(self, link: DeviceLink) -> None:
        """Send due releases to a link's incarnation; later calls come after them."""

    @abstractmethod
    def watch(self, reply: Reply) -> None:
        """Receive a reply that has callbacks in the background. Call it without the lock."""

    @abstractmethod
    def _queued(self, link: DeviceLink) -> None:
        """Send a link's outbox, now or soon: calls made meanwhile travel together."""

    def _expire(self, reply: Reply) -> None:
        """End a reply whose deadline has passed; its credit comes back with its late answer."""
        with self._lock:
            if isinstance(reply, GANGS):
                for link in self._gangs.links_of(reply):
                    self._receive(link)
                is_later = isinstance(reply, StreamReply) and reply.deadline_ns > time.monotonic_ns()
                if not is_later:
                    self._gangs.give_up(reply, _too_late(reply, self._gangs.reason_of(reply)))
                    self._make_room()
        if isinstance(reply, GANGS):
            self.call_back()
            return
        with self._lock:
            self._receive(self._links[reply.device])  # its answer may have come in time, unread
            is_later = isinstance(reply, StreamReply) and reply.deadline_ns > time.monotonic_ns()  # put off by a part
            if not reply.is_over and not is_later:
                self._outcomes.feed(reply, ReplyEvent.EXPIRE, reply.poison_error or _too_late(reply))
                self._make_room()
        self.call_back()

    def _read_for_room(self, _link: DeviceLink) -> bool:
        """Take in answers of a device whose window is full; False if somebody else does that. With the lock held."""
        return False

    def _make_room(self) -> None:
        """Admit waiting calls after a request has given back its room. With the lock held."""
        if self._backlog.count:
            self._admission.admit()

    def call_back(self) -> None:
        """Run the callbacks of finished replies. With no lock held: they may call, wait, and close the client."""
        self._outcomes.call_back()

    @interrupts.defer_interrupts
    def decode(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Return the results in an answer that came with leases. Blocks if their memory has to be opened."""
        return decode_leased(body, frames, lambda: self._memory.get().resolver(leases))

    async def decode_aside(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Do the same in a task; memory is opened in a thread of the event loop's executor."""
        try:
            return self._decode_opened(body, frames, leases)
        except NotOpenError:
            import asyncio  # the awaiting task has it

            return await asyncio.get_running_loop().run_in_executor(None, self.decode, body, frames, leases)

    @interrupts.defer_interrupts
    def _decode_opened(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        return decode_leased(body, frames, lambda: self._memory.get().resolver(leases, opens=False))


def _too_late(reply: Reply, reason: str = "") -> errors.DeadlineExceeded:
    """Return the error of a reply whose deadline has passed.

    Args:
        reply: The reply.
        reason: Why its world is not ready; "" if it is, or there is none.
    """
    if isinstance(reply, StreamReply) and reply.credit.received:
        late = reply.deadline_ns >= reply.until_ns
        why = "by its deadline (deadline_s)" if late else f"for {reply.between_ns / 1e9:g} s (between_s)"
        what = "the end of the stream" if late else f"part {reply.credit.received} of the stream"
        return errors.DeadlineExceeded(f"{what} of {reply.method} has not come {why}")
    if reply.state in AT_WORKER:
        why = "it may be running still"
    elif reply.may_have_run:
        why = "it was not sent again after its worker had ended"
    elif isinstance(reply, GANGS) and reply.state is ReplyState.WAITING:
        why = f"it was not sent: the world {reply.world} had no ready epoch for this client"
        why += f" ({reason})" if reason else ""
    elif reply.state is ReplyState.BACKLOG:
        why = "it was not sent: this client's earlier calls to the device had no answer yet, and filled its window"
    else:
        why = "it was not sent: no worker has taken it, as while a device starts, or its worker stands still"
    return errors.DeadlineExceeded(f"no answer to {reply.method} within its deadline; {why}")


def _refuse(_array: object) -> None:
    raise errors.InvalidRequest("a large array among the items of a call")
