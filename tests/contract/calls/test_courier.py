"""The courier pays a connection's debts, however early its descriptor is ready."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from atomr_mp.transport.data import DataConnection
from atomr_mp.wire.courier import Courier

DEADLINE_S = 10.0
OFTEN_S = 1e-6
ROUNDS = 300


class PendingWriter:
    """A connection whose other end has answered before anybody looks."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.write(self._writable, b"answered")
        self.waits_for = select.EPOLLIN
        self.advanced = threading.Event()

    def writer_fileno(self) -> int:
        """Return the descriptor, readable from the beginning."""
        return self._readable

    def advance(self) -> None:
        """Owe nothing from now on."""
        self.waits_for = 0
        self.advanced.set()

    def close(self) -> None:
        """Close both ends; the next writer has the same descriptors."""
        os.close(self._readable)
        os.close(self._writable)


@pytest.fixture
def switched_often() -> Iterator[None]:
    """Let the interpreter change threads wherever it can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(OFTEN_S)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("switched_often")
def test_a_descriptor_that_speaks_at_once_is_heard() -> None:
    """There is no gap between watching the descriptor and knowing its debt."""
    courier, lock = Courier(), threading.Lock()
    for _ in range(ROUNDS):
        writer = PendingWriter()
        connection = cast("DataConnection", writer)
        with lock:
            courier.pending(connection, lock)
        assert writer.advanced.wait(DEADLINE_S)
        with lock:
            courier.forget(connection)
        writer.close()
    courier.close()


def test_who_is_told_that_a_debt_is_paid_may_close_the_courier() -> None:
    """The courier's own thread may close it: the thread then ends by itself."""
    courier, lock, closed, writer = Courier(), threading.Lock(), threading.Event(), PendingWriter()

    def close() -> None:
        courier.close()
        closed.set()

    with lock:
        courier.pending(cast("DataConnection", writer), lock, close)
    assert closed.wait(DEADLINE_S)
    thread = courier._thread
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert courier._epoll.closed
    writer.close()
