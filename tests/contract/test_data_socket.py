"""The two ends of the data channel, without a worker behind them."""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp.protocol import zmtp
from atomr_mp.protocol.framing import unpack
from atomr_mp.protocol.session import Window
from atomr_mp.protocol.values import Buffer
from atomr_mp.transport.courier import Courier
from atomr_mp.transport.data import JOIN_BELOW_BYTES, DataConnection, Login
from atomr_mp_workers.data_socket import DataSocket

DEADLINE_S: Final = 10.0
WINDOW: Final = Window(16, 2**20)
SESSIONS: Final = (b"1" * 16, b"2" * 16)
ROUNDS: Final = 60

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + b"\x01" + bytes(31)
LOGIN: Final = GREETING + b"\x04\x08\x07WELCOME\x04\x06\x05READY"
REFUSAL: Final = GREETING + b"\x04\x0a\x05ERROR\x03400"


class Ends:
    """A worker's end, and connections of two sessions."""

    def __init__(self, directory: Path) -> None:
        endpoint = f"ipc://{directory}/socket"
        self.socket = DataSocket(endpoint, WINDOW, lambda session: session if session in SESSIONS else None)
        self.courier = Courier()
        self.lock = threading.Lock()
        self.connections = [
            self.connect(endpoint, Login(session, session, WINDOW), lane) for session in SESSIONS for lane in (1, 2)
        ]

    def connect(self, endpoint: str, login: Login, lane: int) -> DataConnection:
        """Return a connection of which the courier takes care."""
        with self.lock:
            return DataConnection(endpoint, login, lane, lambda connection: self.courier.owes(connection, self.lock))

    def send(self, connection: DataConnection, header: bytes, frames: list[Buffer]) -> None:
        """Send something to the worker's end."""
        with self.lock:
            connection.send(header, frames)

    def receive(self, connection: DataConnection) -> memoryview:
        """Wait for what the worker's end has sent."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            with self.lock:
                message = connection.receive()
            if message is not None:
                return message
            left_s = until_s - time.monotonic()
            assert left_s > 0, "nothing has arrived"
            assert not connection.ended
            select.select([connection], [], [], left_s)

    def peers(self) -> list[bytes]:
        """Let every connection say something; return their routing ids, in the order of the connections."""
        found: list[tuple[bytes, bytes]] = []
        for number, connection in enumerate(self.connections):
            self.send(connection, b"%d" % number, [])
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
        self.close_connections()
        self.socket.close(flush=False)
        self.courier.close()

    def close_connections(self) -> None:
        """Close the clients' end."""
        with self.lock:
            for connection in self.connections:
                self.courier.forget(connection)
                connection.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """Make both ends."""
    made = Ends(tmp_path)
    yield made
    made.close()


def test_a_message_is_one_zeromq_frame_whatever_it_holds(ends: Ends) -> None:
    """A process that closes a socket of which half a message has left is ended if the other end closes just then."""
    peers = ends.peers()
    arrays = [b"x" * size for size in (0, 1, 9_000, JOIN_BELOW_BYTES, 300_000)]
    for peer, connection in zip(peers, ends.connections, strict=True):
        assert ends.socket.send(peer, b"header", list(arrays))
        ends.send(connection, b"header", list(arrays))
        assert unpacked(ends.receive(connection)) == (b"header", arrays)  # which refuses what has several
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
                        ends.send(connection, b"header", frames)
                    else:
                        ends.socket.send(peer, b"header", frames)
            other = threading.Thread(target=ends.socket.close, kwargs={"flush": False})
            other.start()
            until_s = time.perf_counter() + chance.uniform(0, 1e-3)
            while time.perf_counter() < until_s:  # a time as good as any other
                pass
            ends.close_connections()
            other.join()
            ends.courier.close()


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


def test_the_end_comes_behind_the_last_answers(ends: Ends) -> None:
    """Of a worker's end that closes in good order, and of one that has not read all."""
    peers = ends.peers()
    answers = [bytes([number]) * 50_000 for number in range(20)]
    for answer in answers:
        ends.socket.send(peers[0], answer, [])
    closing = threading.Thread(target=ends.socket.close, kwargs={"flush": True})
    closing.start()
    connection = ends.connections[0]
    with ends.lock:
        connection.wait_disconnected(int(DEADLINE_S * 1000))
        assert connection.ended
        assert [bytes(connection.receive() or b"") for _ in answers] == answers
        assert connection.receive() is None
    closing.join()
    with ends.lock:
        connection.send(b"to nobody", [])
        assert not connection.waits_for


