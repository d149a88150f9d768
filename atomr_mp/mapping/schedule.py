"""A map's decisions: which item is sent next, which is sent again, what comes out. Pure; its shell is `run`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from atomr_mp import errors

T = TypeVar("T")

MAX_DEPTH: Final = 32
"""Most items in flight per device by default: enough to hide the time that messages travel."""

QUEUE_S: Final = 0.5
"""By default, how long an item should take from sending to answer, its wait behind others included. Slow items are sent
few at a time, or they would spend their deadline in the queue."""

WINDOW_FACTOR: Final = 4
"""How far sending may be ahead of the oldest item that has not come out, as a multiple of the items in flight."""


@dataclass(frozen=True)
class Failure:
    """Stands in the place of an item that failed, if the caller asked for failures."""

    index: int
    """The item's place in the input, from 0."""
    error: errors.AtomrError
    """The error of its last attempt; `maybe_executed` if it may have run in any attempt."""
    attempts: int
    """How often it was sent; 0 if it could not be sent at all."""


class RecordedResult(NamedTuple):
    """A result that needs no worker: it is in a journal, or was read already."""

    value: Any

    def result(self) -> Any:
        """Return the result."""
        return self.value


class Unreadable(NamedTuple):
    """Stands in the input for an item that cannot be read; the item fails with this error and is not sent."""

    error: errors.AtomrError


