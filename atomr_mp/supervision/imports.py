"""The modules that a device's next processes import before they are ready. Pure.

A device's requests have imported them, so the next ones will need them. A module whose import has ended a process, or
has taken too long, is barred, with those inside it: no process imports it ahead of its requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from atomr_mp.protocol.messages.control import MAX_MODULES, MAX_MODULES_AT_A_TIME, ImportedModule

LONGEST_IMPORT_S: Final = 10.0
"""How long an import ahead of requests may take."""

MAX_ENDS: Final = 8
"""So many imports may end processes; after that no process imports ahead."""


class ImportList:
    """The modules that requests of a device have imported, in the order of the reports."""

    def __init__(self) -> None:
        self._modules: dict[str, ImportedModule] = {}
        self._barred: set[str] = set()
        self._ends = 0

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def add(self, modules: Iterable[ImportedModule]) -> list[ImportedModule]:
        """Note imported modules; return the new ones. Beyond `MAX_MODULES` none is noted."""
        if self._ends >= MAX_ENDS:
            return []
        new = []
        for module in modules:
            name = module.name
            if name in self._modules or len(self._modules) >= MAX_MODULES or not self._barred.isdisjoint(_around(name)):
                continue
            self._modules[name] = module
            new.append(module)
        return new

    def bar(self, name: str, *, ended: bool) -> bool:
        """Import a module ahead no more; return False if it is not one of these.

        Args:
            name: Its name.
            ended: Whether its import has ended a process.
        """
        if name not in self._modules:
            return False
        self._barred.add(name)
        self._ends += ended
        keeps = self._ends < MAX_ENDS
        self._modules = {each: module for each, module in self._modules.items() if keeps and name not in _around(each)}
        return True

    def clear(self) -> None:
        """Begin anew: other code is going to run."""
        self._modules.clear()
        self._barred.clear()
        self._ends = 0

    def in_messages(self) -> Iterator[list[ImportedModule]]:
        """Yield all modules, as many at a time as a message has room for."""
        modules = list(self._modules.values())
        for at in range(0, len(modules), MAX_MODULES_AT_A_TIME):
            yield modules[at : at + MAX_MODULES_AT_A_TIME]


def _around(name: str) -> list[str]:
    """Return a module's name, and the names of the packages that it is in."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
