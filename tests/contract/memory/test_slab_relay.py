"""What the supervisor does with slabs: its real loop and sessions, with workers that only note their orders."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import Mock

import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.identity import Identity
from atomr_mp.process.spawn import ExitCause
from atomr_mp.protocol.board import BOARD_BYTES
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, devices, session
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.device import device as device_module
from atomr_mp.supervisor.device.quarantine import StuckOnGpu
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes import process_factory
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.sessions import slabs
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.supervisor.sessions.sessions import Sessions
from atomr_mp.supervisor.sessions.slabs import MAX_ASKS, MAX_SLABS
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp.transport.descriptors import Descriptor
from atomr_mp.transport.session import SessionConnection, SessionListener, SessionPeer
from atomr_mp_workers.wire.control import ControlChannel
from tests.support import DEADLINE_S, open_descriptors

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

T = TypeVar("T")


class Worker:
    """Takes the place of a device and its worker; knows its orders, and the content of descriptors with them."""

    drained = leaving = False
    is_ready = True

    def __init__(self, index: int) -> None:
        self.standby: Worker | None = None
        self.predecessor: Worker | None = None
        self.index = self.device = index
        self.generation = 1
        self.lives = True
        self.is_behind = False
        self.admitted: set[int] = set()
        self.told: list[control.FromSupervisor] = []
        self.contents: list[bytes | None] = []

    @property
    def active(self) -> Worker | None:
        """Return it, if it lives."""
        return self if self.lives else None

    @property
    def roles(self) -> Worker:
        """Return itself: it knows its processes too."""
        return self

    @property
    def all(self) -> list[Worker]:
        """Return it and those beside it, if they live."""
        return [each for each in (self, self.standby, self.predecessor) if each is not None and each.lives]

    def of(self, generation: int) -> Worker | None:
        """Return the incarnation of a generation, if it lives."""
        return self if self.lives and generation == self.generation else None

    def tell(self, message: control.FromSupervisor, descriptor: Descriptor | None = None) -> None:
        """Note it; admit a session at once."""
        if self.lives:
            self.told.append(message)
            self.contents.append(None if descriptor is None else os.pread(descriptor.fileno(), 100, 0))
            if isinstance(message, control.SessionOpened):
                self.admitted.add(message.number)
        if descriptor is not None:
            descriptor.close()

    def withdraw(self, _session: int) -> bool:
        """Refuse: it has heard of every session."""
        return False

    def info(self, _number: int) -> devices.DeviceInfo:
        """Describe it."""
        state = devices.DeviceState.READY
        return devices.DeviceInfo(self.index, "fake", state, self.generation, "", True, 1, 0, "")

    def heard(self, kind: type[T]) -> list[T]:
        """Return the orders of a kind that it has got."""
        return [message for message in self.told if isinstance(message, kind)]


class Supervisor:
    """A loop, sessions and two workers."""

    def __init__(self, **settings: Any) -> None:
        self.workers = [Worker(0), Worker(1)]
        self.devices: Any = list(self.workers)
        self.loop = Loop()
        self.sessions = Sessions(
            make_plan(PoolSettings(backend="host", gpus="2", **settings)),
            bytes(16),
            self.loop,
            self.devices,
            describe=Mock(side_effect=errors.InvalidRequest("no snapshot here")),
            carry_out=Mock(),
            unreached=Mock(),
            owner_gone=Mock(),
        )

    def until(self, condition: Callable[[], T]) -> T:
        """Run the loop until something is so."""
        until_s = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < until_s, "in vain"
            self.loop._epoll.poll(0.05)  # until something happens; the turn below takes it in
            self.loop._stopped = False
            self.loop.call_later(0, self.loop.stop)
            self.loop.run()
        return found

    def connect(
        self, *, observer: bool = False, offers: bool = False, origin: session.RemoteOrigin | None = None
    ) -> SessionConnection:
        """Open a session."""
        hello = session.Hello(2, "client", observer, shared_memory=True, origin=origin, slab_offers=offers)
        client = self.greet(hello)
        assert isinstance(self.hear(client), session.Welcome)
        return client

    def greet(self, hello: session.Hello) -> SessionConnection:
        """Make a connection, and say hello on it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        client = SessionConnection(ours)
        self.sessions.add(SessionPeer(theirs), owner=False)
        client.send(hello)
        return client

    def hear(self, client: SessionConnection) -> session.FromSupervisor:
        """Return the next message to a client; there must not be more."""
        (message,) = self.until(client.receive_waiting)
        return message

    def refused(self, client: SessionConnection) -> errors.AtomrError:
        """Return the error of the next answer to a client."""
        answer = self.hear(client)
        assert isinstance(answer, session.Answer)
        assert answer.error is not None
        return answer.error.error()

    def asked(self, worker: int = 0) -> control.ExportSlab:
        """Return what a worker was asked for last."""
        self.until(lambda: self.workers[worker].heard(control.ExportSlab))
        return self.workers[worker].heard(control.ExportSlab)[-1]

    def wait_told(self, kind: type[control.ExportSlab | control.SessionEnded], number: int) -> None:
        """Wait until the first worker has got an order about a session."""
        self.until(lambda: any(message.number == number for message in self.workers[0].heard(kind)))

    def export(self, message: control.SlabExported, content: bytes | None = b"slab", worker: int = 0) -> None:
        """Answer for a worker."""
        descriptor = None if content is None else Descriptor(memory(content))
        self.sessions.exported((worker, self.workers[worker].generation), message, descriptor)

    def end_worker(self, index: int) -> None:
        """End an incarnation."""
        self.workers[index].lives = False
        self.sessions.incarnation_over((index, self.workers[index].generation))

    def acknowledge(self, *workers: int) -> None:
        """Have workers acknowledge the end of session 1."""
        for worker in workers:
            self.sessions.acknowledged((worker, self.workers[worker].generation), 1)

    def reclaimed(self) -> list[int]:
        """Return how often each worker got the order to give the memory of session 1 back."""
        return [worker.heard(control.Reclaim).count(control.Reclaim(1)) for worker in self.workers]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """Make a supervisor, and see that no descriptor is left of it."""
    gc.collect()  # of what other tests have left, whose descriptors would be closed meanwhile
    before = open_descriptors()
    made = Supervisor()
    yield made
    made.sessions.close(errors.PoolLost("the test ends"))
    made.loop.close()
    assert open_descriptors() == before


