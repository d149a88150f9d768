"""The modules that requests import: the process that serves reports them, and the device's next one imports them.

A first request that imports a library may block a worker's loop for a second. The supervisor carries the names from one
process to the other (`control.Imported`, `control.ImportAhead`), so that a device pays for that once.

An import may set what holds for its thread alone: a decimal context, NumPy's error state, a connection of sqlite, a
signal's handler, which only the main thread may set. So modules are imported ahead on the thread that requests have
imported them on, the loop's; what an actor's threads, or its event loop, have imported is left to their requests.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from atomr_mp.protocol.messages import control
from atomr_mp_workers import own_process
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.wire.control import SupervisorGoneError

EVERY_NS: Final = 1_000_000_000
"""Shortest time between two looks."""

MAX_NAME_CHARS: Final = 200
"""Longest name in a report."""


class RequestsImports:
    """Tells the supervisor which modules were imported since this process was ready. With the loop's turn.

    Args:
        in_progress: The requests that run elsewhere than on the loop.
        tell: Tells the supervisor.
        own: Files without a report: those of the actors.
    """

    def __init__(
        self, in_progress: InProgress, tell: Callable[[control.Imported], None], own: Iterable[str | None]
    ) -> None:
        self._in_progress = in_progress
        self._tell = tell
        self._own: Final = set(own)
        self.count = len(sys.modules)
        """How many modules there were at the last look. Comparing this is cheap, and finds nearly all imports."""
        self._known = set(sys.modules)
        self._elsewhere: Final = ImportsElsewhere()
        self._pending: list[str] = []
        """Modules whose requests may not have been answered."""
        self._after = 0
        """The last request that had begun when they were found."""
        self._left = control.MAX_MODULES
        """How many more the reports may have."""
        self._next_ns = 0
        """When the next look may be."""
        self.due_ns: int | None = None
        """When to look next, if nothing else happens; CLOCK_MONOTONIC."""

    def begin(self) -> None:
        """Count from now on."""
        sys.meta_path.insert(0, self._elsewhere)
        self._known.update(sys.modules)
        self.count = len(sys.modules)

    def are_known(self, modules: Iterable[control.ImportedModule]) -> None:
        """Tell nothing of modules that the supervisor has named."""
        self._known.update([module.name for module in modules])

    def look(self) -> None:
        """Tell of the modules whose requests have been answered, unless the last look was just before."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            self.due_ns = self._next_ns
            return
        self._next_ns = now_ns + EVERY_NS
        if len(sys.modules) != self.count:
            self.count, names = len(sys.modules), list(sys.modules)
            self._pending += [name for name in names if name not in self._known]
            del self._pending[self._left :]
            self._known, self._after = set(names), self._in_progress.last
        if self._pending and self._in_progress.ended(self._after):
            # The table has them by the ends of their imports. What has imported others is told, and imported, before
            # these: modules that import each other may bear only one of them as the first.
            pending, self._pending = self._pending[::-1], []
            self._tell_of(pending)
        self.due_ns = self._next_ns if self._pending else None

    def _tell_of(self, names: list[str]) -> None:
        found = []
        for name in names:
            if (spec := _spec(name)) is None:
                continue
            if getattr(spec, "_initializing", False):  # by a thread of the actor's
                self._pending.append(name)
            elif spec.origin not in self._own and name not in self._elsewhere.names:
                found.append(control.ImportedModule(name, _digest(spec.origin)))
        self._left -= len(found)
        for at in range(0, len(found), control.MAX_MODULES_AT_A_TIME):
            self._tell(control.Imported(found[at : at + control.MAX_MODULES_AT_A_TIME]))


class ImportsElsewhere(importlib.abc.MetaPathFinder):
    """Notes what is imported on other threads than the one that makes this. It finds no module."""

    def __init__(self) -> None:
        self.names: Final[set[str]] = set()
        self._thread: Final = threading.get_ident()

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Note a module that is being imported. Any thread."""
        if threading.get_ident() != self._thread:
            self.names.add(fullname)


class ImportsAhead:
    """Imports what requests will need. With the loop's turn, on its thread.

    Args:
        tell: Tells the supervisor what is going to be imported.
    """

    def __init__(self, tell: Callable[[control.Importing], None]) -> None:
        self._tell = tell
        self._waiting: deque[str] = deque()
        self._files: dict[str, bytes] = {}
        """Digest of the file of each module that was ordered."""
        self.is_whole = True
        """Whether the supervisor has named all modules."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, order: control.ImportAhead) -> None:
        """Note further modules."""
        files = {module.name: module.file for module in order.modules}
        self._files |= files
        self._waiting.extend(files)
        self.is_whole = not order.more

    def stop(self) -> None:
        """Import no more: this process takes calls."""
        self._waiting.clear()
        self.is_whole = True

    def import_next(self) -> None:
        """Import the next module."""
        name = self._waiting.popleft()
        try:
            self._import(name)
        except SupervisorGoneError:
            raise
        except BaseException:  # noqa: BLE001 - a module may raise anything; the request that needs it reports it
            _LOG.info("%s is not imported before the first request", name, exc_info=True)
        own_process.check()
        if self.is_whole and not self._waiting:
            self._tell(control.Importing(""))
            # As at the process's start: what was imported stays, and no full collection need look at it again.
            gc.collect()
            gc.freeze()

    def _import(self, name: str) -> None:
        """Import a module, and the packages that it is in, if they mean the same files here."""
        package = name.rpartition(".")[0]
        if package and package not in sys.modules:
            self._import(package)
        file = self._files.get(name)
        if file is None or name in sys.modules or (package and package not in sys.modules):
            return
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin or _digest(spec.origin) != file or not Path(spec.origin).is_file():
            _LOG.info("%s is another module here than in the worker before", name)
            return
        self._tell(control.Importing(name))
        importlib.import_module(name)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return how a module was imported by this name from a file; None if it was not. Runs no code of the module's."""
    module: Any = sys.modules.get(name)
    if type(name) is not str or name == "__main__" or len(name) > MAX_NAME_CHARS or not name.isprintable():
        return None
    if not issubclass(type(module), types.ModuleType):
        return None
    spec = _dictionary(module).get("__spec__")
    if type(spec) is not importlib.machinery.ModuleSpec or spec.name != name or not spec.has_location:
        return None
    return spec if type(spec.origin) is str else None


def _digest(file: str | None) -> bytes:
    """Return a digest of a file's path."""
    return hashlib.blake2b(str(file).encode("utf-8", "surrogateescape"), digest_size=16).digest()


_dictionary: Final[Callable[[types.ModuleType], dict[str, Any]]] = vars(types.ModuleType)["__dict__"].__get__
"""Returns a module's attributes."""

_LOG: Final = logging.getLogger("atomr_mp.worker")
