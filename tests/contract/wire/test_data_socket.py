"""The two ends of the data channel, without a worker behind them."""

from __future__ import annotations

import contextlib
import random
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

import hypothesis
import pytest
import zmq
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import JOIN_BELOW_BYTES, unpack
from atomr_mp.transport.data import DataConnection, Login
from atomr_mp.wire.connection import UNREAD_BYTES
from atomr_mp.wire.courier import Courier
from atomr_mp.wire.ends import PeerNotReadingError
from atomr_mp_workers.wire.data_socket import DataSocket
from tests.waiting import readable

DEADLINE_S: Final = 10.0
REFUSED: Final = {zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.HANDSHAKE_FAILED_PROTOCOL}
"""libzmq 4.3.5 takes the RFC's ERROR for a breach of protocol: its own has a misspelt name."""
WINDOW: Final = Window(16, 2**20)
SESSIONS: Final = (b"1" * 16, b"2" * 16)
ROUNDS: Final = 60

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + b"\x01" + bytes(31)
LOGIN: Final = GREETING + b"\x04\x08\x07WELCOME\x04\x06\x05READY"
REFUSAL: Final = GREETING + b"\x04\x0a\x05ERROR\x03400"


class Ends:
    """A worker's end, and connections of two sessions."""

    def __init__(self, directory: Path) -> None:
        self.endpoint = f"ipc://{directory}/socket"
        self.poll = select.epoll()
        self.ended: set[bytes] = set()
        """Sessions that have ended."""
        self.socket = DataSocket(
            self.endpoint,
            WINDOW,
            lambda session: session if session in SESSIONS and session not in self.ended else None,
            self.poll,
            lambda session: session if session in self.ended else None,
        )
        self.socket.read()
        self.received: list[tuple[bytes, bytes]] = []
        """Routing id and content of what the worker's end has received."""
        self.gone: dict[bytes, tuple[int, ...]] = {}
        """Routing ids of connections that have ended, and what was not sent whole on each."""
        self.courier = Courier()
        self.lock = threading.Lock()
        self.connections = [
            self.connect(self.endpoint, Login(session, session, WINDOW), lane)
            for session in SESSIONS
            for lane in (1, 2)
        ]

    def connect(self, endpoint: str, login: Login, lane: int) -> DataConnection:
        """Return a connection that the courier looks after."""
        with self.lock:
            return DataConnection(endpoint, login, lane, lambda connection: self.courier.pending(connection, self.lock))

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
            readable([connection], left_s)

    def look(self, until: Callable[[], object]) -> int:
        """Let the worker's end do its part until something holds; return how many it has refused."""
        refused, until_s = 0, time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < until_s, "nothing has arrived"
            refused += self.socket.look(dict(self.poll.poll(0.005)))  # of some of it this end's poll does not tell
            while self.socket.received:
                peer, message = self.socket.received.popleft()
                if isinstance(message, tuple):
                    self.gone[peer] = message
                else:
                    self.received.append((peer, bytes(message)))
        return refused

    def peers(self) -> list[bytes]:
        """Let every connection say something; return their routing ids, in the order of the connections."""
        for number, connection in enumerate(self.connections):
            self.send(connection, b"%d" % number, [])
        self.look(lambda: len(self.received) == len(self.connections))
        found = sorted((message, peer) for peer, message in self.received)
        self.received.clear()
        return [peer for _, peer in found]

    def close(self) -> None:
        """Close all."""
        self.close_connections()
        self.socket.close(flush=False)
        self.poll.close()
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


def test_messages_of_any_size_cross(ends: Ends) -> None:
    """Both ways, even if one end sends more than the other has read."""
    peers = ends.peers()
    arrays: list[Buffer] = [b"x" * size for size in (0, 1, 9_000, JOIN_BELOW_BYTES, 300_000)]
    for peer, connection in zip(peers, ends.connections, strict=True):
        for _ in range(4):
            assert ends.socket.send(peer, b"header", arrays)
            ends.send(connection, b"header", arrays)
        ends.look(lambda: len(ends.received) == 4)
        for sender, message in ends.received:
            assert sender == peer
            assert unpacked(memoryview(message)) == (b"header", arrays)
        ends.received.clear()
        with ThreadPoolExecutor(1) as reader:
            read = reader.submit(lambda: [unpacked(ends.receive(connection)) for _ in range(4)])  # noqa: B023 - ends here
            ends.look(read.done)
        assert read.result() == [(b"header", arrays)] * 4


