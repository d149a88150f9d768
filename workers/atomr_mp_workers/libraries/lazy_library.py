"""A library of this process: imported, made and opened when it is first needed, for a client's request off the loop.

Its stream exists from the start, so that requests can be taken in, and parked, before the library is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.plans import LibraryPlan, LibraryPlans, Preparer


class Import(LibraryPlan):
    """The import of a library on the thread that makes plans, or the error of it."""

    __slots__ = ()


class LazyLibrary:
    """A library that is made when it is first needed.

    Args:
        name: Its name.
        context: The context for libraries.
        preparer: The thread that makes plans.
        plans: The plans of each library that has some, where its own are kept.
    """

    def __init__(self, name: str, context: LibraryContext, preparer: Preparer, plans: dict[str, LibraryPlans]) -> None:
        self.name: Final = name
        self.preparer: Final = preparer
        self.stream: Final = context.streams.acquire(name)
        """The stream that its requests run on, in order."""
        self._plans: Final = plans
        self._context: Final = context
        self._library: Library | None = None
        self._making: Final = threading.Lock()
        self._import: Import | None = None
        """The last import that a request has had begun."""

    @property
    def is_ready(self) -> bool:
        """Whether it is made and open, so that nothing that takes long is left to do before a request."""
        return self._library is not None and self._library.is_open

    def keep_plans(self) -> LibraryPlans:
        """Return its plans, for a request that has some."""
        if self.name not in self._plans:
            self._plans[self.name] = LibraryPlans(figures=self._context.figures(self.name))
        return self._plans[self.name]

    def here(self) -> Library:
        """Return the library; import and make it on the calling thread if it is not there. Any thread.

        Raises:
            Unsupported: This backend does not have it, or a package that it needs is not installed.
        """
        with self._making:
            if self._library is None:
                self._library = self._made()
            return self._library

    def begin_import(self) -> tuple[Import, Event]:
        """Have it imported, made and opened on the thread that makes plans; return that, and the event of its end.

        Requests that come meanwhile share the import. If it has failed, the next request has it tried again.
        """
        begun, event = self._import, None if self._import is None else self._import.event
        if begun is None or event is None or event.done:
            event = self._context.device.make_event()
            begun = self._import = Import(event)
            self.preparer.prepare(begun, lambda: self.here().open_here())
        return begun, event

    def _made(self) -> Library:
        backend = self._context.backend
        try:
            cls = implementation(self.name, backend)
        except ImportError as error:
            raise errors.Unsupported(
                f"{self.name} needs a package that is not installed: {error}; {how_to_install(error.name)}"
            ) from error
        if cls is None:
            raise errors.Unsupported(f"{self.name} is not provided on the {backend} backend")
        return cls(self._context, self.stream)


def implementation(library: str, backend: str) -> type[Library] | None:
    """Return the class of a library for a backend, None if there is none.

    Raises:
        ImportError: A package that it needs is not installed.
    """
    name = module_of(library, backend)
    if importlib.util.find_spec(name) is None:
        return None
    module: Any = importlib.import_module(name)
    found: type[Library] = module.Implementation
    return found


def module_of(library: str, backend: str) -> str:
    """Return the name of the module of a library for a backend, which may not exist."""
    return f"{__package__}.{library}.{backend}"
