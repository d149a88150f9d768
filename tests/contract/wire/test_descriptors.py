"""Descriptors beside messages: over real sockets, counted in /proc/self/fd before and after."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES
from atomr_mp.protocol.messages import control, operators, session
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Descriptor
from atomr_mp.transport.session import DESCRIPTOR_BYTES, QUEUE_BYTES, SessionConnection, SessionPeer
from atomr_mp_workers.wire.control import ControlChannel, SupervisorGoneError
from tests.support import open_descriptors
from tests.waiting import readable

KERNEL_LIMIT = 253
"""SCM_MAX_FD: most descriptors beside one message."""


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Count open descriptors before and after every test."""
    gc.collect()  # of what other tests have left, whose descriptors would be closed meanwhile
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def memory(content: bytes) -> int:
    """Make a descriptor that differs from others by its content."""
    made = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC)
    os.write(made, content)
    return made


def content(descriptor: int | Descriptor | None) -> bytes:
    """Return what `memory` has put in, and close."""
    assert descriptor is not None
    number = descriptor if isinstance(descriptor, int) else os.dup(descriptor.fileno())
    if isinstance(descriptor, Descriptor):
        descriptor.close()
    assert not os.get_inheritable(number)
    try:
        return os.pread(number, 100, 0)
    finally:
        os.close(number)


def register(number: int) -> session.RegisterSlab:
    """Return a message with a descriptor; all such of one test differ by their ids."""
    return session.RegisterSlab(number, number, 1)


def framed(message: session.FromClient) -> bytes:
    """Return what a client sends."""
    return session.frame(session.FROM_CLIENT.encode(message))


@pytest.fixture
def pair() -> Iterator[tuple[SessionConnection, SessionPeer]]:
    """Connect a client's end with the supervisor's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    client, peer = SessionConnection(ours), SessionPeer(theirs)
    yield client, peer
    client.close()
    peer.close()
    client.close()
    peer.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, SessionPeer]]:
    """Connect a client that may send anything with the supervisor's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    peer = SessionPeer(theirs)
    with ours:
        yield ours, peer
    peer.close()


def received(peer: SessionPeer) -> list[session.FromClient]:
    """Read all that has arrived, one read after the other as a loop does."""
    messages = []
    while more := peer.receive():
        messages += more
    return messages