class Job(Generic[T]):
    """The state of one map. Pure: the shell tells what happened, the time too, and asks what to do.

    Items are known by their index. Each that was taken comes out once, in order. Whatever has been sent is answered
    by exactly one of `answered`, `failed`, `refused` and `unsendable`. What `take` has returned may be `recorded`
    instead of sent.

    Args:
        idempotent: Items may be run twice.
        attempts: How often an item may be running when its worker ends, or fail otherwise. A send does not count if the
            item certainly did not run, or had ended and only its answer was lost.
        in_flight: How many items may be in flight in all; None to find out, by `Depth`.
        devices: How many devices take work; may be changed.
        depth: How many items per device may be in flight, if the caller does not say how many in all.
    """

    def __init__(
        self, *, idempotent: bool, attempts: int, in_flight: int | None, devices: int, depth: Depth | None = None
    ) -> None:
        self.devices = devices
        self.failures = 0
        self.resubmitted = 0
        self._idempotent = idempotent
        self._attempts = attempts
        self._in_flight = in_flight
        self._depth = depth or Depth()
        self._window = WINDOW_FACTOR * (in_flight or self._depth.most * max(1, devices))
        self._flying: set[int] = set()
        self._again: list[int] = []
        """Heap of the items to send again, the oldest first, since it holds up the others."""
        self._tries: dict[int, _Tries] = {}
        """Sends of items that failed and have no outcome."""
        self._apart: set[int] = set()
        """Items that are sent by themselves from now on."""
        self._settled: dict[int, T | Failure] = {}
        self._taken = 0
        self._out = 0
        self._exhausted = False
        self._full = False
        """Whether a device's window was full, and nothing was answered since."""

    @property
    def limit(self) -> int:
        """How many items may be in flight now."""
        return self._in_flight or self._depth.items * max(1, self.devices)

    @property
    def in_flight(self) -> int:
        """Items that were sent and not answered."""
        return len(self._flying)

    @property
    def done(self) -> int:
        """Items that have an outcome."""
        return self._out + len(self._settled)

    @property
    def ready(self) -> bool:
        """Whether an outcome can come out."""
        return self._out in self._settled

    @property
    def over(self) -> bool:
        """Whether everything has come out."""
        return self._exhausted and self._out == self._taken

    def take(self) -> int | None:
        """Return the index of the item to send now, None if there is none; the item counts as in flight.

        A new index means the next item of the input.
        """
        if self._full or len(self._flying) >= self.limit:
            return None
        if self._again:
            index = heapq.heappop(self._again)
        elif self._exhausted or self._taken >= self._out + self._window:
            return None
        else:
            index = self._taken
            self._taken += 1
        self._flying.add(index)
        return index

    def exhausted(self) -> None:
        """Take in that the input has no item for the new index that `take` has just returned."""
        self._exhausted = True
        self._taken -= 1
        self._flying.remove(self._taken)

    def answered(self, index: int, outcome: T, took_s: float) -> None:
        """Record an item's result, `took_s` after it was sent."""
        self._land(index)
        self._depth.answered(took_s)
        self._tries.pop(index, None)
        self._settled[index] = outcome

    def recorded(self, index: int, outcome: T | Failure) -> None:
        """Record the outcome of an item that need not be sent, since it is known from before."""
        self._flying.remove(index)
        self.failures += isinstance(outcome, Failure)
        self._settled[index] = outcome

    def failed(self, index: int, error: errors.AtomrError) -> bool:
        """Record that an item has failed; return whether to send it again."""
        self._land(index)
        tries = self._tries.setdefault(index, _Tries())
        tries.sent += 1
        maybe_executed = getattr(error, "maybe_executed", True)
        tries.maybe_executed |= maybe_executed
        # An item that had ended, and whose answer was lost, is not the cause of the worker's end.
        tries.suspected += maybe_executed and getattr(error, "was_running", True)
        # An item that may have run is sent again only if that does no harm, and not for ever.
        if is_curable(error) and (not maybe_executed or (self._idempotent and tries.suspected < self._attempts)):
            self.resubmitted += 1
            self._apart.add(index)
            heapq.heappush(self._again, index)
            return True
        self._fail(index, error)
        return False

    def refused(self, index: int, error: errors.Overloaded, *, waits: bool = True) -> bool:
        """Take in that a device's window is full; return whether to send the item after the next answer.

        Args:
            index: The item.
            error: What it was refused with.
            waits: Whether any item that counts as in flight was sent.
        """
        self._flying.remove(index)
        self._full = waits and bool(self._flying)
        if not self._full:  # no item of this map is in the way, so none will clear it
            self._fail(index, error)
            return False
        heapq.heappush(self._again, index)
        return True

    def postponed(self, index: int) -> bool:
        """Take in that a worker's queue is full; return whether nothing is in flight, so that only `retry` goes on."""
        self._flying.remove(index)
        self._full = True
        heapq.heappush(self._again, index)
        return not self._flying

    def retry(self) -> None:
        """Allow sending again: the queues' requests of other clients may have ended."""
        self._full = False

    def together(self, index: int) -> bool:
        """Return whether a taken item may be sent as one with others: nothing is known against it."""
        return index not in self._apart

    def apart(self, index: int) -> None:
        """Send an item by itself: a call of several items was refused, and none of them has run."""
        self._land(index)
        self._apart.add(index)
        heapq.heappush(self._again, index)

    def unsendable(self, index: int, error: errors.AtomrError) -> None:
        """Record that an item could not be sent to any device."""
        self._land(index)
        self._fail(index, error)

    def failure(self, index: int) -> Failure:
        """Return the failure in the place of an item that has just failed."""
        failure = self._settled[index]
        assert isinstance(failure, Failure)
        return failure

    def pop(self) -> tuple[int, T | Failure] | None:
        """Return the next (index, outcome), None if it is not there yet."""
        if self._out not in self._settled:
            return None
        index = self._out
        self._out += 1
        self._apart.discard(index)
        return index, self._settled.pop(index)

    def _land(self, index: int) -> None:
        self._flying.remove(index)
        self._full = False

    def _fail(self, index: int, error: errors.AtomrError) -> None:
        tries = self._tries.pop(index, _Tries())
        if tries.maybe_executed and isinstance(error, errors.RequestError):
            error.maybe_executed = True
        self.failures += 1
        self._settled[index] = Failure(index, error, tries.sent)


@dataclass
class _Tries:
    """The history of an item's sends."""

    sent: int = 0
    suspected: int = 0
    """Ends of workers on which it was running."""
    maybe_executed: bool = False


class Depth:
    """Learns, from the time that items take, how many per device may be in flight. Pure.

    Args:
        least: Fewest items.
        most: Most items, if more than `MAX_DEPTH`.
    """

    def __init__(self, least: int = 1, most: int = MAX_DEPTH) -> None:
        self.items = least
        self.least: Final = least
        self.most: Final = max(MAX_DEPTH, least, most)

    def answered(self, took_s: float) -> None:
        """Learn from an item's time from sending to answer: allow more items if it is short, fewer if long."""
        if took_s > QUEUE_S:
            self.items = max(self.least, self.items - 1)
        elif self.items < self.most:
            self.items += 1


def is_curable(error: errors.AtomrError) -> bool:
    """Return whether sending an item again may cure an error."""
    return isinstance(error, _LOST) or (isinstance(error, errors.CollectiveAborted) and not error.diverged)


_LOST: Final = (errors.WorkerLost, errors.ConnectionLost, errors.ContextPoisoned, errors.DeviceUnavailable)
"""Errors that say that a worker, or the way to it, was lost."""
