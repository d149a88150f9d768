"""The thread that tells workers of the ends of borrows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.client.memory.borrows import BorrowReturner
from atomr_mp.client.memory.leases import MAX_UNHEARD, Releases
from atomr_mp.protocol import token
from tests.support import DEADLINE_S

TOKEN: Final = token.pack(bytes(range(16)), 3, 7)


class Worker:
    """Notes what a returner sends to it, and answers when the test says so."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[list[int]] = SimpleQueue()
        """The borrows that each message, or request, has given back."""
        self.asked: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """Answers the requests."""
        self.refuses = False
        self.returner: Final = BorrowReturner(self._take, self._take_request)

    def _take(self, releases: Releases) -> None:
        message = releases.message()
        assert message is not None
        releases.unheard += 1
        self.heard.put(list(message.borrows))

    def _take_request(self, releases: Releases, answered: Callable[[], object]) -> None:
        if self.refuses:
            raise errors.DeviceUnavailable("it takes none")
        self._take(releases)
        self.asked.put(answered)


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker; the thread is ended."""
    made = Worker()
    yield made
    made.returner.close()


def test_an_end_is_told_at_once(worker: Worker) -> None:
    """By the thread, when the last reference has gone."""
    releases = Releases(TOKEN)
    borrow = worker.returner.borrow(releases, 8)
    assert not releases.pending
    del borrow
    assert worker.heard.get(timeout=DEADLINE_S) == [8]


def test_what_a_request_has_carried_is_not_told_again(worker: Worker) -> None:
    """The thread sends the next end alone."""
    releases = Releases(TOKEN)
    borrows = [worker.returner.borrow(releases, number) for number in (8, 9)]
    borrows[0].release(lambda due: due.message())
    del borrows[0]
    del borrows[0]
    assert worker.heard.get(timeout=DEADLINE_S) == [9]
    worker.returner.close()
    assert worker.heard.empty()


def test_work_on_a_gpu_is_waited_for_before_anything_is_locked(worker: Worker) -> None:
    """Its error is none of the thread's."""
    releases, waited = Releases(TOKEN), SimpleQueue[bool]()

    def wait() -> None:
        waited.put(worker.heard.empty())
        raise RuntimeError("an illegal memory access")

    releases.end_later(wait, worker.returner.borrow(releases, 8))
    worker.returner.put(releases)
    assert worker.heard.get(timeout=DEADLINE_S) == [8]
    assert waited.get(timeout=DEADLINE_S)


def test_a_silent_worker_is_asked_once_until_it_answers(worker: Worker) -> None:
    """A request carries the ends that are due; the thread sends further ones once that has its answer."""
    releases = Releases(TOKEN)
    releases.unheard = MAX_UNHEARD
    borrows = [worker.returner.borrow(releases, number) for number in (8, 9)]
    del borrows[0]
    answered = worker.asked.get(timeout=DEADLINE_S)
    assert worker.heard.get(timeout=DEADLINE_S) == [8]
    del borrows[0]
    releases.unheard = 0
    answered()
    assert worker.heard.get(timeout=DEADLINE_S) == [9]
    assert worker.asked.empty()


def test_a_device_that_refuses_requests_is_asked_again_later(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """With the next end, which carries the earlier ones too. The log says nothing."""
    releases, seen = Releases(TOKEN), SimpleQueue[None]()
    releases.unheard = MAX_UNHEARD
    worker.refuses = True
    borrows = [worker.returner.borrow(releases, number) for number in (8, 9)]
    del borrows[0]
    releases.end_later(lambda: seen.put(None), None)  # the thread comes to it after the refusal
    worker.returner.put(releases)
    seen.get(timeout=DEADLINE_S)
    worker.refuses = False
    del borrows[0]
    assert sorted(worker.heard.get(timeout=DEADLINE_S)) == [8, 9]
    assert not caplog.records


def test_nobody_is_told_of_an_ended_incarnation(worker: Worker) -> None:
    """Its memory has gone."""
    ended, current = Releases(TOKEN), Releases(TOKEN)
    borrows = [worker.returner.borrow(ended, 8), worker.returner.borrow(current, 9)]
    ended.end(awaited=False)
    worker.returner.put(ended)
    borrows.clear()
    assert worker.heard.get(timeout=DEADLINE_S) == [9]
    assert worker.heard.empty()
