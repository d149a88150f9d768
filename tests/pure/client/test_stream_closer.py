"""Streams without a reference are closed on a thread, whatever the thread that finds them holds."""

from __future__ import annotations

import threading
from typing import Any, cast

from atomr_mp.client.reply import StreamReply
from atomr_mp.client.stream_closer import StreamCloser
from tests.support import DEADLINE_S


class Lane:
    """Notes which streams it closes, and on which thread; some it cannot close."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.closed: list[tuple[int, threading.Thread]] = []
        self.last = threading.Event()

    def close_stream(self, stream: StreamReply) -> None:
        """Close a stream; 0 is the last one, and 13 cannot be closed."""
        with self.lock:
            self.closed.append((stream.id, threading.current_thread()))
        if stream.id == 0:
            self.last.set()
        if stream.id == 13:
            raise ValueError(stream.id)


def stream_of(number: int) -> StreamReply:
    """Return a stream of this id."""
    return StreamReply(cast("Any", None), number, "A.b", 0, b"")


def test_all_are_closed_in_order_on_one_thread() -> None:
    """Though the finder holds the lane's lock, and one of them cannot be closed."""
    lane, closer = Lane(), StreamCloser()
    for _ in range(3):
        closer.start()
    with lane.lock:
        for number in (7, 13, 8, 0):
            closer.put((lane, stream_of(number)))
    assert lane.last.wait(DEADLINE_S)
    closer.close()
    assert [number for number, _ in lane.closed] == [7, 13, 8, 0]
    (thread,) = {thread for _, thread in lane.closed}
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_one_that_is_closed_has_no_thread() -> None:
    """Neither one that was never started; and what is found afterwards does no harm."""
    before = threading.active_count()
    lane, closer = Lane(), StreamCloser()
    closer.close()
    closer.start()
    closer.put((lane, stream_of(7)))
    closer.close()
    assert threading.active_count() == before
    assert not lane.closed


def test_it_may_be_closed_by_its_own_thread() -> None:
    """As by a callback of a stream that it closes."""
    closer = StreamCloser()

    class Closing(Lane):
        def close_stream(self, stream: StreamReply) -> None:
            closer.close()
            super().close_stream(stream)

    lane = Closing()
    closer.start()
    closer.put((lane, stream_of(0)))
    assert lane.last.wait(DEADLINE_S)
    closer.close()
    assert not lane.closed[0][1].is_alive()
