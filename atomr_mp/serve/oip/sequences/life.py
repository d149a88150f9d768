"""Decides where a request of a sequence may run, and whether the sequence stays open after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.serve.problems import Problem


class SequenceState(IntEnum):
    """The state of a sequence that is known."""

    OPEN = 1
    """Its last request has ended."""
    RUNNING = 2
    """A front end runs a request of it, or has died meanwhile."""
    LOST = 3
    """The worker that had its state has ended."""
    DOUBTFUL = 4
    """A request of it may have run or not."""


class SequenceRecord(NamedTuple):
    """What is known of a sequence."""

    state: SequenceState
    epoch: bytes
    """The pool's, 16 bytes."""
    device: int
    generation: int
    """The incarnation of the device that has its state; 0 before its first request has ended."""
    until_ns: int
    """When it ends without a request, CLOCK_MONOTONIC."""


class SequenceRefusal(Enum):
    """Why a request without START is refused; the value is the text behind Triton's own, empty for none."""

    UNKNOWN = ""
    LOST = "the worker that had its state has ended or is being replaced, and the state is lost"
    DOUBTFUL = "an earlier request of it has no known end, and may have run or not"
    BEHIND = "the request that was to begin it anew was refused"
    DIED = "the server's process that ran its last request has ended, and the request may have run or not"


class AdmittedAt(NamedTuple):
    """A request may run."""

    at: tuple[int, int] | None
    """The device and the incarnation where it has to run; None for any, where the sequence begins."""


class SequenceOutcome(Enum):
    """How a request has ended, for its sequence."""

    ANSWERED = "answered"
    """Its method has run to an end, even to an error."""
    NOT_RUN = "not run"
    """It certainly did not run, and the worker lives, as far as this process knows."""
    LOST = "lost"
    DOUBTFUL = "doubtful"


def admit(record: SequenceRecord | None, *, starts: bool, epoch: bytes, now_ns: int) -> AdmittedAt | SequenceRefusal:
    """Decide about a request. No other one of its sequence runs.

    Args:
        record: What is known of the sequence; None for nothing.
        starts: Whether it has the START flag.
        epoch: The pool's.
        now_ns: CLOCK_MONOTONIC.
    """
    if starts:
        return AdmittedAt(None)
    if record is None or now_ns >= record.until_ns:
        return SequenceRefusal.UNKNOWN
    match record.state:
        case SequenceState.OPEN if record.epoch == epoch:
            return AdmittedAt((record.device, record.generation))
        case SequenceState.RUNNING:
            return SequenceRefusal.DIED
        case SequenceState.DOUBTFUL:
            return SequenceRefusal.DOUBTFUL
    return SequenceRefusal.LOST


def is_lost(record: SequenceRecord, epoch: bytes, generations: Mapping[int, int]) -> bool:
    """Return whether the worker that had a sequence's state has certainly ended. No request of the sequence runs.

    Args:
        record: What is known of the sequence.
        epoch: The pool's.
        generations: The latest incarnation of each device.
    """
    if record.state is not SequenceState.OPEN or record.epoch != epoch:
        return True
    return record.generation < generations.get(record.device, 0)


def settle(outcome: SequenceOutcome, *, starts: bool, ends: bool) -> SequenceState | None:
    """Return the state of a sequence after a request; None if the sequence is over."""
    match outcome:
        case SequenceOutcome.LOST:
            return SequenceState.LOST
        case SequenceOutcome.DOUBTFUL:
            return SequenceState.DOUBTFUL
        case SequenceOutcome.NOT_RUN:
            return None if starts else SequenceState.OPEN
    return None if ends else SequenceState.OPEN


WITH_WORKER: Final = (
    errors.WorkerLost,
    errors.ContextPoisoned,
    errors.CollectiveAborted,
    errors.PoisonRequest,
    errors.PoolLost,
    errors.StaleGeneration,
)
"""Errors of a request whose worker has ended, or has refused a request of an earlier one."""

UNSEEN: Final = (errors.ConnectionLost, errors.DeadlineExceeded, errors.Cancelled)
"""Errors after which the request may run still."""


def outcome_of(error: BaseException, *, sent: bool, ran: bool) -> SequenceOutcome:
    """Return the outcome of a request that has ended with an error.

    Args:
        error: The error.
        sent: Whether the pool had the request.
        ran: Whether its method may have run, as its reply knows at the end.
    """
    if isinstance(error, WITH_WORKER) and (sent or not isinstance(error, errors.PoisonRequest)):
        return SequenceOutcome.LOST
    if isinstance(error, errors.AtomrError | Problem):
        ran = getattr(error, "maybe_executed", sent)
    if not sent or not ran:
        return SequenceOutcome.NOT_RUN
    if isinstance(error, UNSEEN) or not isinstance(error, errors.AtomrError | Problem):
        return SequenceOutcome.DOUBTFUL
    return SequenceOutcome.ANSWERED


def refusal(model: str, shown: str, why: SequenceRefusal) -> Problem:
    """Return the refusal of a request without START, in Triton's words, by which its clients know that they start anew.

    Args:
        model: The model's name.
        shown: The sequence's id.
        why: The reason.
    """
    code = "sequence_unknown" if why is SequenceRefusal.UNKNOWN else "sequence_lost"
    reason = why.value or "no such sequence is open: it has not begun, has ended, or had no request for too long"
    return Problem(
        400,
        code,
        f"inference request for sequence {shown} to model '{model}' must specify the START flag on the first request "
        f"of the sequence: {reason}; begin it anew, with sequence_start",
    )
