"""What a device's worker is used for, which its next processes have ready before anybody calls them.

The worker tells of it (`control.Used`, `control.Imported`). The standby hears of it at once, and every process at its
start; of imports, only those that run the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp.protocol.messages import control
from atomr_mp.supervision.imports import LONGEST_IMPORT_S, ImportList
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation


class Foresight:
    """The usage of a device that its next processes prepare for.

    Args:
        log: The device's events.
        loop: The supervisor's loop.
        start_timeout_s: Returns how long a process may take to become ready, without imports of this kind.
    """

    def __init__(
        self,
        log: DeviceLog,
        loop: Loop,
        start_timeout_s: Callable[[], float],
    ) -> None:
        self._log = log
        self._loop = loop
        self._start_timeout_s = start_timeout_s
        self._used: control.MakeReady | None = None
        self._imports: Final = ImportList()
        self._other_code: set[Incarnation] = set()
        """Processes that a reload has set up; what others have imported is not for them."""
        self._importing: dict[Incarnation, tuple[str, Timer]] = {}
        """The module that each process is importing ahead, and the timer of that."""
        self._suspected: set[str] = set()
        """Modules at whose import a process was killed, by whomever."""

    def used(self, used: control.Used, standby: Incarnation | None) -> None:
        """Note the libraries and the memory that the active worker uses, and tell its standby."""
        self._used = control.MakeReady(used.methods, used.slabs, used.results, used.readers)
        if standby is not None:
            standby.tell(self._used)

    def imported(self, modules: list[control.ImportedModule], standby: Incarnation | None) -> None:
        """Note modules that the active worker's requests have imported, and tell its standby."""
        new = self._imports.add(modules)
        if new and standby is not None and standby not in self._other_code:
            standby.tell(control.ImportAhead(new))

    def brief(self, worker: Incarnation, *, other_code: bool) -> None:
        """Tell a process that starts.

        Args:
            worker: The process.
            other_code: Whether a reload has it run other code than the processes before.
        """
        if self._used is not None:
            worker.tell(self._used)
        if other_code:
            self._other_code.add(worker)
            return
        messages = list(self._imports.in_messages())
        for left, modules in enumerate(messages, 1 - len(messages)):
            worker.tell(control.ImportAhead(modules, more=left < 0))

    def importing(self, worker: Incarnation, name: str) -> None:
        """Note the module that a process imports ahead from now on; empty once it has imported all."""
        before = self._finished(worker)
        if name in self._imports:
            timer = self._loop.call_later(LONGEST_IMPORT_S, lambda: self._on_too_long(worker))
            self._importing[worker] = name, timer
        elif not before:
            return
        if not (worker.was_ready or worker.leaving or worker.drained):
            worker.expect_ready(self._start_timeout_s())  # anew: these imports are no part of the start's time

    def ended(self, worker: Incarnation, *, inside: bool) -> bool:
        """Bar the module that a process was importing when it ended; return whether that is the reason of the end.

        Args:
            worker: The process.
            inside: Whether the end came from the process itself. Otherwise the same has to happen twice.
        """
        name = self._finished(worker)
        self._other_code.discard(worker)
        if not name or worker.parting.is_wanted:
            return False
        if not inside and name not in self._suspected:
            self._suspected.add(name)
            return False
        return self._bar(name, worker, "has ended a process", ended=True)

    def promoted(self, worker: Incarnation) -> None:
        """Begin the list of imports anew if the new active incarnation runs other code."""
        if worker in self._other_code:
            self._other_code.discard(worker)
            self.forget_imports()

    def forget_imports(self) -> None:
        """Begin anew: the device's next process runs other code."""
        self._imports.clear()
        self._suspected.clear()

    def _on_too_long(self, worker: Incarnation) -> None:
        name = self._finished(worker)
        barred = self._bar(name, worker, f"takes longer than {LONGEST_IMPORT_S:g} s", ended=False)
        if barred and not worker.leaving:  # its loop is held up; another process can be ready sooner
            worker.parting.wished("import")
            worker.kill()

    def _bar(self, name: str, worker: Incarnation, why: str, *, ended: bool) -> bool:
        found = self._imports.bar(name, ended=ended)
        if found:
            text = f"importing {name} ahead of requests {why}; no process does so before the next reload"
            self._log.note("import_barred", text, generation=worker.generation, pid=worker.pid)
        return found

    def _finished(self, worker: Incarnation) -> str:
        """Forget the module that a process imports; return its name."""
        name, timer = self._importing.pop(worker, ("", None))
        if timer is not None:
            timer.cancel()
        return name
