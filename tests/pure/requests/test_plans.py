from __future__ import annotations

import functools
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.messages import data
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.base import Library
from atomr_mp_workers.libraries.plans import KEPT, SWITCH_S, LibraryPlan, LibraryPlans, Preparer
from atomr_mp_workers.requests.peers import Peer
from tests.actor_libraries import have
from tests.pure.worker.test_dispatch import DEADLINE_S, NEVER_NS, TOKEN, Worker, outcomes


class Planned(Library):
    """A library whose plans take until the test ends them."""

    slow = frozenset({"nrm2"})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fails: BaseException | None = None
        self.works_in = 1
        self.log: list[tuple[str, Any]] = []

    def prepare_nrm2(self, request: blas.Nrm2) -> str:
        """Make a plan when the test allows it."""
        self.begun.release()
        assert self.go.acquire(timeout=DEADLINE_S), "nobody has let it go"
        if self.fails is not None:
            raise self.fails
        self.workspace(self.works_in)
        return f"of {request.x.size}"

    def nrm2(self, request: blas.Nrm2, plan: str) -> int:
        """Note with which plan a request is done."""
        self.log.append(("nrm2", plan))
        return request.x.size

    def scal(self, request: blas.Scal) -> None:
        """Note a request that needs none."""
        self.log.append(("scal", request.x.size))


class PlannedWorker(Worker):
    """A worker whose BLAS is such a library."""

    def __init__(self, kind: type[Planned] = Planned) -> None:
        super().__init__()
        libraries = self.libraries
        context = libraries._context
        context.__dict__["wake"] = self.completions.wake
        libraries._preparer._wake = self.completions.wake
        self.library: Final = kind(context, self.device.make_stream("blas", inline_bytes=2**40))
        have(libraries, "blas", self.library)
        self.plans: Final = libraries.plans

    def request(self, peer: Peer, request: blas.Nrm2 | blas.Scal, deadline_ns: int = NEVER_NS) -> int:
        """Have a request arrive; return its id."""
        self._ids += 1
        body, _, placed = values.encode(request)
        call = data.Call(self._ids, f"blas.{request.name}", deadline_ns, 0, body, refs=len(placed))
        self.dispatcher.take(self.envelope.open(peer, data.Calls(TOKEN, [call]), []))
        return self._ids

    def until_ended(self, peer: Peer, *ids: int) -> None:
        """Go on until these requests are answered."""
        while not set(ids) <= set(outcomes(peer)):
            self.go_on()

    def array(self, peer: Peer, n: int) -> Any:
        """Return an array of a client."""
        array = self.store.buffers.allocate(peer.session.holder, "float32", (n,))
        self.store.lease(peer.session.holder, array)
        return array


class Opened(Planned):
    """A library that takes until the test opens it too; norms have plans that are made at once."""

    slow = frozenset()
    opens = 0

    def open(self) -> None:
        """Open when the test allows it."""
        self.opens += 1
        self.begun.release()
        assert self.go.acquire(timeout=DEADLINE_S), "nobody has let it go"
        self.log.append(("open", threading.current_thread().name))
        if self.fails is not None:
            raise self.fails

    def prepare_nrm2(self, request: blas.Nrm2) -> str:
        """Make a plan, and note where."""
        self.log.append(("prepare", threading.current_thread().name))
        return f"of {request.x.size}"


@pytest.fixture
def worker() -> Iterator[PlannedWorker]:
    """A worker."""
    worker = PlannedWorker()
    yield worker
    worker.close()


@pytest.fixture
def unopened() -> Iterator[PlannedWorker]:
    """A worker whose library has to be opened."""
    worker = PlannedWorker(Opened)
    yield worker
    worker.close()


def test_a_request_is_parked_while_its_plan_is_made_and_others_overtake_it(worker: PlannedWorker) -> None:
    """It has its borrows meanwhile: what writes its memory comes after it."""
    peer = worker.client(1)
    x, y = worker.array(peer, 3), worker.array(peer, 5)
    first = worker.request(peer, blas.Nrm2(x))
    behind = worker.request(peer, blas.Scal(x, 2.0))
    other = worker.request(peer, blas.Scal(y, 2.0))
    worker.run()
    assert worker.library.begun.acquire(timeout=DEADLINE_S)
    assert worker.library.log == [("scal", 5)]
    assert set(outcomes(peer)) == {other}
    worker.library.go.release()
    worker.until_ended(peer, first, behind)
    assert worker.library.log == [("scal", 5), ("nrm2", "of 3"), ("scal", 3)]
    assert outcomes(peer) == {first: None, behind: None, other: None}


