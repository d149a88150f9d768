from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from atomr_mp import errors
from atomr_mp.ray.node_death import wait_lost
from tests.support import DEADLINE_S


class Session:
    """A remote client whose state is set by a test."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.connected = True
        self.lost: errors.PoolLost | None = None

    def become(self, *, connected: bool) -> None:
        """Be cut, or connected again."""
        with self.changed:
            self.connected = connected
            self.changed.notify_all()

    def lose(self, lost: errors.PoolLost) -> None:
        """End the session."""
        with self.changed:
            self.lost = lost
            self.changed.notify_all()

    def check_lost(self) -> None:
        """Raise what has ended it."""
        if self.lost is not None:
            raise self.lost

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition, or the end."""
        with self.changed:
            found = self.changed.wait_for(lambda: self.lost is not None or condition(), timeout_s)
            self.check_lost()
            return found


@contextmanager
def watched(session: Session, relay_s: float = 10.0) -> Iterator[Callable[[], errors.PoolLost]]:
    """Watch a session on a thread; what is given waits for the verdict."""
    found: list[errors.PoolLost] = []
    thread = threading.Thread(target=lambda: found.append(wait_lost(session, 1, relay_s)), daemon=True)
    thread.start()

    def verdict() -> errors.PoolLost:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "no verdict"
        return found[0]

    yield verdict
    session.lose(errors.PoolLost("over"))
    thread.join(DEADLINE_S)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens, and whose connections are not accepted."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_a_node_whose_endpoint_refuses_is_dead_at_once() -> None:
    """Its calls end typed, and may go elsewhere."""
    with socket.socket() as taken:  # so that nobody else listens there, and nobody does
        taken.bind(("127.0.0.1", 0))
        session = Session(taken.getsockname()[1])
        with watched(session, relay_s=3600.0) as verdict:
            session.become(connected=False)
            assert type(verdict()) is errors.PoolLost
            assert session.lost is verdict()


def test_a_relay_that_is_replaced_is_no_death(listener: socket.socket) -> None:
    """Its supervisor listens meanwhile; the session goes on, and a later end counts."""
    session = Session(listener.getsockname()[1])
    with watched(session) as verdict:
        for _ in range(3):
            session.become(connected=False)
            connection, _ = listener.accept()  # the look at whether somebody listens
            connection.close()
            session.become(connected=True)
        assert session.lost is None
        session.lose(ended := errors.PoolLost("the pool has ended"))
        assert verdict() is ended


def test_a_node_that_listens_and_never_answers_is_dead_in_the_end(listener: socket.socket) -> None:
    """A pool whose processes are all stopped keeps no caller for ever."""
    session = Session(listener.getsockname()[1])
    with watched(session, relay_s=0.2) as verdict:
        session.become(connected=False)
        assert type(verdict()) is errors.PoolLost
