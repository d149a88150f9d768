"""Sessions that outlive their connections, as the supervisor keeps them for the next relay."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, session
from atomr_mp.supervisor.sessions.lasting import MOST_ENDS
from atomr_mp.transport.session import SessionConnection, SessionListener
from tests.contract.memory.test_slab_relay import Supervisor, register
from tests.support import open_descriptors

ALICE: Final = session.RemoteOrigin("alice")
HELLO: Final = session.Hello(2, "far", shared_memory=True, origin=ALICE)
LOST: Final = ErrorInfo.of(errors.WorkerLost("it has ended"))


@contextlib.contextmanager
def running(**changed: Any) -> Iterator[Supervisor]:
    """Make a supervisor, and see that no descriptor is left of it."""
    gc.collect()
    before = open_descriptors()
    made = Supervisor(**changed)
    yield made
    made.sessions.close(errors.PoolLost("the test ends"))
    made.loop.close()
    assert open_descriptors() == before


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor that keeps sessions for the whole test."""
    with running(remote_grace_s=3600) as made:
        yield made


class FarClient:
    """A client whose relays end, one after another."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._made: Final[list[SessionConnection]] = []
        self.connection = self.greet(HELLO)
        welcome = supervisor.hear(self.connection)
        assert isinstance(welcome, session.Welcome)
        self.proof: Final = session.SessionProof(welcome.session, welcome.secret)

    def greet(self, hello: session.Hello) -> SessionConnection:
        """Make another connection, the session's from here on."""
        self.connection = self._supervisor.greet(hello)
        self._made.append(self.connection)
        return self.connection

    def close(self) -> None:
        """Close all connections."""
        for each in self._made:
            each.close()

    def told(self, wanted: session.FromSupervisor) -> bool:
        """Wait for a message."""
        heard: list[session.FromSupervisor] = []

        def over() -> bool:
            heard.extend(self.connection.receive_waiting())
            return wanted in heard

        return self._supervisor.until(over)

    def cut(self) -> None:
        """End the connection without a word."""
        self.connection.close()
        self._supervisor.until(lambda: [each.state for each in self._supervisor.sessions.held()] == ["cut"])

    def resume(self, **changed: Any) -> list[session.FromSupervisor]:
        """Go on with the session; return the messages up to the last of the resumption."""
        hello = msgspec.structs.replace(HELLO, resume=self.proof, **changed)
        self.greet(hello)
        heard: list[session.FromSupervisor] = []

        def over() -> bool:
            heard.extend(self.connection.receive_waiting())
            return bool(heard) and isinstance(heard[-1], session.SessionResumed | session.Goodbye)

        self._supervisor.until(over)
        return heard

    def content(self, kept: session.SlabKept) -> bytes:
        """Return what is in a slab that came back."""
        descriptor = self.connection.take_offered(kept)
        assert descriptor is not None
        try:
            return os.pread(descriptor, 100, 0)
        finally:
            os.close(descriptor)


@pytest.fixture
def client(supervisor: Supervisor) -> Iterator[FarClient]:
    """Open session 1."""
    made = FarClient(supervisor)
    yield made
    made.close()


def ended(generation: int, device: int = 0) -> session.IncarnationEnded:
    """Describe an end."""
    return session.IncarnationEnded(device, generation, planned=False, error=LOST, started=[7], known_since_ns=5)


def test_a_session_goes_on_as_it_was(supervisor: Supervisor, client: FarClient) -> None:
    """Workers do not hear of the cut; slabs come back with their content, and so do ends that may have been missed."""
    register(client.connection, 1, b"one")
    register(client.connection, 2, b"two")
    client.connection.send(session.ForgetSlab(1))
    supervisor.until(lambda: supervisor.workers[0].heard(control.ClientSlabForgotten))
    supervisor.sessions.incarnation_ended(lambda _number: ended(3))
    client.cut()
    supervisor.sessions.incarnation_ended(lambda _number: ended(4))
    supervisor.sessions.device_changed(0)
    welcome, kept, *told = client.resume()
    assert isinstance(welcome, session.Welcome)
    assert session.SessionProof(welcome.session, welcome.secret) == client.proof
    assert [device.index for device in welcome.devices] == [0, 1]
    assert kept == session.SlabKept(2, 3)
    assert isinstance(kept, session.SlabKept)
    assert client.content(kept) == b"two"
    living = [session.LivingIncarnation(0, 1), session.LivingIncarnation(1, 1)]
    assert told == [ended(3), ended(4), session.SessionResumed(living)]
    register(client.connection, 3)
    assert supervisor.hear(client.connection) == session.Answer(3)
    for worker in supervisor.workers:
        assert [type(each) for each in worker.told].count(control.SessionOpened) == 1
        assert not worker.heard(control.SessionEnded)


