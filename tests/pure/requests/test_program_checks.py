from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.protocol import values
from atomr_mp.protocol.messages import data
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.requests import dispatch
from atomr_mp_workers.requests.peers import Peer
from tests.direct import DirectDevice
from tests.pure.requests.test_plans import PlannedWorker
from tests.pure.worker.test_dispatch import DEADLINE_S, NEVER_NS, TOKEN, outcomes

STEPS: Final = 200


class Checks:
    """The checks of programs' steps, which pause in the middle of the first program until the test goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_thread: Final[Counter[str]] = Counter()
        self.paused: Final = threading.Event()
        self.go: Final = threading.Event()
        usual = LibraryMethod.decode_step

        def decode_step(method: LibraryMethod, *arguments: Any) -> Any:
            self.by_thread[threading.current_thread().name] += 1
            if self.by_thread.total() == STEPS // 2:
                self.paused.set()
                assert self.go.wait(DEADLINE_S), "nobody has let them go"
            return usual(method, *arguments)

        monkeypatch.setattr(LibraryMethod, "decode_step", decode_step)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """The checks of a test's programs."""
    return Checks(monkeypatch)


@pytest.fixture
def worker() -> Iterator[PlannedWorker]:
    """A worker."""
    worker = PlannedWorker()
    yield worker
    worker.close()


def long_run() -> Any:
    """Return a run of a long program."""
    program = Program(DirectDevice())
    with program as p:
        total = x = p.input("x", (4,), "float64")
        for _ in range(STEPS):
            total = p.elementwise.add(total, x)
        p.returns(total)
    return program.run(x=np.ones(4))


def run(worker: PlannedWorker, peer: Peer, request: Any, deadline_ns: int = NEVER_NS) -> int:
    """Have a run arrive; return its id."""
    worker._ids += 1
    body, frames, _ = values.encode(request)
    call = data.Call(worker._ids, "program.run", deadline_ns, len(frames), body)
    worker.dispatcher.take(worker.envelope.open(peer, data.Calls(TOKEN, [call]), [memoryview(each) for each in frames]))
    return worker._ids


def test_a_long_program_is_checked_off_the_loop_and_once_for_all_who_send_it(
    worker: PlannedWorker, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' calls are served meanwhile; whoever is late by then, or has gone, gets nothing, and the rest results."""
    request, living, dying, other = long_run(), *(worker.client(number) for number in range(1, 4))
    deadline_ns = time.monotonic_ns() + 10**12
    first, again, late = (run(worker, living, request, each) for each in (NEVER_NS, NEVER_NS, deadline_ns))
    run(worker, dying, request)
    assert worker.run() == []
    worker.take_back()  # its library has been imported
    assert checks.paused.wait(DEADLINE_S)
    for number in range(100):
        worker.call(other, [number])
        assert worker.run() == [number]
    worker.peers.end(2)
    assert outcomes(living) == {}
    monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic_ns=lambda: deadline_ns + 1))
    checks.go.set()
    worker.until_ended(living, first, again, late)
    found = outcomes(living)
    assert isinstance(found.pop(late), errors.DeadlineExceeded)
    assert found == {first: None, again: None}
    assert outcomes(dying) == {}
    assert checks.by_thread == {"plans": STEPS}
