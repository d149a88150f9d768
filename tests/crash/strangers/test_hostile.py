"""Any bytes on any socket give a message or a typed refusal: no client is harmed, and nothing grows without bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import msgpack
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES, MAX_SESSION_MESSAGE_BYTES, ErrorInfo
from atomr_mp.protocol.flow import flight, limits
from atomr_mp.protocol.messages import control, data, session
from atomr_mp.protocol.zmtp.framing import pack
from atomr_mp.protocol.zmtp.stream import MAX_COMMAND_BYTES
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.device.device import PoolServices, SupervisedDevice
from atomr_mp.supervisor.device.quarantine import StuckOnGpu
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.sessions import sessions
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.supervisor.sessions.sessions import Sessions
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp.transport.data import DataConnection, Login
from atomr_mp.transport.session import Credentials, SessionConnection, SessionListener, SessionPeer, refusal
from atomr_mp_workers.requests.peers import MOST_EARLY
from atomr_mp_workers.wire.control import ControlChannel, SupervisorGoneError
from tests.crash.strangers.hostile_support import (
    COMMAND,
    DEADLINE_S,
    GROWTH_BYTES,
    MORE,
    REFUSED,
    WINDOW,
    WINDOW_BYTES,
    Dealer,
    RawSession,
    Victim,
    call,
    connect,
    eventually,
    greeting,
    receive_exactly,
    send_until_closed,
    stream,
    wait_closed,
    zmtp_command,
    zmtp_frame,
    zmtp_login,
    zmtp_long,
)

NOBODY: Final = 65534
MIB: Final = 2**20
DEEP: Final = b"\x91" * 100_000 + b"\x01"
"""Lists within lists, far beyond what any decoder should follow."""

LIVE: Final = settings(
    max_examples=25,
    deadline=timedelta(seconds=DEADLINE_S),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],  # a busy machine is
)
"""For properties of living processes: few examples, each with a deadline."""


@pytest.fixture(scope="module")
def target() -> Iterator[Victim]:
    """Run one pool for most of the attacks: it is to survive them all."""
    with Victim() as started:
        yield started


@pytest.fixture
def victim(target: Victim) -> Iterator[Victim]:
    """Check that a test's attack is harmless to others."""
    with target.unharmed():
        yield target


# --- the session socket --------------------------------------------------------------------------------------------

NOT_A_HELLO: Final = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "deep": DEEP,
    "nil": b"\xc0",
    "a map": msgpack.packb({"hello": 1}),
    "cut off": msgpack.packb(["hello", 2, "abc"])[:-1],
    "too long": msgpack.packb(["hello", 2, "abc"]) + b"\xc0",
    "another union": msgpack.packb(["goodbye", ["x", "y", {}]]),
    "not UTF-8": b"\x93\xa5hello\x02\xa2\xff\xfe",
    "no name": msgpack.packb(["hello", 2, ""]),
    "a long name": msgpack.packb(["hello", 2, "x" * 201]),
    "a wrong type": msgpack.packb(["hello", "1", "abc"]),
    "an array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a string of 4 billion": b"\x93\xa5hello\x02\xdb\xff\xff\xff\xff",
    "a question": msgpack.packb(["status", 1]),
}


@pytest.mark.parametrize("message", NOT_A_HELLO.values(), ids=NOT_A_HELLO)
def test_what_is_no_hello_is_refused(target: Victim, message: bytes) -> None:
    """The first message is a hello, or the connection ends with a typed goodbye and is counted."""
    with target.counted(1, 0), RawSession(target.socket) as stranger:
        stranger.send(message)
        assert stranger.goodbye() == "protocol_error"


@pytest.mark.parametrize("message", [DEEP, b"\xc1", msgpack.packb(["hello", 2, "again"])], ids=["deep", "bad", "hello"])
def test_what_is_no_message_ends_a_session(victim: Victim, message: bytes) -> None:
    """This holds after the hello too; a second hello is out of turn."""
    with victim.counted(1, 0), RawSession.admitted(victim) as client:
        client.send(message)
        assert client.goodbye() == "protocol_error"


@pytest.mark.parametrize("fields", [[3, "abc"], [3], [2**31, "abc", False, {"more": []}]])
def test_another_version_is_told_so(victim: Victim, fields: list[object]) -> None:
    """Whatever that version's hello holds, the answer names the versions."""
    with victim.counted(1, 0), RawSession(victim.socket) as newer:
        newer.say("hello", *fields)
        goodbye = newer.hear()
        assert goodbye is not None
        assert goodbye[1][0] == "protocol_error"
        assert f"version {fields[0]}, this is version 2" in goodbye[1][1]


@pytest.mark.parametrize("length", [MAX_SESSION_MESSAGE_BYTES + 1, 2**32 - 1])
def test_a_frame_that_announces_too_much_is_refused_at_once(victim: Victim, length: int) -> None:
    """No memory is made for it, and none of it is waited for."""
    with victim.counted(1, 0), RawSession(victim.socket) as stranger:
        stranger.socket.sendall(struct.pack(">I", length))
        assert stranger.goodbye() == "protocol_error"