def test_a_library_of_zeromq_s_may_connect(ends: Ends) -> None:
    """libzmq, which speaks a newer ZMTP, is understood, and understands."""
    routing_id = data.routing_id(SESSIONS[0], 7)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.routing_id, dealer.reconnect_ivl = 0, routing_id, -1
        dealer.plain_username = dealer.plain_password = SESSIONS[0].hex().encode()
        dealer.connect(ends.endpoint)
        for size in (0, 10, 255, 256, 70_000, 3_000_000):
            dealer.send(b"x" * size)
            ends.look(lambda: ends.received)
            assert ends.received.pop() == (routing_id, b"x" * size)
            assert ends.socket.send(routing_id, b"y" * size, [])
            ends.look(lambda: dealer.poll(0))
            assert dealer.recv() == b"y" * size
        dealer.send_multipart([b"several", b"frames"])
        ends.look(lambda: ends.received)
        assert ends.received.pop() == (routing_id, b"")
        assert not ends.socket.send(routing_id, b"it is closed", [])


def test_a_heartbeat_of_zeromq_s_is_answered(ends: Ends) -> None:
    """A silent connection would be ended by libzmq after that time."""
    routing_id = data.routing_id(SESSIONS[0], 7)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.routing_id, dealer.reconnect_ivl = 0, routing_id, -1
        dealer.plain_username = dealer.plain_password = SESSIONS[0].hex().encode()
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = 20, 3000
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.connect(ends.endpoint)
        dealer.send(b"first")
        ends.look(lambda: ends.received)
        until = time.monotonic() + 3.5  # longer than libzmq waits for an answer
        ends.look(lambda: time.monotonic() > until)
        dealer.send(b"second")
        ends.look(lambda: len(ends.received) == 2)
        assert not monitor.poll(0)
        dealer.disable_monitor()
        monitor.close()


def test_what_waits_for_who_sends_pings_and_reads_nothing_is_bounded(ends: Ends) -> None:
    """Further pings are not answered; messages go on, and an answer is sent once the sender reads."""
    secret = SESSIONS[0].hex().encode()
    routing_id = data.routing_id(SESSIONS[0], 7)
    talk = stream.Dealer(routing_id, secret, secret)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(ends.endpoint.removeprefix("ipc://"))
    connected.sendall(talk.opening)
    connected.setblocking(False)

    def is_logged_in() -> bool:
        with contextlib.suppress(BlockingIOError):
            connected.send(talk.feed(connected.recv(4096)))
        return talk.ready

    ends.look(is_logged_in)
    pings = b"\x04\x17\x04PING\x00\x0a" + b"c" * 16
    with connected:
        peer = ends.socket._logged_in[routing_id]
        most = 0
        for _ in range(200):
            with contextlib.suppress(BlockingIOError):
                connected.send(pings * 512)
            ends.socket.look(dict(ends.poll.poll(0)))
            most = max(most, peer.unsent_bytes)
        assert UNREAD_BYTES <= most < UNREAD_BYTES + 4096
        assert ends.socket.send(routing_id, b"header", [])

        def has_arrived() -> bool:
            with contextlib.suppress(BlockingIOError):
                if talk.room is None:
                    talk.feed(connected.recv(65536))
                else:
                    talk.filled(connected.recv_into(talk.room))
            return bool(talk.messages)

        ends.look(has_arrived)


@pytest.mark.parametrize(
    ("routing_id", "password"),
    [
        (data.routing_id(SESSIONS[0], 7), b"wrong"),
        (data.routing_id(SESSIONS[1], 7), SESSIONS[0].hex().encode()),
        (data.routing_id(SESSIONS[0], 1), SESSIONS[0].hex().encode()),
    ],
    ids=["a wrong secret", "another session's routing id", "a routing id in use"],
)
def test_who_is_not_let_in_is_counted(ends: Ends, routing_id: bytes, password: bytes) -> None:
    """A refused peer gets the reason; the others go on."""
    peers = ends.peers()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer, dealer.get_monitor_socket() as monitor:
        dealer.linger, dealer.routing_id, dealer.reconnect_ivl = 0, routing_id, -1
        dealer.plain_username, dealer.plain_password = SESSIONS[0].hex().encode(), password
        dealer.connect(ends.endpoint)
        told: list[int] = []

        def failed() -> bool:
            while monitor.poll(0):
                told.append(recv_monitor_message(monitor)["event"])
            return not REFUSED.isdisjoint(told)

        assert ends.look(failed) == 1
        dealer.disable_monitor()
    assert ends.peers() == peers


