"""Builds the parts of a device's process, before it serves: its device, its memory, its actors."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from atomr_mp import errors
from atomr_mp.protocol import own_device, token
from atomr_mp.protocol.board import WORKED, BoardWriter
from atomr_mp.protocol.exceptions import describe, missing_module, traceback_of, trusted
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.library_names import LIBRARIES
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.process_tags import resident_name, slab_name
from atomr_mp_workers import own_process
from atomr_mp_workers.actor import Context, ProcessPhase
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.background import Background
from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.late_imports import LateImports
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.actor_libraries import InProcessLibraries
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.world.programs import WorldProgramMethod
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.loading import LoadedActor, Loader, max_running_of, take_into_world, threads_of
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.memory.resident.blobs import ResidentBlobs
from atomr_mp_workers.memory.result_slabs import ResultSlabs
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.batches.batch_run import BatchedMethod
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.faults import OwnFaults
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.off_loop.runner import ActorRunner
from atomr_mp_workers.requests.off_loop.threads import ActorThreads
from atomr_mp_workers.requests.own_calls import OwnCalls
from atomr_mp_workers.requests.peers import Peers
from atomr_mp_workers.requests.raised import known
from atomr_mp_workers.requests.request import current_holder
from atomr_mp_workers.requests.streams.steps import SteppedMethod
from atomr_mp_workers.supervised.foresight import Readiness, Usage
from atomr_mp_workers.supervised.hang_limits import HangLimits
from atomr_mp_workers.supervised.imports import ImportsAhead, RequestsImports
from atomr_mp_workers.supervised.stacks import show_unfinished
from atomr_mp_workers.wire.control import ControlChannel
from atomr_mp_workers.worlds.engines import Engine, engine_of
from atomr_mp_workers.worlds.hosted import HostedWorlds
from atomr_mp_workers.worlds.made_places import MadePlaces
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.offers import WorldOffers
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.running.batched_method import GangBatchedMethod
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.stepped_method import GangSteppedMethod
from atomr_mp_workers.worlds.running.world_thread import WorldThread

if TYPE_CHECKING:
    from atomr_mp_workers.requests.off_loop.event_loop import EventLoop
    from atomr_mp_workers.worlds.exchange.world import OwnWorld


@dataclass(frozen=True)
class WorkerParts:
    """The parts of a device's process."""

    device: WorkerDevice
    completions: Completions
    store: Store
    peers: Peers
    actors: list[LoadedActor]
    """Actors that have been set up."""
    envelope: Envelope
    runners: dict[str, ActorRunner]
    """Runners of requests off the loop, by method."""
    event_loops: dict[str, EventLoop]
    """Event loops of asynchronous actors, by actor."""
    batched: dict[str, BatchedMethod | SteppedMethod]
    """Batched methods and methods with steps, by method."""
    usage: Usage
    readiness: Readiness
    phase: ProcessPhase
    imports: RequestsImports
    imports_ahead: ImportsAhead
    worlds: HostedWorlds
    offered: list[control.WorldOffered]
    """Worlds of sessions that were offered before the start."""


