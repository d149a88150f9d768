"""Builds what a device's process consists of, before it serves: its device, its memory, its actors."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol import token
from atomr_mp.protocol.board import BoardWriter
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.library_names import LIBRARIES
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.process_tags import resident_name, slab_name
from atomr_mp_workers.actor import Context
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.background import Background
from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.actor_libraries import InProcessLibraries
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.loading import LoadedActor, Loader, threads_of
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.memory.resident.blobs import ResidentBlobs
from atomr_mp_workers.memory.result_slabs import ResultSlabs
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.batches.batch_run import BatchedMethod
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.off_loop.threads import ActorThreads
from atomr_mp_workers.requests.peers import Peers
from atomr_mp_workers.requests.request import current_holder
from atomr_mp_workers.requests.streams.steps import SteppedMethod
from atomr_mp_workers.supervised.foresight import Readiness, Usage
from atomr_mp_workers.supervised.hang_limits import HangLimits
from atomr_mp_workers.supervised.stacks import show_unfinished
from atomr_mp_workers.wire.control import ControlChannel


@dataclass(frozen=True)
class WorkerParts:
    """What a device's process consists of."""

    device: WorkerDevice
    completions: Completions
    store: Store
    peers: Peers
    actors: list[LoadedActor]
    """They have been set up."""
    envelope: Envelope
    threads: dict[str, ActorThreads]
    """Of actors, by method."""
    batched: dict[str, BatchedMethod | SteppedMethod]
    """By method."""
    usage: Usage
    readiness: Readiness


def build(start: control.Start, channel: ControlChannel, board: BoardWriter, loader: Loader) -> WorkerParts:
    """Open the device, set up the actors, and return what the process consists of.

    Args:
        start: What this process is to be.
        channel: The control channel.
        board: The board, mapped.
        loader: Loads the actors.

    Raises:
        FatalError: It cannot serve.
    """
    execution = start.execution
    current = token.pack(start.epoch, start.device, start.generation)
    try:
        device = _open_device(start, board)
        in_progress = InProgress()
        completions = Completions(execution.completion, device, in_progress)
        streams = _make_streams(execution, device)
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
    log = logging.getLogger("actor")

    def context_of(stream: Stream | None) -> Context:
        """Return what an actor may know."""
        libraries = InProcessLibraries(library_context, stream)
        names = start.pool, start.device, start.name, start.backend, start.generation
        return Context(*names, log, memory, residents, libraries)

    actors, threads = _make_actors(start, loader, context_of, device, streams)
    residents.close()
    if start.standby:
        store.slabs.keep_spares({device: 1})  # the first call that it gets has waited already
    methods = {method.name: method for actor in actors for method in actor.methods}
    limits = HangLimits(execution.hang_timeout_s, _places(threads))
    libraries = Libraries(library_context)
    envelope = Envelope(
        dict(methods), board, current, libraries, store, execution.max_queue, start.window.streams, limits.word
    )
    of_batches = [method for method in methods.values() if method.batch]
    batched: dict[str, BatchedMethod | SteppedMethod] = {
        method.name: BatchedMethod(method, number, envelope, store, board) for number, method in enumerate(of_batches)
    }
    for method in methods.values():
        if method.steps is not None:
            batched[method.name] = SteppedMethod(method, method.steps.max_items, envelope, store)
    if device.background is not None:
        device.background.start()
    usage = Usage(device, channel.send)
    readiness = Readiness(store, libraries.module, envelope.make_ready, completions.wake)
    return WorkerParts(device, completions, store, peers, actors, envelope, threads, batched, usage, readiness)


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


def _make_actors(
    start: control.Start,
    loader: Loader,
    context_of: Callable[[Stream | None], Context],
    device: WorkerDevice,
    streams: StreamAllocator,
) -> tuple[list[LoadedActor], dict[str, ActorThreads]]:
    """Load the actors and have each set itself up; return them, and their threads by method."""
    actors: list[LoadedActor] = []
    threads: dict[str, ActorThreads] = {}
    for spec in start.actors:
        try:
            actor = loader.load(spec)
        except errors.ActorLoadFailed as error:
            raise FatalError(error) from error
        stream = streams.acquire(actor.name, actor.instance.stream_priority) if device.asynchronous else None
        _set_up(actor, context_of(stream), device, stream)
        actors.append(actor)
        for method in actor.methods:
            method.stream = None if method.thread else stream
        on_thread = [method.name for method in actor.methods if method.thread]
        if on_thread:
            threads |= dict.fromkeys(on_thread, _make_threads(actor, device))
    return actors, threads


def _set_up(actor: LoadedActor, context: Context, device: WorkerDevice, stream: Stream | None) -> None:
    """Have an actor set itself up, on its stream if it has one."""
    setup = partial(actor.instance.setup, context)
    try:
        hooks.point("setup", actor.name)
        if stream is None:
            setup()
        else:
            stream.run(setup)
    except errors.Unsupported as error:  # by what is installed here: the next process would meet the same
        raise FatalError(errors.ActorLoadFailed(f"setup of {actor.name}: {error}")) from error
    except errors.AtomrError as error:
        raise FatalError(error) from error
    except ModuleNotFoundError as error:
        _LOG.exception("setup of %s failed", actor.name)
        raise FatalError(
            errors.ActorLoadFailed(f"setup of {actor.name} failed: {error}; {how_to_install(error.name)}")
        ) from error
    except BaseException as error:  # whatever user code raises is why this device does not start
        _LOG.exception("setup of %s failed", actor.name)
        raise FatalError(
            device.explain(error)
            or errors.SetupFailed(
                f"setup of {actor.name} raised {type(error).__name__}: {error}",
                traceback_text=traceback.format_exc(),
            )
        ) from error


def _make_threads(actor: LoadedActor, device: WorkerDevice) -> ActorThreads:
    try:
        return ActorThreads(actor.name, threads_of(actor), device)
    except errors.ActorLoadFailed as error:
        raise FatalError(error) from error


def _places(threads: dict[str, ActorThreads]) -> dict[str, tuple[int, int]]:
    """Return the number of each method's actor among those with threads, and how many threads it has."""
    actors = list(dict.fromkeys(threads.values()))
    return {name: (actors.index(each), each.count) for name, each in threads.items()}


_LOG: Final = logging.getLogger("atomr_mp.worker")
