"""A library's first requests: parked while it is imported, in order, whatever happens meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.messages import data
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.libraries import lazy_library
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.requests.peers import Peer
from tests.pure.worker.test_dispatch import DEADLINE_S, NEVER_NS, TOKEN, Worker, outcomes

ARRAYS: Final = 3
ENDS: Final[dict[str, Callable[[], BaseException | None]]] = {
    "well": lambda: None,
    "fails": lambda: ImportError("there is no such package", name="scipy"),
    "fails oddly": lambda: RuntimeError("its import has failed"),
}
"""How an import ends."""


class Arithmetic(Library):
    """Some of the requests of BLAS."""

    def scal(self, request: blas.Scal) -> None:
        """Multiply."""
        array(request.x)[...] *= request.alpha

    def axpy(self, request: blas.Axpy) -> None:
        """Add."""
        array(request.y)[...] += array(request.x)

    def prepare_nrm2(self, request: blas.Nrm2) -> int:
        """Return the size for a plan."""
        return int(request.x.size)

    def nrm2(self, request: blas.Nrm2, plan: int) -> float:
        """Return the size that the plan has, and the first element."""
        return plan + float(array(request.x)[0])


class Imports:
    """Holds back imports of libraries until the test ends each: well, or with an exception."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.threads: list[str] = []
        self._ends: list[BaseException | None] = []
        self._go = threading.Semaphore(0)

    def implementation(self, library: str, backend: str) -> type[Library]:
        """Stand for the function that imports a library."""
        assert (library, backend) == ("blas", "host")
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self._go.acquire(timeout=DEADLINE_S), "nobody has let it go"
        end = self._ends.pop(0)
        if end is not None:
            raise end
        return Arithmetic

    def end(self, raised: BaseException | None = None) -> None:
        """Let the next import end."""
        self._ends.append(raised)
        self._go.release()