class TestTheSession:
    """Both ends, over a stream."""

    def test_each_message_finds_its_descriptor(self, pair: tuple[SessionConnection, SessionPeer]) -> None:
        """Also where others that carry none come in between."""
        client, peer = pair
        for number in range(5):
            made = memory(b"%d" % number)
            client.send(register(number), made)
            os.close(made)
            client.send(operators.StatusRequest(number))
        messages = received(peer)
        assert [type(message).__name__ for message in messages] == ["RegisterSlab", "StatusRequest"] * 5
        assert [content(peer.take_descriptor(number)) for number in range(5)] == [b"%d" % n for n in range(5)]
        assert peer.take_descriptor(0) is None

    def test_a_client_gets_its_slabs(self, pair: tuple[SessionConnection, SessionPeer]) -> None:
        """It takes each once, in any order; a slab with a handle has no descriptor."""
        client, peer = pair
        for number in range(3):
            assert peer.send(session.SlabOpened(number, 1), Descriptor(memory(b"%d" % number)))
            assert peer.send(session.Answer(100 + number))
        assert peer.send(session.SlabOpened(3, 1, b"handle"))
        messages: list[session.FromSupervisor] = []
        while len(messages) < 7:
            messages.append(client.receive(10))
        assert [content(client.take_descriptor(number)) for number in (2, 0, 1)] == [b"2", b"0", b"1"]
        assert client.take_descriptor(0) is None
        assert client.take_descriptor(3) is None

    def test_what_nobody_takes_is_closed_at_the_end(self, pair: tuple[SessionConnection, SessionPeer]) -> None:
        """Both sides close it; the fixtures count."""
        client, peer = pair
        made = memory(b"")
        client.send(register(1), made)
        client.send(register(1), made)
        os.close(made)
        assert len(received(peer)) == 2
        peer.send(session.SlabOpened(1, 1), Descriptor(memory(b"")))
        assert client.receive_waiting() == [session.SlabOpened(1, 1)]

    def test_a_message_without_its_descriptor_has_none(self, pair: tuple[SessionConnection, SessionPeer]) -> None:
        """It does not get another's."""
        client, peer = pair
        for number in range(1, 7):
            made = memory(b"%d" % number)
            client.send(register(number), made if number % 3 == 0 else None)
            os.close(made)
        assert len(received(peer)) == 6
        found = {number: peer.take_descriptor(number) for number in range(1, 7)}
        assert {number: content(each) for number, each in found.items() if each} == {3: b"3", 6: b"6"}

    def test_byte_by_byte_makes_no_difference(self, raw: tuple[socket.socket, SessionPeer]) -> None:
        """The descriptor comes with the first byte, and is kept for the last."""
        client, peer = raw
        for number in range(3):
            data, made = framed(register(number)), memory(b"%d" % number)
            socket.send_fds(client, [data[:1]], [made])
            os.close(made)
            for place in range(1, len(data)):
                assert received(peer) == []
                client.sendall(data[place : place + 1])
            assert received(peer) == [register(number)]
            assert content(peer.take_descriptor(number)) == b"%d" % number

    def test_the_end_of_one_and_the_start_of_the_next_in_one_read(self, raw: tuple[socket.socket, SessionPeer]) -> None:
        """Then two descriptors wait at a time."""
        client, peer = raw
        first, second = framed(register(1)), framed(register(2))
        made = [memory(b"1"), memory(b"2")]
        socket.send_fds(client, [first[:6]], made[:1])
        assert peer.receive() == []
        client.sendall(first[6:])
        socket.send_fds(client, [second[:6]], made[1:])
        client.sendall(second[6:])
        for descriptor in made:
            os.close(descriptor)
        assert received(peer) == [register(1), register(2)]
        assert [content(peer.take_descriptor(number)) for number in (1, 2)] == [b"1", b"2"]

    @pytest.mark.parametrize("count", [1, 2, KERNEL_LIMIT])
    def test_surplus_descriptors_are_closed_at_once(self, raw: tuple[socket.socket, SessionPeer], count: int) -> None:
        """These are descriptors of messages that carry none, and those beyond the first. The session goes on."""
        client, peer = raw
        made = memory(b"surplus")
        before = open_descriptors()
        socket.send_fds(client, [framed(operators.StatusRequest(1))], [made] * count)
        assert received(peer) == [operators.StatusRequest(1)]
        assert open_descriptors() == before
        socket.send_fds(client, [framed(register(2))], [made] * count)
        os.close(made)
        assert received(peer) == [register(2)]
        assert content(peer.take_descriptor(2)) == b"surplus"

    def test_descriptors_beside_an_unfinished_message_do_not_pile_up(
        self, raw: tuple[socket.socket, SessionPeer]
    ) -> None:
        """One is kept, for the message may be one that carries it."""
        client, peer = raw
        data, made = framed(session.Hello(2, "x" * 150)), memory(b"")
        before = len(open_descriptors())
        for byte in data[:-1]:
            socket.send_fds(client, [bytes([byte])], [made] * 3)
            assert received(peer) == []
            assert len(open_descriptors()) <= before + 1
        socket.send_fds(client, [data[-1:]], [made])
        assert len(received(peer)) == 1
        assert len(open_descriptors()) == before
        os.close(made)

    def test_a_full_table_of_descriptors_costs_the_message_its_descriptor(
        self, raw: tuple[socket.socket, SessionPeer]
    ) -> None:
        """The kernel drops it, and the rest arrives."""
        client, peer = raw
        made = memory(b"")
        socket.send_fds(client, [framed(register(1))], [made])
        os.close(made)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            messages = received(peer)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert messages == [register(1)]
        assert peer.take_descriptor(1) is None

    def test_bytes_that_are_no_message_leak_nothing(self, raw: tuple[socket.socket, SessionPeer]) -> None:
        """Neither their own descriptor nor those of messages before them."""
        client, peer = raw
        made = memory(b"")
        socket.send_fds(client, [framed(register(1)) + session.frame(b"\xc1")], [made])
        os.close(made)
        with pytest.raises(errors.ProtocolError):
            peer.receive()

    def test_a_client_that_does_not_read_gets_all_later_in_order(
        self, pair: tuple[SessionConnection, SessionPeer]
    ) -> None:
        """Descriptors wait at their place in the queue, and those sent are not held any longer."""
        client, peer = pair
        before, sent = len(open_descriptors()), 0
        status = session.Answer(0, None)
        while not peer.wants_to_write:
            assert peer.send(status)
            sent += 1
        for number in range(3):
            assert peer.send(session.SlabOpened(number + 1, 1), Descriptor(memory(b"%d" % number)))
            assert peer.send(status)
        assert len(open_descriptors()) == before + 3
        messages: list[session.FromSupervisor] = []
        while len(messages) < sent + 6:
            messages += client.receive_waiting()
            peer.flush()
        assert [message.id for message in messages[-6:] if isinstance(message, session.SlabOpened)] == [1, 2, 3]
        assert [content(client.take_descriptor(number)) for number in (1, 2, 3)] == [b"0", b"1", b"2"]

    def test_a_client_that_never_reads_cannot_hoard_descriptors(
        self, pair: tuple[SessionConnection, SessionPeer]
    ) -> None:
        """Its session is over long before; closing gives them back."""
        _, peer = pair
        while not peer.wants_to_write:
            assert peer.send(session.Answer(0))
        before, queued = len(open_descriptors()), 0
        while peer.send(session.SlabOpened(1, 1), Descriptor(memory(b""))):
            queued += 1
        assert queued < QUEUE_BYTES / DESCRIPTOR_BYTES
        peer.close()
        assert len(open_descriptors()) == before - 1

    def test_a_client_that_has_gone_leaks_nothing(self, pair: tuple[SessionConnection, SessionPeer]) -> None:
        """Descriptors meant for it are closed at once."""
        client, peer = pair
        before = len(open_descriptors())
        client.close()
        for _ in range(2):
            assert peer.send(session.SlabOpened(1, 1), Descriptor(memory(b"")))
            assert len(open_descriptors()) == before - 1
        assert peer.gone
        with pytest.raises(errors.PoolLost):
            client.send(session.Bye(mapped=False))

    def test_the_process_of_a_client_can_be_watched(self) -> None:
        """Its descriptor becomes readable when it ends; one that has been reaped differs from one that lives."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listening:
            listening.bind(f"\0atomr-mp-test-{os.getpid()}")
            listening.listen()
            connect = (
                f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({listening.getsockname()!r}); input()"
            )
            with subprocess.Popen([sys.executable, "-c", connect], stdin=subprocess.PIPE) as process:
                peer = SessionPeer(listening.accept()[0])
                pidfd = peer.open_pidfd()
                assert pidfd is not None
                assert not os.get_inheritable(pidfd)
                assert readable([pidfd], 0) == []
                process.communicate(b"\n", timeout=10)
                assert readable([pidfd], 10) == [pidfd]
                os.close(pidfd)
            late = peer.open_pidfd()
            assert late is None or readable([late], 0) == [late]
            if late is not None:
                os.close(late)
            peer.close()


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, ControlChannel]]:
    """Connect the supervisor's end of a control channel with a worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = ControlChannel(theirs.detach())
    with ours:
        yield ours, made
    made.close()
    made.close()


