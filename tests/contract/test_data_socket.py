"""The two ends of the data channel, without a worker behind them."""

from __future__ import annotations

import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp.protocol.framing import unpack
from atomr_mp.protocol.session import Window
from atomr_mp.protocol.values import Buffer
from atomr_mp.transport.data import COPY_BELOW_BYTES, Context, DataConnection, Login
from atomr_mp_workers.data_socket import DataSocket

DEADLINE_S: Final = 10.0
WINDOW: Final = Window(16, 2**20)
SESSIONS: Final = (b"1" * 16, b"2" * 16)
ROUNDS: Final = 60


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
                found.append((bytes(message[1]), message[0]))
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


def test_a_message_is_one_zeromq_frame_whatever_it_holds(ends: Ends) -> None:
    """A process that closes a socket of which half a message has left is ended if the other end closes just then."""
    peers = ends.peers()
    arrays = [b"x" * size for size in (0, 1, 9_000, COPY_BELOW_BYTES, 300_000)]
    for peer, connection in zip(peers, ends.connections, strict=True):
        assert ends.socket.send(peer, b"header", list(arrays))
        connection.send(b"header", list(arrays))
        assert connection._dealer.poll(int(DEADLINE_S * 1000))
        frame = connection._recv(0, False)
        assert not frame.more
        assert unpacked(frame.buffer) == (b"header", arrays)
        assert ends.socket._router.poll(int(DEADLINE_S * 1000))
        assert ends.socket._router.recv() == peer
        frame = ends.socket._recv(0, False)
        assert not frame.more
        assert unpacked(frame.buffer) == (b"header", arrays)


@pytest.mark.parametrize("closer", ["client", "worker"])
def test_to_close_while_the_other_end_does_harms_nobody(closer: str) -> None:
    """However much is on its way. In a process of its own, for libzmq would end it."""
    code = f"from tests.contract.test_data_socket import close_both; close_both({closer!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def close_both(closer: str) -> None:
    """Close both ends many times, with more on its way than the kernel takes."""
    chance = random.Random()
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(ROUNDS):
            ends = Ends(Path(directory))
            peers = ends.peers()
            for peer, connection in zip(peers, ends.connections, strict=True):
                for _ in range(2 * WINDOW.requests - 1):
                    frames: list[Buffer] = [bytes(chance.randrange(9_000, 90_000)) for _ in range(2)]
                    if closer == "client":
                        connection.send(b"header", frames)
                    else:
                        ends.socket.send(peer, b"header", frames)
            other = threading.Thread(target=ends.socket.close, kwargs={"flush": False})
            other.start()
            until_s = time.perf_counter() + chance.uniform(0, 1e-3)
            while time.perf_counter() < until_s:  # a time as good as any other
                pass
            for connection in ends.connections:
                connection.close()
            other.join()
            ends.context.term()


def unpacked(message: memoryview) -> tuple[bytes, list[bytes]]:
    """Return what a message holds."""
    header, frames = unpack(message)
    return bytes(header), [bytes(frame) for frame in frames]


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
