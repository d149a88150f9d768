"""The outcome of a gang call, by the ends of its parts. Pure.

A rank that raises has its peers aborted, or differing from it, so its error wins over theirs. An abort that names the
rank where it came from wins over one that does not. Among equals the lowest rank's counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import MethodInfo, Resend


class PartEnd(NamedTuple):
    """The end of one part."""

    error: errors.AtomrError | None
    """None if there is a result."""
    executed: bool
    """Whether it may have run."""
    sent: bool
    """Whether it was sent to a worker, and that worker did not leave it behind."""


class GangEnd(NamedTuple):
    """What the ends of all parts come to."""

    error: errors.AtomrError | None
    """The error of the whole, None if all parts have results."""
    rank: int
    """The rank whose error it is, -1 if there is none."""
    executed: bool
    """Whether any part may have run. One with a result has."""
    sent: bool
    """Whether any part was sent."""
    moves: bool = False
    """Whether it certainly did not begin on any rank, and no worker was lost with it: it goes to the next epoch."""
    planned: bool = False
    """Whether its epoch has ended as planned."""


def judge(ends: Sequence[PartEnd], *, refused_first: bool = False) -> GangEnd:
    """Return the outcome of a call whose parts have ended so, by rank.

    Args:
        ends: The ends by rank.
        refused_first: Whether it is a collective on refs. Where all ranks have errors of their own, or differ, nothing
            was exchanged.
    """
    executed, sent = any(end.executed for end in ends), any(end.sent for end in ends)
    is_planned = any(isinstance(end.error, errors.CollectiveAborted) and end.error.planned for end in ends)
    failed = [(rank, end.error) for rank, end in enumerate(ends) if end.error is not None]
    if not failed:
        return GangEnd(None, -1, executed, sent)
    raised = [each for each in failed if not isinstance(each[1], FOLLOWING)]
    raised.sort(key=lambda each: isinstance(each[1], errors.WorldMismatch))
    if refused_first:
        executed = executed and len(raised) < len(ends)
    diverged = [each for each in failed if has_diverged(each[1])]
    lost = [each for each in failed if isinstance(each[1], errors.WorkerLost | errors.ConnectionLost)]
    named = [each for each in failed if each[1].rank >= 0]
    rank, error = (raised or diverged or lost or named or failed)[0]
    all_live = all(isinstance(each, errors.CollectiveAborted) for _, each in failed)
    return GangEnd(error, rank, executed, sent, (is_planned or all_live) and not executed, is_planned)


def elsewhere(ends: Sequence[PartEnd]) -> str:
    """Return words that say where a call may have run, for the message of a rank that has not begun it."""
    ranks = [f"{rank}" for rank, end in enumerate(ends) if end.executed]
    where = f"on rank {', '.join(ranks)}" if ranks else "in an earlier epoch"
    return f", and may have run {where}"


def goes_again(end: GangEnd, info: MethodInfo | None, replays: int, max_replays: int, *, may_have_run: bool) -> bool:
    """Return whether a call is sent again as a whole, on the next ready epoch.

    Args:
        end: What its parts have come to.
        info: Its method, None if it is not known any longer.
        replays: How often it was sent again so far.
        max_replays: How often it may be.
        may_have_run: Whether any part of it may have run, in any attempt.
    """
    if not isinstance(end.error, LOSSES) or has_diverged(end.error):
        return False
    if end.moves or (not end.sent and isinstance(end.error, errors.CollectiveAborted)):
        return True  # it still waits for its epoch, as it has done before
    if info is None or replays >= max_replays:
        return False
    return info.idempotent or (info.resend is Resend.UNSTARTED and not may_have_run)


def has_diverged(error: errors.AtomrError | None) -> bool:
    """Return whether an error says that one rank has left the others waiting in the same call."""
    return isinstance(error, errors.CollectiveAborted) and error.diverged


FOLLOWING: Final = (
    errors.CollectiveAborted,
    errors.WorkerLost,
    errors.ConnectionLost,
    errors.StaleGeneration,
    errors.DeviceUnavailable,
)
"""Errors that a part may end with because of what has happened to another one. Any other error wins over them."""

LOSSES: Final = (*FOLLOWING, errors.ContextPoisoned)
"""Errors that are not the method's own word."""