def slab(number: int) -> control.ClientSlab:
    """Return a message with a descriptor."""
    return control.ClientSlab(1, number, 1)


class TestTheControlChannel:
    """Packets: each has its own descriptors."""

    def test_each_message_has_its_descriptor(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """It is open until the next message is received."""
        ours, worker = channel
        for number in range(3):
            made = memory(b"%d" % number)
            descriptors.send(ours, control.FROM_SUPERVISOR.encode(slab(number)), made)
            os.close(made)
        descriptors.send(ours, control.FROM_SUPERVISOR.encode(control.Drain(waited_for=False)), None)
        assert worker.receive() == slab(0)
        assert content(worker.take_descriptor()) == b"0"
        assert worker.take_descriptor() is None
        assert worker.receive_waiting() == slab(1)
        assert worker.receive_waiting() == slab(2)
        assert content(worker.take_descriptor()) == b"2"
        assert worker.receive() == control.Drain(waited_for=False)
        assert worker.take_descriptor() is None
        assert worker.receive_waiting() is None

    def test_surplus_descriptors_are_closed(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """The kernel gives the first and closes the others."""
        ours, worker = channel
        made = memory(b"first")
        before = len(open_descriptors())
        socket.send_fds(ours, [control.FROM_SUPERVISOR.encode(slab(1))], [made] * KERNEL_LIMIT)
        os.close(made)
        assert worker.receive() == slab(1)
        assert len(open_descriptors()) == before
        assert content(worker.take_descriptor()) == b"first"

    def test_noise_leaks_nothing(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """Neither does the channel's end."""
        ours, worker = channel
        made = memory(b"")
        socket.send_fds(ours, [b"\xc1"], [made])
        socket.send_fds(ours, [control.FROM_SUPERVISOR.encode(slab(1))], [made])
        os.close(made)
        with pytest.raises(errors.ProtocolError):
            worker.receive()
        assert worker.receive() == slab(1)
        ours.close()
        with pytest.raises(SupervisorGoneError):
            worker.receive()

    def test_what_comes_before_an_answer_is_kept(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """Messages stay in order, each with its descriptor; the answer has its own."""
        ours, worker = channel
        answer = control.ResidentAdopt("weights", "1", b"")
        messages: list[control.FromSupervisor] = [slab(0), control.Drain(waited_for=False), answer, slab(3)]
        for number, message in enumerate(messages):
            made = memory(b"%d" % number)
            descriptors.send(ours, control.FROM_SUPERVISOR.encode(message), made)
            os.close(made)
        assert worker.answer(control.ResidentAnswer) == answer
        assert content(worker.take_descriptor()) == b"2"
        assert worker.receive_waiting() == slab(0)
        assert content(worker.take_descriptor()) == b"0"
        assert worker.receive() == control.Drain(waited_for=False)
        assert worker.receive() == slab(3)
        assert content(worker.take_descriptor()) == b"3"
        assert worker.receive_waiting() is None

    def test_what_is_kept_is_closed_with_the_channel(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """It has become unwanted."""
        ours, worker = channel
        before = len(open_descriptors())
        made = memory(b"")
        for message in (slab(0), slab(1), control.ResidentFill("weights", "1")):
            descriptors.send(ours, control.FROM_SUPERVISOR.encode(message), made)
        os.close(made)
        worker.answer(control.ResidentAnswer)
        worker.close()
        assert len(open_descriptors()) == before - 1

    def test_a_worker_answers_with_a_descriptor(self, channel: tuple[socket.socket, ControlChannel]) -> None:
        """The descriptor stays the worker's own."""
        ours, worker = channel
        made = memory(b"slab")
        worker.send(control.SlabExported(1, 1), made)
        packet, descriptor = descriptors.receive(ours, MAX_SESSION_MESSAGE_BYTES)
        assert control.FROM_WORKER.decode(packet) == control.SlabExported(1, 1)
        assert content(descriptor) == b"slab"
        assert content(made) == b"slab"


class TestSharing:
    """A descriptor with several owners."""

    def test_the_last_owner_closes_it(self) -> None:
        """Whoever that is; and each may close twice."""
        made = memory(b"shared")
        first = Descriptor(made)
        second = first.share()
        third = second.share()
        for owner in (first, first, third, first):
            owner.close()
            assert os.pread(made, 100, 0) == b"shared"
        assert content(second) == b"shared"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(made)

    def test_too_many_under_way_cost_the_message_its_descriptor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bytes go without it, rather than not at all."""

        def refuse(*_arguments: object) -> int:
            raise OSError(errno.ETOOMANYREFS, "Too many references")

        monkeypatch.setattr(socket, "send_fds", refuse)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, Descriptor(memory(b"")) as descriptor:
            assert descriptors.send(ours, b"bytes", descriptor.fileno()) == 5
            assert descriptors.receive(theirs, 100) == (b"bytes", None)
            worker = ControlChannel(os.dup(ours.fileno()))
            worker.send(control.SlabExported(1, 1), descriptor.fileno())
            assert theirs.recv(100) == control.FROM_WORKER.encode(control.SlabExported(1, 1))
            worker.close()
