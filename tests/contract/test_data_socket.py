"""The two ends of the data channel, without a worker behind them."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp.protocol.session import Window
from atomr_mp.transport.data import Context, DataConnection, Login
from atomr_mp_workers.data_socket import DataSocket

DEADLINE_S: Final = 10.0
WINDOW: Final = Window(16, 2**20)
SESSIONS: Final = (b"1" * 16, b"2" * 16)


class Ends:
    """A worker's end, and connections of two sessions."""

    def __init__(self, directory: Path) -> None:
        endpoint = f"ipc://{directory}/socket"
        self.socket = DataSocket(endpoint, WINDOW, lambda session: session if session in SESSIONS else None)
        self.context: Context = Context()
        self.connections = [
            DataConnection(self.context, endpoint, Login(session, session, WINDOW), lane)
            for session in SESSIONS
            for lane in (1, 2)
        ]

    def peers(self) -> list[bytes]:
        """Let every connection say something; return their routing ids, in the order of the connections."""
        found: list[tuple[bytes, bytes]] = []
        for number, connection in enumerate(self.connections):
            connection.send(b"%d" % number, [])
        until_s = time.monotonic() + DEADLINE_S
        while len(found) < len(self.connections):
            assert time.monotonic() < until_s, "nothing has arrived"
            select.select(self.socket.descriptors(), [], [], 0.05)
            self.socket.shake_hands()
            while (message := self.socket.receive()) is not None:
                found.append((message[1], message[0]))
        return [peer for _, peer in sorted(found)]

    def close(self) -> None:
        """Close all."""
        for connection in self.connections:
            connection.close()
        self.socket.close(flush=False)
        self.context.term()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """Make both ends."""
    made = Ends(tmp_path)
    yield made
    made.close()


def test_nothing_is_remembered_of_a_session_that_has_ended(ends: Ends) -> None:
    """Not even of large answers that nobody has read; of others it is."""
    peers = ends.peers()
    for peer in peers:
        ends.socket.send(peer, b"header", [bytes(100_000)])
    assert set(ends.socket._unread) == set(peers)
    ends.socket.forget(SESSIONS[0])
    assert set(ends.socket._unread) == set(peers[2:])
    ends.socket.forget(SESSIONS[0])
    ends.socket.forget(SESSIONS[1])
    assert not ends.socket._unread