class ImportingWorker(Worker):
    """A worker whose BLAS is imported when the test says so.

    Args:
        patch: Puts the imports in the place of real ones.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.imports: Final = Imports()
        patch.setattr(lazy_library, "implementation", self.imports.implementation)
        self.libraries._context.__dict__["wake"] = self.libraries._preparer._wake = self.completions.wake

    def request(self, peer: Peer, request: Any, deadline_ns: int = NEVER_NS, library: str = "blas") -> int:
        """Have a request arrive; return its id."""
        self._ids += 1
        body, _, placed = values.encode(request)
        call = data.Call(self._ids, f"{library}.{request.name}", deadline_ns, 0, body, refs=len(placed))
        self.dispatcher.take(self.envelope.open(peer, data.Calls(TOKEN, [call]), []))
        self.run()
        return self._ids

    def until_answered(self, peer: Peer, *ids: int) -> None:
        """Go on until these requests are answered."""
        while not set(ids) <= self._answered(peer):
            self.go_on()

    def _answered(self, peer: Peer) -> set[int]:
        for _ in range(2):  # an answer may wait for all that was sent before
            self.envelope.answers.end_turn()
        return set(outcomes(peer))

    def array(self, peer: Peer, content: Any) -> Any:
        """Return an array of a client."""
        made = self.store.buffers.allocate(peer.session.holder, "float64", np.shape(content))
        made.array[...] = content
        self.store.lease(peer.session.holder, made)
        return made


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportingWorker]:
    """A worker."""
    made = ImportingWorker(monkeypatch)
    yield made
    made.close()


PLACES: Final = st.integers(0, ARRAYS - 1)
REQUESTS: Final = st.sampled_from(("scal", "scal", "axpy", "axpy", "nrm2"))
EVENTS: Final = st.sampled_from(("other", "cancel", "leave", *ENDS))
FACTORS: Final = st.sampled_from((2.0, 3.0, -1.0))
STEPS: Final = st.tuples(st.one_of(REQUESTS, EVENTS), PLACES, PLACES, FACTORS)


class Asked(NamedTuple):
    """A request that was sent."""

    turn: int
    """How many imports had ended before."""
    first: int
    """The array that it reads."""
    written: int
    """The array that it updates; -1 for none."""
    factor: float
    """By what it multiplies; 0 if it adds."""


class Walk:
    """Carries out steps, and knows what has to come of them.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: ImportingWorker) -> None:
        self.worker: Final = worker
        self.peer: Final = worker.client(1)
        self.other: Final = worker.client(2)
        self.leaving: Final = worker.client(3)
        self.arrays: Final = [worker.array(self.peer, [number + 1.0] * 2) for number in range(ARRAYS)]
        self.left: Final = worker.array(self.leaving, [1.0])
        self.asked: Final[dict[int, Asked]] = {}
        """Requests in their order, by id."""
        self._cancelled: Final[set[int]] = set()
        self._turn = 0

    def take(self, kind: str, first: int, second: int, factor: float) -> None:
        """Carry out a step."""
        match kind:
            case "scal":
                self._ask(blas.Scal(self.arrays[first], factor), Asked(self._turn, first, first, factor))
            case "axpy" if first != second:
                request = blas.Axpy(self.arrays[first], self.arrays[second])
                self._ask(request, Asked(self._turn, first, second, 0))
            case "nrm2":
                self._ask(blas.Nrm2(self.arrays[first]), Asked(self._turn, first, -1, 0))
            case "other":
                self.worker.call(self.other, ["other"])
                assert self.worker.run() == ["other"], "another client waits"
            case "cancel":
                self._cancelled.update(latest := list(self.asked)[-1:])
                self.worker.dispatcher.cancel(self.peer, latest)
            case "leave" if not self.leaving.session.ended:
                self.worker.request(self.leaving, blas.Scal(self.left, 2.0))
                self.worker.peers.end(3)
            case end if end in ENDS:
                self.end_import(end)

    def end_import(self, how: str) -> None:
        """Let the import that goes on end, if one does."""
        begun = self._import()
        if begun is None or self._is_over(begun):
            return
        assert self.worker.imports.begun.acquire(timeout=DEADLINE_S)
        self.worker.imports.end(ENDS[how]())
        self._turn += 1
        while not self._is_over(begun):
            self.worker.go_on()
        self.worker.until_answered(self.peer, *self.asked)

    def _import(self) -> Event | None:
        """Return the event of the last import: the request that was to begin one may have been refused before."""
        library = self.worker.libraries._libraries.get("blas")
        return None if library is None or library._import is None else library._import.event

    @staticmethod
    def _is_over(begun: Event) -> bool:
        return begun.done

    def _ask(self, request: Any, asked: Asked) -> None:
        self.asked[self.worker.request(self.peer, request)] = asked

    def check(self) -> None:
        """Check all outcomes, and the memory: a request that has failed leaves it as it was.

        Nobody has read memory that a failed request should have written, without having heard of the failure.
        """
        model = [number + 1.0 for number in range(ARRAYS)]
        unwritten: set[tuple[int, int]] = set()
        ended = outcomes(self.peer)
        assert set(ended) == set(self.asked)
        for number, asked in self.asked.items():
            error, used = ended[number], {asked.first, asked.written} - {-1}
            if error is None:
                assert not {(asked.turn, place) for place in used} & unwritten
                if asked.written >= 0:
                    found = model[asked.first]
                    model[asked.written] = found * asked.factor if asked.factor else model[asked.written] + found
                continue
            assert isinstance(error, errors.RequestError)
            assert not error.maybe_executed
            if isinstance(error, errors.Cancelled):
                assert number in self._cancelled
                continue
            unwritten.add((asked.turn, asked.written))
            assert isinstance(error, errors.Unsupported | errors.ActorFailed | errors.GpuRefUndefined)
        for held, known in zip(self.arrays, model, strict=True):
            assert held.array.tolist() == [known] * 2
        assert not self.worker.dispatcher.busy
        assert not self.leaving.session.running
        assert set(self.worker.imports.threads) <= {"plans"}


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_first_requests_end_as_if_nothing_was_imported(steps: list[tuple[str, int, int, float]]) -> None:
    """Each has one outcome, in the order of its memory; a failed import is their error, and the next is tried anew.

    Meanwhile others are served, and clients cancel and leave.
    """
    with pytest.MonkeyPatch.context() as patch:
        worker = ImportingWorker(patch)
        walk = Walk(worker)
        for step in steps:
            walk.take(*step)
        walk.end_import("well")
        walk.take("nrm2", 0, 0, 0.0)
        walk.end_import("well")
        worker.until_answered(walk.peer, *walk.asked)
        assert list(outcomes(walk.peer).values())[-1:] == [None], "a failed import was the last"
        while walk.leaving.session.running:
            worker.go_on()
        walk.check()
        worker.close()