def test_what_a_dead_relay_had_mapped_counts_as_unmapped(supervisor: Supervisor, client: FarClient) -> None:
    """Each worker gets one order, and only if the relay may have had anything mapped."""
    client.cut()
    client.resume()
    assert not supervisor.workers[0].heard(control.SessionUnmapped)
    client.connection.send(session.OpenSlab(77, 0, 1, 5))
    asked = supervisor.asked()
    client.cut()
    for worker in supervisor.workers:
        assert worker.heard(control.SessionUnmapped) == [control.SessionUnmapped(1)]
    supervisor.export(control.SlabExported(asked.id, 4))  # its asker has gone
    client.resume()
    client.connection.send(session.OpenSlab(77, 0, 1, 5))
    supervisor.until(lambda: len(supervisor.workers[0].heard(control.ExportSlab)) == 2)
    supervisor.export(control.SlabExported(supervisor.asked().id, 4))
    assert supervisor.hear(client.connection) == session.SlabOpened(77, 4)


@pytest.mark.parametrize("wrong", ["secret", "session", "key", "origin"])
def test_only_its_own_client_goes_on_with_a_session(supervisor: Supervisor, client: FarClient, wrong: str) -> None:
    """Another client gets the error that the session does not exist. The session's own client goes on."""
    client.cut()
    before = supervisor.sessions.refused
    changed: dict[str, Any] = {}
    match wrong:
        case "secret" | "session":
            changed["resume"] = msgspec.structs.replace(client.proof, **{wrong: bytes(16)})
        case "key":
            changed["origin"] = msgspec.structs.replace(ALICE, key="bob")
        case "origin":
            changed["origin"] = None
    stranger = supervisor.greet(msgspec.structs.replace(msgspec.structs.replace(HELLO, resume=client.proof), **changed))
    goodbye = supervisor.hear(stranger)
    stranger.close()
    assert isinstance(goodbye, session.Goodbye)
    assert goodbye.error.code == errors.SessionLost.code
    assert supervisor.sessions.refused == before + 1
    assert isinstance(client.resume()[0], session.Welcome)


def test_a_session_that_does_not_last_is_not_gone_on_with(supervisor: Supervisor) -> None:
    """A local client's session ends with its connection; while it lives, others are refused."""
    local = supervisor.greet(session.Hello(2, "local"))
    welcome = supervisor.hear(local)
    assert isinstance(welcome, session.Welcome)
    proof = session.SessionProof(welcome.session, welcome.secret)
    thief = supervisor.greet(msgspec.structs.replace(HELLO, resume=proof))
    assert isinstance(supervisor.hear(thief), session.Goodbye)
    thief.close()
    local.close()
    supervisor.until(lambda: supervisor.workers[0].heard(control.SessionEnded))


def test_a_second_hello_resumes_nothing(supervisor: Supervisor, client: FarClient) -> None:
    """It ends its own session, as any second hello does."""
    client.cut()
    other = supervisor.connect(origin=ALICE)
    other.send(msgspec.structs.replace(HELLO, resume=client.proof))
    goodbye = supervisor.hear(other)
    assert isinstance(goodbye, session.Goodbye)
    assert goodbye.error.code == errors.ProtocolError.code
    other.close()
    assert isinstance(client.resume()[0], session.Welcome)


def test_a_new_connection_ends_one_that_lingers(supervisor: Supervisor, client: FarClient) -> None:
    """The supervisor closes the former connection."""
    former = client.connection
    heard = client.resume()
    assert isinstance(heard[-1], session.SessionResumed)
    with pytest.raises(errors.PoolLost):
        supervisor.until(lambda: former.receive_waiting() or False)
    register(client.connection, 1)
    assert client.told(session.Answer(1))


def test_what_is_said_together_with_the_hello_is_heard_in_the_session(
    supervisor: Supervisor, client: FarClient
) -> None:
    """A relay passes on what it has, without waiting for the welcome."""
    client.cut()
    client.greet(msgspec.structs.replace(HELLO, resume=client.proof))
    client.connection.send(session.Reach(1, 1, 3))
    register(client.connection, 1)
    assert client.told(session.Answer(1))
    assert supervisor.sessions.notes(1, 1) == ["client far cannot reach its worker: 3 connections in a row failed"]


def test_a_session_whose_client_says_bye_is_over(supervisor: Supervisor, client: FarClient) -> None:
    """Nothing is kept of it."""
    client.connection.send(session.Bye(mapped=False))
    supervisor.until(lambda: supervisor.workers[0].heard(control.SessionEnded))
    assert isinstance(client.resume()[0], session.Goodbye)


def test_ends_are_kept_within_bounds(supervisor: Supervisor, client: FarClient) -> None:
    """The latest of each device, in their order."""
    client.cut()
    for generation in range(1, 2 * MOST_ENDS):
        for device in range(2):
            supervisor.sessions.incarnation_ended(lambda _number, at=(generation, device): ended(*at))  # type: ignore[misc]
    told = [each for each in client.resume() if isinstance(each, session.IncarnationEnded)]
    latest = range(MOST_ENDS, 2 * MOST_ENDS)
    assert told == [ended(generation, device) for device in range(2) for generation in latest]