def test_a_routing_id_is_free_again_as_soon_as_its_holder_has_closed(ends: Ends) -> None:
    """Even before the worker's end notices; the holder's last messages are heard before the next holder's."""
    peers = ends.peers()
    ends.send(ends.connections[0], b"before", [])
    ends.send(ends.connections[2], b"others", [])
    ends.socket.look(dict(ends.poll.poll(DEADLINE_S)))  # and nobody takes it: the loop is behind
    ends.send(ends.connections[0], b"last", [])
    with ends.lock:
        ends.courier.forget(ends.connections[0])
        ends.connections[0].close()
    ends.connections[0] = ends.connect(ends.endpoint, Login(SESSIONS[0], SESSIONS[0], WINDOW), 1)
    ends.send(ends.connections[0], b"again", [])
    until_s = time.monotonic() + DEADLINE_S
    while ends.connections[0].waits_for:
        assert time.monotonic() < until_s
        assert ends.socket.look(dict(ends.poll.poll(0.005))) == 0
    ends.look(lambda: (peers[0], b"again") in ends.received)
    assert [message for peer, message in ends.received if peer == peers[0]] == [b"before", b"last", b"again"]


def test_what_no_descriptor_is_left_for_is_turned_away(ends: Ends) -> None:
    """It does not keep the loop busy."""
    peers = ends.peers()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(20)]  # one would do without gaps
    highest = max(stranger.fileno() for stranger in strangers)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        for stranger in strangers:
            stranger.connect(ends.endpoint.removeprefix("ipc://"))
        refused = 0
        while found := ends.poll.poll(0):
            refused += ends.socket.look(dict(found))
        assert refused >= 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for stranger in strangers:
        stranger.close()
    assert ends.peers() == peers


def test_what_does_not_read_yet_lets_peers_in_and_reads_nothing(tmp_path: Path) -> None:
    """A standby does that until it is ordered to begin; it does hear of ends."""
    with select.epoll() as poll:
        standby = DataSocket(f"ipc://{tmp_path}/standby", WINDOW, lambda session: session, poll)
        login = Login(SESSIONS[0], SESSIONS[0], WINDOW)
        first, second = (DataConnection(f"ipc://{tmp_path}/standby", login, lane) for lane in (1, 2))
        for connection in (first, second):
            while connection.waits_for:
                assert standby.look(dict(poll.poll(0))) == 0
                connection.receive()  # what has been said on one end is there at once on the other
            connection.send(b"early", [])
        assert poll.poll(0) == []
        second.close()
        standby.look(dict(poll.poll(DEADLINE_S)))
        assert poll.poll(0) == []
        standby.read()
        standby.look(dict(poll.poll(DEADLINE_S)))
        assert [(peer, bytes(cast("memoryview", message))) for peer, message in standby.received] == [
            (data.routing_id(SESSIONS[0], 1), b"early")
        ]
        assert not standby.send(data.routing_id(SESSIONS[0], 2), b"it has gone", [])
        standby.close(flush=False)
        first.close()


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    sizes=st.lists(st.sampled_from([0, 1000, 400_000, 400_000]), min_size=1, max_size=15),
    read=st.integers(0, 15),
    late=st.booleans(),
)
def test_an_answer_is_received_or_known_not_to_have_been_sent(sizes: list[int], read: int, *, late: bool) -> None:
    """Whenever its receiver leaves: if it takes in what has arrived, the worker knows of all the others."""
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Ends(Path(directory))) as ends:
        connection, peer = ends.connections[0], ends.peers()[0]

        def refused(number: int) -> bool:
            return not ends.socket.send(peer, b"%d" % number, [bytes(sizes[number - 1])], number)

        lost = [*filter(refused, range(1, len(sizes)))]
        found = [int(unpack(ends.receive(connection))[0]) for _ in range(min(read, len(sizes) - 1))]
        with ends.lock:
            connection.stop()
            while (message := connection.receive()) is not None:
                found.append(int(unpack(message)[0]))
            lost += [*filter(refused, [len(sizes)] * late)]
            ends.courier.forget(connection)
            connection.close()
        ends.look(lambda: peer in ends.gone)
        lost += [number for number in ends.gone[peer] if number not in lost]
        assert sorted(found + lost) == list(range(1, len(sizes) + late))


