"""Actors of the libraries, one library a folder, with an implementation for each backend.

A library's class has a method for each of its requests, under the request's name. It is imported, and its instance
made, when the first request for it arrives.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from functools import partial
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.libraries import LIBRARIES, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.method import LibraryMethod, Planning
from atomr_mp_workers.libraries.plans import LibraryPlans, Preparer
from atomr_mp_workers.memory.blocks import OURS, Holder

BACKENDS: Final = ("host", "cuda")


class Libraries:
    """The libraries of this process, each made at its first request.

    Args:
        context: The context for libraries.
    """

    def __init__(self, context: LibraryContext) -> None:
        self._context = context
        self._instances: dict[str, Library] = {}
        self._warm: set[str] = set()
        """Libraries that are prepared for a first call."""
        self._preparer = Preparer(context.device, context.wake)
        self._elsewhere = Preparer(context.device, context.wake, "elsewhere")
        """Does work that waits for the device itself, so that plans are not held up by it."""
        self.plans: Final[dict[str, LibraryPlans]] = {}
        """The plans of each library that has some."""

    def find(self, method: str) -> LibraryMethod | None:
        """Return the method of a request "library.name"; None if no library has that name.

        Raises:
            Unsupported: This backend does not have it, or a package that it needs is not installed.
            InvalidRequest: The library has no such request.
        """
        library, _, name = method.partition(".")
        if library not in LIBRARIES:
            return None
        if name not in requests_of(library):
            raise errors.InvalidRequest(f"{library} has no request {name!r}")
        instance = self._instances.get(library) or self._make(library)
        if not hasattr(instance, name):
            raise errors.Unsupported(f"{method} is not provided on the {self._context.backend} backend")
        return self._method(instance, library, name, self._context)

    def module(self, method: str) -> str | None:
        """Return the module that a library's method needs, None if this backend has no such method."""
        library = method.partition(".")[0]
        name = _module(library, self._context.backend)
        return name if library in LIBRARIES and importlib.util.find_spec(name) is not None else None

    def warm_up(self, method: str) -> None:
        """Prepare a method's library for a first call."""
        library = method.partition(".")[0]
        instance = self._instances.get(library)
        if instance is None or library in self._warm:
            return
        self._warm.add(library)
        # The slab of an ended holder is freed as soon as it is empty; this process keeps its own.
        holder = Holder(OURS)
        holder.gone = True
        context = dataclasses.replace(self._context, holder=lambda: holder)
        for request in instance.trials(holder):
            instance.stream.run(instance.open_here)  # as the first would do by itself
            trial = self._method(instance, library, request.name, context)
            instance.stream.run(partial(trial.run_here, request))

    def _method(self, instance: Library, library: str, name: str, context: LibraryContext) -> LibraryMethod:
        """Return the method of a library's request; the context's holder gets outputs that are left out."""
        request = requests_of(library)[name]
        decoder: values.Decoder[LibraryRequest] = values.Decoder(request, request.hook(), writable=False)
        planning = self._planning(library, instance, name)
        found = LibraryMethod(
            f"{library}.{name}", instance, decoder, context, planning, self._preparer, self._elsewhere
        )
        found.recall = getattr(instance, f"recall_{name}", None)
        found.weigh = getattr(instance, f"weigh_{name}", None)
        return found

    def _planning(self, library: str, instance: Library, name: str) -> Planning | None:
        prepare = getattr(instance, f"prepare_{name}", None)
        if prepare is None:
            return None
        if library not in self.plans:
            self.plans[library] = LibraryPlans(figures=self._context.figures(library))
        return Planning(self.plans[library], prepare, name in instance.slow)

    def _make(self, library: str) -> Library:
        try:
            cls = implementation(library, self._context.backend)
        except ImportError as error:
            raise errors.Unsupported(
                f"{library} needs a package that is not installed: {error}; {how_to_install(error.name)}"
            ) from error
        if cls is None:
            raise errors.Unsupported(f"{library} is not provided on the {self._context.backend} backend")
        instance = self._instances[library] = cls(self._context, self._context.streams.acquire(library))
        return instance


def implementation(library: str, backend: str) -> type[Library] | None:
    """Return the class of a library for a backend, None if there is none.

    Raises:
        ImportError: A package that it needs is not installed.
    """
    name = _module(library, backend)
    if importlib.util.find_spec(name) is None:
        return None
    module: Any = importlib.import_module(name)
    found: type[Library] = module.Implementation
    return found


def _module(library: str, backend: str) -> str:
    return f"{__name__}.{library}.{backend}"


def requests_on(library: str, backend: str) -> dict[str, type[LibraryRequest]]:
    """Return the requests of a library that a backend provides, by name."""
    cls = implementation(library, backend)
    return {name: request for name, request in requests_of(library).items() if hasattr(cls, name)}
