"""The memory in which libraries work: one piece for each stream, from the store's quota."""

from __future__ import annotations

import gc
import threading
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp_workers.device.base import Stream
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.holding import Holding
from atomr_mp_workers.memory.workspaces import FIXED_BYTES
from tests.actor_libraries import context_on

QUOTA_BYTES: Final = 2**28
LARGE: Final = 3 * FIXED_BYTES


@pytest.fixture
def context() -> LibraryContext:
    """What libraries may use, within a quota."""
    return context_on(HostDevice(), "host", QUOTA_BYTES)


def stream(context: LibraryContext) -> Stream:
    """Return a new stream."""
    return context.device.make_stream("stream", inline_bytes=0)


def taken(context: LibraryContext) -> int:
    """Return how many bytes of slabs are in use."""
    return context.store.statistics()["used_bytes"]


def test_libraries_on_a_stream_share_one_piece_and_streams_share_none(context: LibraryContext) -> None:
    """Whichever of them comes first, and whatever each asks for, as long as it is enough."""
    one, other = stream(context), stream(context)
    first, second, third = (Library(context, each) for each in (one, one, other))
    work = first.workspace(1000)
    assert second.workspace(400).address == work.address
    assert third.workspace(400).address != work.address
    fixed = second.fixed_workspace()
    assert fixed.nbytes == FIXED_BYTES
    assert first.workspace(FIXED_BYTES).address == first.fixed_workspace().address == fixed.address
    assert third.fixed_workspace().address != fixed.address
    grown = first.workspace(LARGE)
    assert second.workspace(LARGE - 1).address == grown.address
    assert second.fixed_workspace().address == fixed.address
    assert context.store.statistics()["workspace_bytes"] == 2 * FIXED_BYTES + LARGE


def test_a_graph_keeps_the_piece_that_it_was_recorded_with(context: LibraryContext) -> None:
    """It neither moves nor is given to anybody else when the stream's grows; with the graph it comes back."""
    library = Library(context, stream(context))
    graph: Holding | None = Holding()
    assert graph is not None
    with graph:
        work = library.workspace(1000)
        recorded, array = work.address, work.array
        array[...] = 7
    del work, array
    grown = library.workspace(LARGE)
    assert grown.address != recorded
    others = [context.store.buffers.allocate(context.holder(), "uint8", (1000,)) for _ in range(1000)]
    assert all(each.array.fill(3) is None for each in others)
    held = [each for each in graph.held if getattr(each, "address", 0) == recorded]
    assert [each.array.tolist() for each in held] == [[7] * 1000]  # type: ignore[attr-defined]
    del held
    before = taken(context)
    graph = None
    gc.collect()
    assert before - taken(context) >= 1000


def test_what_is_outgrown_comes_back(context: LibraryContext) -> None:
    """It does not add up."""
    library = Library(context, stream(context))
    for nbytes in range(LARGE // 2, LARGE, LARGE // 16):
        library.workspace(nbytes)
    assert taken(context) == context.store.statistics()["workspace_bytes"] < LARGE


def test_a_piece_that_does_not_fit_is_refused(context: LibraryContext) -> None:
    """With an error that says how much was wanted; what fits is served after it."""
    library = Library(context, stream(context))
    with pytest.raises(errors.OutOfMemory) as told:
        library.workspace(QUOTA_BYTES + 1)
    assert told.value.requested_bytes == QUOTA_BYTES + 1
    assert library.workspace(LARGE).nbytes == LARGE


def test_who_is_short_of_memory_gets_what_has_grown(context: LibraryContext) -> None:
    """The addresses that handles have stay, and so does what somebody works in."""
    library, busy = Library(context, stream(context)), Library(context, stream(context))
    fixed = library.fixed_workspace().address
    library.workspace(LARGE)
    works_in = busy.workspace(FIXED_BYTES)
    allocated = context.store.buffers.allocate(context.holder(), "uint8", (QUOTA_BYTES // 2,))
    assert context.store.statistics()["workspace_bytes"] == FIXED_BYTES
    assert library.fixed_workspace().address == fixed
    assert not any(work.address <= allocated.address < work.address + work.nbytes for work in (works_in,))
    del allocated
    assert library.workspace(LARGE).nbytes == LARGE


def test_a_stream_that_goes_takes_its_piece_along(context: LibraryContext) -> None:
    """That of an actor's thread, say."""
    gone = Library(context, stream(context))
    gone.workspace(LARGE)
    del gone
    gc.collect()
    assert (taken(context), context.store.statistics()["workspace_bytes"]) == (0, 0)


def test_threads_that_ask_at_the_same_time_get_one_piece(context: LibraryContext) -> None:
    """The thread that makes plans, and the loop; also while others are short of memory."""
    libraries = [Library(context, stream(context)) for _ in range(2)]
    together = threading.Barrier(4)
    failures: list[BaseException] = []

    def ask(library: Library) -> None:
        try:
            together.wait(20)
            for turn in range(200):
                if library.workspace(2**16 + turn).nbytes < 2**16 + turn:
                    raise AssertionError("too small")
                if turn % 20 == 0:
                    context.store.slabs.on_shortage()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=ask, args=[libraries[number % 2]]) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert not failures
    assert not any(each.is_alive() for each in threads)
    last = libraries[0].workspace(2**16 + 200)
    assert libraries[0].workspace(1).address == last.address