@pytest.fixture
def client(supervisor: Supervisor) -> Iterator[SessionConnection]:
    """Open session 1."""
    made = supervisor.connect()
    yield made
    made.close()


def memory(content: bytes, seals: int = SEALS) -> int:
    """Make a slab."""
    made = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(made, content)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def introduced(supervisor: Supervisor, index: int) -> list[tuple[control.ForeignSlab, bytes]]:
    """Return the loans that a new worker of a device gets, and their content."""
    found = []
    for message, descriptor in supervisor.sessions.introductions(index):
        content = b""
        if descriptor is not None:
            content = os.pread(descriptor.fileno(), 100, 0)
            descriptor.close()
        if isinstance(message, control.ForeignSlab):
            found.append((message, content))
    return found


def register(client: SessionConnection, slab: int, content: bytes = b"own", **wrong: int) -> None:
    """Send a slab of a client."""
    made = memory(content, wrong.get("seals", SEALS))
    try:
        client.send(session.RegisterSlab(slab, slab, wrong.get("nbytes", len(content))), made)
    finally:
        os.close(made)


class TestOpening:
    """A device's slab goes to a client."""

    def test_a_slab_is_handed_on_with_its_descriptor(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """The asker gets it under the id of its question."""
        client.send(session.OpenSlab(77, 0, 1, 5))
        asked = supervisor.asked()
        assert asked == control.ExportSlab(asked.id, 1, 5, None)
        supervisor.export(control.SlabExported(asked.id, 4))
        assert supervisor.hear(client) == session.SlabOpened(77, 4)
        descriptor = client.take_descriptor(77)
        assert descriptor is not None
        assert os.pread(descriptor, 100, 0) == b"slab"
        os.close(descriptor)

    @pytest.mark.parametrize("behind", [False, True])
    def test_a_slab_that_was_handed_in_is_opened_without_asking(
        self, supervisor: Supervisor, client: SessionConnection, *, behind: bool
    ) -> None:
        """The worker gets an order; one that does not listen is asked, as for any slab, so that little waits for it."""
        made = Descriptor(memory(b"slab"))
        supervisor.sessions.result_slab((0, 1), control.ResultSlab(1, 5, 4), made)
        made.close()
        supervisor.workers[0].is_behind = behind
        client.send(session.OpenSlab(77, 0, 1, 5))
        if behind:
            supervisor.export(control.SlabExported(supervisor.asked().id, 4))
        assert supervisor.hear(client) == session.SlabOpened(77, 4)
        descriptor = client.take_descriptor(77)
        assert descriptor is not None
        assert os.pread(descriptor, 100, 0) == b"slab"
        os.close(descriptor)
        told = supervisor.workers[0].heard(control.ResultSlabOpened)
        assert told == ([] if behind else [control.ResultSlabOpened(1, 5)])

    def test_a_worker_is_told_of_an_opening_before_the_client_can_close_it(
        self, supervisor: Supervisor, client: SessionConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the worker would count it as open for as long as the session lasts."""
        made = Descriptor(memory(b"slab"))
        supervisor.sessions.result_slab((0, 1), control.ResultSlab(1, 5, 4), made)
        made.close()
        known_first: list[bool] = []

        def tell(_message: control.FromSupervisor, _descriptor: object = None) -> None:
            known_first.append(not list(client.receive_waiting()))

        monkeypatch.setattr(supervisor.workers[0], "tell", tell)
        client.send(session.OpenSlab(77, 0, 1, 5))
        assert supervisor.hear(client) == session.SlabOpened(77, 4)
        assert known_first == [True]
        os.close(client.take_descriptor(77) or -1)

    @pytest.mark.parametrize("ready_first", [False, True])
    def test_slabs_that_a_standby_has_made_are_offered(self, supervisor: Supervisor, *, ready_first: bool) -> None:
        """Once the client may connect to it, each once, if it wants offers; the standby counts them as open."""
        clients = [supervisor.connect(offers=offers) for offers in (True, False)]
        device = supervisor.workers[0]
        standby = device.standby = Worker(0)
        standby.generation, standby.is_ready = 2, ready_first
        standby.admitted |= {1, 2} if ready_first else {2}
        for number, slab in ((1, 5), (2, 6)):
            made = Descriptor(memory(b"slab"))
            supervisor.sessions.result_slab((0, 2), control.ResultSlab(number, slab, 4), made)
            made.close()
        if not ready_first:
            assert not list(clients[0].receive_waiting())
            standby.is_ready = True
            supervisor.sessions.device_changed(0)
            assert isinstance(supervisor.hear(clients[0]), session.DeviceChanged)
            assert not standby.heard(control.ResultSlabOpened)  # it has not acknowledged the session yet
            standby.admitted.add(1)
        supervisor.sessions.admitted(0, 1)
        supervisor.sessions.admitted(0, 2)
        heard = supervisor.until(clients[0].receive_waiting) + (clients[0].receive_waiting() or [])
        offers = [each for each in heard if isinstance(each, session.SlabOffered)]
        assert offers == [session.SlabOffered(0, 2, 5, 4)]
        descriptor = clients[0].take_offered(offers[0])
        assert descriptor is not None
        assert os.pread(descriptor, 100, 0) == b"slab"
        os.close(descriptor)
        assert clients[0].take_offered(offers[0]) is None
        assert standby.heard(control.ResultSlabOpened) == [control.ResultSlabOpened(1, 5)]
        others = list(clients[1].receive_waiting())
        assert not any(isinstance(each, session.SlabOffered) for each in others)
        for each in clients:
            each.close()

    def test_a_worker_that_ends_when_it_is_asked_is_not_needed(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """The descriptor that it had handed in opens its slab."""
        supervisor.workers[0].is_behind = True
        client.send(session.OpenSlab(77, 0, 1, 5))
        supervisor.asked()
        made = Descriptor(memory(b"slab"))
        supervisor.sessions.result_slab((0, 1), control.ResultSlab(1, 5, 4), made)
        made.close()
        supervisor.end_worker(0)
        assert supervisor.hear(client) == session.SlabOpened(77, 4)
        descriptor = client.take_descriptor(77)
        assert descriptor is not None
        os.close(descriptor)

    def test_a_handle_is_handed_on_without_one(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Whatever came beside it."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        supervisor.export(control.SlabExported(supervisor.asked().id, 4, b"handle"))
        assert supervisor.hear(client) == session.SlabOpened(1, 4, b"handle")
        assert client.take_descriptor(1) is None

    def test_a_refusal_is_handed_on(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """It keeps its class and facts."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        released = ErrorInfo.of(errors.GpuRefReleased("gone", device=0))
        supervisor.export(control.SlabExported(supervisor.asked().id, 0, b"", released), None)
        assert isinstance(supervisor.refused(client), errors.GpuRefReleased)

    def test_a_slab_whose_descriptor_was_lost_is_refused(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """Rather than handed on as something that cannot be opened."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        supervisor.export(control.SlabExported(supervisor.asked().id, 4), None)
        assert isinstance(supervisor.refused(client), errors.Overloaded)

    @pytest.mark.parametrize(
        ("device", "generation", "expected"),
        [(0, 2, errors.GpuRefStale), (2, 1, errors.InvalidRequest)],
        ids=["stale", "no such device"],
    )
    def test_what_cannot_be_is_refused_without_asking(
        self,
        supervisor: Supervisor,
        client: SessionConnection,
        device: int,
        generation: int,
        expected: type[errors.AtomrError],
    ) -> None:
        """The worker never hears of it."""
        client.send(session.OpenSlab(1, device, generation, 5))
        error = supervisor.refused(client)
        assert isinstance(error, expected)
        if isinstance(error, errors.GpuRefStale):
            assert (error.device, error.generation, error.current) == (0, 2, 1)
        assert not supervisor.workers[0].heard(control.ExportSlab)

    def test_a_worker_that_ends_before_it_answers_made_the_ref_stale(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """The others hear that its incarnation is over."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        supervisor.asked()
        supervisor.end_worker(0)
        error = supervisor.refused(client)
        assert isinstance(error, errors.GpuRefStale)
        assert (error.generation, error.current) == (1, 0)
        assert supervisor.workers[1].heard(control.IncarnationOver) == [control.IncarnationOver(0, 1)]
        assert not supervisor.workers[0].heard(control.IncarnationOver)

    def test_an_answer_for_a_client_that_has_gone_is_closed(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """So are answers to no question, or to a question to somebody else."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        asked = supervisor.asked()
        supervisor.export(control.SlabExported(asked.id, 4), worker=1)
        supervisor.export(control.SlabExported(asked.id + 1, 4))
        client.close()
        supervisor.until(lambda: supervisor.workers[0].heard(control.SessionEnded))
        supervisor.export(control.SlabExported(asked.id, 4))

    def test_questions_to_a_busy_worker_are_bounded(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Each answer makes room for another."""
        for number in range(MAX_ASKS):
            client.send(session.OpenSlab(number, 0, 1, 5))
        supervisor.until(lambda: len(supervisor.workers[0].heard(control.ExportSlab)) == MAX_ASKS)
        client.send(session.OpenSlab(1000, 0, 1, 5))
        assert isinstance(supervisor.refused(client), errors.Overloaded)
        supervisor.export(control.SlabExported(supervisor.asked().id, 4, b"handle"), None)
        supervisor.hear(client)
        client.send(session.OpenSlab(1001, 0, 1, 5))
        supervisor.until(lambda: len(supervisor.workers[0].heard(control.ExportSlab)) == MAX_ASKS + 1)

    def test_an_observer_has_no_slabs(self, supervisor: Supervisor) -> None:
        """No worker knows it."""
        observer = supervisor.connect(observer=True)
        observer.send(session.OpenSlab(1, 0, 1, 5))
        assert isinstance(supervisor.hear(observer), session.Goodbye)
        observer.close()


class TestRegistering:
    """A client's slab goes to all workers."""

    def test_every_worker_gets_it_before_the_client_is_answered(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """Workers that start later get it right after the session's introduction, until it is forgotten."""
        register(client, 3, b"own")
        assert supervisor.hear(client) == session.Answer(3)
        for worker in supervisor.workers:
            assert worker.told[-1] == control.ClientSlab(1, 3, 3)
            assert worker.contents[-1] == b"own"
        later = Worker(0)
        for message, descriptor in supervisor.sessions.introductions(1):
            later.tell(message, descriptor)
        assert [type(message) for message in later.told] == [control.SessionOpened, control.ClientSlab]
        assert later.contents == [None, b"own"]
        client.send(session.ForgetSlab(3))
        client.send(session.ForgetSlab(4))
        forgotten = [control.ClientSlabForgotten(1, 3)]
        supervisor.until(lambda: supervisor.workers[1].heard(control.ClientSlabForgotten) == forgotten)
        assert len(list(supervisor.sessions.introductions(1))) == 1

    @pytest.mark.parametrize(
        "wrong",
        [{"seals": 0}, {"seals": fcntl.F_SEAL_SHRINK}, {"nbytes": 2}, {"nbytes": 4}],
        ids=["unsealed", "may grow", "larger", "smaller"],
    )
    def test_memory_that_may_change_its_size_or_has_another_is_refused(
        self, supervisor: Supervisor, client: SessionConnection, wrong: dict[str, int]
    ) -> None:
        """Whoever maps it must not fault later."""
        register(client, 1, b"own", **wrong)
        assert isinstance(supervisor.refused(client), errors.InvalidRequest)
        assert not supervisor.workers[0].heard(control.ClientSlab)
        register(client, 1, b"own")
        assert supervisor.hear(client) == session.Answer(1)

    @pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", __file__], ids=["null", "zero", "a file"])
    def test_what_is_no_memory_is_refused(self, supervisor: Supervisor, client: SessionConnection, path: str) -> None:
        """A file could be cut short."""
        descriptor = os.open(path, os.O_RDONLY)
        client.send(session.RegisterSlab(1, 1, os.fstat(descriptor).st_size), descriptor)
        os.close(descriptor)
        assert isinstance(supervisor.refused(client), errors.InvalidRequest)

    def test_nothing_is_refused(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """No descriptor, no bytes, or none that can be read."""
        client.send(session.RegisterSlab(1, 1, 3))
        assert isinstance(supervisor.refused(client), errors.InvalidRequest)
        register(client, 1, b"")
        assert isinstance(supervisor.refused(client), errors.InvalidRequest)
        made = memory(b"own")
        write_only = os.open(f"/proc/self/fd/{made}", os.O_WRONLY)
        client.send(session.RegisterSlab(1, 1, 3), write_only)
        os.close(made)
        os.close(write_only)
        assert isinstance(supervisor.refused(client), errors.InvalidRequest)

    def test_a_number_is_used_once(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Also when it was forgotten: the workers may still read calls that meant the former."""
        register(client, 2)
        assert supervisor.hear(client) == session.Answer(2)
        client.send(session.ForgetSlab(2))
        for number in (2, 1):
            register(client, number)
            assert isinstance(supervisor.refused(client), errors.InvalidRequest)

    def test_a_session_has_so_many_at_a_time(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Each that is forgotten makes room for another."""
        for number in range(MAX_SLABS):
            register(client, number)
            assert supervisor.hear(client) == session.Answer(number)
        register(client, MAX_SLABS)
        assert isinstance(supervisor.refused(client), errors.Overloaded)
        client.send(session.ForgetSlab(0))
        register(client, MAX_SLABS)
        assert supervisor.hear(client) == session.Answer(MAX_SLABS)

    def test_the_reserve_of_descriptors_is_kept(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """It is for future workers."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        following = os.dup(client.fileno())  # the lowest number that is free, whatever others have open above it
        os.close(following)
        resource.setrlimit(resource.RLIMIT_NOFILE, (following + 5, hard))
        try:
            register(client, 1)
            assert isinstance(supervisor.refused(client), errors.Overloaded)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_no_descriptors_queue_up_for_a_worker_that_does_not_read(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """The client gets an error, and no worker has it."""
        supervisor.workers[1].is_behind = True
        register(client, 1)
        assert isinstance(supervisor.refused(client), errors.Overloaded)
        assert not supervisor.workers[0].heard(control.ClientSlab)


class TestLending:
    """A device's slab goes to another device's worker."""

    def test_the_borrower_has_it_before_the_client_is_answered(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """The owner knows who borrows."""
        client.send(session.LendSlab(9, 0, 1, 5, 1))
        asked = supervisor.asked()
        assert asked == control.ExportSlab(asked.id, 1, 5, 1)
        supervisor.export(control.SlabExported(asked.id, 4))
        assert supervisor.hear(client) == session.Answer(9)
        assert supervisor.workers[1].told[-1] == control.ForeignSlab(1, 0, 1, 5, 4, b"")
        assert supervisor.workers[1].contents[-1] == b"slab"

    @pytest.mark.parametrize(
        ("lend", "expected"),
        [
            (session.LendSlab(1, 0, 1, 5, 0), errors.InvalidRequest),
            (session.LendSlab(1, 0, 1, 5, 2), errors.InvalidRequest),
            (session.LendSlab(1, 2, 1, 5, 0), errors.InvalidRequest),
            (session.LendSlab(1, 0, 2, 5, 1), errors.GpuRefStale),
        ],
        ids=["to itself", "to nobody", "of nobody", "a stale owner"],
    )
    def test_what_cannot_be_is_refused(
        self,
        supervisor: Supervisor,
        client: SessionConnection,
        lend: session.LendSlab,
        expected: type[errors.AtomrError],
    ) -> None:
        """No worker is asked."""
        client.send(lend)
        assert isinstance(supervisor.refused(client), expected)
        assert not any(worker.heard(control.ExportSlab) for worker in supervisor.workers)

    @pytest.mark.parametrize("lives", [True, False], ids=["after", "before"])
    def test_the_borrowers_next_incarnation_has_it_too(
        self, supervisor: Supervisor, client: SessionConnection, *, lives: bool
    ) -> None:
        """Whether the one before had it, or had ended meanwhile: a call goes to whichever comes."""
        client.send(session.LendSlab(9, 0, 1, 5, 1))
        asked = supervisor.asked()
        supervisor.workers[1].lives = lives
        supervisor.export(control.SlabExported(asked.id, 4))
        assert supervisor.hear(client) == session.Answer(9)
        assert len(supervisor.workers[1].heard(control.ForeignSlab)) == lives
        supervisor.end_worker(1)
        loan = control.ForeignSlab(1, 0, 1, 5, 4, b"")
        assert introduced(supervisor, 1) == [(loan, b"slab")]
        assert introduced(supervisor, 0) == []

    def test_all_processes_of_the_borrower_have_it(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """What stands by too, and what finishes what it holds: a call may be on its way there; but not what dies."""
        borrower = supervisor.workers[1]
        standby, former = borrower.standby, borrower.predecessor = Worker(1), Worker(1)
        for slab, (drained, leaving) in enumerate([(True, False), (False, False), (True, True)]):
            former.drained, former.leaving = drained, leaving
            client.send(session.LendSlab(slab, 0, 1, slab, 1))
            supervisor.until(lambda: slab in {ask.slab for ask in supervisor.workers[0].heard(control.ExportSlab)})  # noqa: B023
            supervisor.export(control.SlabExported(supervisor.asked().id, 4))
            assert supervisor.hear(client) == session.Answer(slab)
        loans = [control.ForeignSlab(1, 0, 1, slab, 4, b"") for slab in range(3)]
        assert borrower.heard(control.ForeignSlab) == standby.heard(control.ForeignSlab) == loans
        assert borrower.contents[-3:] == standby.contents[-3:] == [b"slab"] * 3
        assert former.heard(control.ForeignSlab) == loans[:1]

    def test_a_standby_that_does_not_read_is_lent_nothing(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """Nor is anybody else: descriptors are not queued, and the next incarnation must not lack the slab."""
        borrower = supervisor.workers[1]
        borrower.standby = Worker(1)
        borrower.standby.is_behind = True
        before = len(open_descriptors())
        client.send(session.LendSlab(9, 0, 1, 5, 1))
        supervisor.export(control.SlabExported(supervisor.asked().id, 4))
        assert isinstance(supervisor.refused(client), errors.Overloaded)
        assert not borrower.heard(control.ForeignSlab)
        assert introduced(supervisor, 1) == []
        assert len(open_descriptors()) == before

    @pytest.mark.parametrize("how", ["owner", "session"])
    def test_a_loan_ends_with_its_owner_and_its_session(
        self, supervisor: Supervisor, client: SessionConnection, how: str
    ) -> None:
        """Then nothing is kept for anybody, and no descriptor."""
        before = len(open_descriptors())
        client.send(session.LendSlab(9, 0, 1, 5, 1))
        supervisor.export(control.SlabExported(supervisor.asked().id, 4))
        assert supervisor.hear(client) == session.Answer(9)
        assert len(open_descriptors()) == before + 1
        if how == "owner":
            supervisor.end_worker(0)
            assert supervisor.workers[1].told[-1] == control.IncarnationOver(0, 1)
            assert len(open_descriptors()) == before
        else:
            client.close()
            supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
            assert len(open_descriptors()) == before - 2  # and those of both ends
        assert introduced(supervisor, 1) == []

    def test_what_is_lent_again_is_kept_once(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Two threads of a client may ask at a time."""
        before = len(open_descriptors())
        for number in (1, 2):
            client.send(session.LendSlab(number, 0, 1, 5, 1))
            supervisor.until(lambda: len(supervisor.workers[0].heard(control.ExportSlab)) == number)  # noqa: B023
            supervisor.export(control.SlabExported(supervisor.asked().id, 4))
            assert supervisor.hear(client) == session.Answer(number)
        assert len(open_descriptors()) == before + 1
        assert len(introduced(supervisor, 1)) == 1

    def test_loans_are_bounded(
        self, supervisor: Supervisor, client: SessionConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A refused loan costs no descriptor."""
        monkeypatch.setattr(slabs, "MAX_LOANS", 1)
        before = len(open_descriptors())
        for slab in (5, 6):
            client.send(session.LendSlab(slab, 0, 1, slab, 1))
            supervisor.until(lambda: slab in {ask.slab for ask in supervisor.workers[0].heard(control.ExportSlab)})  # noqa: B023
            supervisor.export(control.SlabExported(supervisor.asked().id, 4))
            answer = supervisor.hear(client)
            assert isinstance(answer, session.Answer)
            assert (answer.error is None) == (slab == 5)
        assert len(open_descriptors()) == before + 1
        assert len(introduced(supervisor, 1)) == 1


class TestTheEnd:
    """Memory is given back when it is out of reach."""

    def test_bye_and_the_workers_words_are_enough(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """The client lives on; its session is over."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        client.send(session.Bye(mapped=False))
        supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
        supervisor.acknowledge(0)
        assert supervisor.reclaimed() == [0, 0]
        supervisor.acknowledge(1, 1)
        assert supervisor.reclaimed() == [1, 1]
        with pytest.raises(errors.PoolLost):
            client.receive(DEADLINE_S)

    @pytest.mark.parametrize("first", ["client", "worker"])
    def test_a_client_that_has_slabs_mapped_says_by_its_connection_s_end_that_it_has_none(
        self, supervisor: Supervisor, client: SessionConnection, first: str
    ) -> None:
        """Its session is over before that."""
        client.send(session.OpenSlab(1, 0, 1, 5))
        client.send(session.Bye(mapped=True))
        supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
        supervisor.acknowledge(0)
        if first == "client":
            client.hang_up()
            supervisor.until(lambda: not supervisor.sessions._reclaim._partings)
            supervisor.acknowledge(1)
        else:
            supervisor.acknowledge(1)
            assert supervisor.reclaimed() == [0, 0]
            client.hang_up()
        supervisor.until(lambda: supervisor.reclaimed() == [1, 1])

    def test_what_it_says_meanwhile_frees_nothing(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """It has broken the rules, and only its process's end tells."""
        before = len(open_descriptors())
        client.send(session.OpenSlab(1, 0, 1, 5))
        client.send(session.Bye(mapped=True))
        supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
        supervisor.acknowledge(0, 1)
        client.send(session.ForgetSlab(1))
        supervisor.until(lambda: not supervisor.sessions._reclaim._partings)
        assert supervisor.reclaimed() == [0, 0]
        assert len(open_descriptors()) == before  # the process's for the connection's

    def test_a_client_that_never_asked_for_a_slab_is_not_waited_for(
        self, supervisor: Supervisor, client: SessionConnection
    ) -> None:
        """It can have none mapped."""
        client.close()
        supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
        supervisor.acknowledge(0, 1)
        assert supervisor.reclaimed() == [1, 1]

    def test_a_client_that_goes_before_its_welcome_stays_with_no_worker(self, supervisor: Supervisor) -> None:
        """It had only time to say hello: the workers would never hear of its end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.sendall(session.frame(session.FROM_CLIENT.encode(session.Hello(2, "gone", False))))
        ours.close()
        supervisor.sessions.add(SessionPeer(theirs), owner=False)
        supervisor.wait_told(control.SessionEnded, 1)
        for worker in supervisor.workers:
            assert not worker.heard(control.SessionOpened)

    def test_a_worker_that_has_ended_is_not_waited_for(self, supervisor: Supervisor, client: SessionConnection) -> None:
        """Its next incarnation never heard of the session, and gets no order."""
        client.close()
        supervisor.until(lambda: supervisor.workers[1].heard(control.SessionEnded))
        supervisor.acknowledge(0)
        supervisor.end_worker(1)
        assert supervisor.reclaimed() == [1, 0]

    def test_a_process_that_may_have_slabs_mapped_is_waited_for(self, supervisor: Supervisor, tmp_path: Path) -> None:
        """Two of its sessions end without a bye, and cost one descriptor; its end frees both."""
        listener = SessionListener(tmp_path / "socket")
        supervisor.sessions.listen(listener)
        said: list[session.FromClient] = [session.Hello(2, "client"), session.OpenSlab(1, 0, 1, 5)]
        words = b"".join(session.frame(session.FROM_CLIENT.encode(message)) for message in said)
        program = """
import socket, sys
for _ in range(2):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(bytes.fromhex(sys.argv[2]))
        sys.stdin.readline()
sys.stdin.read()
"""
        command = [sys.executable, "-c", program, str(tmp_path / "socket"), words.hex()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as process:
            assert process.stdin is not None
            before = len(open_descriptors())
            for number in (1, 2):
                supervisor.wait_told(control.ExportSlab, number)
                process.stdin.write(b"\n")
                supervisor.wait_told(control.SessionEnded, number)
                for worker in supervisor.devices:
                    supervisor.sessions.acknowledged((worker.index, worker.generation), number)
            assert len(open_descriptors()) == before + 1
            assert not supervisor.workers[0].heard(control.Reclaim)
            process.kill()
            both = [control.Reclaim(1), control.Reclaim(2)]
            supervisor.until(lambda: supervisor.workers[1].heard(control.Reclaim) == both)
            assert supervisor.workers[0].heard(control.Reclaim) == both
            assert len(open_descriptors()) == before
        supervisor.loop.forget(listener.fileno())
        listener.close()


class Process:
    """Takes the place of a worker's process: its end of the control channel is the test's."""

    pid = 2**22
    generation = 1
    identity = Identity(2**22, 1, "")

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.channel = ControlChannel(theirs.detach())
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC)
        self.board = memoryview(bytearray(BOARD_BYTES))

    def kill(self) -> None:
        """End."""
        os.eventfd_write(self.pidfd, 1)

    def reap(self) -> ExitCause:
        """Say how it ended."""
        os.close(self.pidfd)
        return ExitCause(signal=9)

    def close(self) -> None:
        """Release it."""
        self.control.close()
        self.channel.close()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Have the next device start this."""
    made = Process()
    monkeypatch.setattr(process_factory, "spawn", lambda **_: made)
    return made


def test_a_device_keeps_descriptors_for_a_worker_that_does_not_read(
    supervisor: Supervisor, client: SessionConnection, process: Process, tmp_path: Path
) -> None:
    """They stay in order, each with its message. The client may call once all that it registered has been sent."""
    plan = make_plan(PoolSettings(backend="host", gpus="1"))
    with (
        RunDirectory.create(tmp_path / "run") as run_dir,
        EventLog(run_dir.events) as log,
        contextlib.closing(ProcessFactory(plan, supervisor.loop, run_dir, log)) as factory,
    ):
        made = device_module.SupervisedDevice(
            plan,
            plan.devices[0],
            device_module.PoolServices(
                supervisor.loop,
                run_dir,
                log,
                bytes(16),
                supervisor.sessions,
                ResidentKeeper("host", 0, [], log),
                factory,
                Turns(1),
                Worlds([], [], supervisor.loop, tell=Mock(), note=Mock()),
            ),
            StuckOnGpu(),
            ended=lambda: None,
        )
        register(client, 1, b"introduced")
        assert supervisor.hear(client) == session.Answer(1)
        supervisor.devices[:] = [made]
        made.start()
        assert isinstance(supervisor.hear(client), session.DeviceChanged)
        assert isinstance(process.channel.receive(), control.Start)
        assert isinstance(process.channel.receive(), control.SessionOpened)
        assert process.channel.receive() == control.ClientSlab(1, 1, 10)
        assert os.pread(taken(process.channel), 100, 0) == b"introduced"
        worker = made.roles.active
        assert worker is not None
        sent = fall_behind(worker)
        for number in range(3):
            worker.tell(control.ClientSlab(1, number, 1), Descriptor(memory(b"%d" % number)))
        register(client, 2)
        assert isinstance(supervisor.refused(client), errors.Overloaded)
        process.channel.send(control.SessionAdmitted(1))
        supervisor.until(lambda: worker._admitting == {1})
        assert not worker.admitted
        for number in range(sent):
            assert process.channel.receive() == control.IncarnationOver(3, number)
            supervisor.until(lambda: True)
            worker.flush()
        for number in range(3):
            assert process.channel.receive() == control.ClientSlab(1, number, 1)
            assert os.pread(taken(process.channel), 100, 0) == b"%d" % number
        assert worker.admitted == {1}

        client.send(session.OpenSlab(9, 0, 1, 5))
        asked = supervisor.until(process.channel.receive_waiting)
        assert isinstance(asked, control.ExportSlab)
        slab = memory(b"slab")
        process.channel.send(control.SlabExported(asked.id, 4), slab)
        process.channel.send(control.SessionAdmitted(999), slab)
        os.close(slab)
        opened = supervisor.until(lambda: [m for m in client.receive_waiting() if isinstance(m, session.SlabOpened)])
        assert opened == [session.SlabOpened(9, 4)]
        os.close(client.take_descriptor(9) or -1)

        fall_behind(worker)
        worker.tell(control.ClientSlab(1, 7, 1), Descriptor(memory(b"7")))
        made.stop()
        process.kill()
        supervisor.until(lambda: made.roles.active is None)
        worker.tell(control.ClientSlab(1, 8, 1), Descriptor(memory(b"8")))
        made.output.close()


def test_sessions_that_come_and_go_cost_nothing_while_a_worker_does_not_read(
    supervisor: Supervisor, client: SessionConnection, process: Process
) -> None:
    """What it has not heard of is withdrawn: nothing waits for it, and its memory has no owner to give it back."""
    worker = Incarnation(0, process, supervisor.loop, None, Silent(), Mock(), 1.0)  # type: ignore[arg-type]
    supervisor.devices[:] = [Alone(worker)]
    sent = fall_behind(worker)
    waiting = len(worker._outbox)
    stays = supervisor.connect()
    for _ in range(200):
        leaves = supervisor.connect()
        leaves.close()
        supervisor.until(lambda: len(supervisor.sessions) == 2)
    assert len(worker._outbox) == waiting + 1
    assert [held.state for held in supervisor.sessions.held()] == ["calls", "calls"]
    client.close()  # that it has heard of
    supervisor.until(lambda: len(supervisor.sessions) == 1)
    for number in range(sent):
        assert process.channel.receive() == control.IncarnationOver(3, number)
        worker.flush()
    opened = process.channel.receive()
    assert isinstance(opened, control.SessionOpened)
    assert (opened.number, process.channel.receive()) == (202 - 200, control.SessionEnded(1))
    stays.close()
    supervisor.until(lambda: not len(supervisor.sessions))
    assert process.channel.receive() == control.SessionEnded(2)
    worker.kill()
    supervisor.loop.forget(process.pidfd)
    worker.close()
    process.reap()


class Silent:
    """Hears nothing of a worker."""

    def caught_up(self, _worker: Incarnation) -> None:
        """All waiting has ended."""


class Alone:
    """A device with one worker."""

    index = 0

    def __init__(self, worker: Incarnation) -> None:
        self.roles = Roles()
        self.roles.start(worker)

    def info(self, _number: int) -> devices.DeviceInfo:
        """Describe it."""
        return devices.DeviceInfo(0, "fake", devices.DeviceState.READY, 1, "", True, 1, 0, "")


def fall_behind(worker: Incarnation) -> int:
    """Tell a worker more than the kernel keeps for it; return how many messages that took."""
    for sent in itertools.count():
        if worker.is_behind:
            return sent
        worker.tell(control.IncarnationOver(3, sent))
    raise AssertionError


def taken(channel: ControlChannel) -> int:
    """Return the number of the descriptor of the message received last, which is closed with the next."""
    assert channel._came is not None
    return channel._came