def test_a_plan_is_made_once_for_requests_alike(worker: PlannedWorker) -> None:
    """Also while it is being made; another layout needs another."""
    peer = worker.client(1)
    x, y = worker.array(peer, 3), worker.array(peer, 3)
    ids = [worker.request(peer, blas.Nrm2(array)) for array in (x, y, x[1:])]
    worker.run()
    worker.library.go.release(2)
    worker.until_ended(peer, *ids)
    worker.request(peer, blas.Nrm2(y))
    worker.run()
    assert sorted(worker.library.log) == [("nrm2", "of 2"), *[("nrm2", "of 3")] * 3]
    plans = worker.plans["blas"]
    assert (plans.made, plans.used, len(plans)) == (2, 2, 2)


def test_a_plan_that_cannot_be_made_fails_its_requests_alone(worker: PlannedWorker) -> None:
    """They get why; the next one tries again."""
    peer = worker.client(1)
    x = worker.array(peer, 3)
    worker.library.fails = errors.InvalidRequest("cuFFT has no such plan")
    failed = [worker.request(peer, blas.Nrm2(x)) for _ in range(2)]
    fine = worker.request(peer, blas.Scal(worker.array(peer, 2), 2.0))
    worker.run()
    worker.library.go.release()
    worker.until_ended(peer, *failed)
    ended = outcomes(peer)
    assert ended[fine] is None
    assert all(isinstance(ended[each], errors.InvalidRequest) for each in failed)
    worker.library.fails = None
    again = worker.request(peer, blas.Nrm2(x))
    worker.run()
    worker.library.go.release()
    worker.until_ended(peer, again)
    assert outcomes(peer)[again] is None


def test_a_workspace_that_the_quota_refuses_fails_its_requests_alone(worker: PlannedWorker) -> None:
    """They have not run; one that wants less does, and so does the same once there is room."""
    peer = worker.client(1)
    worker.library.go.release(3)
    worker.library.works_in = quota = worker.store.slabs.quota_bytes
    large = worker.request(peer, blas.Nrm2(worker.array(peer, 3)))
    worker.run()
    worker.until_ended(peer, large)
    refused = outcomes(peer)[large]
    assert isinstance(refused, errors.OutOfMemory)
    assert (refused.requested_bytes, refused.maybe_executed) == (quota, False)
    worker.library.works_in = quota // 4
    fine = [worker.request(peer, blas.Nrm2(worker.array(peer, n))) for n in (3, 4)]
    worker.run()
    worker.until_ended(peer, *fine)
    assert [outcomes(peer)[each] for each in fine] == [None, None]
    assert worker.store.statistics()["workspace_bytes"] == quota // 4


def test_a_deadline_that_passes_while_a_plan_is_made_ends_the_request(worker: PlannedWorker) -> None:
    """The plan is kept for the next."""
    peer = worker.client(1)
    x = worker.array(peer, 3)
    deadline_ns = time.monotonic_ns() + 20_000_000
    late = worker.request(peer, blas.Nrm2(x), deadline_ns)
    worker.run()
    assert worker.library.begun.acquire(timeout=DEADLINE_S)
    while time.monotonic_ns() <= deadline_ns:
        pass
    worker.library.go.release()
    worker.until_ended(peer, late)
    assert isinstance(outcomes(peer)[late], errors.DeadlineExceeded)
    worker.request(peer, blas.Nrm2(x))
    worker.run()
    assert worker.library.log == [("nrm2", "of 3")]


