"""Libraries as an actor has them, without its process."""

from __future__ import annotations

from typing import Any

from atomr_mp.protocol import token
from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.actor_libraries import InProcessLibraries
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.lazy_library import LazyLibrary
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from tests.cases.library_cases import arrays_in, call


def context_on(device: WorkerDevice, backend: str, quota_bytes: int = 2**30) -> LibraryContext:
    """Return what libraries may use, with memory of their own."""
    store = Store(device, token.pack(bytes(16), 0, 1), quota_bytes, InProgress())
    streams = StreamAllocator("single", lambda name, _priority: device.make_stream(name, inline_bytes=0))
    return LibraryContext(backend, device, store, streams, lambda: store.buffers.ours, lambda: None)


def libraries_on(device: WorkerDevice, backend: str, stream: Stream | None = None) -> InProcessLibraries:
    """Return what an actor on this stream has."""
    return InProcessLibraries(context_on(device, backend), stream)


def have(libraries: Libraries, name: str, library: Library) -> None:
    """Let a process have a library that is made already, in place of the one of that name."""
    lazy = libraries._libraries[name] = LazyLibrary(name, libraries._context, libraries._preparer, libraries.plans)
    lazy.__dict__["stream"], lazy._library = library.stream, library


def directly(libraries: InProcessLibraries, library: str, request: Any) -> Any:
    """Have a request done, on arrays."""
    return call(libraries, library, request, arrays_in)


def in_a_program(libraries: InProcessLibraries, library: str, request: Any) -> Any:
    """Have it done by a program of one step."""
    with libraries.program() as p:
        call(p, library, request, arrays_in)
    return p.run()