def test_a_session_that_is_not_gone_on_with_ends() -> None:
    """After `remote_grace_s`, as a lost one: its workers hear of it, and its memory is given back."""
    with running(remote_grace_s=0) as supervisor:
        client = FarClient(supervisor)
        register(client.connection, 1)
        client.connection.close()
        supervisor.until(lambda: supervisor.workers[0].heard(control.SessionEnded))
        supervisor.acknowledge(0, 1)
        assert supervisor.reclaimed() == [1, 1]
        assert isinstance(client.resume()[0], session.Goodbye)
        client.close()


def test_a_broken_rule_ends_a_session_without_a_connection(supervisor: Supervisor, client: FarClient) -> None:
    """The worker's report may come while the session has no connection."""
    client.cut()
    supervisor.sessions.violated(1, "it has gone wild")
    assert supervisor.workers[0].heard(control.SessionEnded) == [control.SessionEnded(1)]
    assert isinstance(client.resume()[0], session.Goodbye)


def test_memory_waits_for_every_process_that_may_have_it_mapped(supervisor: Supervisor, tmp_path: Path) -> None:
    """A relay that was replaced while it lives, and this one; the last one's end frees it."""
    listener = SessionListener(tmp_path / "socket")
    supervisor.sessions.listen(listener)
    client = FarClient(supervisor)
    hello = msgspec.structs.replace(HELLO, resume=client.proof)
    words = [session.frame(session.FROM_CLIENT.encode(each)) for each in (hello, session.OpenSlab(1, 0, 1, 5))]
    program = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(bytes.fromhex(sys.argv[2]))
    sys.stdin.readline()
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "socket"), b"".join(words).hex()]
    with contextlib.ExitStack() as stack:
        relays = [stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)) for _ in range(1)]
        supervisor.wait_told(control.ExportSlab, 1)
        relays.append(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)))
        supervisor.until(lambda: len(supervisor.workers[0].heard(control.ExportSlab)) == 2)
        supervisor.sessions.violated(1, "the test ends it")
        supervisor.acknowledge(0, 1)
        for relay in reversed(relays):
            assert supervisor.reclaimed() == [0, 0]
            assert [pid for *_, pid in supervisor.sessions._reclaim.waiting] != [None]
            relay.kill()
            relay.wait()
            supervisor.until(lambda: relay.pid not in supervisor.sessions._reclaim._watched)  # noqa: B023 - called at once
        assert supervisor.reclaimed() == [1, 1]
    client.close()
    supervisor.loop.forget(listener.fileno())
    listener.close()


STEPS: Final = st.lists(
    st.sampled_from(["cut", "resume", "register", "forget", "open", "export", "end a worker", "bye", "stranger"]),
    max_size=12,
)


class Walk:
    """A session's life, step by step."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.client = FarClient(supervisor)
        self.is_cut = self.is_over = False
        self._last = 0
        self._slabs: set[int] = set()

    def take(self, step: str) -> None:  # noqa: C901 - one case for each step
        """Take a step, if it is possible now."""
        supervisor, client = self.supervisor, self.client
        worker = supervisor.workers[1]
        match step:
            case "resume":
                heard = client.resume()
                assert isinstance(heard[0], session.Welcome)
                kept = [each for each in heard if isinstance(each, session.SlabKept)]
                assert {each.slab for each in kept} == self._slabs
                assert all(client.content(each) == b"own" for each in kept)
                self.is_cut = False
            case "stranger":
                stranger = supervisor.greet(msgspec.structs.replace(HELLO, origin=None, resume=client.proof))
                assert isinstance(supervisor.hear(stranger), session.Goodbye)
                stranger.close()
            case "end a worker" if supervisor.workers[0].lives:
                supervisor.end_worker(0)
                supervisor.sessions.incarnation_ended(lambda _number: ended(1))
            case "export":
                supervisor.export(control.SlabExported(len(worker.heard(control.ExportSlab)), 4), worker=1)
            case _ if self.is_cut:
                pass
            case "cut":
                client.cut()
                self.is_cut = True
            case "register":
                self._last += 1
                register(client.connection, self._last)
                assert client.told(session.Answer(self._last))
                self._slabs.add(self._last)
            case "forget" if self._slabs:
                before = len(worker.heard(control.ClientSlabForgotten))
                client.connection.send(session.ForgetSlab(self._slabs.pop()))
                supervisor.until(lambda: len(worker.heard(control.ClientSlabForgotten)) > before)
            case "open":
                client.connection.send(session.OpenSlab(1000, 1, 1, 5))
            case "bye":
                client.connection.send(session.Bye(mapped=False))
                supervisor.until(lambda: not len(supervisor.sessions))
                self.is_over = True


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_comes_in_between_the_session_is_whole_or_over(steps: list[str]) -> None:
    """Its slabs are those that were registered and not forgotten, and nothing is left when it has ended."""
    with running(remote_grace_s=3600) as supervisor:
        walk = Walk(supervisor)
        for step in steps:
            if not walk.is_over:
                walk.take(step)
        worker = supervisor.workers[1]
        assert len(worker.heard(control.SessionOpened)) == 1
        assert len(worker.heard(control.SessionEnded)) == int(walk.is_over)
        walk.client.close()