class Scripted:
    """A worker's end that says what it is told to."""

    def __init__(self, directory: Path, says: bytes, owes: Callable[[DataConnection], object] = lambda _: None) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(directory / "scripted"))
        self.listener.listen()
        login = Login(SESSIONS[0], SESSIONS[0], WINDOW)
        self.connection = DataConnection(f"ipc://{directory}/scripted", login, 1, owes)
        self.accepted, _ = self.listener.accept()
        self.accepted.sendall(says)

    def close(self) -> None:
        """Close all."""
        for each in (self.accepted, self.listener, self.connection):
            each.close()


def test_what_the_other_end_makes_no_room_for_is_sent_when_it_does(tmp_path: Path) -> None:
    """In order, and whole, though nobody waits."""
    courier, lock = Courier(), threading.Lock()
    scripted = Scripted(tmp_path, LOGIN, lambda connection: courier.owes(connection, lock))
    connection = scripted.connection
    sent = [random.Random(number).randbytes(700_000) for number in range(10)]
    with lock:
        assert connection.receive() is None
        for content in sent:
            connection.send(content, [])
        assert connection.waits_for == select.EPOLLOUT
    expected = b"".join(map(zmtp.frame, sent))
    scripted.accepted.settimeout(DEADLINE_S)
    received = bytearray()
    while not received.endswith(expected[-100:]):
        received += scripted.accepted.recv(2**20)
    assert received.endswith(expected)
    with lock:
        assert not connection.waits_for
    scripted.close()
    courier.close()


def test_answers_stand_of_a_worker_that_has_not_read_all(tmp_path: Path) -> None:
    """The kernel tells a client of that by an error, behind what is there to be read."""
    scripted = Scripted(tmp_path, LOGIN)
    connection = scripted.connection
    assert connection.receive() is None
    connection.send(b"never read", [])
    scripted.accepted.sendall(zmtp.frame(b"first") + zmtp.frame(b"second"))
    scripted.accepted.close()
    connection.send(b"to nobody", [])
    connection.wait_disconnected(int(DEADLINE_S * 1000))
    assert [bytes(connection.receive() or b"") for _ in range(3)] == [b"first", b"second", b""]
    assert connection.ended
    scripted.close()


@pytest.mark.parametrize("says", [REFUSAL, b"SSH-2.0".ljust(64)], ids=["a refusal", "another protocol"])
def test_an_end_that_is_no_workers_is_not_read_on(
    tmp_path: Path, says: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What is sent goes nowhere; the log says why."""
    scripted = Scripted(tmp_path, says)
    scripted.connection.send(b"header", [])
    assert scripted.connection.receive() is None
    assert scripted.connection.ended
    assert not scripted.connection.waits_for
    assert "ProtocolError" in caplog.text
    scripted.close()


def test_an_end_that_lives_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    """And what it sends meanwhile is there afterwards."""
    scripted = Scripted(tmp_path, LOGIN + zmtp.frame(b"message"))
    scripted.connection.wait_disconnected(20)
    assert not scripted.connection.ended
    assert scripted.connection.has_message
    assert bytes(scripted.connection.receive() or b"") == b"message"
    scripted.close()


def test_a_worker_that_has_gone_already_is_an_end(tmp_path: Path) -> None:
    """Its supervisor will say so: nothing is raised."""
    connection = DataConnection(f"ipc://{tmp_path}/nobody", Login(SESSIONS[0], SESSIONS[0], WINDOW), 1)
    connection.send(b"to nobody", [])
    assert connection.receive() is None
    assert connection.ended
    connection.close()
    connection.close()


def test_what_is_owed_when_the_courier_has_ended_is_nobodys(tmp_path: Path) -> None:
    """An event loop may close its connections after its client."""
    courier, lock = Courier(), threading.Lock()
    scripted = Scripted(tmp_path, LOGIN[:10], lambda connection: courier.owes(connection, lock))
    assert scripted.connection.waits_for
    courier.close()
    with lock:
        courier.owes(scripted.connection, lock)
        courier.forget(scripted.connection)
    scripted.close()
