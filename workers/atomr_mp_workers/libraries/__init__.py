"""Actors of the libraries, one library a folder, with an implementation for each backend.

A library's class has a method for each of its requests, under the request's name. It is imported, and its instance
made, when the first request for it arrives: on the thread that makes plans, while the first requests are parked.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import partial
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.world import WORLD
from atomr_mp_workers.libraries.arrival import arrival_of
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.lazy_library import LazyLibrary, implementation, module_of
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.libraries.plans import LibraryPlans, Preparer
from atomr_mp_workers.memory.blocks import OURS, Holder

__all__ = ["BACKENDS", "Libraries", "implementation", "requests_on"]

BACKENDS: Final = ("host", "cuda")


class Libraries:
    """The libraries of this process, each made at its first request.

    Args:
        context: The context for libraries.
    """

    def __init__(self, context: LibraryContext) -> None:
        self._context = context
        self._libraries: dict[str, LazyLibrary] = {}
        self._warm: set[str] = set()
        """Libraries that are prepared for a first call."""
        self._preparer = Preparer(context.device, context.wake)
        self._elsewhere = Preparer(context.device, context.wake, "elsewhere")
        """Does work that waits for the device itself, so that plans are not held up by it."""
        self.plans: Final[dict[str, LibraryPlans]] = {}
        """The plans of each library that has some."""

    @property
    def world_in_graphs(self) -> bool:
        """Whether CUDA graphs may hold the world's collectives."""
        world = self._context.world
        return world is None or world.in_graphs

    @property
    def has_world(self) -> bool:
        """Whether programs may have collectives as steps."""
        return self._context.world is not None

    def find(self, method: str) -> LibraryMethod | None:
        """Return the method of a request "library.name"; None if no library has that name.

        Nothing is imported for it but the declaration of the request: its first requests wait until the library is
        imported elsewhere.

        Raises:
            InvalidRequest: The library has no such request.
        """
        library, _, name = method.partition(".")
        if library not in LIBRARIES and not (library == WORLD and self.has_world):
            return None
        if name not in requests_of(library):
            raise errors.InvalidRequest(f"{library} has no request {name!r}")
        return self._method(self._of(library), name, self._context)

    def find_here(self, method: str) -> LibraryMethod | None:
        """Return the method of a request for the calling thread, on which its library is imported and made.

        Raises:
            Unsupported: This backend does not have it, or a package that it needs is not installed.
            InvalidRequest: The library has no such request.
        """
        found = self.find(method)
        if found is not None:
            found.bind_here()
        return found

    def module(self, method: str) -> str | None:
        """Return the module that a library's method needs, None if this backend has no such method."""
        library = method.partition(".")[0]
        name = module_of(library, self._context.backend)
        return name if library in LIBRARIES and importlib.util.find_spec(name) is not None else None

    def warm_up(self, method: str) -> None:
        """Prepare a method's library for a first call, on the calling thread.

        Raises:
            Unsupported: See `find_here`.
        """
        library = method.partition(".")[0]
        found = self._libraries.get(library)
        if found is None or library in self._warm:
            return
        instance = found.here()
        self._warm.add(library)
        # The slab of an ended holder is freed as soon as it is empty; this process keeps its own.
        holder = Holder(OURS)
        holder.gone = True
        context = dataclasses.replace(self._context, holder=lambda: holder)
        for request in instance.trials(holder):
            instance.stream.run(instance.open_here)  # as the first would do by itself
            trial = self._method(found, request.name, context)
            trial.bind_here()
            instance.stream.run(partial(trial.run_here, request))

    def _of(self, library: str) -> LazyLibrary:
        found = self._libraries.get(library)
        if found is None:
            found = self._libraries[library] = LazyLibrary(library, self._context, self._preparer, self.plans)
        return found

    def _method(self, library: LazyLibrary, name: str, context: LibraryContext) -> LibraryMethod:
        """Return the method of a library's request; the context's holder gets outputs that are left out."""
        request = requests_of(library.name)[name]
        decoder: values.Decoder[LibraryRequest] = values.Decoder(request, request.hook(), writable=False)
        arrival = arrival_of(f"{library.name}.{name}", context.store)
        method = LibraryMethod(name, library, decoder, context, arrival, self._elsewhere)
        method.counts = request.counts
        return method


def requests_on(library: str, backend: str) -> dict[str, type[LibraryRequest]]:
    """Return the requests of a library that a backend provides, by name."""
    cls = implementation(library, backend)
    return {name: request for name, request in requests_of(library).items() if hasattr(cls, name)}
