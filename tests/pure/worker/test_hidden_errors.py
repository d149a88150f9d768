"""An exception that a collective in `finally` has hidden is found again, and no other one is taken for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, Never

import pytest

from atomr_mp import errors
from atomr_mp_workers.requests.raised import explain, hidden_by

MISMATCH = errors.WorldMismatch("rank 0 differs")
DIVERGED = errors.CollectiveAborted("rank 1 has ended the call", diverged=True)
LOST = errors.CollectiveAborted("rank 1 was killed")


def caught(function: Callable[[], object]) -> BaseException:
    """Return what a function raises."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - of any kind
        function()
    return raised.value


def in_finally(*collectives: errors.AtomrError, first: BaseException | None = None) -> Callable[[], object]:
    """Return a function that raises, and in each `finally` the error of a collective."""

    def run() -> Never:
        if not collectives:
            raise first or ValueError("bad")
        try:
            in_finally(*collectives[:-1], first=first)()
        finally:
            raise type(collectives[-1])(**vars(collectives[-1]))

    return run


@pytest.mark.parametrize("collectives", [[MISMATCH], [DIVERGED], [MISMATCH, DIVERGED], [DIVERGED, LOST]])
def test_what_came_first_is_the_error(collectives: list[errors.AtomrError]) -> None:
    """However many collectives have failed behind it, since the ranks had parted."""
    raised = caught(in_finally(*collectives))
    assert isinstance(hidden_by(raised), ValueError)


@pytest.mark.parametrize(
    "collectives",
    [[LOST], [LOST, LOST], [errors.ActorFailed("a call of another pool")], [errors.DeadlineExceeded("late")]],
)
def test_a_lost_member_hides_nothing(collectives: list[errors.AtomrError]) -> None:
    """The call may go again, and what was handled meanwhile may have been handled well."""
    assert hidden_by(caught(in_finally(*collectives))) is (None)


def test_nothing_is_behind_a_first_error() -> None:
    """Neither behind one that refers to itself."""
    assert hidden_by(DIVERGED) is None
    assert hidden_by(ValueError("bad")) is None
    around = errors.WorldMismatch("one")
    other = errors.WorldMismatch("other")
    around.__context__, other.__context__ = other, around
    assert hidden_by(around) is None


def test_a_generator_that_is_closed_hides_nothing() -> None:
    """What it has handled when it was closed, it has handled."""

    def steps() -> Generator[int, None, None]:
        try:
            raise KeyError("handled")
        except KeyError:
            try:
                yield 1
            finally:
                raise errors.CollectiveAborted("rank 0 has ended the call", diverged=True)

    generator = steps()
    next(generator)
    assert hidden_by(caught(generator.close)) is None


@pytest.mark.parametrize("world", [0, None])
def test_only_methods_of_worlds_are_looked_behind(world: int | None) -> None:
    """The traceback is that of the exception; another pool's errors come as they are."""
    run: Any = SimpleNamespace(
        method=SimpleNamespace(name="A.b", world=world, meaning=lambda _raised: None, is_ours=False), requests=()
    )
    error = explain(run, caught(in_finally(MISMATCH)))
    if world is None:
        assert isinstance(error, errors.WorldMismatch)
    else:
        assert isinstance(error, errors.ActorFailed)
        assert error.exception == "builtins.ValueError"
        assert "in_finally" in error.traceback_text or "in run" in error.traceback_text
