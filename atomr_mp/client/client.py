"""A client of a pool: its session with the supervisor, and its lanes to the workers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.callers import Kernel, calling_loop, in_cell, notice_kernel, running_loop
from atomr_mp.client.handshake import default_name, greet
from atomr_mp.client.lanes.base import FORKED, Lane, Told
from atomr_mp.client.lanes.homes import Homes, homes_of
from atomr_mp.client.lanes.retry_policy import KnownSuspicions, was_answered
from atomr_mp.client.lanes.threads import LONGEST_WAIT_S, ThreadsLane
from atomr_mp.client.memory.leases import LeaseKind, Releases
from atomr_mp.client.reply import ItemsReply, Reply, StreamReply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.client.stream_closer import StreamCloser
from atomr_mp.protocol import amounts, token
from atomr_mp.protocol.exceptions import traceback_of
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import devices, session, suspects
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.messages.session import MAX_REMOTE_ID
from atomr_mp.transport.data import Login
from atomr_mp.transport.session import SessionConnection
from atomr_mp.wire.courier import Courier

if TYPE_CHECKING:
    import asyncio

    import numpy as np

    from atomr_mp.client.lanes.event_loop import EventLoopLane
    from atomr_mp.client.memory.argument_slabs import Placement
    from atomr_mp.client.memory.memory import ClientMemory
    from atomr_mp.client.programs import ProgramRun

_LOG: Final = logging.getLogger("atomr_mp")

MAX_LANE: Final = 255

MAX_WAITING: Final = 65_536
"""Default number of calls of an event loop that may wait for room."""

READ_EVERY_NS: Final = 1_000_000
"""Calls look at the session first, at most this often, so that they do not go to a worker known to be dead."""


class Client:
    """One session with a pool. Thread-safe; not to be used in a forked child.

    Args:
        connection: A connection to the supervisor; owned from here on.
        name: This client's name in logs and `status`.
        max_replays: How often a lost request is sent again; None for the pool's setting.
        weight: Its share of a busy device's time, beside other clients.
        max_waiting: How many calls may wait for room in each event loop, and in all threads together.
        courier: Shared with other clients; None for one of its own.
        sent_room: The same, for the parts of streams that are kept.
        origin: The client on another machine that this one serves, if any.

    Raises:
        InvalidRequest: The pool admits no such weight.
        PoolLost: The supervisor went away.
        ProtocolError: It speaks another version.
        NotAuthorized: It refuses this process.
    """

    workers_live = False
    """Whether only the session has ended, and not the pool: its workers will not disconnect."""
    forked = False
    """Whether this process was forked from the client's, so that the client is of no use here."""

    def __init__(  # noqa: PLR0915 - one line for each thing that it has
        self,
        connection: SessionConnection,
        name: str | None = None,
        max_replays: int | None = None,
        weight: float = 1.0,
        max_waiting: int = MAX_WAITING,
        *,
        courier: Courier | None = None,
        sent_room: SentRoom | None = None,
        origin: session.RemoteOrigin | None = None,
        probe: bool = False,
    ) -> None:
        self._connection = connection
        notice_kernel()
        try:
            session.check_weight(weight)
            welcome = greet(
                connection, name or default_name(), observer=False, weight=weight, origin=origin, probe=probe
            )
            self.max_waiting: Final = check_max_waiting(max_waiting)
            check_max_replays(max_replays)
        except BaseException:
            connection.close()
            raise
        self.pool: Final = welcome.pool
        self.epoch: Final = welcome.epoch
        self.supervisor_pid: Final = welcome.supervisor_pid
        self.login: Final = Login(welcome.session, welcome.secret, welcome.window)
        self.courier: Final = courier or Courier()
        self._own_courier: Final = courier is None
        self.sent_room: Final = sent_room or SentRoom()
        self.session_descriptor: Final = connection.fileno()
        self.devices = list(welcome.devices)
        """The devices, as the supervisor last reported them."""
        self.max_replays: Final = welcome.max_replays if max_replays is None else max_replays
        self.suspicions: Final = KnownSuspicions(welcome.suspicions)
        self.methods: dict[str, devices.MethodInfo] = {}
        """The pool's requests by "Actor.method"."""
        self.actors: list[devices.ActorInfo] = []
        """The actors, as the supervisor reported them."""
        self.homes: Homes = {}
        """The devices of those actors that not all have."""
        self.listeners: list[Callable[[session.DeviceChanged | session.IncarnationEnded], object]] = []
        """Called with every lifecycle event, on whichever thread reads it; must be short."""
        self.lost: errors.PoolLost | None = None
        self._lost_listeners: list[Callable[[errors.PoolLost], object]] = []
        self._learn(welcome.actors)
        self.session_polled_ns = 0
        """Latest time at which the session is known to have been read, CLOCK_MONOTONIC."""
        self._session_lock = threading.RLock()
        self._waiting: set[int] = set()
        """Descriptors of threads in `wait_until`; every event wakes them."""
        self._sending = threading.Lock()
        """Held while a message is sent in the session."""
        self._questions = itertools.count(1)
        self._answers: dict[int, Answered | None] = {}
        """Answers in the session for which threads wait."""
        self._memory_lock = threading.Lock()
        """Held while the objects below are made."""
        self._releases: weakref.WeakValueDictionary[tuple[int, int], Releases] = weakref.WeakValueDictionary()
        self._results_read: deque[tuple[int, int]] = deque()
        """Ended incarnations whose results have all been read, to be reported."""
        self._memory: ClientMemory | None = None
        self._ids = itertools.count(1 if origin is None else MAX_REMOTE_ID + 1)
        self._lane_numbers = itertools.cycle(range(1, MAX_LANE + 1))
        self._closed = False
        self._closer: Final = StreamCloser()
        self._blocking = ThreadsLane(self, 0, self.devices)
        self._loops: dict[asyncio.AbstractEventLoop, EventLoopLane] = {}
        """Lanes of event loops; those of closed loops go when the next one comes."""
        for device in self.devices:
            self._blocking.take(session.DeviceChanged(device))
        _CLIENTS.add(self)

    def submit(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        deadline_s: float,
        priority: int = 0,
        blocking: bool = False,
        replays: int = 0,
        wait: bool | None = None,
        program: ProgramRun | None = None,
        backlog: bool = False,
    ) -> Reply:
        """Send a request; `pool.Pool` describes the arguments.

        With `blocking`, an event loop's thread may wait for its result too. `replays` is the number of ends of workers
        that it counts as part of already. `program` is the form in which it names its program, if it runs one. With
        `backlog`, a thread's request waits for room in this process, as an event loop's does, and the call returns.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: The window is full; or too many calls wait for room.
            DeadlineExceeded: A thread has waited for room, and there was none in time.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        if self.forked:
            raise errors.PoolLost(FORKED)
        held = interrupts.hold()
        try:
            loop = None if blocking else running_loop()
            if loop is not None and Kernel.is_here and in_cell():
                loop, backlog = None, backlog or wait is None
            lane = self._blocking if loop is None else self._loops.get(loop) or self._new_lane(loop)
            now_ns = time.monotonic_ns()
            if now_ns - self.session_polled_ns > READ_EVERY_NS:
                self.read_session()
            deadline_ns = now_ns + int(deadline_s * 1e9)
            waits = loop is not None if wait is None else wait
            holds = waits or backlog
            # A thread that waits needs no place among the calls that may wait: it makes no others meanwhile.
            blocks = waits and loop is None
            try:
                reply = lane.submit(
                    next(self._ids), device, method, arguments, deadline_ns, priority, replays, holds, program, blocks
                )
            except _OUTDATED:  # perhaps by news that nobody has read
                self.read_session()
                reply = lane.submit(
                    next(self._ids), device, method, arguments, deadline_ns, priority, replays, holds, program, blocks
                )
            if holds and reply.state is ReplyState.BACKLOG and lane is self._blocking:
                if waits:
                    self._blocking.wait_for_room(reply)
                else:
                    self._blocking.watch(reply)  # it has to be sent even if no thread waits for an answer
            return reply
        finally:
            if held:
                interrupts.let_go(held)

    @interrupts.defer_interrupts
    def submit_items(
        self, method: str, items: Sequence[Sequence[Any]], *, deadline_s: float, priority: int = 0
    ) -> ItemsReply:
        """Send many requests for a batched method as one, from a running event loop. It is never sent again as a whole.

        Args:
            method: "Actor.method", which takes as many items in a call (`MethodInfo.call_items`).
            items: The arguments of each, by position.
            deadline_s: The deadline of all of them.
            priority: The priority of all of them.

        Raises:
            InvalidRequest: They cannot be sent, or not in one call: one is a ref, or large, or has ended workers.
            Overloaded: The window is full.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        if self.forked:
            raise errors.PoolLost(FORKED)
        loop = running_loop()
        assert loop is not None
        lane = self._loops.get(loop) or self._new_lane(loop)
        self.read_session()
        deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)
        return lane.submit_items(next(self._ids), method, items, deadline_ns, priority)

    @interrupts.defer_interrupts
    def stream(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        first_s: float,
        between_s: float,
        deadline_s: float,
        priority: int,
        ahead: int,
        ahead_bytes: int,
        resumes: Resumes,
    ) -> ReplyStream:
        """Open a stream; `pool.Pool.stream` describes the arguments, and `resumes` is its method's.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: Too many streams are open.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        if self.forked:
            raise errors.PoolLost(FORKED)
        loop = calling_loop()
        lane: Lane = self._blocking if loop is None else self._loops.get(loop) or self._new_lane(loop)
        self.read_session()
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(deadline_s * 1e9)
        first_ns = min(now_ns + int(first_s * 1e9), until_ns)
        reply = StreamReply(lane, next(self._ids), method, first_ns, b"", priority=priority)
        reply.credit = ReaderCredit(ahead, ahead_bytes)
        reply.resumes = resumes
        reply.until_ns, reply.between_ns = until_ns, int(between_s * 1e9)
        lane.submit_stream(reply, device, arguments)
        self._closer.start()
        return ReplyStream(reply, lane, self._closer, self._blocking.wait_for_part if loop is None else None)

    def read_session_if_old(self) -> None:
        """Read the supervisor's messages, unless that was done in the last millisecond; for what each call looks at."""
        if time.monotonic_ns() - self.session_polled_ns > READ_EVERY_NS:
            self.read_session()

    @interrupts.defer_interrupts
    def read_session(self) -> None:
        """Read the supervisor's messages, without waiting; release the lanes of loops that have ended."""
        with self._session_lock:
            if self.lost is not None:
                return
            left = self._let_go_left() if self._loops else ()
            self.session_polled_ns = time.monotonic_ns()
            try:
                for message in self._connection.receive_waiting():
                    if isinstance(message, session.Answer | session.SlabOpened):
                        self._answer(message)
                    elif isinstance(message, suspects.Suspicions):
                        self.suspicions.take(message.changed)
                        self._tell_lanes(message)
                    else:
                        self._hear(message)
            except (errors.PoolLost, errors.ProtocolError) as error:
                self._lose(errors.PoolLost(error.message))
            while self._results_read:
                self.tell(session.ResultsRead(*self._results_read.popleft()))
        self._blocking.call_back()
        for lane in left:
            lane.call_back()

    @interrupts.defer_interrupts
    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Take in lifecycle events until `condition()` holds; False if it does not within `timeout_s`.

        Raises:
            PoolLost: The supervisor went away.
        """
        until = time.monotonic() + timeout_s
        heard = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # another thread may read the awaited event
        poll = select.poll()
        poll.register(self.session_descriptor, select.POLLIN)
        poll.register(heard, select.POLLIN)
        with self._session_lock:
            self._waiting.add(heard)
        try:
            while True:
                self.read_session()
                if condition():
                    return True
                if self.lost is not None:
                    raise errors.PoolLost(self.lost.message)
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                interrupts.wait(poll.poll, min(left_s, LONGEST_WAIT_S) * 1000)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(heard)
        finally:
            with self._session_lock:
                self._waiting.discard(heard)
            os.close(heard)

    @property
    def window(self) -> Window:
        """The limit of unanswered requests per device."""
        return self.login.window

    @property
    def unanswered(self) -> int:
        """How many requests of this client are unanswered, or wait here for their device."""
        return self._blocking.unanswered + sum(lane.unanswered for lane in list(self._loops.values()))

    # --- shared memory ---------------------------------------------------------------------------------------------

    @property
    def memory(self) -> ClientMemory:
        """This client's shared memory."""
        return self._memory or self._make_memory()

    @interrupts.defer_interrupts  # a half-imported package cannot be imported again
    def _make_memory(self) -> ClientMemory:
        from atomr_mp.client.memory.memory import ClientMemory  # late: it takes NumPy

        with self._memory_lock:
            if self._memory is None:
                self._memory = ClientMemory(self)
        return self._memory

    def place(self, array: np.ndarray[Any, Any]) -> Placement | None:
        """Copy an argument into memory that workers can read; None if it has to travel otherwise."""
        return self.memory.place(array)

    def releases(self, device: int, generation: int | None = None) -> Releases:
        """Return the releases for an incarnation, by default for the device's current one."""
        if generation is None:
            generation = self.devices[device].generation
        with self._memory_lock:
            found = self._releases.get((device, generation))
            if found is None:
                found = Releases(token.pack(self.epoch, device, generation), self._results_read)
                self._releases[device, generation] = found
        return found

    def out_of_memory(self, releases: Releases) -> None:
        """Record that an incarnation has run out of memory; called with a lane's lock held."""
        if self._memory is not None:
            self._memory.out_of_memory(releases)

    @interrupts.defer_interrupts
    def give_back(self, releases: Releases, *, freed: bool = False) -> None:
        """Send due releases to an incarnation, if possible; see `ThreadsLane.give_back`."""
        if not self.forked:
            self._blocking.give_back(releases, freed=freed)

    @interrupts.defer_interrupts
    def ask(
        self, question: Callable[[int], session.FromClient], timeout_s: float, descriptor: int | None = None
    ) -> Answered:
        """Ask a question in the session; wait for the answer and the descriptor that came with it. Thread-safe.

        Args:
            question: Returns the message with the given id; called when nothing else can be sent before it.
            timeout_s: How long to wait.
            descriptor: Travels with it; stays the caller's.

        Raises:
            PoolLost: There is no pool any more.
            DeadlineExceeded: No answer came in time.
            AtomrError: It was refused.
        """
        number = next(self._questions)
        self._answers[number] = None
        try:
            try:
                self._say(lambda: question(number), descriptor)
            except errors.PoolLost as lost:
                self.read_session()  # a goodbye in the session says why
                raise errors.PoolLost((self.lost or lost).message, maybe_executed=False) from lost
            if not self.wait_until(lambda: self._answers[number] is not None, timeout_s):
                raise errors.DeadlineExceeded(f"the supervisor did not answer within {timeout_s:g} s")
            answered, self._answers[number] = self._answers[number], None
        finally:
            with self._session_lock:
                too_late = self._answers.pop(number)
            if too_late is not None and too_late.descriptor is not None:
                os.close(too_late.descriptor)
        assert answered is not None
        if isinstance(answered.message, session.Answer) and answered.message.error is not None:
            raise answered.message.error.error()
        return answered

    @interrupts.defer_interrupts
    def tell(self, message: session.FromClient) -> None:
        """Send a message without an answer in the session; do nothing if the pool is lost."""
        with contextlib.suppress(errors.PoolLost):
            self._say(lambda: message)

    def report(self, device: int, generation: int, requests: list[suspects.RequestKey]) -> int:
        """Report which requests ran when an incarnation ended; return the number of the answer, `Suspicions`."""
        number = next(self._questions)
        self.tell(suspects.Suspect(number, device, generation, requests[: suspects.MAX_SUSPECTS]))
        return number

    def tell_reach(self, device: int, generation: int, failures: int) -> None:
        """Report failed attempts in a row to connect to a living worker; 0 after a success."""
        self.tell(session.Reach(device, generation, failures))

    def acquit(self, reply: Reply) -> None:
        """Report a suspect as acquitted, if it has run alone and its worker lives."""
        request = reply.alone
        if request is not None and was_answered(reply):
            self.tell(suspects.Acquit(request))

    def _say(self, message: Callable[[], session.FromClient], descriptor: int | None = None) -> None:
        with self._sending:
            if self.lost is not None:
                raise errors.PoolLost(self.lost.message, maybe_executed=False)
            self._connection.send(message(), descriptor)

    def _answer(self, message: session.Answer | session.SlabOpened) -> None:
        """Keep an answer for the thread that waits for it."""
        carries = isinstance(message, session.SlabOpened)
        descriptor = self._connection.take_descriptor(message.id) if carries else None
        if message.id in self._answers:
            self._answers[message.id] = Answered(message, descriptor)
            self._wake_waiting()
        elif descriptor is not None:
            os.close(descriptor)

    def _wake_waiting(self) -> None:
        for eventfd in self._waiting:
            os.eventfd_write(eventfd, 1)

    @interrupts.defer_interrupts
    def close_streams(self) -> None:
        """End all streams of this client: they have no reader, and a leaving worker would wait for them."""
        for lane in (self._blocking, *list(self._loops.values())):
            lane.close_streams(errors.PoolLost("this client was closed"))

    @interrupts.defer_interrupts
    def close(self) -> None:
        """End the session; unanswered requests end with `PoolLost`. May be called twice."""
        with self._session_lock:
            if self._closed or self.forked:
                return
            self._closed = self.workers_live = True
            lives = self.lost is None
            self._lose(errors.PoolLost("this client was closed"))
            lanes = list(self._loops.values())
        self._blocking.call_back()
        self._closer.close()
        self._blocking.close()
        for lane in lanes:
            lane.close()
        if (self._memory is None or self._memory.close()) and lives:
            with contextlib.suppress(errors.PoolLost), self._sending:
                self._connection.send(session.Bye())
        self._connection.close()
        if self._own_courier:
            self.courier.close()

    def loop_lane(self, loop: asyncio.AbstractEventLoop) -> EventLoopLane:
        """Return the lane of an event loop, from the loop's thread."""
        return self._loops.get(loop) or self._new_lane(loop)

    def _new_lane(self, loop: asyncio.AbstractEventLoop) -> EventLoopLane:
        from atomr_mp.client.lanes.event_loop import EventLoopLane

        notice_kernel()
        with self._session_lock:
            if self.lost is not None:  # the session has ended, and would not tell a new lane
                raise errors.PoolLost(self.lost.message, maybe_executed=False)
            left = self._let_go_left()
            lane = self._loops[loop] = EventLoopLane(self, self.new_lane_number(), self.devices, loop)
            for device in self.devices:
                lane.take(session.DeviceChanged(device))
        for each in left:
            each.call_back()
        return lane

    def _let_go_left(self) -> list[EventLoopLane]:
        """Release the lanes of loops that were closed, or whose thread has ended: they have no receiver.

        With the session's lock held. The caller runs the returned lanes' callbacks without it.
        """
        left = [(loop, lane) for loop, lane in self._loops.items() if lane.is_left]
        for loop, lane in left:
            del self._loops[loop]
            lane.close()
        return [lane for _, lane in left]

    def new_request_id(self) -> int:
        """Return an id that no other request of the session has."""
        return next(self._ids)

    def new_lane_number(self) -> int:
        """Return a number that no living connection has: a worker ignores a second connection of the same name."""
        used = {number for lane in (self._blocking, *list(self._loops.values())) for number in lane.numbers()}
        for number in itertools.islice(self._lane_numbers, MAX_LANE):
            if number not in used:
                return number
        raise errors.Overloaded(f"this client is used in {MAX_LANE} event loops; close some")

    def _hear(self, message: session.FromSupervisor) -> None:
        match message:
            case session.DeviceChanged(device, actors):
                self._change_device(device)
                if actors is not None:
                    self._learn(actors)
            case session.IncarnationEnded(device_index, generation):
                ended = self._end_incarnation(device_index, generation)
            case session.IncarnationStopped():
                self._tell_lanes(message)
                return
            case session.SlabOffered():
                self._take_offered(message)
                return
            case session.Goodbye(error):
                self.workers_live = error.code != errors.PoolLost.code
                self._lose(errors.PoolLost(f"the supervisor ended this session: {error.message}"))
                return
            case _:
                return
        self._tell_lanes(message)
        if isinstance(message, session.IncarnationEnded) and ended is not None:
            lanes = [self._blocking, *self._loops.values()]
            ended.end(awaited=any(lane.awaits(message.device, message.generation) for lane in lanes))
            if self._memory is not None:
                self._memory.over(ended)  # after the lanes, which take in its last answers
        self._wake_waiting()
        for listener in self.listeners:
            _tell(listener, message)

    def _tell_lanes(self, message: Told) -> None:
        for lane in (self._blocking, *self._loops.values()):
            lane.take(message)

    def _end_incarnation(self, device: int, generation: int) -> Releases | None:
        """Record that an incarnation has ended; return its releases."""
        info = self.devices[device]
        if info.generation == generation:
            # The device's new state is told later; a lane that is made meanwhile must not send to this one.
            self.devices[device] = msgspec.structs.replace(info, admitted=False, endpoint="")
        ended = self._releases.get((device, generation))
        if ended is not None:
            ended.over = True
        return ended

    def _change_device(self, device: devices.DeviceInfo) -> None:
        """Record a device's new state, and release a standby's memory if the standby has gone."""
        before, standby = self.devices[device.index].standby, device.standby
        self.devices[device.index] = device
        living = {device.generation, 0 if standby is None else standby.generation}
        if before is None or before.generation in living:
            return
        ended = self._releases.get((device.index, before.generation))
        if ended is not None:
            ended.end(awaited=False)
            if self._memory is not None:
                self._memory.over(ended)

    def _take_offered(self, offered: session.SlabOffered) -> None:
        """Map a slab that a standby has made for results of this client."""
        descriptor = self._connection.take_offered(offered)
        releases = self.releases(offered.device, offered.generation)
        releases.keep_results()
        if descriptor is None or self._memory is None:  # without memory, a later result asks for the slab
            releases.pending.append((LeaseKind.SLAB, offered.slab))
            if descriptor is not None:
                os.close(descriptor)
        else:
            self._memory.take_offered(releases, offered.slab, offered.nbytes, descriptor)

    def _learn(self, actors: list[devices.ActorInfo]) -> None:
        self.actors = actors
        self.homes = homes_of(actors)
        self.methods = {f"{actor.name}.{method.name}": method for actor in actors for method in actor.methods}

    def _lose(self, lost: errors.PoolLost) -> None:
        if self.lost is None:
            self.lost = lost
            self._tell_lanes(lost)
            self._wake_waiting()  # a thread that polls a descriptor is not woken when another thread closes it
            for listener in self._lost_listeners:
                _tell(listener, lost)

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has; see `Pool.on_lost`."""
        with self._session_lock:
            self._lost_listeners.append(listener)
            lost = self.lost
        if lost is not None:
            _tell(listener, lost)

    def forget_in_child(self) -> None:
        """Close the session's descriptor in a forked child, which would otherwise keep the session alive."""
        if not self._closed:
            self.forked = True
            self._session_lock = threading.RLock()  # a thread of the parent may hold the other
            self._sending, self._memory_lock = threading.Lock(), threading.Lock()
            self.lost = errors.PoolLost(FORKED)
            for lane in (self._blocking, *self._loops.values()):
                lane.forget_in_child()
            self._connection.close()


def check_max_waiting(max_waiting: int) -> int:
    """Return a valid limit."""
    return amounts.whole("max_waiting", max_waiting, 0)


_OUTDATED: Final = (errors.DeviceUnavailable, errors.PoisonRequest, errors.GpuRefStale)
"""Refusals by what was last heard in the session; it is read before they are final."""


def check_max_replays(max_replays: int | None) -> int | None:
    """Return a valid limit; None stands for the pool's."""
    return None if max_replays is None else amounts.whole("max_replays", max_replays, 0, 2**16 - 1)


class Answered(NamedTuple):
    """An answer in the session."""

    message: session.Answer | session.SlabOpened
    descriptor: int | None
    """The descriptor that came with it; the asker closes it."""


def _tell(listener: Callable[[Any], object], message: object) -> None:
    try:
        listener(message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the reading thread is not to blame
        _LOG.error("a listener to lifecycle events failed:\n%s", traceback_of(error))


def _forget_clients_in_child() -> None:
    for client in _CLIENTS:
        client.forget_in_child()


_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_clients_in_child)