def build(
    start: control.Start, channel: ControlChannel, board: BoardWriter, loader: Loader, offers: WorldOffers
) -> WorkerParts:
    """Open the device, set up the actors, and return the parts of the process.

    Args:
        start: The order that starts this process.
        channel: The control channel.
        board: The board, mapped.
        loader: Loads the actors.
        offers: The worlds that this process has a place in.

    Raises:
        FatalError: The process cannot serve.
    """
    execution = start.execution
    current = token.pack(start.epoch, start.device, start.generation)
    try:
        device = _open_device(start, board)
        in_progress = InProgress()
        completions = Completions(execution.completion, device, in_progress)
        streams = _make_streams(execution, device)
        engine = partial(engine_of, device=device, tell=channel.send)
        places = _make_worlds(offers, engine, device, channel, completions, board)
    except errors.AtomrError as error:
        raise FatalError(error) from error
    store = Store(device, current, execution.memory_bytes, in_progress, ResultSlabs(channel))
    memory = ActorMemory(store, lambda: current_holder() or store.buffers.ours)
    device.use_memory(memory)
    library_context = LibraryContext(
        start.backend,
        device,
        store,
        streams,
        memory.holder,
        completions.wake,
        lambda library: board.plans(LIBRARIES.index(library)),
        board.graphs(),
    )
    peers = Peers(start.window, store)
    residents = ResidentBlobs(device, channel)
    log, phase = logging.getLogger("actor"), ProcessPhase()

    def context_of(actor: str, stream: Stream | None) -> Context:
        """Return the context for an actor."""
        world = places[actor].view if actor in places else None
        libraries = InProcessLibraries(dataclasses.replace(library_context, world=world), stream)
        names = start.pool, start.device, start.name, start.backend, start.generation
        return Context(*names, log, memory, residents, libraries, phase, world)

    rooms = ExecutionPlaces(device, completions, streams, residents, board, places)
    own_device.here = OwnCalls(start.epoch, start.device, start.generation, rooms.runners)
    actors = rooms.make_actors(start.actors, loader, context_of)
    residents.close()
    methods = _numbered(actors)
    limits = HangLimits(execution.hang_timeout_s, _places(rooms.runners), _loops(actors, rooms.event_loops))
    libraries = Libraries(library_context)
    faults = OwnFaults(board, lambda reason: channel.send(control.Unsound(reason)))
    members = list(dict.fromkeys(place.member for place in places.values()))
    programs = partial(WorldProgramMethod, library_context)
    of_refs = partial(engine, make=memory.array)
    made = MadePlaces(
        device, memory, programs, of_refs, board.watch, channel.send, completions.wake, completions.look_here
    )
    worlds = HostedWorlds(members, offers.files, [place.bell for place in places.values()], made.make, channel.send)
    envelope = Envelope(
        dict(methods),
        board,
        current,
        libraries,
        store,
        execution.max_queue,
        start.window.streams,
        limits.word,
        faults,
        worlds,
    )
    worlds.use(envelope.abort, envelope.discard_part)
    of_batches = [method for method in methods.values() if method.batch]
    batched: dict[str, BatchedMethod | SteppedMethod] = {}
    for number, method in enumerate(of_batches):
        thread, parts = rooms.runners.get(method.name), (method, number, envelope, store, board)
        batched[method.name] = (
            GangBatchedMethod(*parts, thread.queue) if isinstance(thread, WorldThread) else BatchedMethod(*parts)
        )
    for method in methods.values():
        if method.steps is not None:
            thread, stepped = rooms.runners.get(method.name), (method, method.steps.max_items, envelope, store)
            batched[method.name] = (
                GangSteppedMethod(*stepped, thread.queue)
                if isinstance(thread, WorldThread)
                else SteppedMethod(*stepped)
            )
    if device.background is not None:
        device.background.start()
    usage = Usage(device, channel.send)
    readiness = Readiness(store, libraries.module, envelope.make_ready, completions.wake)
    return WorkerParts(
        device,
        completions,
        store,
        peers,
        actors,
        envelope,
        rooms.runners,
        rooms.event_loops,
        batched,
        usage,
        readiness,
        phase,
        RequestsImports(in_progress, channel.send, [_file_of(actor) for actor in actors]),
        ImportsAhead(channel.send),
        worlds,
        [each for each in offers.offered if not each.actors],
    )


@dataclass(frozen=True)
class ActorPlace:
    """The place of an actor's process in the actor's world."""

    member: Membership
    thread: WorldThread
    view: OwnWorld
    bell: int
    """Wakes the loop."""


