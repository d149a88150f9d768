"""Prepares the device's next process: the one that serves notes its usage, the standby makes the same ready.

The supervisor carries it from one to the other (`control.Used`, `control.MakeReady`). So the first calls after a
promotion find libraries imported, with their handles, and memory made.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.peers import AdmittedSession

ACTIVE_NS: Final = 60_000_000_000
"""A session that has got an answer within this time gets a spare slab of each kind that it has."""

EVERY_NS: Final = 1_000_000_000
"""Shortest time between two looks."""


class _Seen(NamedTuple):
    """A session as it was last looked at."""

    sent: int
    """Number of messages that were sent to it."""
    at_ns: int
    """When that number last changed."""


class Usage:
    """Notes what this process's clients use. Call it with the loop's turn.

    Args:
        device: The device.
        tell: Tells the supervisor.
    """

    def __init__(self, device: WorkerDevice, tell: Callable[[control.Used], None]) -> None:
        self._device = device
        self._tell = tell
        self.due_ns: int | None = None
        """When to look next, if usage may have changed; CLOCK_MONOTONIC."""
        self._looked_ns = 0
        self._seen: dict[int, _Seen] = {}
        self._told = control.Used([], 0, 0)

    def notice(self) -> None:
        """Have usage looked at soon: it may have changed."""
        if self.due_ns is None:
            self.due_ns = self._looked_ns + EVERY_NS

    def look(self, sessions: Iterable[AdmittedSession], methods: list[str]) -> None:
        """If it is time, check the usage, and tell the supervisor if it has changed.

        Args:
            sessions: The admitted sessions.
            methods: The methods of libraries that were called.
        """
        now_ns = time.monotonic_ns()
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self.due_ns, self._looked_ns = None, now_ns
        before, self._seen = self._seen, {}
        kinds: Counter[WorkerDevice] = Counter()
        readers: list[int] = []
        for session in sessions:
            seen = before.get(session.number)
            if seen is None or seen.sent != session.sent:
                seen = _Seen(session.sent, now_ns)
            self._seen[session.number] = seen
            if seen.sent and now_ns - seen.at_ns < ACTIVE_NS:
                slabs = list(session.holder.slabs)
                kinds.update({slab.device for slab in slabs})
                if any(slab.handed_in for slab in slabs) and len(readers) < control.MAX_READERS:
                    readers.append(session.number)
        host = self._device.host
        results = 0 if host is self._device else kinds[host]
        slabs_used = min(kinds[self._device], 1024)
        used = control.Used(methods[: control.MAX_USED], slabs_used, min(results, 1024), readers)
        if used != self._told:
            self._told = used
            self._tell(used)


class Readiness:
    """Prepares a standby for the usage of the process that serves. Call it with the loop's turn.

    Modules are imported on a thread of their own, since a promotion must not wait for imports.

    Args:
        store: The device's memory.
        modules: Returns the modules that a method of a library needs.
        warm_up: Makes such a method, and prepares its library for a first call.
        wake: Has the loop look again.
    """

    def __init__(
        self,
        store: Store,
        modules: Callable[[str], str | None],
        warm_up: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._modules = modules
        self._warm_up = warm_up
        self._wake = wake
        self._asked: set[str] = set()
        self._spares: Counter[WorkerDevice] = Counter()
        self._readers: list[int] = []
        """Sessions without slabs for results, which shall get some."""
        self._imported: deque[str] = deque()
        """Methods whose modules are imported."""

    def make_ready(self, order: control.MakeReady, *, at_once: bool) -> None:
        """Make this process ready for an order.

        Args:
            order: The methods and memory that are used.
            at_once: Whether to import modules here too, since nobody waits for this process yet.
        """
        device = self._store.device
        self._readers = list(order.readers)
        self.prepare_results()
        results = max(0, order.results - len(order.readers))
        self._spares = Counter({device: max(1, order.slabs)}) + Counter({device.host: results})
        new = [method for method in order.methods if method not in self._asked]
        self._asked.update(new)
        if at_once:
            self._import(new)
            self.go_on()
        self._store.slabs.keep_spares(self._spares)
        if new and not at_once:
            # A daemon: an import that never ends must not keep a worker alive that was told to leave.
            threading.Thread(target=self._import, args=(new,), name="imports", daemon=True).start()

    def prepare_results(self) -> None:
        """Make slabs for sessions that have had results; a session that is not admitted yet gets its own then."""
        if self._readers:
            self._readers = [number for number in self._readers if not self._store.prepare_results(number)]

    def go_on(self) -> None:
        """Make the methods whose imports are complete. Cheap when there are none."""
        if not self._imported:
            return
        while self._imported:
            method = self._imported.popleft()
            try:
                self._warm_up(method)
            except Exception as error:  # the first call will raise the same error, and report it
                if isinstance(error, errors.AtomrError) and error.ends_worker:
                    raise FatalError(error) from error
                _LOG.info("%s is not ready before its first call", method, exc_info=True)
        self._store.slabs.keep_spares(self._spares)  # last, since the preparation may have taken some

    def _import(self, methods: list[str]) -> None:
        for method in methods:
            try:
                module = self._modules(method)
                if module is not None:
                    importlib.import_module(module)
            except Exception:  # noqa: BLE001 - as above
                _LOG.exception("what %s needs cannot be imported", method)
            else:
                self._imported.append(method)
                self._wake()


_LOG: Final = logging.getLogger("atomr_mp.worker")
