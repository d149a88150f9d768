"""Clients that ask again and again beside what ends processes, and look at each answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from tests.support import DEADLINE_S, settled


class ClientLoad:
    """Clients, each in a thread of its own.

    Args:
        clients: What each does until `stopped` is set; it counts right answers in its place of `counts`.
    """

    def __init__(self, clients: Sequence[Callable[[], None]]) -> None:
        self.stopped: Final = threading.Event()
        self.wrong: Final[list[str]] = []
        """False answers, and errors that there should not be."""
        self.counts: Final = [0] * len(clients)
        self._threads: Final = [threading.Thread(target=each) for each in clients]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def more(self, count: int = 30) -> None:
        """Wait until each client has had so many more right answers."""
        until = [each + count for each in self.counts]
        assert settled(lambda: all(map(int.__ge__, self.counts, until)) or bool(self.wrong)), self.counts
        assert not self.wrong