def test_connections_that_say_half_a_message_cost_no_one_anything(victim: Victim) -> None:
    """They may stand until their time is over; meanwhile everybody else is served."""
    with contextlib.ExitStack() as stack:
        for said in range(20):
            stranger = stack.enter_context(RawSession(victim.socket))
            for byte in (b"\0\0\0\x0c\x93\xa5hello\x02\xa3abc" * 2)[: said % 15 + 1]:
                stranger.socket.sendall(bytes([byte]))
        with RawSession.admitted(victim) as client, Dealer(client) as dealer:
            dealer.send(client.header(call(1)))
            assert dealer.replies(1)[0][3] is None


@LIVE
@given(noise=st.binary(max_size=300))
def test_noise_on_the_session_socket_is_refused_or_ignored(target: Victim, noise: bytes) -> None:
    """As a stream and as a message: the reply is nothing, or a goodbye."""
    for sent in (noise, struct.pack(">I", len(noise)) + noise):
        with RawSession(target.socket) as stranger:
            with contextlib.suppress(BrokenPipeError):
                stranger.socket.sendall(sent)
                stranger.socket.shutdown(socket.SHUT_WR)
            assert stranger.goodbye() in {"", "protocol_error"}


def test_noise_has_harmed_nobody(victim: Victim) -> None:
    """The pool is as it was."""
    with RawSession(victim.socket) as client:
        client.say("hello", 2, "asks", True)
        client.say("status", 5)
        assert [client.hear_tag(), client.hear_tag()] == ["welcome", "status"]


def test_a_client_that_never_reads_its_events_loses_its_session(victim: Victim) -> None:
    """Its queue is bounded; beyond that the session ends, and the supervisor has not waited for it."""
    with RawSession(victim.socket) as client:
        client.say("hello", 2, "never reads", True)
        question = msgpack.packb(["status", 1])
        sent = send_until_closed(client.socket, (struct.pack(">I", len(question)) + question) * 200, 32 * MIB)
        assert sent < 32 * MIB


def test_a_client_that_asks_without_end_keeps_nobody_waiting(victim: Victim) -> None:
    """It gets all its answers, and the bystander gets its own in between."""
    count = 1500  # what waits for it must fit the queue of its session, in case it gets no processor
    with RawSession(victim.socket) as client:
        client.say("hello", 2, "asks", True)
        client.hear()
        questions = [msgpack.packb(["status", number]) for number in range(count)]
        client.socket.sendall(b"".join(struct.pack(">I", len(question)) + question for question in questions))
        for number in range(count):
            answer = client.hear()
            assert answer is not None
            assert answer[:2] == ["status", number]


def test_connections_that_come_and_go_leave_nothing(victim: Victim) -> None:
    """Hundreds of them, with and without a hello, at a time and in a row."""
    for _ in range(4):
        with contextlib.ExitStack() as stack:
            for number in range(100):
                stranger = stack.enter_context(RawSession(victim.socket))
                if number % 2:
                    stranger.say("hello", 2, "short")


def test_sessions_leave_descriptors_for_the_workers(traitor: Victim) -> None:
    """Where the limit is near, further sessions are refused, typed; a worker that dies meanwhile is replaced."""
    pool, pid = traitor.pool, traitor.supervisor.pid
    before = pool.devices[1]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    room = 2 * (traitor.supervisor.num_fds() + 10)  # half of it is reserved
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (room, limits[1]))
    try:
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(RawSession(traitor.socket)) for _ in range(room)]
            for stranger in strangers[:5]:
                stranger.say("hello", 2, "one of many", True)
                assert stranger.hear_tag() == "welcome"
            assert strangers[-1].goodbye() == "overloaded"
            strangers[0].say("status", 1)
            assert strangers[0].hear_tag() == "status"
            os.kill(before.pid, signal.SIGKILL)
            eventually(
                lambda: pool.devices[1].generation == before.generation + 1 and pool.devices[1].admitted, "a new worker"
            )
            assert pool.call("Target.echo", 1, device=1).result() == 1
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def test_a_listener_that_cannot_accept_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, loop: Loop, tmp_path: Path
) -> None:
    """Waiting clients keep it readable: without the pause the supervisor would do nothing else."""
    monkeypatch.setattr(sessions, "ACCEPT_PAUSE_S", 0.01)
    listener = SessionListener(tmp_path / "socket")
    accept, attempts = listener.accept, []

    def accept_or_fail() -> SessionPeer | None:
        attempts.append(time.monotonic())
        if len(attempts) < 4:
            raise OSError("no descriptor is left")
        loop.stop()
        return accept()

    monkeypatch.setattr(listener, "accept", accept_or_fail)
    connected = sessions_alone(loop)
    connected.listen(listener)
    with RawSession(tmp_path / "socket") as client:
        loop.run()
        assert len(attempts) == 4
        assert attempts[-1] - attempts[0] >= 0.03
        connected.close(errors.PoolLost("the test ends"))
        assert client.goodbye() == "pool_lost"
    listener.close()


def test_strangers_are_refused_by_what_the_kernel_says_of_them() -> None:
    """Another user, or a process of another pid namespace, has no session."""
    uid = os.geteuid()
    assert refusal(Credentials(os.getpid(), uid)) is None
    for credentials in (Credentials(os.getpid(), uid + 1), Credentials(0, uid)):
        assert isinstance(refusal(credentials), errors.NotAuthorized)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        peer = SessionPeer(theirs)
        assert peer.credentials == (os.getpid(), uid)
        peer.close()


