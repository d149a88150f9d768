"""Ends of epochs, and the errors of calls that meet them or begin nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.order.joined_epoch import JoinedEpoch
from atomr_mp_workers.worlds.order.steps import Ending, StreamEnd

PLANNED: Final = "a member is replaced as planned"


class EpochEnd:
    """What is known of the end of one epoch.

    Args:
        world: The world's name.
        epoch: The epoch.
        wake: Has the loop look; any thread.
    """

    def __init__(self, world: str, epoch: JoinedEpoch, wake: Callable[[], object]) -> None:
        self._world = world
        self._epoch = epoch
        self._wake = wake
        self._known: tuple[int, str] | None = None
        self.missed: int | None = None
        """A rank that has left others waiting, as the world's thread has found."""

    def know(self, rank: int, cause: str) -> None:
        """Take in that the epoch is over here, and why."""
        self._known = self._known or (rank, cause)

    def error(self) -> errors.CollectiveAborted | None:
        """Return the error of calls in this epoch if it is over, else None. Any thread."""
        if self._known is None and not self._epoch.is_over:
            return None
        rank, cause = self._known or self._epoch.stop_cause
        return aborted(self._world, self._epoch.number, rank, cause, maybe_executed=True)

    def left_waiting(self, rank: int) -> None:
        """Take in that a rank has ended a call without meeting the others. Any thread."""
        self.missed = rank
        self._epoch.is_given_up = True
        self._wake()

    def known(self) -> errors.CollectiveAborted:
        """Return the error of calls that the end, which is known, has found running."""
        error = self.error()
        assert error is not None
        return error


def aborted(world: str, epoch: int, rank: int, cause: str, *, maybe_executed: bool = False) -> errors.CollectiveAborted:
    """Return the error of a call of an epoch that is over.

    Args:
        world: The world's name.
        epoch: The epoch.
        rank: The rank where its end came from, -1 if from none.
        cause: What happened there.
        maybe_executed: Whether the call may have run here.
    """
    where = f": rank {rank} {cause}" if rank >= 0 and cause else f": {cause}" if cause else ""
    whether = "was under way" if maybe_executed else "has not begun here"
    error = errors.CollectiveAborted(
        f"epoch {epoch} of the world {world!r} is over{where}; the call {whether}",
        maybe_executed=maybe_executed,
        world=world,
        epoch=epoch,
        rank=rank,
        cause=cause,
    )
    error.left_epoch = True
    return error


def unrun(world: str, request: Request, now_ns: int, why: str = "") -> errors.RequestError | None:
    """Return the error of a part that no member runs since its call was cancelled, or is late; None if it is neither.

    Args:
        world: The world's name.
        request: The part.
        now_ns: The time.
        why: Says why it has not begun in time.
    """
    if isinstance(request.closing, errors.Cancelled):
        return request.closing
    if now_ns < request.deadline_ns:
        return None
    what = "a call" if request.method.refused is None else "a collective"
    return errors.DeadlineExceeded(
        f"the deadline passed before {what} of the world {world!r} could begin{why}", maybe_executed=False
    )


def planned(world: str, epoch: int) -> errors.CollectiveAborted:
    """Return the error of a call that no rank has begun before the planned end of its epoch: it goes to the next."""
    error = aborted(world, epoch, -1, PLANNED)
    error.planned, error.left_epoch = True, False
    return error


def stream_error(world: str, epoch: int, end: StreamEnd) -> errors.AtomrError:
    """Return the error of a stream that ends on all ranks."""
    match end.ending:
        case Ending.UNWANTED:
            return errors.Cancelled("cancelled", maybe_executed=True)
        case Ending.MOVED:
            error = aborted(world, epoch, -1, PLANNED, maybe_executed=True)
            error.planned, error.left_epoch = True, False
            return error
    diverged = end.ending is Ending.DIVERGED
    cause = "has ended it before the others" if diverged else "has ended it with an error"
    return errors.CollectiveAborted(
        f"a stream of the world {world!r} was ended: rank {end.rank} {cause}",
        maybe_executed=True,
        world=world,
        epoch=epoch,
        rank=end.rank,
        cause=cause,
        diverged=diverged,
    )
