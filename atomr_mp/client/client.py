"""A client of a pool: its session with the supervisor, and its lanes to the workers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.callers import Kernel, calling_loop, in_cell, notice_kernel, running_loop
from atomr_mp.client.handshake import HELLO_TIMEOUT_S, default_name, greet
from atomr_mp.client.lanes.base import FORKED, Lane
from atomr_mp.client.lanes.services import Connect, LaneServices, LazyMemory
from atomr_mp.client.lanes.session import PoolSession, SupervisorNews
from atomr_mp.client.lanes.threads import ThreadsLane
from atomr_mp.client.memory.leases import LeaseKind, Releases
from atomr_mp.client.reply import ItemsReply, Reply, StreamReply, Undeclared
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.client.stream_closer import StreamCloser
from atomr_mp.client.worlds.gang_reply import GangReply
from atomr_mp.client.worlds.gang_stream import GangStream
from atomr_mp.client.worlds.world_closer import WorldCloser
from atomr_mp.protocol import amounts, own_device
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.devices import Resumes, WorldInfo
from atomr_mp.protocol.messages.session import CloseWorld, MakeWorld, WorldMade
from atomr_mp.transport.data import DataConnection
from atomr_mp.transport.session import SessionEnd
from atomr_mp.wire.courier import Courier

if TYPE_CHECKING:
    import asyncio

    from atomr_mp.client.lanes.event_loop import EventLoopLane
    from atomr_mp.client.memory.memory import ClientMemory
    from atomr_mp.client.programs import ProgramRun


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
        probe: It is an operator's, for a few calls.
        hello_s: How long the supervisor may take to answer the hello.
        connect: Makes the lanes' connections to workers.

    Raises:
        InvalidRequest: The pool admits no such weight.
        PoolLost: The supervisor went away.
        ProtocolError: It speaks another version.
        NotAuthorized: It refuses this process.
    """

    forked = False
    """Whether this process was forked from the client's, so that the client is of no use here."""

    def __init__(
        self,
        connection: SessionEnd,
        name: str | None = None,
        max_replays: int | None = None,
        weight: float = 1.0,
        max_waiting: int = MAX_WAITING,
        *,
        probe: bool = False,
        hello_s: float = HELLO_TIMEOUT_S,
        connect: Connect = DataConnection,
    ) -> None:
        notice_kernel()
        with contextlib.ExitStack() as undone:
            undone.callback(connection.close)
            session.check_weight(weight)
            welcome = greet(
                connection, name or default_name(), observer=False, weight=weight, probe=probe, timeout_s=hello_s
            )
            max_waiting = check_max_waiting(max_waiting)
            check_max_replays(max_replays)
            self.pool: Final = welcome.pool
            self.supervisor_pid: Final = welcome.supervisor_pid
            self._memory: Final = LazyMemory(self._make_memory)
            told = self._session = PoolSession(
                connection,
                welcome,
                max_replays,
                heard=self._on_heard,
                over=self._memory.over,
                offered=self._on_offered,
                after_read=self._after_read,
            )
            self.epoch: Final = told.epoch
            self.login: Final = told.login
            self.devices: Final = told.devices
            self.suspicions: Final = told.suspicions
            self.worlds: Final = told.worlds
            self.listeners: Final = told.listeners
            self.actors, self.homes, self.methods = told.actors, told.homes, told.methods
            self.read_session: Final = told.read
            self.wait_until: Final = told.wait_until
            self.on_lost: Final = told.on_lost
            self.place: Final = self._memory.place
            self.courier: Final = Courier()
            undone.callback(self.courier.close)
            self.sent_room: Final = SentRoom()
            self._ids = told.request_ids
            self._lane_numbers = itertools.cycle(range(1, MAX_LANE + 1))
            self._closed = False
            self._closer: Final = StreamCloser()
            self._world_closer: Final = WorldCloser(lambda number: told.tell(CloseWorld(0, number)))
            self._services: Final = LaneServices(
                told,
                self._memory,
                self.courier,
                self.sent_room,
                max_waiting,
                self.give_back,
                self._new_lane_number,
                connect,
            )
            self._blocking: Final = ThreadsLane(self._services, 0)
            undone.callback(self._blocking.close)
            self._loops: dict[asyncio.AbstractEventLoop, EventLoopLane] = {}
            """Lanes of event loops; those of closed loops go when the next one comes."""
            for device in self.devices:
                self._blocking.take(session.DeviceChanged(device))
            undone.pop_all()
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
        to_generation: int = 0,
    ) -> Reply:
        """Send a request; `pool.Pool` describes the arguments.

        With `blocking`, an event loop's thread may wait for its result too. `replays` is the number of ends of workers
        that it counts as part of already. `program` is the form in which it names its program, if it runs one. With
        `backlog`, a thread's request waits for room in this process, as an event loop's does, and the call returns.
        `to_generation` is the only incarnation of its device that it may go to, 0 for any.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: The window is full; or too many calls wait for room.
            StaleGeneration: The incarnation leaves or has ended, or nothing has been heard of it yet.
            DeadlineExceeded: A thread has waited for room, and there was none in time.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        if self.forked:
            raise errors.PoolLost(FORKED, maybe_executed=False)
        if self.worlds.of_actors:
            self.worlds.refuse(method, self.methods)
        held = interrupts.hold()
        try:
            loop = None if blocking else running_loop()
            if loop is not None and Kernel.is_here and in_cell():
                loop, backlog = None, backlog or wait is None
            lane = self._blocking if loop is None else self._loops.get(loop) or self._new_lane(loop)
            now_ns = time.monotonic_ns()
            if now_ns - self._session.polled_ns > READ_EVERY_NS:
                self.read_session()
            deadline_ns = now_ns + int(deadline_s * 1e9)
            waits = loop is not None if wait is None else wait
            holds = waits or backlog
            # A thread that waits needs no place among the calls that may wait: it makes no others meanwhile.
            blocks = waits and loop is None
            how = deadline_ns, priority, replays, holds, program, blocks, to_generation
            try:
                reply = lane.submit(next(self._ids), device, method, arguments, *how)
            except _OUTDATED:  # perhaps by news that nobody has read
                self.read_session()
                reply = lane.submit(next(self._ids), device, method, arguments, *how)
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
    def submit_gang(
        self,
        world: WorldInfo,
        method: str,
        arguments: object,
        *,
        each: bool,
        deadline_s: float,
        wait: bool | None = None,
        replays: int = 0,
        once: bool = False,
        given: Sequence[Any] | None = None,
        keeps: object = None,
        is_program: bool = False,
        undeclared: Undeclared | None = None,
    ) -> GangReply:
        """Call a method on all ranks of a world; `world.World` describes the arguments.

        Args:
            world: The world.
            method: "Actor.method".
            arguments: Those of all ranks; with `once` a list of those of each.
            each: Whether the result is a list by rank.
            deadline_s: The deadline.
            wait: Whether to wait for room.
            replays: As in `submit`.
            once: Whether it is a collective on refs, or a program of a world.
            given: The results by rank, if the caller has given the memory for them.
            keeps: The handle of the world, if the reply keeps it until it is over.
            is_program: Whether it is a program.
            undeclared: What it has to learn of its method, if that is not known yet.

        Raises:
            InvalidRequest: The arguments cannot be sent; or this process is one of the world's, which would wait for
                itself.
            Overloaded: There is no room on some member, and nothing was sent; or too many calls wait for room.
            DeadlineExceeded: A thread has waited for room, and there was none in time.
            DeviceUnavailable: The world is closed, or a member takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)

        def made(lane: Lane) -> GangReply:
            gang = GangReply(
                lane, next(self._ids), method, deadline_ns, b"", number=world.number, world=world.name, each=each
            )
            gang.replays, gang.once, gang.given, gang.keeps = replays, once, given, keeps
            gang.is_program = is_program
            return gang

        gang, lane = self._submit_gang(world, method, arguments, made, wait)
        if undeclared is not None:
            lane.learn_later(gang, undeclared)
        return gang

    @interrupts.defer_interrupts
    def stream_gang(
        self,
        world: WorldInfo,
        method: str,
        arguments: object,
        *,
        first_s: float,
        between_s: float,
        deadline_s: float,
        ahead: int,
        ahead_bytes: int,
        resumes: Resumes,
        wait: bool | None = None,
        undeclared: Undeclared | None = None,
    ) -> ReplyStream:
        """Open a stream of a world; `world.World` describes the arguments, and `resumes` is its method's.

        `undeclared` is what it has to learn of its method, if that is not known yet.

        Raises:
            AtomrError: As `submit_gang` does.
        """
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(deadline_s * 1e9)
        first_ns = min(now_ns + int(first_s * 1e9), until_ns)

        def made(lane: Lane) -> GangStream:
            stream = GangStream(lane, next(self._ids), method, first_ns, b"", number=world.number, world=world.name)
            stream.credit, stream.resumes = ReaderCredit(ahead, ahead_bytes), resumes
            stream.until_ns, stream.between_ns = until_ns, int(between_s * 1e9)
            return stream

        stream, lane = self._submit_gang(world, method, arguments, made, wait)
        self._closer.start()
        is_threads = lane is self._blocking
        if not is_threads:
            lane.watch_stream(stream)
        if undeclared is not None:
            lane.learn_later(stream, undeclared)
        return ReplyStream(stream, lane, self._closer, self._blocking.wait_for_part if is_threads else None)

    def _submit_gang(
        self,
        world: WorldInfo,
        method: str,
        arguments: object,
        make: Callable[[Lane], _Gang],
        wait: bool | None,  # noqa: FBT001 - as callers give it
    ) -> tuple[_Gang, Lane]:
        """Send what `make` makes, by the lane of the caller; return it, and the lane."""
        if self.forked:
            raise errors.PoolLost(FORKED, maybe_executed=False)
        self._refuse_own(world, method)
        loop, holds = running_loop(), False
        if loop is not None and Kernel.is_here and in_cell():
            loop, holds = None, wait is None
        lane: Lane = self._blocking if loop is None else self._loops.get(loop) or self._new_lane(loop)
        self.read_session_if_old()
        waits = loop is not None if wait is None else wait
        blocks = waits and loop is None

        def submitted() -> _Gang:
            gang = make(lane)
            lane.submit_gang(gang, arguments, waits=waits or holds, blocks=blocks, world=world)
            return gang

        try:
            gang = submitted()
        except _OUTDATED:  # perhaps by news that was not read yet
            self.read_session()
            gang = submitted()
        if lane is self._blocking:
            if blocks:
                self._blocking.wait_for_room(gang)
            elif gang.state is not ReplyState.SENT:
                self._blocking.watch(gang)  # it has to be sent even if no thread waits for an answer
        return gang, lane

    @interrupts.defer_interrupts
    def make_world(self, devices: list[int], handle: Callable[[int], _Handle]) -> _Handle:
        """Make a world of this session for collectives on refs; return its handle, which `handle` makes of its number.

        A world without a handle, since this thread was interrupted or the answer came too late, is closed again.

        Raises:
            InvalidRequest: A device does not exist, or is named twice.
            Overloaded: There are as many worlds as may be.
            Unsupported: This pool's backend has no worlds.
            DeviceUnavailable: The world has ended already.
            PoolLost: There is no pool any more, or this client was closed.
        """
        self.check()

        def close(made: object) -> None:
            assert isinstance(made, WorldMade)
            self.close_world(made.world)

        answered = self._session.ask(lambda number: MakeWorld(number, devices), ANSWER_S, undo=close).message
        assert isinstance(answered, WorldMade)
        if answered.world not in self.worlds.by_number:  # the news of its end came first
            self.check()
            raise errors.DeviceUnavailable("the new world has ended before this client could use it; make another")
        return handle(answered.world)

    def watch_world(self, handle: object, number: int) -> None:
        """End a world that this session has made once its handle is gone."""
        self._world_closer.watch(handle, number)

    @interrupts.defer_interrupts
    def close_world(self, number: int) -> None:
        """End a world that this session has made."""
        self._world_closer.forget(number)
        if not self.forked:
            self._session.tell(CloseWorld(0, number))

    def _refuse_own(self, world: WorldInfo, method: str) -> None:
        here = own_device.here
        if here is not None and here.epoch == self._session.epoch and here.device in world.devices:
            why = here.refusal(method)
            if why:
                raise errors.InvalidRequest(why)

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
            raise errors.PoolLost(FORKED, maybe_executed=False)
        self.worlds.refuse(method, self.methods)
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
        undeclared: Undeclared | None = None,
    ) -> ReplyStream:
        """Open a stream; `pool.Pool.stream` describes the arguments, and `resumes` is its method's.

        `undeclared` is what it has to learn of its method, if that is not known yet.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: Too many streams are open.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more, or this client was closed.
        """
        if self.forked:
            raise errors.PoolLost(FORKED, maybe_executed=False)
        self.worlds.refuse(method, self.methods)
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
        if undeclared is not None:
            lane.learn_later(reply, undeclared)
        self._closer.start()
        return ReplyStream(reply, lane, self._closer, self._blocking.wait_for_part if loop is None else None)

    async def until(self, condition: Callable[[], bool], until_s: float) -> bool:
        """Wait in a task until `condition()` holds; False if it does not by then. See `wait_until`.

        Args:
            condition: Asked whenever a device has changed.
            until_s: `time.monotonic()` of the end.

        Raises:
            PoolLost: The pool has ended.
        """
        import asyncio  # the awaiting task has it

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def heard(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        if loop not in self._loops:
            self._new_lane(loop)  # which reads the session
        self.listeners.append(heard)
        self.on_lost(heard)
        try:
            while True:
                self.read_session()
                if condition():
                    return True
                if self.lost is not None:
                    raise self.lost.again(maybe_executed=False)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(0.0, until_s - time.monotonic()))
                if not changed.is_set():
                    return False
                changed.clear()
        finally:
            self.listeners.remove(heard)

    def read_session_if_old(self) -> None:
        """Read the supervisor's messages, unless that was done in the last millisecond; for what each call looks at."""
        if time.monotonic_ns() - self._session.polled_ns > READ_EVERY_NS:
            self.read_session()

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the session has ended, None if it has not."""
        return self._session.lost

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
        return self._memory.get()

    def _make_memory(self) -> ClientMemory:
        from atomr_mp.client.memory.memory import ClientMemory  # late: it takes NumPy

        return ClientMemory(**self._memory_options())

    def _memory_options(self) -> dict[str, Any]:
        """Return the arguments of a client's memory."""
        told = self._session
        return {
            "epoch": told.epoch,
            "devices": told.devices,
            "lost": lambda: told.lost,
            "read_session": told.read,
            "ask": told.ask,
            "tell": told.tell,
            "submit": self._submit_blocking,
            "give_back": functools.partial(self.give_back, freed=True),
        }

    def _submit_blocking(self, method: str, request: object, device: int, deadline_s: float) -> Reply:
        """Send a request of a method that blocks: without room in the window it blocks until there is some."""
        return self.submit(method, request, device=device, deadline_s=deadline_s, blocking=True, wait=True)

    @interrupts.defer_interrupts
    def give_back(self, releases: Releases, *, freed: bool = False) -> None:
        """Send due releases to an incarnation, if possible; see `ThreadsLane.give_back`."""
        if not self.forked:
            self._blocking.give_back(releases, freed=freed)

    def check(self) -> None:
        """Check that the pool can be asked.

        Raises:
            PoolLost: The pool has ended, this client was closed, or this process was forked from the client's.
        """
        if self.forked:
            raise errors.PoolLost(FORKED, maybe_executed=False)
        self.read_session()
        if self.lost is not None:
            raise self.lost.again(maybe_executed=False)

    @interrupts.defer_interrupts
    def close_streams(self) -> None:
        """End all streams of this client: they have no reader, and a leaving worker would wait for them."""
        for lane in (self._blocking, *list(self._loops.values())):
            lane.close_streams(errors.PoolLost("this client was closed"))

    @interrupts.defer_interrupts
    def close(self) -> None:
        """End the session; unanswered requests end with `PoolLost`. May be called twice."""
        told = self._session
        # From the last step to the first, without the lock: whatever fails, the rest is closed.
        with contextlib.ExitStack() as closing, told.lock:
            if self._closed or self.forked:
                return
            self._closed = told.workers_live = True
            closing.callback(self.courier.close)
            closing.callback(told.close)
            closing.callback(self._close_memory)
            for lane in self._loops.values():
                closing.callback(lane.close)
            closing.callback(self._blocking.close)
            closing.callback(self._closer.close)
            closing.callback(self._world_closer.close)
            closing.callback(self._blocking.call_back)
            told.lose(errors.PoolLost("this client was closed"))

    def _close_memory(self) -> None:
        memory = self._memory.made
        self._session.say_bye(() if memory is None else memory.close())

    def _new_lane(self, loop: asyncio.AbstractEventLoop) -> EventLoopLane:
        from atomr_mp.client.lanes.event_loop import EventLoopLane

        notice_kernel()
        with self._session.lock:
            if self.lost is not None:  # the session has ended, and would not tell a new lane
                raise self.lost.again(maybe_executed=False)
            left = self._let_go_left()
            lane = self._loops[loop] = EventLoopLane(
                self._services, self._new_lane_number(), loop, functools.partial(_loop_closed, weakref.ref(self))
            )
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

    def _new_lane_number(self) -> int:
        """Return a number that no living connection has: a worker ignores a second connection of the same name."""
        used = {number for lane in (self._blocking, *list(self._loops.values())) for number in lane.numbers()}
        for number in itertools.islice(self._lane_numbers, MAX_LANE):
            if number not in used:
                return number
        raise errors.Overloaded(f"this client is used in {MAX_LANE} event loops; close some")

    # --- what the session tells -------------------------------------------------------------------------------------

    def _on_heard(self, message: SupervisorNews) -> None:
        told = self._session
        self.actors, self.homes, self.methods = told.actors, told.homes, told.methods
        ended = None
        if isinstance(message, session.IncarnationEnded):
            ended = told.known_releases(message.device, message.generation)
        lanes: list[Lane] = [self._blocking, *self._loops.values()]
        for lane in lanes:
            lane.take(message)
        if ended is not None:
            ended.end(awaited=any(lane.awaits(ended.device, ended.generation) for lane in lanes))
            self._memory.over(ended)  # after the lanes, which take in its last answers

    def _on_offered(self, offered: session.SlabOffered, releases: Releases, descriptor: int | None) -> None:
        """Map a slab that a standby has made for results of this client."""
        releases.keep_results()
        memory = self._memory.made
        if descriptor is None or memory is None:  # without memory, a later result asks for the slab
            releases.pending.append((LeaseKind.SLAB, offered.slab))
            if descriptor is not None:
                os.close(descriptor)
        else:
            memory.take_offered(releases, offered.slab, offered.nbytes, descriptor)

    def loop_closed(self) -> None:
        """Close the lanes of loops that have ended, at once: workers may hold parts of what these have not sent."""
        if not (self.forked or self._closed):
            self._after_read()

    def _after_read(self) -> None:
        """Run callbacks, and close the lanes of loops that have ended."""
        left: Sequence[EventLoopLane] = ()
        if self._loops:
            with self._session.lock:
                left = self._let_go_left()
        self._blocking.call_back()
        for lane in left:
            lane.call_back()

    def forget_in_child(self) -> None:
        """Close the session's descriptor in a forked child, which would otherwise keep the session alive."""
        if not self._closed:
            self.forked = True
            self._session.forget_in_child(errors.PoolLost(FORKED))
            self._memory.forget_in_child()
            for lane in (self._blocking, *self._loops.values()):
                lane.forget_in_child()


def check_max_waiting(max_waiting: int) -> int:
    """Return a valid limit."""
    return amounts.whole("max_waiting", max_waiting, 0)


ANSWER_S: Final = 60.0
"""How long to wait for the supervisor's answer."""

_Gang = TypeVar("_Gang", GangReply, GangStream)
_Handle = TypeVar("_Handle")

_OUTDATED: Final = (errors.DeviceUnavailable, errors.PoisonRequest, errors.GpuRefStale, errors.StaleGeneration)
"""Refusals by what was last heard in the session; it is read before they are final."""


def check_max_replays(max_replays: int | None) -> int | None:
    """Return a valid limit; None stands for the pool's."""
    return None if max_replays is None else amounts.whole("max_replays", max_replays, 0, 2**16 - 1)


def _loop_closed(here: weakref.ref[Client]) -> None:
    client = here()
    if client is not None:
        client.loop_closed()


def _forget_clients_in_child() -> None:
    for client in _CLIENTS:
        client.forget_in_child()


_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_clients_in_child)