def test_a_deadline_that_passes_during_the_import_ends_the_request(worker: ImportingWorker) -> None:
    """It has not run; the library is there for the next."""
    peer = worker.client(1)
    x, y = worker.array(peer, [1.0]), worker.array(peer, [1.0])
    first = worker.request(peer, blas.Nrm2(y))
    assert worker.imports.begun.acquire(timeout=DEADLINE_S)
    deadline_ns = time.monotonic_ns() + 100_000_000
    late = worker.request(peer, blas.Scal(x, 2.0), deadline_ns)
    while time.monotonic_ns() <= deadline_ns:
        pass
    worker.imports.end()
    worker.until_answered(peer, first, late)
    error = outcomes(peer)[late]
    assert isinstance(error, errors.DeadlineExceeded)
    assert not error.maybe_executed
    again = worker.request(peer, blas.Scal(x, 3.0))
    worker.until_answered(peer, again)
    assert (x.array.tolist(), outcomes(peer)[first], outcomes(peer)[again]) == ([3.0], None, None)


def test_requests_that_wait_for_an_import_are_shown_as_waiting(worker: ImportingWorker) -> None:
    """None of them counts as hung while others run; from then on they do."""
    peer = worker.client(1)
    seen: list[bool] = []
    first = worker.request(peer, blas.Scal(worker.array(peer, [1.0]), 2.0))
    worker.envelope.__dict__["show_waiting"] = lambda _request, *, waits: seen.append(waits)
    assert worker.imports.begun.acquire(timeout=DEADLINE_S)
    worker.imports.end()
    worker.until_answered(peer, first)
    assert seen[-1] is False


def test_a_poisoned_device_ends_requests_that_wait_for_an_import(worker: ImportingWorker) -> None:
    """As all others."""
    peer = worker.client(1)
    waiting = worker.request(peer, blas.Nrm2(worker.array(peer, [1.0])))
    worker.dispatcher.fail_all(errors.ContextPoisoned("gone"))
    assert isinstance(outcomes(peer)[waiting], errors.ContextPoisoned)
    worker.imports.end()
    worker.take_back()


def test_a_suspect_waits_alone_for_its_import(worker: ImportingWorker) -> None:
    """Nothing else is admitted until it is answered, and it is shown as what runs."""
    peer = worker.client(1)
    x = worker.array(peer, [2.0])
    body, _, placed = values.encode(blas.Scal(x, 2.0))
    call = data.Call(99, "blas.scal", NEVER_NS, 0, body, refs=len(placed))
    worker.dispatcher.take_alone(worker.envelope.open(peer, data.Alone(TOKEN, [call]), []))
    worker.call(worker.client(2), ["other"])
    assert worker.run() == []
    assert worker.imports.begun.acquire(timeout=DEADLINE_S)
    worker.imports.end()
    worker.until_answered(peer, 99)
    assert (worker.run(), x.array.tolist()) == (["other"], [4.0])
