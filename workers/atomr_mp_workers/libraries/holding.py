"""Objects that a graph uses and that have to live as long as it: slots, workspaces, plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self


class Holding:
    """Keeps the objects that this thread has held within `with`."""

    def __init__(self) -> None:
        self.held: Final[list[object]] = []
        self._let_go: Final[list[Callable[[], None]]] = []

    def __enter__(self) -> Self:
        _threads.holding = self
        return self

    def __exit__(self, *_raised: object) -> None:
        _threads.holding = None

    def at_end(self, let_go: Callable[[], None]) -> None:
        """Have a function called when the last reference to this has gone, on any thread."""
        self._let_go.append(let_go)

    def __del__(self) -> None:
        for let_go in self._let_go:
            let_go()


_threads = threading.local()


def holding() -> Holding | None:
    """Return the `Holding` of the graph that this thread records, None if it records none."""
    found: Holding | None = getattr(_threads, "holding", None)
    return found


def hold(used: object) -> None:
    """Keep an object as long as the graph that this thread records, if it records one."""
    found = holding()
    if found is not None:
        found.held.append(used)
