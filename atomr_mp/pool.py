"""An application's pool: calls, maps, streams, devices, actors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, Self, overload

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.actor_ref import ActorRef
from atomr_mp.client.handshake import HELLO_TIMEOUT_S
from atomr_mp.client.known_methods import NOT_KNOWN_YET, KnownMethods
from atomr_mp.client.lanes.retry_policy import NEVER
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import AHEAD, AHEAD_BYTES, BETWEEN_S, ReplyStream
from atomr_mp.client.worlds.ref_checks import devices_of
from atomr_mp.device import DEFAULT_DEADLINE_S, Device, lengths
from atomr_mp.made_world import MadeWorld
from atomr_mp.operator.owned_supervisor import OwnedSupervisor
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.process.shortage import needs_descriptors
from atomr_mp.protocol import amounts, dtypes
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.messages.data import MAX_PRIORITY, MIN_PRIORITY
from atomr_mp.protocol.messages.devices import OUT_OF_USE, DeviceInfo, MethodInfo, WorldInfo
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.words import counted, did_you_mean
from atomr_mp.world import World, no_option, undeclared_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from atomr_mp.client.client import Client
    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.mapping.journal import Journal
    from atomr_mp.mapping.run import Mapper, Progress
    from atomr_mp.operator.pool_status import PoolStatus
    from atomr_mp.protocol.messages.operators import Status


WORLD_READY_S: Final = 10.0
"""How long `Pool.world` waits for the first epoch of a new world."""


@checks_names
class Pool:
    """A running pool of devices. Thread-safe; use it with `with`, in coroutines with `async with`, or `close` it.

    Calls work alike in threads and in event loops: each returns a `Reply` at once.

    Args:
        client: The session.
        run_dir: The pool's run directory; None if it is on another machine.
        supervisor: The supervisor, if this application started it.
        operator: Makes a session for questions and orders; None for one by the run directory.
    """

    def __init__(
        self,
        client: Client,
        run_dir: Path | None = None,
        supervisor: OwnedSupervisor | None = None,
        operator: Callable[[float], OperatorSession] | None = None,
    ) -> None:
        self._client: Final = client
        self._known: Final = KnownMethods(client)
        self._ask: Final = operator
        self._mapper: Mapper | None = None
        self._devices: dict[int, Device] = {}
        self._supervisor = supervisor
        self._run_dir = run_dir
        self._closed = False
        self.name: Final = client.pool
        self.epoch: Final = client.epoch
        self.supervisor_pid: Final = client.supervisor_pid

    __reduce__ = refusal(CONNECT, "its `run_dir`, by which a process joins it")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._close(interrupted=isinstance(error, KeyboardInterrupt))

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        import asyncio  # the caller has it

        interrupted = isinstance(error, KeyboardInterrupt)
        closing = asyncio.ensure_future(asyncio.to_thread(self._close, interrupted=interrupted))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})  # what was begun is also ended
            raise

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    def _check_open(self) -> None:
        """Refuse to enter a pool again.

        Raises:
            PoolLost: It was closed.
        """
        if self._closed:
            raise errors.PoolLost("this pool was closed; start or connect another one")

    def __repr__(self) -> str:
        if self._closed:
            return f"<Pool {self.name} at {self._run_dir or 'another machine'}: closed>"
        states = ", ".join(f"{device.index}: {device.state.value}" for device in self.devices)
        return f"<Pool {self.name} at {self._run_dir or 'another machine'}: {states}>"

    @property
    def run_dir(self) -> Path:
        """The pool's run directory.

        Raises:
            Unsupported: It is on another machine.
        """
        if self._run_dir is None:
            raise errors.Unsupported("a remote client has no way to the pool's run directory, and its logs")
        return self._run_dir

    def _operator(self, timeout_s: float = HELLO_TIMEOUT_S) -> OperatorSession:
        """Return a session for questions and orders.

        Args:
            timeout_s: How long the supervisor may take to answer.

        Raises:
            PoolLost: The pool has ended, or this client was closed.
            ConfigurationError: This process has no file descriptor left.
        """
        self._client.check()
        if self._ask is not None:
            return self._ask(timeout_s)
        with needs_descriptors("ask the supervisor"):
            return OperatorSession(self.run_dir / SESSION_SOCKET, timeout_s)

    @property
    def devices(self) -> list[DeviceInfo]:
        """The devices, as the supervisor last reported them."""
        self._client.read_session()
        return list(self._client.devices)

    def device(self, index: int = 0) -> Device:
        """Return a device, to make buffers in its memory and to use its libraries.

        Args:
            index: The device's index.

        Raises:
            InvalidRequest: There is no such device.
        """
        index = self._device_index(index)
        return self._devices.setdefault(index, Device(self._client, index))

    def host_array(self, shape: int | Sequence[int], dtype: DTypeLike = "float32") -> np.ndarray[Any, Any]:
        """Return a new NumPy array in memory that this pool's workers reach, its content undefined. Blocks.

        As an argument, or in `Device.put`, it is not copied on its way. A GPU reads it, and with `numpy(out=)` writes
        it, at the speed of the bus: its first use there pins it, which takes some 0.8 s a GiB. Do not write to it
        before the calls that have it as an argument are answered.

        Args:
            shape: Lengths of the dimensions.
            dtype: Name of the element type, or NumPy's or ml_dtypes' type.

        A child that is forked has the same memory, not a copy.

        Raises:
            InvalidRequest: The shape or the element type is impossible.
            OutOfMemory: There is not enough memory.
            PoolLost: The pool has ended, this client was closed, or this process was forked from the client's.
        """
        self._client.check()
        return self._client.memory.host_array(tuple(lengths(shape)), dtypes.name_for(dtype))

    def claim(self, shared: bytes) -> GpuRef:
        """Claim a ref that another client has shared with `GpuRef.share`; possible once. Blocks.

        Raises:
            PoolMismatch: The ref was shared in another pool.
            GpuRefStale: The incarnation that had the memory has ended.
            GpuRefReleased: The ref was claimed before, or its time is over.
            ProtocolError: The bytes are not those of a share.
            PoolLost: The pool has ended, this client was closed, or this process was forked from the client's.
        """
        self._client.check()
        return self._client.memory.claim(shared)

    @property
    def methods(self) -> list[str]:
        """Names of all requests, as "Actor.method"; none while the pool starts."""
        self._client.read_session()
        return sorted(self._client.methods)

    def call(
        self,
        method: str,
        /,
        *args: Any,
        device: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        wait: bool | None = None,
        kwargs: dict[str, Any] | None = None,
        **unknown: Never,
    ) -> Reply:
        """Make a request.

        Returns at once. While the pool starts, or the device comes back after a loss, the request waits in this
        process; only a thread that gives arguments by position and by name waits for a pool that starts. In an event
        loop the request also waits, in order, while the window of unanswered requests is full; at most `max_waiting`
        requests do, see `connect`. Arrays of 128 KiB and more are copied into memory that the workers can read; the
        first of them waits until the workers know that memory. A ref to another device's memory waits until that device
        has lent it.

        Args:
            method: "Actor.method".
            *args: Its arguments: None, bool, int, float, str, bytes, lists, maps, NumPy arrays,
                refs. Arrays are copied, and may be written to at once, but for those of `host_array`.
            device: Index of the device; None for the device of the refs among the arguments, else the one with the
                fewest unanswered requests of this client, of those that have the actor.
            deadline_s: Seconds after which the request ends with `DeadlineExceeded`, at most ten years; None for the
                method's own default, or `DEFAULT_DEADLINE_S`.
            priority: From -8 to 7. Among requests that wait in the device's process for the same place to run, higher
                ones come first, whoever has sent them, and also before earlier calls of this client.
            wait: Whether to wait for room in the window of unanswered requests. None: in an event loop, but not in a
                thread. In a thread, `call` blocks meanwhile, until the deadline.
            kwargs: Arguments by name.
            **unknown: Takes nothing: a wrong name is refused, and the nearest right one named.

        Raises:
            InvalidRequest: No such method, device or priority; the actor is not on this device; or an argument that
                cannot be sent.
            WrongArgument: There is no such option.
            Overloaded: Too many unanswered requests to this device, or too many that wait for room. By the reply: too
                many requests of all clients wait.
            DeadlineExceeded: A thread has waited for room until the deadline.
            PoisonRequest: The request has ended workers, and is refused. By the reply: the last of them just now.
            DeviceUnavailable: The device takes no work.
            PoolLost: The pool has ended.
        """
        client = self._client
        info = (client.methods.get(method) if type(method) is str else None) or self._known.look_up(method)
        if unknown:
            raise no_option("Pool.call", method, info, unknown, Pool.call)
        if device is not None:
            device = self._device_index(device)
        undeclared = None if info is not NOT_KNOWN_YET else undeclared_at(info, deadline_s)
        if deadline_s is None:
            deadline_s = info.deadline_s or DEFAULT_DEADLINE_S
        else:
            deadline_s = amounts.duration("deadline_s", deadline_s)
        arguments: object = args
        if kwargs:
            arguments = self._known.named(method, info, args, kwargs, deadline_s)
        if type(priority) is not int or priority:
            priority = _priority(priority)
        reply = client.submit(method, arguments, device=device, deadline_s=deadline_s, priority=priority, wait=wait)
        if undeclared is not None:
            reply.lane.learn_later(reply, undeclared)
        return reply

    def call_once(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        deadline_s: float | None,
        priority: int,
        at: tuple[int, int] | None = None,
    ) -> Reply:
        """Make a request that is not sent again once it may have run, also if its method is idempotent; see `call`.

        Args:
            method: "Actor.method".
            args: Its arguments by position.
            kwargs: Its arguments by name.
            deadline_s: Its deadline; None for the method's own.
            priority: Its priority.
            at: The device and the incarnation that it may go to, and no others; None for any.

        Raises:
            StaleGeneration: The incarnation has ended or leaves; or this client has not heard of it yet, and `current`
                is lower. By the reply: it has ended before the request was sent.
            AtomrError: As of `call`.
        """
        info = self._known.look_up(method)
        deadline_s = deadline_s or info.deadline_s or DEFAULT_DEADLINE_S
        arguments: object = self._known.named(method, info, args, kwargs, deadline_s) if kwargs else args
        device, generation = at or (None, 0)
        return self._client.submit(
            method,
            arguments,
            device=device,
            deadline_s=deadline_s,
            priority=_priority(priority),
            replays=NEVER,
            to_generation=generation,
        )

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        device: int | None = None,
        first_s: float | None = None,
        between_s: float = BETWEEN_S,
        deadline_s: float | None = None,
        priority: int = 0,
        ahead: int = AHEAD,
        ahead_bytes: int = AHEAD_BYTES,
        kwargs: dict[str, Any] | None = None,
        **unknown: Never,
    ) -> ReplyStream:
        """Make a request of a method that streams, and return its parts as they come.

        Returns at once. Read it with `for` in threads, with `async for` in coroutines: one that a coroutine has opened
        only in that event loop. Use it with `with` or `async with`, so that leaving the block ends it. Streams do not
        count in the window of calls.

        Args:
            method: "Actor.method", a generator.
            *args: Its arguments, see `call`.
            device: Index of the device; see `call`.
            first_s: Seconds after which the stream ends with `DeadlineExceeded` without its first part; None for the
                method's own deadline, or `DEFAULT_DEADLINE_S`.
            between_s: The same for each further part, from the one before it. Time in which `ahead` allows no further
                part does not count.
            deadline_s: The same for the end of the stream; None for none.
            priority: From -8 to 7, step by step; see `call`.
            ahead: How many parts may be on their way or unread; from 1 to 4,096. More is faster if parts are made
                quickly; fewer wastes less work if the reader leaves.
            ahead_bytes: How many bytes of parts may be on their way or unread. A single part may be larger.
            kwargs: Arguments by name.
            **unknown: None; see `call`.

        Raises:
            WrongArgument: There is no such option.
            InvalidRequest: No such method, device or priority, an argument that cannot be sent, or a method that does
                not stream.
            Overloaded: Too many streams are open (`max_streams`). By the stream: too many of all clients.
            PoisonRequest: The request has ended workers, and is refused. By the stream: the last of them just now.
            DeviceUnavailable: The device takes no work.
            PoolLost: The pool has ended.
        """
        client = self._client
        info = (client.methods.get(method) if type(method) is str else None) or self._known.look_up(method)
        if unknown:
            raise no_option("Pool.stream", method, info, unknown, Pool.stream)
        if not info.streams and info is not NOT_KNOWN_YET:
            world = self.world_of(method)
            use = "Pool.call" if world is None else f"pool.world({world.name!r}).call"
            raise errors.InvalidRequest(f"{method} returns one result: use {use}")
        undeclared = undeclared_at(info, first_s)
        default_s = info.deadline_s or DEFAULT_DEADLINE_S
        first_s = default_s if first_s is None else amounts.duration("first_s", first_s)
        return client.stream(
            method,
            self._known.named(method, info, args, kwargs, first_s) if kwargs else args,
            device=None if device is None else self._device_index(device),
            first_s=first_s,
            between_s=amounts.duration("between_s", between_s),
            deadline_s=amounts.deadline(deadline_s, amounts.LONGEST_S),
            priority=_priority(priority),
            ahead=amounts.whole("ahead", ahead, 1, MAX_AHEAD),
            ahead_bytes=amounts.whole("ahead_bytes", ahead_bytes, 1),
            resumes=info.resumes,
            undeclared=undeclared,
        )

    def map(
        self,
        method: str,
        items: Iterable[Any],
        *,
        in_flight: int | None = None,
        batch_size: int | None = None,
        attempts: int = 3,
        deadline_s: float | None = None,
        priority: int = 0,
        return_failures: bool = False,
        on_progress: Callable[[Progress], object] | None = None,
        journal: str | Path | None = None,
        retry_failed: bool = False,
        repair_journal: bool = False,
    ) -> Iterator[Any]:
        """Call a method once for every item, on all devices, and yield the results in the items' order.

        A method of a world's actor is called on its world, see `World.call`; what is said of devices holds for the
        world then. It has no priority, and an item that was sent runs to its end.

        Works while the results are read, in the thread that reads them; items are taken as they are needed. Items lost
        with a worker are sent again, to any device, if they certainly did not run or the method is idempotent.

        Args:
            method: "Actor.method"; it takes an item as its one argument.
            items: Arguments, see `call`; any iterable, even an endless one.
            in_flight: How many items are sent and not answered at a time, in all. None for up to 32 per device, fewer
                if items are slow; or as many as `batch_size` says.
            batch_size: How many items per device are in flight in any case, so that batches fill. None for four full
                batches of this method, and up to eight if items are quick: while one batch runs, the next ones fill,
                for several keys too.
            attempts: How often an item may run in all: with 3, it is sent again after two ends of workers while it ran.
                Ends that it cannot have caused do not count.
            deadline_s: Deadline of each attempt, see `call`; waiting behind other items counts.
            priority: Of each item, see `call`; below 0 for a map that can wait for others' calls.
            return_failures: Yield a `map.Failure` in the place of an item that fails, and go on. Otherwise its error is
                raised there, and items in flight are cancelled.
            on_progress: Called with a `map.Progress` now and then, in the thread that reads; must be short.
            journal: A file that records each outcome as it comes. A map with the same method and items yields the
                recorded results and goes on from there, whatever has ended the one before. Results with refs cannot be
                recorded, nor arrays of more than 16 MiB. A failed item is set aside and not tried again; so are items
                in flight when a map was cut off, unless the method is idempotent. If the pool is lost or no device
                takes work, the map ends with that error, even with `return_failures`. The file stays when all is done;
                remove it if it is not needed.
            retry_failed: Try the items again that the journal has set aside. Those that the pool refuses as
                `PoisonRequest` are admitted first, as by `atomr-mp admit`.
            repair_journal: If the journal is damaged, save its whole records, keep the damaged file as PATH.damaged,
                and go on. Items that may have run and have lost their record run again if the method is idempotent,
                else they are set aside.

        Raises:
            InvalidRequest: No such method or priority, or a number out of bounds.
            JournalMismatch: `journal` belongs to another method, at once; or to other items, while reading.
            JournalDamaged: Records of `journal` are damaged before its end, and `repair_journal` is False.
            ConfigurationError: `journal` cannot be used, or another map uses it.
            AtomrError: While reading: an item's error. If the pool is lost or no device takes work any more, all
                further items end with it.
            WouldBlock: Read by a coroutine, whose event loop it would block.
        """
        priority = _priority(priority)
        attempts = amounts.whole("attempts", attempts, 1)
        in_flight = None if in_flight is None else amounts.whole("in_flight", in_flight, 1)
        batch_size = None if batch_size is None else amounts.whole("batch_size", batch_size, 1)
        deadline_s = None if deadline_s is None else amounts.duration("deadline_s", deadline_s)
        self._known.info(method)
        self._client.worlds.check_priority(method, priority)
        info = self._known.known(method, deadline_s or DEFAULT_DEADLINE_S)
        given: Any = items
        if not (isinstance(given, Iterable) or hasattr(given, "__getitem__")):
            hint = (
                "asynchronous; read them by `async for` of `pool.amap`" if hasattr(items, "__aiter__") else repr(items)
            )
            raise errors.InvalidRequest(f"items must be an iterable; these are {hint}")
        kept = None
        if journal is not None:
            if not isinstance(journal, str | os.PathLike):
                raise errors.InvalidRequest(f"journal must be a file's path; got {journal!r}")
            from atomr_mp.mapping.journal import Journal  # late: few need it

            if repair_journal:
                from atomr_mp.mapping.journal_repair import repair

                repair(Path(journal), method, info.parameters)
            kept = Journal(
                Path(journal), method, info.parameters, idempotent=info.idempotent, retry_failed=retry_failed
            )
            if kept.poisonous:
                self._admit(kept, {RequestKey(method, item) for item in kept.poisonous.values()})
        mapper = self._mapper or self._make_mapper()
        return mapper.map(
            method,
            items,
            idempotent=info.idempotent,
            in_flight=in_flight,
            depth=mapper.depth(batch_size or 4 * info.batch_items, batch_size or 8 * info.batch_items),
            # What a worker's end takes along of a call with items may all have run.
            call_items=info.call_items if info.idempotent and self._client.worlds.of(method) is None else 0,
            attempts=attempts,
            deadline_s=deadline_s or info.deadline_s or DEFAULT_DEADLINE_S,
            priority=priority,
            on_progress=on_progress,
            return_failures=return_failures,
            journal=kept,
        )

    def amap(
        self,
        method: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        ordered: bool = True,
        in_flight: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        return_failures: bool = False,
    ) -> AsyncIterator[Any]:
        """Call a method once for every item, on all devices, from an event loop: `async for result in pool.amap(...)`.

        A method of a world's actor is called on its world, see `map`.

        Items are taken as there is room for them, even while nobody waits for a result; an iterable that is not
        asynchronous must not block. Closing it, or leaving its loop, cancels the items in flight. Unlike `map` it sends
        again only as single calls do: requests of idempotent methods, up to `max_replays` times.

        Args:
            method: "Actor.method"; it takes an item as its one argument.
            items: Arguments, see `call`; any iterable, asynchronous or not, even an endless one.
            ordered: Yield results in the items' order; otherwise each as it comes.
            in_flight: How many items are sent and not answered at a time, in all. None for up to 32 per device, or four
                full batches of this method if that is more.
            deadline_s: Deadline of each call, see `call`.
            priority: Of each call, see `call`.
            return_failures: Yield a `map.Failure` in the place of an item that fails, and go on. Otherwise its error is
                raised there, and items in flight are cancelled.

        Raises:
            InvalidRequest: No such method or priority, or a number out of bounds.
            AtomrError: While reading: an item's error.
        """
        priority = _priority(priority)
        in_flight = None if in_flight is None else amounts.whole("in_flight", in_flight, 1)
        deadline_s = None if deadline_s is None else amounts.duration("deadline_s", deadline_s)
        info = self._known.info(method)
        self._client.worlds.check_priority(method, priority)
        from atomr_mp.mapping.async_run import AsyncMapRun, outcomes_of  # late: it takes asyncio
        from atomr_mp.mapping.item_target import ItemTarget

        def run(info: MethodInfo) -> AsyncMapRun:
            return AsyncMapRun(
                ItemTarget(self._client, method, deadline_s or info.deadline_s or DEFAULT_DEADLINE_S, priority),
                ordered=ordered,
                in_flight=in_flight,
                depth=4 * info.batch_items,
                return_failures=return_failures,
            )

        if info is not NOT_KNOWN_YET:
            return run(info).outcomes(items)
        return outcomes_of(lambda: self._known.arrival(method, deadline_s or DEFAULT_DEADLINE_S), run, items)

    @property
    def methods_by_name(self) -> Mapping[str, MethodInfo]:
        """Description of each request, by "Actor.method"; a new map within 1 ms after a reload."""
        self._client.read_session_if_old()
        return self._client.methods

    def method_info(self, method: str, deadline_s: float | None = None) -> MethodInfo:
        """Return the description of a request: its parameters, their JSON Schema, whether it is idempotent.

        Args:
            method: "Actor.method".
            deadline_s: How long a thread waits to know while the pool starts; None for 30 s.

        Raises:
            InvalidRequest: There is no such method; or, in an event loop, the pool is starting and its methods are not
                known yet, for which a thread waits.
            DeadlineExceeded: The pool still starts.
        """
        return self._known.known(method, amounts.deadline(deadline_s, DEFAULT_DEADLINE_S))

    @property
    def lost(self) -> errors.PoolLost | None:
        """The error of the pool's end, as far as this client has heard of it; None while the pool can be called."""
        self._client.read_session()
        return self._client.lost

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call `listener` once when the pool is lost or closed, on the thread that finds out; keep it short.

        It is called at once if that has happened already. A running event loop in which this client has made calls
        finds out by itself; without one the client finds out during a call or a wait.
        """
        self._client.on_lost(listener)

    def has(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether there is a request of this name; while the pool starts, a thread waits to know.

        Args:
            method: "Actor.method".
            deadline_s: How long; None for `DEFAULT_DEADLINE_S`.

        Raises:
            InvalidRequest: In an event loop: the pool is starting, and that is not known yet.
            DeadlineExceeded: It is not known in time.
            DeviceUnavailable: No device that may have it is in use.
        """
        return self._known.has(method, amounts.deadline(deadline_s, DEFAULT_DEADLINE_S))

    def streams(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether there is a request of this name that streams; see `has`."""
        return self._known.known(method, amounts.deadline(deadline_s, DEFAULT_DEADLINE_S)).streams

    def actor(
        self,
        name: str,
        *,
        device: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        wait: bool | None = None,
    ) -> ActorRef:
        """Return a reference through which an actor's methods are called like methods.

        While the pool starts, any name is taken. A thread's first use of a method then waits until the method is known.
        In an event loop it makes a request that may be awaited, or read by `async for`.

        Args:
            name: The actor's name.
            device: Index of the device; None for the one with the fewest unanswered requests, call by call.
            deadline_s: Deadline of the calls, see `call`.
            priority: Their priority, see `call`.
            wait: Whether the calls wait for room, see `call`.

        Raises:
            InvalidRequest: There is no such actor.
        """
        if not isinstance(name, str):
            raise errors.InvalidRequest(f"an actor is named by a text; got {name!r:.200}")
        deadline_s = None if deadline_s is None else amounts.duration("deadline_s", deadline_s)
        self._client.worlds.refuse(name)
        known = sorted({method.partition(".")[0] for method in self._client.methods})
        if name not in known:
            starting = self.is_starting(name)
            known = sorted({method.partition(".")[0] for method in self.methods})
            if starting or self.is_starting(name):
                known.append(name)
        if name not in known:
            if (lost := self.lost) is not None:
                raise lost.again(maybe_executed=False)
            raise errors.InvalidRequest(
                f"there is no actor {name!r}{did_you_mean(name, known)}; this pool's actors are: "
                f"{', '.join(known) or 'none'}"
            )
        device = None if device is None else self._device_index(device)
        return ActorRef(self, name, device, deadline_s, _priority(priority), wait)

    @overload
    def world(self, which: str) -> World: ...
    @overload
    def world(self, which: Sequence[int | Device]) -> MadeWorld: ...
    def world(self, which: str | Sequence[int | Device]) -> World | MadeWorld:
        """Return a world: one of the pool's, to call its actors' methods on all of its devices as one; or a new one.

        A new world is for collectives on refs. It is this client's alone, and ends with `close` or with the client.
        This waits for its first epoch, for `WORLD_READY_S` at most.

        Args:
            which: The world's name; or the devices of a new world, by rank: their indexes, or the devices of this pool.

        Raises:
            InvalidRequest: There is no world of this name, or no such device.
            Overloaded: There are as many worlds as may be.
            PoolLost: The pool has ended, this client was closed, or this process was forked from the client's.
        """
        self._client.check()
        if not isinstance(which, str):
            return self._make_world(which)
        return self._known_world(self._client.worlds.named(which))

    @property
    def worlds(self) -> list[World]:
        """The pool's worlds, as the supervisor last reported them."""
        self._client.read_session()
        return [self._known_world(info) for info in self._client.worlds.by_number.values() if not info.made]

    def world_of(self, method: str) -> World | None:
        """Return the world of a method's actor, None if it is of none: `call` and `stream` take it then.

        Args:
            method: "Actor.method", or the actor's name.
        """
        worlds = self._client.worlds
        info = worlds.of(method) if worlds.of_actors else None
        return None if info is None else self._known_world(info)

    def _known_world(self, info: WorldInfo) -> World:
        return World(self._client, info.number, self._known)

    def _is_own(self, device: object) -> bool:
        return isinstance(device, Device) and device._client is self._client  # noqa: SLF001 - a part of the pool

    def _make_world(self, devices: Sequence[int | Device]) -> MadeWorld:
        given: Any = devices
        if isinstance(given, Sequence):
            given = [each.index if self._is_own(each) else each for each in given]
        client = self._client
        world = client.make_world(devices_of(given, len(self.devices)), lambda number: MadeWorld(client, number))
        with contextlib.suppress(TimeoutError, errors.DeviceUnavailable):  # calls say why it is not ready
            world.wait_ready(WORLD_READY_S)
        return world

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Wait until every device is ready to be called by this client.

        Raises:
            ActorLoadFailed: A device is stopped because an actor cannot be imported.
            SetupFailed: A device is stopped because it does not start.
            TimeoutError: Some device was not ready in time.
            PoolLost: This client was closed, or this process was forked from the client's.
        """
        self._check_open()
        client = self._client
        if client.forked:
            client.check()
        timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)

        def settled() -> bool:
            return all(device.admitted or device.state in OUT_OF_USE for device in client.devices)

        if not client.wait_until(settled, timeout_s):
            late = [f"{device.index} is {device.state.value}" for device in client.devices if not device.admitted]
            raise TimeoutError(f"not all devices were ready within {timeout_s:g} s: device {', '.join(late)}")
        for device in client.devices:
            if device.state in OUT_OF_USE:
                error = device.error.error() if device.error else errors.SetupFailed("")
                if not isinstance(error, errors.ActorLoadFailed | errors.SetupFailed | errors.ConfigurationError):
                    error = errors.SetupFailed("")  # it ended without a word
                log = "" if self._run_dir is None else f" (its log: {self._run_dir / f'device-{device.index}.log'})"
                error.message = f"device {device.index} did not start: {device.reason}{log}"
                raise errors.unraised(error)

    def status(self, timeout_s: float = 10.0) -> PoolStatus:
        """Return a snapshot of the pool: states, queues, processes; in the words of `atomr-mp status --json`. Blocks.

        Raises:
            TimeoutError: The supervisor has not answered in time.
            PoolLost: The pool has ended, or this client was closed.
        """
        from atomr_mp.operator.pool_status import status_of  # late: most applications do not ask

        return status_of(self.figures(timeout_s), self._run_dir, time.time())

    def figures(self, timeout_s: float = 10.0) -> Status:
        """Return the supervisor's own answer, with all counters of the workers, for exporters; see `status`. Blocks."""
        timeout_s = amounts.duration("timeout_s", timeout_s)
        until_s = time.monotonic() + timeout_s
        try:
            with self._operator(timeout_s) as observer:
                return observer.status(max(0.0, until_s - time.monotonic()))
        except (errors.PoolLost, errors.PoolUnreachable) as error:
            if time.monotonic() < until_s:
                raise
            raise TimeoutError(f"the supervisor has not answered within {timeout_s:g} s") from error

    def restart(self, device: int) -> None:
        """Order a device's worker to be replaced after it has finished what it holds. Returns at once.

        A worker that is just starting meets the order.
        """
        device = self._device_index(device)
        with self._operator() as observer:
            observer.restart(device)

    def reload(self, timeout_s: float = 600.0) -> list[str]:
        """Replace all workers, one device at a time, so that they run the actors' present code. Blocks.

        If the pool was started with a configuration file, the supervisor reads it again first. While another reload
        runs, this one waits for its end; several that wait are done as one.

        Returns:
            Settings that have changed and need a restart of the pool.

        Raises:
            ActorLoadFailed: An actor cannot be imported any more; the devices behind that one keep the old code.
            SetupFailed: A new worker did not start; the devices behind it keep the old code.
            ConfigurationError: The configuration file cannot be used; nothing was done.
            InvalidRequest: Too many wait for the end of a reload already, or the pool stops.
            TimeoutError: The reload is not done yet, and goes on.
        """
        timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)
        with self._operator() as observer:
            return observer.reload(timeout_s)

    def on_event(self, listener: Callable[[Any], object]) -> None:
        """Call `listener` with every lifecycle event, on the thread that reads it; keep it short.

        Events are read during calls and waits.
        """
        self._client.listeners.append(listener)

    def close(self) -> None:
        """End the session. May be called twice; does nothing in a forked child.

        If this application started the pool, stop it in good order and wait for its end. The first Ctrl-C meanwhile
        says on stderr how many requests are left, and is raised when the pool has ended; the second kills the workers.
        """
        self._close(interrupted=False)

    @interrupts.defer_interrupts
    def _close(self, *, interrupted: bool) -> None:
        if self._client.forked:
            return  # the pool is our parent's
        self._closed = True
        supervisor, self._supervisor = self._supervisor, None
        with contextlib.ExitStack() as closing:  # from the last step to the first: whatever fails, the rest is done
            if supervisor is not None:
                closing.callback(interrupts.wait, supervisor.wait)
            closing.callback(self._close_mapper)
            closing.callback(self._client.close)  # if the pool still stops, this has its workers killed
            if supervisor is not None and self._client.lost is None:
                interrupts.wait(supervisor.stop, interrupted)

    def _admit(self, journal: Journal, requests: set[RequestKey]) -> None:
        """Have requests admitted that are refused; those of other maps stay refused."""
        try:
            with self._operator() as observer:
                for request in {each.request for each in observer.status().quarantined} & requests:
                    # This client hears of it before the order is answered, and looks before it refuses a request.
                    with contextlib.suppress(errors.InvalidRequest):  # somebody else was faster
                        observer.admit(request)
        except BaseException:
            journal.close()
            raise

    @interrupts.defer_interrupts  # half-imported packages cannot be imported again
    def _make_mapper(self) -> Mapper:
        from atomr_mp.mapping.run import Mapper  # late: it takes asyncio, which the rest does without

        self._mapper = Mapper(self._client)
        return self._mapper

    def _close_mapper(self) -> None:
        if self._mapper is not None:
            self._mapper.close()

    def _device_index(self, device: int) -> int:
        """Return a device's index.

        Raises:
            InvalidRequest: There is no such device.
        """
        devices = self._client.devices  # their number never changes
        if type(device) is int and 0 <= device < len(devices):
            return device
        try:
            index = amounts.whole("device", device, -amounts.MOST)
        except errors.InvalidRequest:
            raise errors.InvalidRequest(
                f"device is a whole number from 0 to {len(devices) - 1}; got {device!r}"
            ) from None
        if not 0 <= index < len(devices):
            raise errors.InvalidRequest(f"there is no device {index}; this pool has {counted(len(devices), 'device')}")
        return index

    def devices_for(self, method: str) -> list[DeviceInfo]:
        """Return the devices that have a request's actor, as the supervisor last reported them.

        Args:
            method: "Actor.method", or the actor's name.

        Raises:
            InvalidRequest: There is no such actor. While the pool starts, only an empty name is told.
        """
        given: Any = method
        actor = given.partition(".")[0] if isinstance(given, str) else ""
        if not actor:
            raise errors.InvalidRequest(f'method must be "Actor.method", or an actor\'s name; got {method!r}')
        home = self._client.homes.get(actor)
        if home is None and (methods := self.methods):
            known = sorted({each.partition(".")[0] for each in methods} | self._client.homes.keys())
            if actor not in known:
                hint = did_you_mean(actor, known)
                raise errors.InvalidRequest(
                    f"there is no actor {actor!r}{hint}; this pool's actors are: {', '.join(known)}"
                )
        return [device for device in self.devices if home is None or device.index in home]

    def is_starting(self, method: str) -> bool:
        """Whether it is not known yet if there is a request: no device that may have its actor has been ready.

        Args:
            method: "Actor.method", or the actor's name.
        """
        return self._known.is_starting(method)


def _priority(priority: int) -> int:
    return amounts.whole("priority", priority, MIN_PRIORITY, MAX_PRIORITY)
