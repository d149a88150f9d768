"""The supervisor's side of resident memory: it keeps descriptors, passes them on, and closes them."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import EventLog, read_events
from atomr_mp.protocol.messages import control, operators, session
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.transport.descriptors import Descriptor
from tests.support import open_descriptors

NBYTES: Final = 4096
SIZE: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
A, B, C = (0, 1), (0, 2), (1, 1)


class Process:
    """Notes its orders, and what it was given."""

    pid = 7

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, message: Any, descriptor: Descriptor | None = None) -> None:
        """Note it."""
        self.told.append(message)
        if descriptor is not None:
            self.told.append(os.pread(descriptor.fileno(), 100, 0))
            descriptor.close()


class Pool:
    """A supervisor's residents, and processes of two devices."""

    def __init__(self, backend: str, log: EventLog) -> None:
        self.processes: Final = {worker: Process() for worker in (A, B, C)}
        devices: Any = [self._device(index) for index in range(2)]
        self.residents: Final = ResidentKeeper(backend, 0, devices, log)

    def _device(self, index: int) -> Any:
        pool = self

        class Device:
            facts: Final = {"device": index}

            def __init__(self) -> None:
                self.index = self.gpu = index

            @property
            def roles(self) -> Self:
                return self

            def of(self, generation: int) -> Process | None:
                return pool.processes.get((index, generation))

        return Device()

    def want(self, *workers: tuple[int, int]) -> None:
        """Have processes ask."""
        for worker in workers:
            self.residents.heard(worker, control.ResidentWanted("weights", "1", bytes(16), 1, NBYTES), None)

    def seal(self, worker: tuple[int, int], descriptor: int | None, checksum: bytes = b"") -> None:
        """Have a process say that it has sealed it; the descriptor is owned from here on."""
        given = None if descriptor is None else Descriptor(descriptor)
        try:
            self.residents.heard(worker, control.ResidentSealed("weights", "1", checksum), given)
        finally:
            if given is not None:
                given.close()

    def told(self, worker: tuple[int, int]) -> list[Any]:
        """Return a process's orders since this was last asked."""
        told, self.processes[worker].told = self.processes[worker].told, []
        return told


def memory(content: bytes = b"", seals: int = SIZE | fcntl.F_SEAL_WRITE, nbytes: int = NBYTES) -> int:
    """Return a memfd."""
    descriptor = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def content(told: bytes) -> bytes:
    """Return what is in memory that was handed on."""
    return told.rstrip(b"\0")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """An event log; no descriptor may be left at the end."""
    gc.collect()  # of what other tests have left, whose descriptors would be closed meanwhile
    with EventLog(tmp_path / "events") as made:
        before = open_descriptors()
        yield made
        assert open_descriptors() == before


@pytest.fixture
def pool(log: EventLog) -> Iterator[Pool]:
    """A pool on the host."""
    made = Pool("host", log)
    yield made
    made.residents.close()


FILL: Final = control.ResidentFill("weights", "1")
ADOPT: Final = control.ResidentAdopt("weights", "1", b"sum")


def test_what_one_has_sealed_the_others_get(pool: Pool) -> None:
    """Processes that wait, and later ones; with its checksum."""
    pool.want(A, C)
    assert pool.told(A) == [FILL]
    assert pool.told(C) == []
    pool.seal(A, memory(b"weights"), b"sum")
    told, given = pool.told(C)
    assert (told, content(given)) == (ADOPT, b"weights")
    pool.want(B)
    assert content(pool.told(B)[1]) == b"weights"
    assert pool.told(A) == []


def test_on_gpus_each_device_has_its_own(log: EventLog) -> None:
    """Its descriptor must not be looked into."""
    pool = Pool("cuda", log)
    pool.want(A, C)
    assert pool.told(A) == pool.told(C) == [FILL]
    pool.seal(A, os.open("/dev/null", os.O_RDONLY))
    pool.want(B)
    assert isinstance(pool.told(B)[0], control.ResidentAdopt)
    answer = pool.residents.answer(operators.ListResidents(1))
    assert isinstance(answer, operators.Residents)
    assert [(blob.device, blob.state, len(blob.users)) for blob in answer.residents] == [
        (0, "sealed", 2),
        (1, "filling", 1),
    ]
    pool.residents.close()


def test_a_process_that_is_gone_is_told_nothing(pool: Pool) -> None:
    """Descriptors meant for it are closed."""
    pool.want(A, B)
    del pool.processes[B]
    pool.seal(A, memory())
    pool.residents.ended(B)


def test_the_next_is_told_to_fill_when_the_filler_has_ended(pool: Pool) -> None:
    """Or has given up, or what it has sealed did not arrive."""
    pool.want(A, B, C)
    pool.residents.ended(A)
    assert pool.told(B) == [FILL]
    pool.residents.heard(B, control.ResidentAbandoned("weights", "1"), None)
    assert pool.told(C) == [FILL]
    pool.want(B)
    pool.seal(C, None)
    assert pool.told(B) == [FILL]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: memory(seals=SIZE), id="may be written"),
        pytest.param(lambda: memory(seals=fcntl.F_SEAL_WRITE), id="may change its size"),
        pytest.param(lambda: memory(nbytes=NBYTES + 1), id="of another size"),
        pytest.param(lambda: os.open("/dev/null", os.O_RDONLY), id="no memory"),
    ],
)
def test_what_is_not_sealed_is_handed_to_nobody(pool: Pool, made: Any) -> None:
    """A process that claims it breaks the protocol."""
    pool.want(A, B)
    with pytest.raises(errors.ProtocolError, match="resident memory 'weights'"):
        pool.seal(A, made())
    assert pool.told(B) == []
    with pytest.raises(errors.ProtocolError, match="not this process's to fill"):
        pool.seal(B, memory())
    pool.residents.ended(A)
    assert pool.told(B) == [FILL]


def test_what_is_corrupt_is_let_go(pool: Pool, tmp_path: Path) -> None:
    """The event log names the process that found it, and the next one fills it again."""
    pool.want(A, B)
    pool.seal(A, memory())
    pool.residents.heard(B, control.ResidentRejected("weights", "1"), None)
    pool.want(C)
    assert pool.told(C) == [FILL]
    kinds = [(event["event"], event.get("device")) for event in read_events(tmp_path / "events")]
    assert kinds == [("resident_sealed", 0), ("resident_corrupt", 0), ("resident_freed", None)]


def test_an_operator_s_mistake_is_answered(pool: Pool) -> None:
    """The answer is a typed error."""
    answer = pool.residents.answer(operators.FreeResident(3, "weights"))
    assert isinstance(answer, session.Answer)
    assert answer.error is not None
    assert (answer.id, answer.error.code) == (3, "invalid_request")
