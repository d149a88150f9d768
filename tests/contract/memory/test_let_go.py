"""Requests release the memory of their arguments when they have ended, in whichever way; no collection helps them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure
from atomr_mp.protocol.process_tags import CLIENT_SLAB, SLAB
from atomr_mp.protocol.values import SHARED_BYTES
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, settled

UNCOLLECTED: Final = [f"{ACTORS}/uncollected.py:{name}" for name in ("Uncollected", "Threaded")]

SOON_S: Final = 0.3
"""A deadline that passes while a request waits."""

End = Callable[[atomr_mp.Pool, Ledger, Any], object]
"""Calls with an array or a ref, and sees the request end."""


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests."""
    with Ledger() as ledger, ledger.start(*UNCOLLECTED) as pool:
        yield ledger, pool


def cancelled(method: str) -> End:
    """Return what cancels a call once it runs."""

    def end(pool: atomr_mp.Pool, notes: Ledger, array: Any) -> None:
        reply = pool.call(method, array, "runs")
        assert settled(lambda: notes.runs() == ["runs"])
        reply.cancel()
        assert isinstance(reply.exception(DEADLINE_S), errors.Cancelled)

    return end


def late(method: str) -> End:
    """Return what calls with a deadline that passes."""

    def end(pool: atomr_mp.Pool, _notes: Ledger, array: Any) -> None:
        error = pool.call(method, array, "runs", deadline_s=SOON_S).exception(DEADLINE_S)
        assert isinstance(error, errors.DeadlineExceeded)

    return end


def left(method: str) -> End:
    """Return what calls; the client leaves while it runs."""

    def end(pool: atomr_mp.Pool, notes: Ledger, array: Any) -> atomr_mp.Reply:
        reply = pool.call(method, array, "runs")
        assert settled(lambda: notes.runs() == ["runs"])
        return reply

    return end


def failed(method: str, way: str) -> End:
    """Return what makes a call that fails."""

    def end(pool: atomr_mp.Pool, _notes: Ledger, array: Any) -> None:
        assert isinstance(pool.call(method, array, way).exception(DEADLINE_S), errors.RequestError)

    return end


def stream_failed(method: str, way: str, *, together: bool = False) -> End:
    """Return what reads a stream to its error."""

    def end(pool: atomr_mp.Pool, _notes: Ledger, array: Any) -> None:
        arguments = [{"array": array, "way": way, "tag": "runs"}] if together else [array, way, "runs"]
        with pytest.raises(errors.RequestError):
            list(pool.stream(method, *arguments, between_s=DEADLINE_S))

    return end


def stream_closed(method: str, way: str, *, together: bool = False) -> End:
    """Return what closes a stream, at a `yield` or at an `await`."""

    def end(pool: atomr_mp.Pool, notes: Ledger, array: Any) -> None:
        arguments = [{"array": array, "way": way, "tag": "runs"}] if together else [array, way, "runs"]
        stream = pool.stream(method, *arguments, ahead=4)
        assert next(stream) == 0
        assert way == "yields" or settled(lambda: notes.runs() == ["runs"])
        stream.close()

    return end


def stream_left(method: str, way: str, *, together: bool = False) -> End:
    """Return what opens a stream; the client leaves while it goes on."""

    def end(pool: atomr_mp.Pool, notes: Ledger, array: Any) -> atomr_mp.ReplyStream:
        arguments = [{"array": array, "way": way, "tag": "runs"}] if together else [array, way, "runs"]
        stream = pool.stream(method, *arguments, ahead=4)
        assert next(stream) == 0
        assert way == "yields" or settled(lambda: notes.runs() == ["runs"])
        return stream

    return end


def stream_late(method: str, way: str) -> End:
    """Return what opens a stream whose next part does not come in time."""

    def end(pool: atomr_mp.Pool, _notes: Ledger, array: Any) -> None:
        with pytest.raises(errors.DeadlineExceeded):
            list(pool.stream(method, array, way, "runs", between_s=SOON_S))

    return end


def items_failed(pool: atomr_mp.Pool, _notes: Ledger, array: Any) -> None:
    """Make calls of one batch's method whose items fail one by one."""
    answers = pool.map("Uncollected.fail_items", [array] * 4, return_failures=True)
    assert all(isinstance(answer, Failure) for answer in answers)


ENDS: Final[dict[str, End]] = {
    "cancelled": cancelled("Uncollected.wait"),
    "late": late("Uncollected.wait"),
    "left": left("Uncollected.wait"),
    "left, returns nevertheless": left("Uncollected.bear"),
    "fails": failed("Uncollected.fail", "other"),
    "fails with our error": failed("Uncollected.fail", "typed"),
    "what it awaits fails": failed("Uncollected.fail_later", "other"),
    "what it awaits fails with our error": failed("Uncollected.fail_later", "typed"),
    "what it awaits fails in a group": failed("Uncollected.fail_in_group", "other"),
    "fails with a kept exception": failed("Uncollected.fail_again", "same"),
    "stream closed at its yield": stream_closed("Uncollected.stream", "yields"),
    "stream closed at its await": stream_closed("Uncollected.stream", "waits"),
    "stream left at its yield": stream_left("Uncollected.stream", "yields"),
    "stream left at its await": stream_left("Uncollected.stream", "waits"),
    "stream late": stream_late("Uncollected.stream", "waits"),
    "stream fails": stream_failed("Uncollected.stream", "other"),
    "stream fails with our error": stream_failed("Uncollected.stream", "typed"),
    "on a thread, fails": failed("Threaded.fail", "other"),
    "on a thread, fails with our error": failed("Threaded.fail", "typed"),
    "on a thread, stream closed": stream_closed("Threaded.stream", "yields"),
    "on a thread, stream left": stream_left("Threaded.stream", "yields"),
    "on a thread, stream fails": stream_failed("Threaded.stream", "other"),
    "on a thread, stream fails with our error": stream_failed("Threaded.stream", "typed"),
    "together, stream closed": stream_closed("Threaded.together", "yields", together=True),
    "together, stream left": stream_left("Threaded.together", "yields", together=True),
    "together, stream fails alone": stream_failed("Threaded.together", "alone", together=True),
    "together, step fails": stream_failed("Threaded.together", "other", together=True),
    "together, step fails with our error": stream_failed("Threaded.together", "typed", together=True),
    "items fail": items_failed,
}


def slabs(pool: atomr_mp.Pool) -> list[str]:
    """Return the slabs that a worker has: those that it counts as its own, and all that it has mapped."""
    own = pool.device(0).statistics()["slabs"]  # the worker first frees what nothing refers to
    lines = Path(f"/proc/{pool.devices[0].pid}/maps").read_text(encoding="utf-8").splitlines()
    return [*["own"] * own, *(line for line in lines if SLAB in line or CLIENT_SLAB in line)]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("kind", ["array", "ref"])
def test_a_request_that_has_ended_keeps_no_memory(
    shared: tuple[Ledger, atomr_mp.Pool], notes: Ledger, kind: str, end: End
) -> None:
    """Neither in its client's slab nor in its worker's: both are unmapped when the client has left."""
    pool = shared[1]
    pool.call("Uncollected.collect").result(DEADLINE_S)
    assert not slabs(pool)
    with client_of(pool) as own, contextlib.ExitStack() as kept:
        array = np.ones(SHARED_BYTES // 8)
        if kind == "ref":
            ref = kept.enter_context(own.device().put(array))
            end(own, notes, ref)
        else:
            end(own, notes, array)
        assert slabs(pool)
    assert settled(lambda: not slabs(pool)), slabs(pool)