def _make_worlds(
    offers: WorldOffers,
    engine: Callable[[control.WorldOffered, WorldFiles], Engine],
    device: WorkerDevice,
    channel: ControlChannel,
    completions: Completions,
    board: BoardWriter,
) -> dict[str, ActorPlace]:
    """Make the places of this process in its worlds, by actor.

    Raises:
        ProtocolError: A file of this process has not come.
        AtomrError: There is no memory for a place.
    """
    places: dict[str, ActorPlace] = {}
    for offered in offers.offered:
        if not offered.actors:
            continue  # a session has made it
        files = offers.of(offered.world)
        parts, queue = engine(offered, files), GangQueue()
        bell = files.thread_bell(offered.rank, offered.generation)
        watches = board.watch, board.watch_step
        thread = WorldThread(offered.name, queue, device, *watches, bell, completions.look_here)
        member = Membership(
            offered,
            files,
            parts.view,
            thread,
            queue,
            parts.make_meeting,
            channel.send,
            completions.wake,
            parts.mailboxes,
        )
        place = ActorPlace(member, thread, parts.view, files.loop_bell(offered.rank, offered.generation))
        places.update(dict.fromkeys(offered.actors, place))
    return places


def _open_device(start: control.Start, board: BoardWriter) -> WorkerDevice:
    device = open_device(start.backend, start.execution.completion)
    device.host.slab_name = slab_name(start.epoch, start.device, start.generation)
    device.host.resident_name = resident_name(start.epoch)
    device.background = device.host.background = Background()
    if device.asynchronous or hooks.hook is not None:
        show_unfinished(device.unfinished, board)
    return device


def _make_streams(execution: control.Execution, device: WorkerDevice) -> StreamAllocator:
    inline_bytes = 2**63 if execution.completion == "synchronous" else execution.inline_bytes
    return StreamAllocator(
        execution.streams,
        lambda name, priority: device.make_stream(name, inline_bytes=inline_bytes, priority=priority),
    )


class ExecutionPlaces:
    """The places where actors work: their streams, threads and event loops.

    Args:
        device: The device.
        completions: The queue of ended requests.
        streams: Hands out streams.
        residents: Gives memory to `setup`.
        board: The board, which shows event loops.
        worlds: The places of actors in their worlds.
    """

    def __init__(
        self,
        device: WorkerDevice,
        completions: Completions,
        streams: StreamAllocator,
        residents: ResidentBlobs,
        board: BoardWriter,
        worlds: Mapping[str, ActorPlace],
    ) -> None:
        self.runners: Final[dict[str, ActorRunner]] = {}
        """Runners of requests off the loop, by method."""
        self.event_loops: Final[dict[str, EventLoop]] = {}
        """Event loops by actor."""
        self._device = device
        self._completions = completions
        self._streams = streams
        self._residents = residents
        self._board = board
        self._worlds = worlds
        self._late_imports: Final = LateImports()

    def make_actors(
        self, specs: Sequence[control.ActorSpec], loader: Loader, context_of: Callable[[str, Stream | None], Context]
    ) -> list[LoadedActor]:
        """Load actors, and run the setup of each.

        Raises:
            FatalError: An actor cannot be used.
        """
        actors: list[LoadedActor] = []
        device = self._device
        for spec in specs:
            try:
                actor = loader.load(spec)
                if actor.name in self._worlds:
                    take_into_world(actor, self._worlds[actor.name].member.number)
                    self._late_imports.check(actor.name, actor.code)
            except errors.ActorLoadFailed as error:
                raise FatalError(error) from error
            stream = None
            if device.asynchronous:
                stream = self._streams.acquire(actor.name, actor.instance.stream_priority)
            _set_up(actor, self._setup_of(actor, context_of(actor.name, stream)), device, stream)
            actors.append(actor)
            try:
                self._make_runners(actor)
            except errors.ActorLoadFailed as error:
                raise FatalError(error) from error
            for method in actor.methods:
                method.stream = None if method.thread else stream
                if method.thread:
                    method.side_by_side = self.runners[method.name].count
        return actors

    def _setup_of(self, actor: LoadedActor, context: Context) -> Callable[[], object]:
        """Return the setup of an actor: run on its event loop, if it is asynchronous."""
        setup = partial(actor.instance.setup, context)
        if not actor.needs_loop:
            return setup
        from atomr_mp_workers.requests.off_loop.event_loop import EventLoop  # asyncio takes a while to import

        loop = EventLoop(actor.name, self._device, self._board.loops(), len(self.event_loops))
        self.event_loops[actor.name] = loop
        if not actor.is_async("setup"):
            return setup
        self._residents.admit(loop.thread)
        return lambda: loop.complete(cast("Coroutine[Any, Any, object]", setup()))

    def _make_runners(self, actor: LoadedActor) -> None:
        """Make an actor's threads, and the runner of its asynchronous requests.

        Raises:
            ActorLoadFailed: Its number of threads or of running requests is impossible.
        """
        on_threads = [method.name for method in actor.methods if method.thread and not method.is_async]
        if actor.name in self._worlds:
            self.runners.update(dict.fromkeys(on_threads, self._worlds[actor.name].thread))
        elif on_threads:
            threads = ActorThreads(actor.name, threads_of(actor), self._device)
            self.runners.update(dict.fromkeys(on_threads, threads))
        on_loop = [method.name for method in actor.methods if method.is_async]
        if on_loop:
            from atomr_mp_workers.requests.off_loop.tasks import RequestTasks

            tasks = RequestTasks(self.event_loops[actor.name], max_running_of(actor), self._completions)
            self.runners.update(dict.fromkeys(on_loop, tasks))