def test_a_client_shows_nothing_to_another_user_who_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks the kernel who listens, and begins neither a session nor a login there."""
    ours = os.geteuid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impostor:
        impostor.bind(str(tmp_path / "socket"))
        impostor.listen()
        monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
        with pytest.raises(errors.NotAuthorized, match=f"uid {ours} listens at {tmp_path}/socket"):
            SessionConnection.connect(tmp_path / "socket")
        connection = DataConnection(f"ipc://{tmp_path}/socket", Login(bytes(16), bytes(16), flight.Window(1, 1)), 1)
        connection.wait_disconnected(int(DEADLINE_S * 1000))
        assert connection.ended
        connection.close()
        for _ in range(2):
            accepted, _address = impostor.accept()
            with accepted:
                assert accepted.recv(1) == b"", "not a byte was sent"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(victim: Victim) -> None:
    """The directory keeps it out; and were the directory open, the supervisor and the worker would."""
    with RawSession.admitted(victim) as client:
        assert as_nobody(victim.socket) == "PermissionError"
        assert as_nobody(client.path) == "PermissionError"
        opened = {victim.run_dir.parent: 0o711, victim.run_dir: 0o711, victim.socket: 0o666, Path(client.path): 0o666}
        modes = {path: path.stat().st_mode & 0o7777 for path in opened}
        try:
            for path, mode in opened.items():
                path.chmod(mode)
            with victim.counted(1, 0):
                assert "not_authorized" in as_nobody(victim.socket)
        finally:
            for path, mode in modes.items():
                path.chmod(mode)


def as_nobody(path: Path | str) -> str:
    """Connect as another user and say hello; return what came, or the error's name."""
    program = """
import os, socket, sys
connecting = socket.socket(socket.AF_UNIX)
connecting.settimeout(10)
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    connecting.connect(sys.argv[1])
    print(connecting.recv(65536))
except OSError as error:
    print(type(error).__name__)
"""
    command = [sys.executable, "-c", program, str(path), str(NOBODY)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


# --- sessions without a pool ---------------------------------------------------------------------------------------


def sessions_alone(loop: Loop, owner_gone: Callable[[], None] = lambda: None) -> Sessions:
    """Return sessions of a supervisor without devices, which carries out no order."""
    unexpected = Mock(side_effect=AssertionError)
    return Sessions(
        make_plan(PoolSettings(backend="host", gpus="1")),
        bytes(16),
        loop,
        [],
        describe=unexpected,
        carry_out=unexpected,
        unreached=unexpected,
        owner_gone=owner_gone,
    )


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Make a loop whose every run ends."""
    made = Loop()
    made.call_later(DEADLINE_S, made.stop)
    yield made
    made.close()


def test_a_connection_without_a_hello_ends(monkeypatch: pytest.MonkeyPatch, loop: Loop) -> None:
    """Its time is bounded, and it is counted; one that has said hello stays."""
    monkeypatch.setattr(sessions, "HELLO_S", 0.01)
    connected = sessions_alone(loop)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    polite, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, polite:
        polite.sendall(session.frame(session.FROM_CLIENT.encode(session.Hello(2, "polite"))))
        ours.sendall(b"\0\0")
        connected.add(SessionPeer(its), owner=False)
        connected.add(SessionPeer(theirs), owner=False)
        loop.watch(ours.fileno(), select.EPOLLIN, lambda _: loop.stop())
        loop.run()
        loop.forget(ours.fileno())
        message = session.FROM_SUPERVISOR.decode(ours.recv(65536)[4:])
        assert isinstance(message, session.Goodbye)
        assert "no hello within" in message.error.message
        assert (connected.refused, len(connected)) == (1, 1)
        connected.close(errors.PoolLost("the test ends"))


def test_an_owner_that_dies_is_noticed_between_the_steps_of_a_device(loop: Loop) -> None:
    """The pool's end must not begin while a device tells its clients something, in the middle of a step."""
    owner_gone = Mock()
    connected = sessions_alone(loop, owner_gone)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.sendall(session.frame(session.FROM_CLIENT.encode(session.Hello(2, "owner"))))
    connected.add(SessionPeer(theirs), owner=True)
    loop.watch(ours.fileno(), select.EPOLLIN, lambda _: loop.stop())
    loop.run()
    loop.forget(ours.fileno())
    ours.close()
    lost = ErrorInfo.of(errors.WorkerLost("gone"))
    connected.incarnation_ended(lambda _: session.IncarnationEnded(0, 1, False, lost, [], 0))
    owner_gone.assert_not_called()
    owner_gone.side_effect = loop.stop
    loop._stopped = False
    Loop.run(loop)
    owner_gone.assert_called_once_with()
    assert len(connected) == 0


def test_a_long_error_of_every_device_keeps_nobody_from_connecting(tmp_path: Path, loop: Loop) -> None:
    """A welcome to the largest pool fits into a message, whatever its actors had to say."""
    plan = make_plan(PoolSettings(backend="host", gpus="64"))
    run_path = tmp_path / "run"
    with RunDirectory.create(run_path) as run_dir, EventLog(run_dir.events) as log:
        connected: Any = None
        described = plan.devices[0]
        device = SupervisedDevice(
            plan,
            described,
            PoolServices(
                loop,
                run_dir,
                log,
                bytes(16),
                connected,
                ResidentKeeper("host", 0, [], log),
                ProcessFactory(plan, loop, run_dir, log),
                Turns(1),
                Worlds([], [], loop, tell=Mock(), note=Mock()),
            ),
            StuckOnGpu(),
            ended=lambda: None,
        )
        text = "\N{GRINNING FACE}" * 100_000
        assert device.life.state is State.STOPPED
        device.life.reason = text
        device.restarts.ended(errors.SetupFailed(text, traceback_text=text))
        info = device.info(1)
        device.output.close()
    welcome = session.Welcome(1, "p", bytes(16), 1, bytes(16), bytes(16), flight.Window(1, 1), [info] * 64, [])
    assert len(session.FROM_SUPERVISOR.encode(welcome)) < MAX_SESSION_MESSAGE_BYTES
    assert info.error is not None
    assert isinstance(info.error.error(), errors.SetupFailed)


# --- the data socket: peers that have not shown a secret -------------------------------------------------------------

STRANGERS: Final = {
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", b"A" * 4096),
    "zeros": (bytes(64), bytes(4096)),
    "ZMTP 1": (b"\x01\x00", b"\x01\x01" * 2048),
    "ZMTP 2": (b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00", b"\x01\xff" + bytes(255)),
    "no mechanism": (greeting(b"NULL"), zmtp_command(b"READY", b"")),
    "another mechanism": (greeting(b"CURVE"), zmtp_command(b"HELLO", bytes(192))),
    "an unknown mechanism": (greeting(b"\xff" * 20), bytes(4096)),
    "a message before the handshake": (greeting(), zmtp_frame(0, bytes(4096))),
    "an endless message before the handshake": (greeting(), zmtp_frame(MORE, bytes(4096))),
    "a command cut short": (greeting(), zmtp_command(b"HELLO", b"\xff")),
    "a command out of turn": (greeting(), zmtp_command(b"INITIATE", bytes(100))),
    "an unknown command": (greeting(), zmtp_command(b"\x00", bytes(4096))),
    "a frame too long": (greeting(), zmtp_long(COMMAND, MAX_MESSAGE_BYTES + 1) + bytes(4096)),
    "a frame of 2^64": (greeting(), zmtp_long(COMMAND, 2**64 - 1) + bytes(4096)),
}


@pytest.mark.parametrize(("first", "then"), STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_cut_off_with_its_first_bytes(victim: Victim, first: bytes, then: bytes) -> None:
    """However much it would like to send: at most the kernel's buffer is used."""
    with RawSession.admitted(victim) as client, connect(client.path) as stranger:
        stranger.sendall(first)
        assert send_until_closed(stranger, then, 64 * MIB) < 2 * MIB


@LIVE
@given(noise=st.binary(min_size=1, max_size=300), first=st.sampled_from([b"", greeting()]))
def test_noise_on_the_data_socket_is_cut_off_or_ignored(target: Victim, noise: bytes, first: bytes) -> None:
    """It comes with ZMTP's greeting in front and without. The answer is at most a greeting or ZMTP's own error."""
    with RawSession.admitted(target) as client, connect(client.path) as stranger:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stranger.sendall(first + noise)
            stranger.shutdown(socket.SHUT_WR)
        wait_closed(stranger)


def test_a_stranger_costs_no_more_than_a_login(target: Victim) -> None:
    """A command that is longer than any of a login is not waited for."""
    begun = zmtp_long(COMMAND, MAX_COMMAND_BYTES + 1) + b"\x05HELLO"
    with target.unharmed(8 * MIB), target.counted(0, 6), RawSession.admitted(target) as client:
        for _ in range(6):
            with connect(client.path) as stranger:
                stranger.sendall(greeting())
                receive_exactly(stranger, 64)
                assert send_until_closed(stranger, begun + bytes(MIB), 64 * MIB) < 2 * MIB


def test_a_stranger_that_dawdles_keeps_nobody_waiting(victim: Victim) -> None:
    """Half a greeting, half a command, or nothing: each connection waits alone."""
    hello = greeting() + zmtp_command(b"HELLO", bytes(30))
    with RawSession.admitted(victim) as client, contextlib.ExitStack() as stack:
        for length in range(0, len(hello) - 1, 5):
            stranger = stack.enter_context(connect(client.path))
            for byte in hello[:length]:
                stranger.sendall(bytes([byte]))
        with Dealer(client) as dealer:
            dealer.send(client.header(call(1)))
            assert dealer.replies(1)[0][3] is None


def test_a_wrong_secret_is_refused_and_counted(victim: Victim) -> None:
    """So is an unknown session, and an invalid one; the peer gets the reason."""
    with RawSession.admitted(victim) as client:
        name, secret = client.login()
        wrong = [
            (name, secret[:-1]),
            (name, b"0"),
            (name, b"\xff" * 32),
            (secret, name),
            (b"\xff", secret),
            (b"x", b"y"),
        ]
        for login in wrong:
            with victim.counted(0, 1), Dealer(client, login=login) as dealer:
                dealer.wait_event(*REFUSED)
                assert not dealer.has_reply()
        with Dealer(client, login=(b"", b"")) as dealer:
            # Which of the two depends on who is faster.
            dealer.wait_event(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, zmq.Event.HANDSHAKE_FAILED_PROTOCOL)


def test_data_connections_that_come_and_go_leave_nothing(victim: Victim) -> None:
    """Hundreds of them, before, in and after the handshake."""
    with RawSession.admitted(victim) as client:
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                for number in range(100):
                    stranger = stack.enter_context(connect(client.path))
                    stranger.sendall(greeting()[: number % 65])
        for _ in range(20):
            zmtp_login(client).close()


# --- the data socket: admitted clients that misbehave --------------------------------------------------------------


def test_a_routing_id_of_no_session_of_its_own_is_refused_and_counted(victim: Victim) -> None:
    """Even with the right secret: calls belong to the session of their routing id."""
    with RawSession.admitted(victim) as client, RawSession.admitted(victim) as other:
        for routing_id in (b"", b"x", b"s" + bytes(17), b"x" * 255, client.routing_id()[:-2], other.routing_id()):
            with victim.counted(0, 1), Dealer(client, routing_id=routing_id) as dealer:
                dealer.wait_event(*REFUSED)
        with Dealer(client) as dealer:
            dealer.send(client.header(call(1)))
            assert dealer.replies(1)[0][3] is None


def test_a_routing_id_in_use_is_not_handed_over(victim: Victim) -> None:
    """The second connection is refused; the first one goes on."""
    with RawSession.admitted(victim) as client, Dealer(client) as first:
        first.send(client.header(call(1)))
        assert first.replies(1)
        with victim.counted(0, 1), Dealer(client) as second:
            second.wait_event(*REFUSED)
        first.send(client.header(call(3)))
        assert [reply[0] for reply in first.replies(1)] == [3]


def test_connections_of_a_session_may_come_and_go(victim: Victim) -> None:
    """Lanes that were closed do not count against those that are open."""
    with RawSession.admitted(victim) as client:
        for lane in range(2 * data.MAX_LANES):
            with Dealer(client, routing_id=client.routing_id(lane)) as dealer:
                dealer.send(client.header(call(lane)))
                assert dealer.replies(1)[0][3] is None


BAD_HEADERS: Final = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "deep": DEEP,
    "nil": b"\xc0",
    "an unknown tag": msgpack.packb([3, b"", []]),
    "no calls": msgpack.packb([1, bytes(22), []]),
    "too many calls": msgpack.packb([1, bytes(22), [call(number) for number in range(data.MAX_CALLS + 1)]]),
    "too many ids": msgpack.packb([2, bytes(22), list(range(data.MAX_CALLS + 1))]),
    "a long token": msgpack.packb([1, bytes(23), [call(1)]]),
    "a negative id": msgpack.packb([1, bytes(22), [call(-1)]]),
    "an id of 64 bits": msgpack.packb([1, bytes(22), [call(2**63)]]),
    "a negative count": msgpack.packb([1, bytes(22), [call(1, frames=-1)]]),
    "a body that is no bytes": msgpack.packb([1, bytes(22), [[1, "Target.echo", 0, 0, "text"]]]),
    "a body too long": msgpack.packb([1, bytes(22), [call(1, body=bytes(limits.MAX_BODY_BYTES + 1))]]),
    "an array of 4 billion": b"\x93\x01\xc4\x00\xdd\xff\xff\xff\xff",
    "half a header": msgpack.packb([1, bytes(22), [call(1)]])[:-1],
    "too many fields": msgpack.packb([1, bytes(22), [call(1)], None]),
    "too few payload frames": msgpack.packb([1, bytes(22), [call(1, frames=2)]]),
}
BAD_TABLES: Final = {
    "nothing": b"",
    "no count": b"\xc1\x00",
    "no lengths": b"\xc1\x00\x01\x00",
    "as many frames as there can be": b"\xc1\x00\xff\xff" + bytes(64),
    "a header that is not there": b"".join(pack(b"header", []))[:-1],
    "a frame that is not there": b"".join(pack(b"header", [b"frame"]))[:-5],
    "half a frame": b"".join(pack(b"header", [b"frame"]))[:-1],
    "a length of 4 GiB": b"\xc1\x00\x00\x00\xff\xff\xff\xff" + bytes(64),
    "more than its frames": b"".join(pack(b"header", [b"frame"])) + b"\x00",
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_is_no_message_ends_its_session(target: Victim, header: bytes) -> None:
    """With the right secret too: the session ends, typed and counted on both sides."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(header, b"payload")
        assert client.goodbye() == "protocol_error"


@pytest.mark.parametrize("message", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_message_that_is_not_what_its_table_says_ends_its_session(target: Victim, message: bytes) -> None:
    """Whatever it says, nothing is made for it."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.socket.send(message)
        assert client.goodbye() == "protocol_error"


def test_a_message_of_several_zeromq_frames_ends_its_session(target: Victim) -> None:
    """The whole message is skipped, whatever a part of it would be."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send_parts(client.header(call(1)), client.header(call(2)), b"")
        assert client.goodbye() == "protocol_error"
    with RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(client.header(call(1)))
        assert [reply[0] for reply in dealer.replies(1)] == [1]


@LIVE
@given(header=st.binary(max_size=200), payload=st.lists(st.binary(max_size=20), max_size=3))
def test_noise_from_an_admitted_client_ends_its_session(target: Victim, header: bytes, payload: list[bytes]) -> None:
    """Whatever the frames hold."""
    with RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(header, *payload)
        assert client.goodbye() == "protocol_error"


def test_a_session_that_was_ended_stays_out(victim: Victim) -> None:
    """Its connections are closed, and its secret has become useless."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        dealer.send(b"bad")
        assert client.goodbye() == "protocol_error"
        dealer.wait_event(zmq.Event.DISCONNECTED)
        with victim.counted(0, 1), Dealer(client, routing_id=client.routing_id(1)) as again:
            again.wait_event(*REFUSED)
        assert not dealer.has_reply()


@pytest.mark.parametrize(("counts", "frames"), [((1,), 0), ((1,), 2), ((0,), 1), ((2, 1), 2), ((0, 1), 2), ((255,), 1)])
def test_wrong_frame_counts_end_the_session(target: Victim, counts: tuple[int, ...], frames: int) -> None:
    """The frames could not be matched with calls."""
    calls = [call(number, frames=count) for number, count in enumerate(counts)]
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(client.header(*calls), *[b"payload"] * frames)
        assert client.goodbye() == "protocol_error"


def test_more_calls_than_the_window_end_the_session(victim: Victim) -> None:
    """The window counts calls and bytes; as many as it admits are answered."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        dealer.send(client.header(*[call(number) for number in range(WINDOW)]))
        assert len(dealer.replies(WINDOW)) == WINDOW
        with victim.counted(1, 1):
            dealer.send(client.header(*[call(number) for number in range(WINDOW, 2 * WINDOW + 1)]))
            assert client.goodbye() == "protocol_error"
    with victim.counted(1, 1), RawSession.admitted(victim) as client, Dealer(client) as dealer:
        half = bytes(WINDOW_BYTES // 2 + 1)
        dealer.send(client.header(call(1, frames=1), call(2, frames=1)), half, half)
        assert client.goodbye() == "protocol_error"


def test_calls_that_wait_for_nothing_end_the_session(target: Victim) -> None:
    """They wait for releases that never come: their number and bytes are bounded."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        for number in range(data.MAX_LANES + 1):
            dealer.send(client.header(*[call(number * WINDOW + at) for at in range(WINDOW)], after=1))
        assert client.goodbye() == "protocol_error"
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        for number in range(data.MAX_LANES + 1):
            dealer.send(client.header(call(number, frames=1), after=1), bytes(WINDOW_BYTES))
        assert client.goodbye() == "protocol_error"


def test_releases_that_nobody_has_counted_end_the_session(victim: Victim) -> None:
    """They would be kept until the missing one comes."""
    with victim.counted(1, 1), RawSession.admitted(victim) as client, Dealer(client) as dealer:
        for serial in range(2, MOST_EARLY + 3):
            dealer.send(msgpack.packb([3, client.token(), serial, [], [], []]))
        assert client.goodbye() == "protocol_error"


def test_a_stream_sends_what_it_has_credit_for_and_no_more(victim: Victim) -> None:
    """However often credit is granted; then its end."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        dealer.send(msgpack.packb([6, client.token(), [stream(1, upto=3, parts=2)]]))
        numbers: list[int] = []
        while len(numbers) < 2:
            tag, _, parts, _ = dealer.message()
            assert tag == 2
            numbers += [part[1] for part in parts]
        dealer.send(client.header(call(2)))
        assert dealer.replies(1)[0][0] == 2  # and no third part before it
        for _ in range(3):
            dealer.send(msgpack.packb([7, client.token(), [[1, 9, 2**20], [99, 5, 5]]]))
        tag, _, parts, _ = dealer.message()
        assert (tag, [part[:2] for part in parts]) == (2, [[1, 2]])
        assert dealer.replies(1)[0][0] == 1
        assert numbers == [0, 1]


@pytest.mark.parametrize(
    "streams",
    [[stream(1, frames=1)], [stream(1), stream(2, parts=limits.MAX_AHEAD + 1)], [[1, "Target.tell"]], []],
    ids=["frames", "credit", "short", "none"],
)
def test_streams_that_break_the_rules_end_the_session(target: Victim, streams: list[object]) -> None:
    """Other streams of the session end too."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(msgpack.packb([6, client.token(), streams]))
        assert client.goodbye() == "protocol_error"


def test_credit_that_goes_too_far_ends_the_session(target: Victim) -> None:
    """The stream is open."""
    with target.counted(1, 1), RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(msgpack.packb([6, client.token(), [stream(1, upto=10**9)]]))
        assert dealer.message()[0] == 2
        dealer.send(msgpack.packb([7, client.token(), [[1, 2 * limits.MAX_AHEAD, 2**20]]]))
        assert client.goodbye() == "protocol_error"


def test_a_stream_in_a_call_and_a_call_in_a_stream_are_refused(victim: Victim) -> None:
    """Each one is refused, and the session goes on; so are ids in use, other tokens, and invalid names."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        dealer.send(client.header(call(1, "Target.tell")))
        assert dealer.replies(1)[0][3][0] == "invalid_request"
        wrong = [[number, name, *stream(1)[2:]] for number, name in ((2, "Target.echo"), (3, "Target.none"))]
        dealer.send(msgpack.packb([6, client.token(), wrong]))
        assert [reply[3][0] for reply in dealer.replies(2)] == ["invalid_request"] * 2
        dealer.send(msgpack.packb([6, client.token(generation=0), [stream(4)]]))
        assert dealer.replies(1)[0][3][0] == "stale_generation"
        dealer.send(msgpack.packb([6, client.token(), [stream(5, upto=10**9), stream(5)]]))
        heads = [dealer.message() for _ in range(2)]
        assert sorted(head[0] for head in heads) == [1, 2]
        dealer.send(msgpack.packb([2, client.token(), [5]]))
        assert dealer.replies(1)[0][3][0] == "cancelled"


def test_a_wrong_token_is_refused_call_by_call(victim: Victim) -> None:
    """Another pool, device or generation: a typed error for each call, and the session goes on."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        generation = client.device[3]
        wrong = {
            client.token(epoch=bytes(16)): "pool_mismatch",
            client.token(device=1): "pool_mismatch",
            client.token(generation=generation + 1): "stale_generation",
            client.token(generation=0): "stale_generation",
            client.token()[:-1]: "pool_mismatch",
            b"": "pool_mismatch",
        }
        for wrong_token, code in wrong.items():
            dealer.send(client.header(call(1), call(2), token=wrong_token))
            for reply in dealer.replies(2):
                assert reply[3][0] == code
                assert reply[3][2]["maybe_executed"] is False
        dealer.send(client.header(call(3)))
        assert dealer.replies(1)[0][2:5] == [b"\x07", None, []]


BAD_BODIES: Final = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "deep": DEEP,
    "deep enough to decode": b"\x91" * 70 + b"\x01",
    "no list": b"\x01",
    "too many": msgpack.packb([1, 2]),
    "an unknown name": msgpack.packb({"other": 1}),
    "an unknown extension": msgpack.packb([msgpack.ExtType(5, b"")]),
    "a time out of range": b"\x91\xc7\x0c\xff" + b"\xff" * 12,
    "an array that is none": msgpack.packb([msgpack.ExtType(1, b"\xc1")]),
    "an array without its frame": msgpack.packb([msgpack.ExtType(1, msgpack.packb(["int8", [1], 0]))]),
    "an array of objects": msgpack.packb([msgpack.ExtType(1, msgpack.packb(["object", [1], bytes(8)]))]),
    "an array larger than its bytes": msgpack.packb([msgpack.ExtType(1, msgpack.packb(["int8", [2**62], b"a"]))]),
    "a string of 4 billion": b"\x91\xdb\xff\xff\xff\xff",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_bad_call_harms_none_of_those_beside_it(target: Victim, body: bytes) -> None:
    """Calls of one message are decoded on their own."""
    with RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(client.header(call(1), call(2, body=body), call(3, method="No.such"), call(4)))
        replies = dealer.replies(4)
        assert [reply[3] and reply[3][0] for reply in replies] == [None, "invalid_request", "invalid_request", None]


@LIVE
@given(bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=WINDOW))
def test_any_body_is_answered(target: Victim, bodies: list[bytes]) -> None:
    """The answer is a result or a typed error, and the session goes on."""
    with RawSession.admitted(target) as client, Dealer(client) as dealer:
        dealer.send(client.header(*[call(number, body=body) for number, body in enumerate(bodies)]))
        for reply in dealer.replies(len(bodies)):
            assert reply[3] is None or reply[3][0] in {"invalid_request", "actor_failed"}
        dealer.send(client.header(call(100)))
        assert dealer.replies(1)[0][2:5] == [b"\x07", None, []]


def test_an_id_that_waits_already_is_refused(victim: Victim) -> None:
    """It would be ambiguous; the first one runs."""
    with RawSession.admitted(victim) as client, Dealer(client) as dealer:
        dealer.send(client.header(call(1, arguments=("first",)), call(1, arguments=("second",)), call(2)))
        replies = dealer.replies(3)
        assert sorted(reply[3] is None for reply in replies) == [False, True, True]
        assert [reply[2] for reply in replies if reply[0] == 1 and reply[3] is None] == [msgpack.packb("first")]
        assert [reply[3][0] for reply in replies if reply[3]] == ["invalid_request"]


def test_a_message_too_long_ends_its_session(victim: Victim) -> None:
    """By its head alone: nothing of it is kept."""
    head = zmtp_long(0, MAX_MESSAGE_BYTES + 1)
    with victim.counted(1, 1), RawSession.admitted(victim) as client, zmtp_login(client) as raw:
        assert send_until_closed(raw, head + bytes(MIB), 64 * MIB) < 4 * MIB
        assert client.goodbye() == "protocol_error"


def test_calls_with_large_bodies_never_make_a_message_too_long() -> None:
    """The client sends together calls that are made together, but never beyond the limit of a message."""
    body = bytes(limits.MAX_BODY_BYTES - 100)

    async def call_together(pool: atomr_mp.Pool) -> list[bool]:
        calls = [pool.call("Target.echo", body, device=0, deadline_s=DEADLINE_S) for _ in range(6)]
        return [await reply == body for reply in calls]

    with Victim(window_bytes=64 * MIB) as roomy:
        assert asyncio.run(call_together(roomy.pool)) == [True] * 6


def test_a_message_that_never_ends_ends_its_session(target: Victim) -> None:
    """No library sends one: it takes ZMTP by hand and the secret. Its first frame is enough."""
    part = zmtp_frame(MORE, bytes(MIB))
    with target.counted(1, 1), RawSession.admitted(target) as client, zmtp_login(client) as raw:
        assert send_until_closed(raw, part, 32 * MIB) < 4 * MIB
        assert client.goodbye() == "protocol_error"


def test_a_message_that_does_not_go_on_is_freed_with_its_connection(target: Victim) -> None:
    """The received part is kept until then; no other client waits for it."""
    begun = zmtp_long(0, MAX_MESSAGE_BYTES) + bytes(MAX_MESSAGE_BYTES - 1)
    before = psutil.Process(target.pool.devices[0].pid).memory_info().rss
    for _ in range(3):
        with (
            target.unharmed(MAX_MESSAGE_BYTES + 16 * MIB) as bystander,
            RawSession.admitted(target) as client,
            zmtp_login(client) as raw,
        ):
            raw.sendall(begun)
            bystander.wait_calls(3)
    after = psutil.Process(target.pool.devices[0].pid).memory_info().rss
    assert after < before + 16 * MIB


def test_a_client_that_never_reads_its_replies_is_served_no_more(target: Victim, tmp_path: Path) -> None:
    """Its replies and its further calls wait for it, with a bound on both; all arrive, in order, once it reads."""
    notes, size, asked = tmp_path / "runs", 60_000, 0
    notes.touch()
    with (
        target.unharmed(WINDOW_BYTES + WINDOW * size + GROWTH_BYTES) as bystander,
        RawSession.admitted(target) as client,
        Dealer(client, RCVHWM=1) as dealer,
    ):
        ran = -1
        while ran < notes.stat().st_size:  # else nothing of its has run while others were served
            ran = notes.stat().st_size
            while asked < ran + WINDOW:
                asked += 1
                dealer.send(client.header(call(asked, "Target.noted_blob", (size, str(notes)))))
            bystander.wait_calls(20)
        assert ran * size > WINDOW_BYTES
        assert [reply[0] for reply in dealer.replies(asked)] == [*range(1, asked + 1)]


def test_a_client_that_never_reads_large_replies_loses_its_session(target: Victim) -> None:
    """Calls that were received before too much was unread are answered too: up to a bound; then all of it is freed."""
    _, refused = target.refused()
    with (
        target.unharmed(6 * WINDOW_BYTES + GROWTH_BYTES),
        RawSession.admitted(target) as client,
        Dealer(client, RCVHWM=1) as dealer,
    ):
        dealer.send(client.header(*(call(number, "Target.blob", (4_000_000,)) for number in range(WINDOW))))
        assert client.goodbye() == "protocol_error"
    assert target.refused()[1] > refused


# --- the control channel -------------------------------------------------------------------------------------------

BAD_PACKETS: Final = {
    "noise": bytes(range(256)),
    "nothing": b"",
    "deep": DEEP,
    "another union": control.FROM_SUPERVISOR.encode(control.Drain(waited_for=False)),
    "a packet as long as goes": bytes(200_000),
    "ready twice": control.FROM_WORKER.encode(control.Ready([])),
}


@pytest.fixture(scope="module")
def traitor() -> Iterator[Victim]:
    """Run a pool whose workers are to break the protocol; each is replaced at once."""
    with Victim(max_restarts=1000, backoff_initial_s=0.0) as started:
        yield started


@pytest.mark.parametrize("packet", BAD_PACKETS.values(), ids=BAD_PACKETS)
def test_a_worker_that_breaks_the_protocol_is_replaced(traitor: Victim, packet: bytes) -> None:
    """The caller has a typed error, the next incarnation works, and the supervisor and the other device go on."""
    pool = traitor.pool
    generations = [device.generation for device in pool.devices]
    reply = pool.call("Target.tell_supervisor", [packet], device=1)
    assert isinstance(reply.exception(), errors.WorkerLost | None)
    eventually(lambda: pool.devices[1].generation == generations[1] + 1 and pool.devices[1].admitted, "a new worker")
    assert pool.call("Target.echo", 1, device=1).result() == 1
    assert pool.call("Target.echo", 1, device=0).result() == 1
    assert pool.devices[0].generation == generations[0]


def test_what_a_worker_says_of_sessions_that_are_none_is_passed_over(traitor: Victim) -> None:
    """Such messages may cross the session's end; thousands of them keep no client waiting."""
    said: list[control.FromWorker] = [
        control.SessionAdmitted(4_000_000),
        control.SessionClosed(4_000_000),
        control.SessionViolated(4_000_000, "nothing"),
    ]
    with traitor.unharmed(), traitor.counted(0, 0):
        packets = [control.FROM_WORKER.encode(message) for message in said] * 500
        assert traitor.pool.call("Target.tell_supervisor", packets, device=1).result() is None
        assert traitor.pool.call("Target.echo", 1, device=1).result() == 1


@LIVE
@given(packet=st.binary(min_size=1, max_size=300))
def test_noise_from_the_supervisor_is_an_error_in_the_worker(packet: bytes) -> None:
    """Typed, and different from the channel's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = ControlChannel(theirs.detach())
    try:
        with ours:
            ours.send(packet)
            ours.send(DEEP)
            for _ in range(2):
                with pytest.raises(errors.ProtocolError):
                    channel.receive()
            assert channel.receive_waiting() is None
        with pytest.raises(SupervisorGoneError):
            channel.receive()
    finally:
        channel._socket.close()