def test_what_has_been_sent_leaves_though_the_loop_is_busy(ends: Ends) -> None:
    """As soon as a call is read: no answer waits for the call that the loop runs now."""
    peers = ends.peers()
    answers = [bytes([number]) * 1_000_000 for number in range(4)]
    for answer in answers:
        ends.socket.send(peers[0], answer, [])
    for answer in answers:
        assert bytes(ends.receive(ends.connections[0])) == answer
    ends.socket.send(peers[0], b"small", [])
    assert bytes(ends.receive(ends.connections[0])) == b"small"


def test_what_waits_for_who_does_not_read_is_bounded(ends: Ends) -> None:
    """Even with small messages; beyond the bound it raises."""
    peers = ends.peers()
    for peer, nbytes in ((peers[0], 10), (peers[1], 100_000)):
        with pytest.raises(PeerNotReadingError):  # noqa: PT012 - the kernel takes some
            for _ in range(100_000):
                ends.socket.send(peer, bytes(nbytes), [])
    assert ends.socket.send(peers[2], b"others", [])


def test_who_reads_late_gets_everything_and_is_heard_again(ends: Ends) -> None:
    """More answers may wait than the bound for unread bytes; meanwhile nothing more is received from that peer."""
    peers = ends.peers()
    sent = 8
    for number in range(sent):
        assert ends.socket.send(peers[0], bytes([number]), [bytes([number]) * 2**20])
    ends.send(ends.connections[0], b"one more call", [])
    ends.send(ends.connections[1], b"of another", [])
    ends.look(lambda: ends.received)
    assert [peer for peer, _ in ends.received] == [peers[1]]
    for number in range(sent):
        header, frames = unpack(ends.receive(ends.connections[0]))
        assert (bytes(header), [bytes(frame) for frame in frames]) == (bytes([number]), [bytes([number]) * 2**20])
    ends.look(lambda: len(ends.received) == 2)
    assert ends.received[1][0] == peers[0]


def test_who_takes_nothing_for_a_time_is_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the pause on, and again from each byte that is taken."""
    peers = ends.peers()
    monkeypatch.setattr("atomr_mp_workers.wire.data_socket.STALL_S", -1.0)
    assert ends.socket.send(peers[0], bytes(3 * 2**20), [])
    with pytest.raises(PeerNotReadingError):  # noqa: PT012 - the kernel takes some
        for _ in range(2):
            ends.socket.send(peers[0], bytes(3 * 2**20), [])
    assert ends.socket.send(peers[2], b"others", [])


@pytest.mark.parametrize("closer", ["client", "worker"])
def test_to_close_while_the_other_end_does_harms_nobody(closer: str) -> None:
    """Any number of bytes is on its way. The test runs in a process of its own, since libzmq would abort it."""
    code = f"from tests.contract.wire.test_data_socket import close_both; close_both({closer!r})"
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


def test_a_session_that_has_ended_has_no_connections(ends: Ends) -> None:
    """The others go on."""
    peers = ends.peers()
    ends.socket.forget(SESSIONS[0])
    ends.socket.forget(SESSIONS[0])
    assert [ends.socket.send(peer, b"header", []) for peer in peers] == [False, False, True, True]
    for connection in ends.connections[:2]:
        with ends.lock:
            connection.wait_disconnected(int(DEADLINE_S * 1000))
            assert connection.ended


def login(session: bytes, password: bytes) -> bytes:
    """Return the first half of a login, which names a session and shows a secret."""
    name, secret = session.hex().encode(), password.hex().encode()
    hello = b"\x05HELLO" + bytes((len(name),)) + name + bytes((len(secret),)) + secret
    return GREETING[:32] + bytes(32) + b"\x04" + bytes((len(hello),)) + hello


def initiate(routing_id: bytes) -> bytes:
    """Return its second half, which asks for a routing id."""
    command = b"\x08INITIATE\x08Identity" + len(routing_id).to_bytes(4, "big") + routing_id
    return b"\x04" + bytes((len(command),)) + command


@pytest.mark.parametrize("when", ["before its login", "in its login"])
def test_a_client_that_closed_before_its_login_is_not_counted_as_refused(ends: Ends, when: str) -> None:
    """The supervisor tells of a client's end while its login waits unread: that is no offence."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late:
        late.connect(ends.endpoint.removeprefix("ipc://"))
        if when == "before its login":
            ends.ended.add(SESSIONS[0])
            late.sendall(login(SESSIONS[0], SESSIONS[0]))
        else:
            late.sendall(login(SESSIONS[0], SESSIONS[0]))
            ends.look(lambda: readable([late], 0) and len(late.recv(999, socket.MSG_PEEK)) > len(GREETING))
            late.recv(999)
            ends.ended.add(SESSIONS[0])
            late.sendall(initiate(data.routing_id(SESSIONS[0], 9)))
        said = b""

        def turned_away() -> bool:
            nonlocal said
            while readable([late], 0):
                chunk = late.recv(999)
                said += chunk
                if not chunk:
                    return True
            return False

        assert ends.look(turned_away) == 0
        assert said.endswith(REFUSAL[len(GREETING) :])