def test_the_first_requests_of_a_library_are_parked_while_it_is_opened(unopened: PlannedWorker) -> None:
    """Off the loop, which serves others; then they come in order, and a plan for one is made behind that."""
    peer, library = unopened.client(1), unopened.library
    x, y = unopened.array(peer, 3), unopened.array(peer, 5)
    first = [unopened.request(peer, each) for each in (blas.Scal(x, 2.0), blas.Nrm2(x), blas.Scal(y, 2.0))]
    unopened.run()
    assert library.begun.acquire(timeout=DEADLINE_S)
    unopened.call(unopened.client(2), ["other"])
    assert unopened.run() == ["other"]
    assert library.log == []
    library.go.release()
    unopened.until_ended(peer, *first)
    assert outcomes(peer) == dict.fromkeys(first)
    assert library.log[0] == ("open", "plans")
    assert sorted(library.log[1:]) == [("nrm2", "of 3"), ("prepare", "plans"), ("scal", 3), ("scal", 5)]
    assert library.log.index(("scal", 3)) < library.log.index(("nrm2", "of 3"))
    unopened.request(peer, blas.Nrm2(y))
    unopened.run()
    assert library.log[-2:] == [("prepare", threading.current_thread().name), ("nrm2", "of 5")]
    assert isinstance(library, Opened)
    assert library.opens == 1


def test_a_library_that_cannot_be_opened_is_left_to_its_requests(unopened: PlannedWorker) -> None:
    """They get the error if they need what is missing."""
    peer, library = unopened.client(1), unopened.library
    library.fails = errors.OutOfMemory("there is no room for a workspace")
    library.go.release()
    fine = unopened.request(peer, blas.Scal(unopened.array(peer, 3), 2.0))
    unopened.run()
    unopened.until_ended(peer, fine)
    assert outcomes(peer) == {fine: None}
    assert library.log == [("open", "plans"), ("scal", 3)]


def test_the_plan_that_was_not_used_for_longest_is_dropped() -> None:
    """A library keeps so many."""
    plans = LibraryPlans()
    kept = [LibraryPlan() for _ in range(KEPT)]
    assert all(plans.keep(number, plan) is None for number, plan in enumerate(kept))
    assert plans.find(0) is kept[0]
    assert plans.keep("more", LibraryPlan()) is kept[1]
    assert plans.find(1) is None
    assert (plans.dropped, len(plans)) == (1, KEPT)


def test_python_that_makes_a_plan_keeps_the_loop_waiting_for_a_moment_only() -> None:
    """And no longer than that: elsewhere threads take turns as usual."""
    usual_s, seen = sys.getswitchinterval(), []
    plan, made = LibraryPlan(HostDevice().make_event()), threading.Event()
    Preparer(HostDevice(), made.set).prepare(plan, lambda: seen.append(sys.getswitchinterval()))
    assert made.wait(DEADLINE_S)
    assert plan.event is not None
    assert plan.event.done
    assert seen == [pytest.approx(SWITCH_S)]
    assert sys.getswitchinterval() == pytest.approx(usual_s)


class Unlike(Exception):
    """An exception that is not made from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ValueError("wrong"), ValueError),
        (errors.Unsupported("not here"), errors.Unsupported),
        (Unlike(1, 2), RuntimeError),
    ],
)
def test_whoever_waits_for_a_plan_that_fails_gets_an_error_of_its_own(raised: Exception, seen: type[Exception]) -> None:
    """It tells where the plan was made, and keeps nothing of that alive, nor of whoever got it before."""
    plan, array = LibraryPlan(), np.zeros(3)
    kept = weakref.ref(array)

    def prepare(_array: object) -> None:
        raise raised from OSError("a cause")

    plan.make(functools.partial(prepare, array))
    del array
    assert kept() is None
    references = sys.getrefcount(plan)
    got = [_got(plan, seen, raised) for _ in range(3)]
    assert [(each.again, each.depth) for each in got] == [(False, 2)] * 3
    assert all(str(raised) in each.text for each in got)
    assert isinstance(raised, errors.AtomrError) or all("in prepare" in each.text for each in got)
    assert sys.getrefcount(plan) == references


class Got(NamedTuple):
    """How a plan has failed."""

    again: bool
    """The very exception was raised that its making has raised."""
    depth: int
    text: str


def _got(plan: LibraryPlan, seen: type[Exception], raised: Exception) -> Got:
    try:
        plan.get()
    except seen as error:
        text = "".join(traceback.format_exception(error))
        return Got(error is raised, len(list(traceback.walk_tb(error.__traceback__))), text)
    pytest.fail("it has not failed")
