"""The attacks of test_hostile.py, and its checks that no other client was harmed.

Peers are made by hand from sockets, msgpack and, where libzmq is too well-behaved, from ZMTP's own bytes: messages that
the library refuses to send must be tried too.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgpack
import psutil
import zmq

import atomr_mp
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.zmtp.framing import pack
from tests.support import Delays

DEADLINE_S: Final = 30.0
"""Longest wait for anything: far more than it takes, also on a busy machine."""

SANE_S: Final = 1.0
"""Longest that a well-behaved client may wait for a small call or a status while somebody misbehaves, but for the time
that it, or who answers it, waits for a processor."""

GROWTH_BYTES: Final = 32 * 2**20
"""Memory that an attack may cost a process, if its test does not say otherwise."""

SESSIONS: Final = 2
"""The pool's own and the bystander's; observers are not counted."""

WINDOW: Final = 16
WINDOW_BYTES: Final = 4 * 2**20

ACTOR: Final = '''
import contextlib, os, socket
from typing import Any
from atomr_mp_workers import Actor, method

class Target(Actor):
    @method
    def echo(self, value: Any) -> Any:
        return value

    @method(thread=True)
    def tell(self, upto: int):
        yield from range(upto)

    @method
    def blob(self, count: int) -> bytes:
        return bytes(count)

    @method
    def noted_blob(self, count: int, path: str) -> bytes:
        with open(path, "a") as notes:
            notes.write(".")
        return bytes(count)

    @method
    def tell_supervisor(self, packets: list[bytes]) -> None:
        """Say something on the worker's control channel, as a library gone wild might."""
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.fromfd(int(number), socket.AF_UNIX, 0) as found:
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET:
                    for packet in packets:
                        found.send(packet)
