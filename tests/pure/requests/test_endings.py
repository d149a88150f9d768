"""A run of a program ends before its next condition if its request is unwanted; the error says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import data
from atomr_mp_workers.libraries.program import endings
from atomr_mp_workers.requests.request import Request, Run, Stage, TaskCell, in_task

FAR_NS = 2**62


def request(**facts: Any) -> Request:
    """Return a running request of an actor's method."""
    method = SimpleNamespace(name="A.method", in_parts=None, is_ours=False)
    peer = SimpleNamespace(session=SimpleNamespace(ended=False))
    made = Request(cast("Any", peer), data.Call(1, "A.method", FAR_NS, 0, b""), cast("Any", method))
    made.stage = Stage.RUNNING
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def cancelled() -> errors.Cancelled:
    """Return the error of a cancelled request."""
    return errors.Cancelled("cancelled", maybe_executed=True)


def check_in(run: Any, leave: Callable[[TaskCell], None] = lambda _: None) -> Callable[[], None]:
    """Return what a run of a program looks at that a request has made, or that a task has which it has left behind."""

    async def task() -> Callable[[], None]:
        cell = TaskCell(run)
        in_task.set(cell)
        leave(cell)
        return endings.check_here()

    return asyncio.run(task())


def ended_by(run: Run | Sequence[Request]) -> type[Exception] | None:
    """Return the class of the error with which a run of a program ends, None if it goes on."""
    check = check_in(SimpleNamespace(requests=run) if isinstance(run, list) else run)
    for _ in range(2):  # the second time, as after an error that the method has caught
        try:
            check()
        except errors.AtomrError as error:
            found: type[Exception] | None = type(error)
        else:
            found = None
    return found


def test_each_reason_not_to_want_a_request_ends_it() -> None:
    """And nothing else does."""
    gone = SimpleNamespace(session=SimpleNamespace(ended=True))
    assert ended_by(request()) is None
    assert ended_by(request(deadline_ns=1)) is errors.DeadlineExceeded
    assert ended_by(request(closing=cancelled())) is errors.Cancelled
    assert ended_by(request(peer=gone)) is errors.Cancelled


def test_a_batch_ends_once_all_of_its_requests_are_unwanted() -> None:
    """Each for its own reason."""
    unwanted = [request(deadline_ns=1), request(closing=cancelled())]
    assert ended_by([*unwanted, request()]) is None
    assert ended_by(unwanted) is errors.DeadlineExceeded


def test_a_rank_never_leaves_a_method_of_a_world_alone() -> None:
    """A program of a world meets the other ranks with its error; an actor's method would not."""
    gang = cast("Any", SimpleNamespace())
    part = request(gang=gang, deadline_ns=1, closing=cancelled())
    assert ended_by(part) is None
    assert ended_by([part]) is None
    part.method.in_parts = lambda _: True
    assert ended_by(part) is errors.DeadlineExceeded


def test_what_a_request_leaves_behind_ends_if_it_was_ended_early() -> None:
    """By a thread of its task, whose run has begun before the answer or after it; other work goes on."""
    answered = request(deadline_ns=1, stage=Stage.ANSWERED)
    assert ended_by(answered) is None
    answered.closing = cancelled()
    assert ended_by(answered) is errors.Cancelled

    def leave(cell: TaskCell) -> None:
        cell.run, cell.closing = None, closing

    closing: errors.AtomrError | None = None
    check_in(answered, leave)()
    closing = cancelled()
    with pytest.raises(errors.Cancelled):
        check_in(answered, leave)()
    endings.check_here()()  # of `setup`


def test_an_error_that_is_raised_again_and_again_keeps_no_frames() -> None:
    """A method may catch it each time."""
    closing = cancelled()
    assert ended_by(request(closing=closing)) is errors.Cancelled
    assert closing.__traceback__ is None