def test_who_knows_only_the_name_of_a_session_that_ended_is_counted(ends: Ends) -> None:
    """A name without its secret is refused."""
    ends.ended.add(SESSIONS[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(ends.endpoint.removeprefix("ipc://"))
        stranger.sendall(login(SESSIONS[0], SESSIONS[1]))
        assert ends.look(lambda: readable([stranger], 0) and stranger.recv(999).endswith(REFUSAL[64:])) == 1


def test_the_end_comes_behind_the_last_answers(ends: Ends) -> None:
    """The worker may close in good order, or without having read all."""
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
    """A worker's end that says what the test gives it."""

    def __init__(
        self, directory: Path, says: bytes, pending: Callable[[DataConnection], object] = lambda _: None
    ) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(directory / "scripted"))
        self.listener.listen()
        login = Login(SESSIONS[0], SESSIONS[0], WINDOW)
        self.connection = DataConnection(f"ipc://{directory}/scripted", login, 1, pending)
        self.accepted, _ = self.listener.accept()
        self.accepted.sendall(says)

    def close(self) -> None:
        """Close all."""
        for each in (self.accepted, self.listener, self.connection):
            each.close()


def test_what_the_other_end_makes_no_room_for_is_sent_when_it_does(tmp_path: Path) -> None:
    """It is sent in order, and whole, even if no thread waits."""
    courier, lock = Courier(), threading.Lock()
    scripted = Scripted(tmp_path, LOGIN, lambda connection: courier.pending(connection, lock))
    connection = scripted.connection
    sent = [random.Random(number).randbytes(700_000) for number in range(10)]
    with lock:
        assert connection.receive() is None
        for content in sent:
            connection.send(content, [])
        assert connection.waits_for == select.EPOLLOUT
    expected = b"".join(map(stream.frame, sent))
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
    """The kernel reports that to a client as an error, after the bytes that are there to read."""
    scripted = Scripted(tmp_path, LOGIN)
    connection = scripted.connection
    assert connection.receive() is None
    connection.send(b"never read", [])
    scripted.accepted.sendall(stream.frame(b"first") + stream.frame(b"second"))
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
    """Messages to it are dropped; the log says why."""
    scripted = Scripted(tmp_path, says)
    scripted.connection.send(b"header", [])
    assert scripted.connection.receive() is None
    assert scripted.connection.ended
    assert not scripted.connection.waits_for
    assert "ProtocolError" in caplog.text
    scripted.close()


def test_an_end_that_lives_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    """Its messages from meanwhile are there afterwards."""
    scripted = Scripted(tmp_path, LOGIN + stream.frame(b"message"))
    scripted.connection.wait_disconnected(20)
    assert not scripted.connection.ended
    assert scripted.connection.has_message
    assert bytes(scripted.connection.receive() or b"") == b"message"
    scripted.close()


def test_a_worker_that_has_gone_already_is_an_end(tmp_path: Path) -> None:
    """Its supervisor will report it, so nothing is raised."""
    connection = DataConnection(f"ipc://{tmp_path}/nobody", Login(SESSIONS[0], SESSIONS[0], WINDOW), 1)
    connection.send(b"to nobody", [])
    assert connection.receive() is None
    assert connection.ended
    connection.close()
    connection.close()


def test_what_is_owed_when_the_courier_has_ended_is_nobodys(tmp_path: Path) -> None:
    """An event loop may close its connections after its client."""
    courier, lock = Courier(), threading.Lock()
    scripted = Scripted(tmp_path, LOGIN[:10], lambda connection: courier.pending(connection, lock))
    assert scripted.connection.waits_for
    courier.close()
    with lock:
        courier.pending(scripted.connection, lock)
        courier.forget(scripted.connection)
    scripted.close()
