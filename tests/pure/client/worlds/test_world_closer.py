"""Worlds whose handle is gone are closed on a thread, whatever the thread that finds them holds."""

from __future__ import annotations

import threading

from atomr_mp.client.worlds.world_closer import WorldCloser
from tests.support import DEADLINE_S


class Handle:
    """Stands for a world."""


def test_a_world_is_closed_once_by_a_thread() -> None:
    """The thread that drops the handle holds a lock that closing takes; one that was closed is not closed again."""
    lock, done, closed = threading.Lock(), threading.Event(), list[int]()

    def close(number: int) -> None:
        with lock:
            closed.append(number)
        if number == 3:
            done.set()

    closer = WorldCloser(close)
    handles = {number: Handle() for number in (1, 2, 3)}
    for number, handle in handles.items():
        closer.watch(handle, number)
    del handle
    closer.forget(2)
    with lock:
        handles.clear()
    assert done.wait(DEADLINE_S)
    closer.close()
    assert closed == [1, 3]
