"""The inbox of a world's thread: what is put there is run, and a bell has the thread look."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from atomr_mp_workers.worlds.running.bell_inbox import BellInbox
from tests.support import DEADLINE_S

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def bell() -> Iterator[int]:
    """Yield a bell."""
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield bell
    os.close(bell)


class Thread:
    """A thread that takes what comes to its inbox, until it gets None.

    Args:
        bell: Its bell.
        found: What its looks find, each by one look; None for nothing.
    """

    def __init__(self, bell: int, found: list[Any]) -> None:
        self.taken: SimpleQueue[Any] = SimpleQueue()
        self.looks: SimpleQueue[threading.Thread] = SimpleQueue()
        self._found = found
        self._inbox = BellInbox(bell, self._look)
        self._thread = threading.Thread(target=self._take_all)
        self._thread.start()

    def _look(self) -> None:
        found = self._found.pop(0)
        if found is not None:
            self._inbox.put(found)
        self.looks.put(threading.current_thread())

    def _take_all(self) -> None:
        while (run := self._inbox.get()) is not None:
            self.taken.put(run)

    def put(self, run: Any) -> None:
        """Put something there."""
        self._inbox.put(run)

    def next(self) -> Any:
        """Return what it takes next."""
        return self.taken.get(timeout=DEADLINE_S)

    def end(self) -> None:
        """End it."""
        self._inbox.put(None)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self.taken.empty()


def test_what_is_put_there_is_taken_in_its_order(bell: int) -> None:
    """By the thread, which waits until there is something."""
    thread = Thread(bell, [])
    runs = [object() for _ in range(100)]
    for run in runs:
        thread.put(run)
    assert [thread.next() for _ in runs] == runs
    thread.end()
    assert thread.looks.empty()


def test_whoever_rings_the_bell_has_the_thread_look_by_itself(bell: int) -> None:
    """It takes what it finds, and waits on if that is nothing."""
    found = object()
    thread = Thread(bell, [None, found])
    for _ in range(2):
        os.eventfd_write(bell, 1)
        assert thread.looks.get(timeout=DEADLINE_S) is thread._thread
    assert thread.next() is found
    thread.end()


def test_the_bell_lasts_as_long_as_a_thread_waits_for_it(bell: int) -> None:
    """The files of a world may be closed before: another file may get the number then."""
    before = len(list(DESCRIPTORS.iterdir()))
    own = os.dup(bell)
    thread = Thread(own, [None])
    os.close(own)
    other = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    assert other == own
    os.eventfd_write(bell, 1)
    thread.looks.get(timeout=DEADLINE_S)
    thread.put(1)
    assert thread.next() == 1
    thread.end()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    os.close(other)
    assert len(list(DESCRIPTORS.iterdir())) == before