def _set_up(actor: LoadedActor, setup: Callable[[], object], device: WorkerDevice, stream: Stream | None) -> None:
    """Run an actor's setup, on its stream if it has one."""

    def run() -> None:
        try:
            setup()
        finally:
            own_process.check()

    try:
        hooks.point("setup", actor.name)
        if stream is None:
            run()
        else:
            stream.run(run)
    except errors.Unsupported as error:  # the cause is installed here, and the next process would meet it too
        raise FatalError(errors.ActorLoadFailed(f"setup of {actor.name}: {trusted(error).message}")) from error
    except errors.AtomrError as error:
        raise FatalError(trusted(error)) from error
    except ModuleNotFoundError as error:
        _LOG.error("setup of %s failed:\n%s", actor.name, traceback_of(error))
        raise FatalError(
            errors.ActorLoadFailed(
                f"setup of {actor.name} failed: {describe(error)}; {how_to_install(missing_module(error))}"
            )
        ) from error
    except BaseException as error:  # any exception of user code is the reason why this device does not start
        _LOG.error("setup of %s failed:\n%s", actor.name, text := traceback_of(error))
        raise FatalError(
            known(device.explain, error)
            or errors.SetupFailed(f"setup of {actor.name} raised {describe(error)}", traceback_text=text)
        ) from error


def _file_of(actor: LoadedActor) -> str | None:
    """Return the file that an actor's class is in."""
    return getattr(sys.modules.get(type(actor.instance).__module__), "__file__", None)


def _numbered(actors: Sequence[LoadedActor]) -> dict[str, LoadedMethod]:
    """Return the methods of actors by name, each with its number on the board."""
    methods = {method.name: method for actor in actors for method in actor.methods}
    for number, method in enumerate(methods.values(), WORKED + 1):
        method.number = number
    return methods


def _places(runners: Mapping[str, ActorRunner]) -> dict[str, tuple[int, int]]:
    """Return each method's actor, as its number among those with threads, and how many threads it has."""
    threads = {name: each for name, each in runners.items() if isinstance(each, ActorThreads)}
    actors = list(dict.fromkeys(threads.values()))
    return {name: (actors.index(each), each.count) for name, each in threads.items()}


def _loops(actors: Sequence[LoadedActor], loops: Mapping[str, EventLoop]) -> dict[str, int]:
    """Return the number of the event loop of each asynchronous method."""
    return {method.name: loops[actor.name].number for actor in actors for method in actor.methods if method.is_async}


_LOG: Final = logging.getLogger("atomr_mp.worker")