'''


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds that no event signals: counters, memory, descriptors of another process."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.002)  # between two looks


class Victim:
    """A pool under attack: two devices; the first is attacked.

    Args:
        settings: Of the pool.
    """

    def __init__(self, **settings: Any) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ah-", dir="/tmp"))
        actor = self._directory / "hostile_target.py"
        actor.write_text(ACTOR)
        self.run_dir: Final = self._directory / "run"
        self.socket: Final = self.run_dir / "session.sock"
        self.pool: Final = atomr_mp.start(
            actors=[f"{actor}:Target"],
            gpus=2,
            backend="host",
            run_dir=self.run_dir,
            **{"window_requests": WINDOW, "window_bytes": WINDOW_BYTES, **settings},
        )
        self.supervisor: Final = psutil.Process(self.pool.supervisor_pid)
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        try:
            with Bystander(self, self._watched()) as bystander:
                bystander.wait_calls(10)
                counts = []
                for _ in range(10):  # some with what is open for a moment only, to answer
                    counts.append(bystander.descriptors())
                    bystander.wait_calls(1)
                self._descriptors = [min(each) for each in zip(*counts, strict=True)]
            assert bystander.error is None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.pool.close()
        shutil.rmtree(self._directory)

    def refused(self) -> tuple[int, int]:
        """Return what the supervisor and the first worker have refused so far."""
        status = self.pool.status()
        return status.refused, status.devices[0].refused

    @contextlib.contextmanager
    def unharmed(self, growth_bytes: int = GROWTH_BYTES) -> Iterator[Bystander]:
        """Check that the attack inside is harmless to others: calls, latency, memory, descriptors, incarnations."""
        generations = [device.generation for device in self.pool.devices]
        with Bystander(self, self._watched()) as bystander:
            bystander.wait_calls(3)
            yield bystander
            bystander.wait_calls(3)
            status = self.pool.status
            eventually(lambda: status().sessions == SESSIONS, "the attacker's sessions have ended")
            eventually(
                lambda: bystander.descriptors() == self._descriptors,
                f"descriptors are back at {self._descriptors}, are {bystander.descriptors()}",
            )
        assert bystander.error is None
        assert bystander.slowest_s < SANE_S
        assert max(bystander.growth_bytes()) < growth_bytes
        assert [device.generation for device in self.pool.devices] == generations

    def _watched(self) -> list[psutil.Process]:
        return [self.supervisor, psutil.Process(self.pool.devices[0].pid)]

    @contextlib.contextmanager
    def counted(self, supervisor: int, worker: int) -> Iterator[None]:
        """Check that the attack inside is counted as refused, exactly so often."""
        before = self.refused()
        yield
        expected = (before[0] + supervisor, before[1] + worker)
        eventually(lambda: self.refused() >= expected, f"refused is {expected}, was {before}")
        assert self.refused() == expected


class Bystander:
    """A well-behaved client, in a thread: calls the first device and asks for the status, again and again.

    Args:
        victim: The pool.
        watched: Processes whose memory it looks at.
    """

    def __init__(self, victim: Victim, watched: list[psutil.Process]) -> None:
        self._watched = watched
        self._stop = threading.Event()
        self._done = threading.Condition()
        self._calls = 0
        self._thread = threading.Thread(target=self._run, args=(victim,))
        self._before = [process.memory_info().rss for process in watched]
        self._peak = list(self._before)
        self.error: BaseException | None = None
        self.slowest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def descriptors(self) -> list[int]:
        """Return how many descriptors the watched processes have."""
        return [process.num_fds() for process in self._watched]

    def growth_bytes(self) -> list[int]:
        """Return by how much the watched processes have grown at most."""
        return [peak - before for peak, before in zip(self._peak, self._before, strict=True)]

    def wait_calls(self, count: int) -> None:
        """Wait until that many more calls have been answered."""
        with self._done:
            until = self._calls + count
            assert self._done.wait_for(lambda: self._calls >= until or self.error, DEADLINE_S), "a bystander waits"
        assert self.error is None, repr(self.error)

    def _run(self, victim: Victim) -> None:
        try:
            with (
                atomr_mp.connect(run_dir=victim.run_dir, name="bystander") as pool,
                OperatorSession(victim.socket) as asking,
            ):
                pool.wait_ready(DEADLINE_S)
                pids = [process.pid for process in self._watched]
                while not self._stop.wait(0.001):
                    delays, began = Delays(*pids), time.monotonic()
                    assert pool.call("Target.echo", began, device=0, deadline_s=DEADLINE_S).result() == began
                    called = time.monotonic()
                    asking.status(DEADLINE_S)
                    took_s = max(called - began, time.monotonic() - called)
                    self.slowest_s = max(self.slowest_s, took_s - delays.so_far_s())
                    sizes = [process.memory_info().rss for process in self._watched]
                    self._peak = [max(pair) for pair in zip(self._peak, sizes, strict=True)]
                    with self._done:
                        self._calls += 1
                        self._done.notify_all()
        except BaseException as error:  # noqa: BLE001 - the test's thread reports it
            with self._done:
                self.error = error
                self._done.notify_all()


class RawSession:
    """A client's session, by hand. Use it with `with`."""

    def __init__(self, path: Path) -> None:
        self.socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))  # blocks while the backlog is full
        self.socket.settimeout(DEADLINE_S)
        self._buffer = b""
        self.welcome: list[Any] = []
        self.device: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.socket.close()

    @classmethod
    def admitted(cls, victim: Victim, device: int = 0) -> Self:
        """Say hello and wait until a device has acknowledged the session."""
        session = cls(victim.socket)
        session.say("hello", 2, "hostile")
        welcome = session.hear()
        assert welcome is not None
        session.welcome, session.device = welcome, welcome[8][device]
        while not session.device[5]:
            message = session.hear()
            assert message is not None
            if message[0] == "device" and message[1][0] == device:
                session.device = message[1]
        return session

    def say(self, *message: object) -> None:
        """Send a message."""
        self.send(msgpack.packb(message))

    def send(self, message: bytes) -> None:
        """Send bytes as a message."""
        self.socket.sendall(struct.pack(">I", len(message)) + message)

    def hear(self) -> list[Any] | None:
        """Return the next message, None at the end of file."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + struct.unpack_from(">I", self._buffer)[0]:
            try:
                received = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not received:
                return None
            self._buffer += received
        end = 4 + struct.unpack_from(">I", self._buffer)[0]
        message: list[Any] = msgpack.unpackb(self._buffer[4:end], strict_map_key=False)
        self._buffer = self._buffer[end:]
        return message

    def hear_tag(self) -> str:
        """Return the next message's tag, "" at the end of file."""
        message = self.hear()
        return "" if message is None else str(message[0])

    def goodbye(self) -> str:
        """Wait for the session's end; return the code of the goodbye, "" if there was none."""
        code = ""
        while (message := self.hear()) is not None:
            if message[0] == "goodbye":
                code = message[1][0]
        return code

    def token(self, device: int | None = None, generation: int | None = None, epoch: bytes | None = None) -> bytes:
        """Return the device's token, or one that is wrong in the parts given."""
        return struct.pack(
            ">16sHI",
            self.welcome[3] if epoch is None else epoch,
            self.device[0] if device is None else device,
            self.device[3] if generation is None else generation,
        )

    def routing_id(self, lane: int = 0) -> bytes:
        """Return the routing id of a lane."""
        return b"s" + bytes(self.welcome[5]) + bytes([lane])

    def login(self) -> tuple[bytes, bytes]:
        """Return PLAIN's user name and password."""
        return self.welcome[5].hex().encode(), self.welcome[6].hex().encode()

    @property
    def path(self) -> str:
        """The data socket's path."""
        return str(self.device[4]).removeprefix("ipc://")

    def header(self, *calls: list[object], token: bytes | None = None, after: int = 0) -> bytes:
        """Return a header frame."""
        return bytes(msgpack.packb([1, self.token() if token is None else token, calls, after]))


def call(
    request_id: int, method: str = "Target.echo", arguments: object = (7,), frames: int = 0, body: bytes | None = None
) -> list[object]:
    """Return a call, with a deadline far enough."""
    packed = msgpack.packb(arguments) if body is None else body
    return [request_id, method, time.monotonic_ns() + int(60e9), frames, packed]


def stream(request_id: int, upto: int = 3, parts: int = 1, frames: int = 0, nbytes: int = 2**20) -> list[object]:
    """Return the call of a stream."""
    until_ns = time.monotonic_ns() + int(60e9)
    body = msgpack.packb([upto])
    return [request_id, "Target.tell", until_ns, frames, body, parts, nbytes, int(60e9), until_ns]


class Dealer:
    """A ZeroMQ peer of a worker. Use it with `with`; the session's own options, unless given."""

    def __init__(
        self,
        session: RawSession,
        *,
        routing_id: bytes | None = None,
        login: tuple[bytes, bytes] | None = None,
        **options: int,
    ) -> None:
        user, password = session.login() if login is None else login
        set_first: dict[str, int | bytes] = {"ROUTING_ID": session.routing_id() if routing_id is None else routing_id}
        if not set_first["ROUTING_ID"]:
            set_first = {}
        if user:
            set_first |= {"PLAIN_USERNAME": user, "PLAIN_PASSWORD": password}
        self._context = zmq.Context()
        self.socket: Final = self._context.socket(zmq.DEALER)
        self._monitor = self.socket.get_monitor_socket()
        self.socket.linger = 0
        self.socket.sndtimeo = int(DEADLINE_S * 1000)
        try:
            for name, value in {"RECONNECT_IVL": -1, **set_first, **options}.items():
                self.socket.setsockopt(getattr(zmq, name), value)
            self.socket.connect(session.device[4])
        except zmq.ZMQError:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close()
        self._context.term()

    def send(self, header: bytes, *frames: bytes) -> None:
        """Send a message."""
        self.socket.send(b"".join(pack(header, frames)) if frames else header)

    def send_parts(self, *parts: bytes) -> None:
        """Send an invalid message: several ZeroMQ frames."""
        self.socket.send_multipart(parts)

    def replies(self, count: int) -> list[list[Any]]:
        """Wait for replies; return them sorted by id."""
        found: list[list[Any]] = []
        while len(found) < count:
            assert self.socket.poll(int(DEADLINE_S * 1000)), f"{len(found)} of {count} replies"
            found += msgpack.unpackb(self.socket.recv_multipart()[0])[2]
        return sorted(found, key=lambda reply: int(reply[0]))

    def message(self) -> list[Any]:
        """Wait for a message; return its header."""
        assert self.socket.poll(int(DEADLINE_S * 1000)), "no message"
        found: list[Any] = msgpack.unpackb(self.socket.recv_multipart()[0])
        return found

    def has_reply(self) -> bool:
        """Whether a reply is there by now."""
        return bool(self.socket.poll(0))

    def wait_event(self, *wanted: zmq.Event) -> tuple[zmq.Event, int]:
        """Wait until libzmq reports one of these events; return it with its value."""
        from zmq.utils.monitor import recv_monitor_message

        until = time.monotonic() + DEADLINE_S
        while True:
            assert self._monitor.poll(int(1000 * max(0.0, until - time.monotonic()))), f"no {wanted}"
            event = recv_monitor_message(self._monitor)
            if event["event"] in wanted:
                return zmq.Event(event["event"]), int(event["value"])


REFUSED: Final = (zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.HANDSHAKE_FAILED_PROTOCOL)
"""Event by which libzmq reports an ERROR; 4.3.5 takes the RFC's for a breach of protocol, for its own has a misspelt
name."""


# --- ZMTP by hand: https://rfc.zeromq.org/spec/37 ------------------------------------------------------------------

MORE: Final = 1
COMMAND: Final = 4


def greeting(mechanism: bytes = b"PLAIN", major: int = 3) -> bytes:
    """Return the 64 bytes with which a connection begins."""
    return b"\xff" + bytes(8) + b"\x7f" + bytes([major, 0]) + mechanism.ljust(20, b"\0") + bytes(32)


def zmtp_frame(flags: int, content: bytes) -> bytes:
    """Return a frame."""
    if len(content) < 256:
        return bytes([flags, len(content)]) + content
    return zmtp_long(flags, len(content)) + content


def zmtp_long(flags: int, length: int) -> bytes:
    """Return the beginning of a long frame."""
    return bytes([flags | 2]) + struct.pack(">Q", length)


def zmtp_command(name: bytes, content: bytes) -> bytes:
    """Return a command."""
    return zmtp_frame(COMMAND, bytes([len(name)]) + name + content)


def connect(path: str) -> socket.socket:
    """Connect to a worker's data socket."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(path)  # blocks while the backlog is full
    connected.settimeout(DEADLINE_S)
    return connected


def zmtp_login(session: RawSession, lane: int = 0) -> socket.socket:
    """Return a connection that has shown the session's secret."""
    connected = connect(session.path)
    connected.sendall(greeting())
    receive_exactly(connected, 64)
    user, password = session.login()
    hello = bytes([len(user)]) + user + bytes([len(password)]) + password
    connected.sendall(zmtp_command(b"HELLO", hello))
    assert b"WELCOME" in connected.recv(256)
    metadata = b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", session.routing_id(lane)))
    )
    connected.sendall(zmtp_command(b"INITIATE", metadata))
    assert b"READY" in connected.recv(256)
    return connected


def receive_exactly(connected: socket.socket, count: int) -> bytes:
    """Receive that many bytes."""
    received = b""
    while len(received) < count:
        part = connected.recv(count - len(received))
        assert part, "the connection was closed"
        received += part
    return received


def send_until_closed(connected: socket.socket, content: bytes, most_bytes: int) -> int:
    """Send something again and again until the peer closes; return how many bytes it took, at most `most_bytes`."""
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < most_bytes:
            rest = memoryview(content)
            while rest:
                taken = connected.send(rest)
                sent += taken
                rest = rest[taken:]
    return sent


def wait_closed(connected: socket.socket) -> None:
    """Wait until the peer has closed."""
    with contextlib.suppress(ConnectionResetError):
        while connected.recv(65536):
            pass
