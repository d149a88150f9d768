"""The calls that both ends of a remote session keep, so that each has one outcome and at most one run. Pure.

A call's id is never used again. In the gateway it is unseen, running, answered (the answer is kept) or settled (the
client has it); `CallTable` is the table. The client keeps it in its `OpenCalls` until its answer comes, and then tells
the gateway.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class CallState(StrEnum):
    """The state of a call in the gateway."""

    UNSEEN = "unseen"
    RUNNING = "running"
    """It was handed to the pool."""
    ANSWERED = "answered"
    """Its answer is kept until the client says that it has it."""
    SETTLED = "settled"
    """The client has its answer, or has given it up; the gateway keeps nothing."""


class CallEvent(StrEnum):
    """An event of a call."""

    OFFER = "offer"
    """The client has sent it."""
    ANSWER = "answer"
    """The pool has answered it."""
    SETTLE = "settle"
    """The client has said that it is settled."""


class CallAction(StrEnum):
    """An action of the gateway."""

    RUN = "run"
    KEEP = "keep"
    """Keep the answer, and send it."""
    SEND = "send"
    """Send the kept answer again."""
    ABANDON = "abandon"
    """Cancel it: nobody wants its answer."""
    DROP = "drop"
    """Drop the kept answer; its leases are the client's."""
    GIVE_BACK = "give_back"
    """Drop the new answer, and release its leases."""


CALLS: Final[dict[tuple[CallState, CallEvent], tuple[CallState, CallAction | None]]] = {
    (CallState.UNSEEN, CallEvent.OFFER): (CallState.RUNNING, CallAction.RUN),
    (CallState.UNSEEN, CallEvent.SETTLE): (CallState.SETTLED, None),
    (CallState.RUNNING, CallEvent.OFFER): (CallState.RUNNING, None),
    (CallState.RUNNING, CallEvent.ANSWER): (CallState.ANSWERED, CallAction.KEEP),
    (CallState.RUNNING, CallEvent.SETTLE): (CallState.SETTLED, CallAction.ABANDON),
    (CallState.ANSWERED, CallEvent.OFFER): (CallState.ANSWERED, CallAction.SEND),
    (CallState.ANSWERED, CallEvent.SETTLE): (CallState.SETTLED, CallAction.DROP),
    (CallState.SETTLED, CallEvent.OFFER): (CallState.SETTLED, None),
    (CallState.SETTLED, CallEvent.ANSWER): (CallState.SETTLED, CallAction.GIVE_BACK),
    (CallState.SETTLED, CallEvent.SETTLE): (CallState.SETTLED, None),
}
"""A pair that is missing cannot occur: the pool answers only calls that run, and each once."""


class IdRanges:
    """A set of ids from 1 on, kept as ranges: it takes room for its gaps, not for its ids.

    Args:
        most: How many ranges `add` may make.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._starts = [1]
        self._ends = [1]
        """One more than the last id of each range. The first range begins at 1, and may be empty."""

    def __contains__(self, number: int) -> bool:
        return number < self._ends[bisect.bisect_right(self._starts, number) - 1]

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def below(self) -> int:
        """The least id from 1 on that is not in the set."""
        return self._ends[0]

    def add(self, number: int) -> None:
        """Put an id in, which may be in it already.

        Raises:
            ValueError: There would be more ranges than may be.
        """
        starts, ends = self._starts, self._ends
        if number == ends[0] and len(ends) == 1:  # the plain case: ids in order
            ends[0] = number + 1
            return
        at = bisect.bisect_right(starts, number) - 1
        if number < ends[at]:
            return
        joins_next = at + 1 < len(starts) and starts[at + 1] == number + 1
        if number == ends[at]:
            ends[at] += 1
            if joins_next:
                ends[at] = ends.pop(at + 1)
                del starts[at + 1]
        elif joins_next:
            starts[at + 1] = number
        elif len(starts) == self._most:
            raise ValueError(f"more than {self._most - 1} gaps among the ids of calls")
        else:
            starts.insert(at + 1, number)
            ends.insert(at + 1, number + 1)

    def all_below_but(self, number: int, without: Iterable[int]) -> None:
        """Put in all ids below a number, except some."""
        starts, ends, at = [1], [1], 1
        for gap in sorted({each for each in without if each < number}):
            if gap > at:
                if at == ends[-1]:
                    ends[-1] = gap
                else:
                    starts.append(at)
                    ends.append(gap)
            at = gap + 1
        if number > at:
            if at == ends[-1]:
                ends[-1] = number
            else:
                starts.append(at)
                ends.append(number)
        for start, end in zip(self._starts, self._ends, strict=True):  # ranges above stay
            if end > number:
                starts.append(max(start, number))
                ends.append(end)
        self._starts, self._ends = starts, ends
        self._join()

    def _join(self) -> None:
        starts, ends = [self._starts[0]], [self._ends[0]]
        for start, end in zip(self._starts[1:], self._ends[1:], strict=True):
            if start == ends[-1]:
                ends[-1] = end
            else:
                starts.append(start)
                ends.append(end)
        self._starts, self._ends = starts, ends


class Tally:
    """Bytes that the calls of all sessions take in the gateway."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


class CallTable(Generic[A]):
    """The gateway's side of a session: the calls that run, and the answers that are kept.

    Each call takes the table's steps (UNSEEN, OFFER), (RUNNING, ANSWER) and (ANSWERED, SETTLE): they are written out.

    Args:
        most: How many calls may be open, running or answered.
        tally: Counts the bytes of all sessions.
    """

    def __init__(self, most: int, tally: Tally | None = None) -> None:
        self._most = most
        self._tally = Tally() if tally is None else tally
        self._open: dict[int, tuple[A | None, int]] = {}
        """Answers of open calls, None while a call runs; and the bytes that each counts for."""
        self._settled = IdRanges(most + 1)
        self.kept_bytes = 0
        """Bytes of all open calls: their arguments while they run, their answers afterwards."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def running(self) -> list[int]:
        """Ids of the calls that run."""
        return [each for each, (answer, _) in self._open.items() if answer is None]

    def kept(self, number: int) -> A | None:
        """Return the answer that is kept for a call, None if there is none."""
        kept, _ = self._open.get(number, _NOTHING)
        return kept  # type: ignore[no-any-return]  # of the table's type, or None

    def state(self, number: int) -> CallState:
        """Return the state of a call."""
        if number in self._open:
            return CallState.RUNNING if self._open[number][0] is None else CallState.ANSWERED
        return CallState.SETTLED if number in self._settled else CallState.UNSEEN

    def offer(self, number: int, nbytes: int) -> CallAction | None:
        """Take a call that the client has sent; run it if the action is RUN.

        Raises:
            ValueError: The client has more calls open, or more gaps among its ids, than it may.
        """
        if number in self._open or number in self._settled:
            return self._step(number, CallEvent.OFFER, None, nbytes)
        if len(self._open) >= self._most:
            raise ValueError(f"more than {self._most} calls are open")
        self._open[number] = None, nbytes
        self.kept_bytes += nbytes
        self._tally.nbytes += nbytes
        return CallAction.RUN

    def answer(self, number: int, answer: A, nbytes: int) -> CallAction | None:
        """Take the answer of a call that runs."""
        kept, before = self._open.get(number, _ABSENT)
        if kept is not None:
            return self._step(number, CallEvent.ANSWER, answer, nbytes)
        self._open[number] = answer, nbytes
        more = nbytes - before
        self.kept_bytes += more
        self._tally.nbytes += more
        return CallAction.KEEP

    def settle(self, number: int) -> CallAction | None:
        """Take in that the client has a call's answer, or no longer wants it.

        Raises:
            ValueError: The client leaves more gaps among its ids than it may have calls.
        """
        kept, nbytes = self._open.get(number, _NOTHING)
        if kept is None:
            return self._step(number, CallEvent.SETTLE, None, 0)
        del self._open[number]
        self.kept_bytes -= nbytes
        self._tally.nbytes -= nbytes
        self._settled.add(number)
        return CallAction.DROP

    def resume(self, unanswered: Iterable[int], next_id: int) -> tuple[list[int], list[tuple[int, CallAction | None]]]:
        """Take in which calls are unanswered after a cut; all others below `next_id` are settled.

        Returns:
            The unanswered calls that are known, and the actions for calls that are no longer open.
        """
        wanted = set(unanswered)
        self._settled.all_below_but(next_id, [number for number in wanted if number not in self._settled])
        ended = [
            (number, self._step(number, CallEvent.SETTLE, None, 0))
            for number in list(self._open)
            if number < next_id and number not in wanted
        ]
        return [number for number in wanted if number in self._open], ended

    def _step(self, number: int, event: CallEvent, answer: A | None, nbytes: int) -> CallAction | None:
        _, before = self._open.get(number, _NOTHING)
        state, action = CALLS[self.state(number), event]
        if state is CallState.SETTLED:
            self._forget(number)
        elif action in {CallAction.RUN, CallAction.KEEP}:
            self._open[number] = answer, nbytes
            self.kept_bytes += nbytes - before
            self._tally.nbytes += nbytes - before
        return action

    def close(self) -> None:
        """Forget all calls."""
        self._tally.nbytes -= self.kept_bytes
        self.kept_bytes = 0
        self._open.clear()

    def _forget(self, number: int) -> None:
        _, nbytes = self._open.pop(number, _NOTHING)
        self.kept_bytes -= nbytes
        self._tally.nbytes -= nbytes
        self._settled.add(number)


class OpenCalls(Generic[T]):
    """The client's side of a session: unanswered calls, and settled ones that the gateway has not been told of."""

    def __init__(self) -> None:
        self.unanswered: dict[int, T] = {}
        """Unanswered calls by id, oldest first."""
        self._settled: list[int] = []
        """Calls settled since the gateway was last told."""
        self.next_id = 1

    def add(self, call: T) -> int:
        """Take a new call and return its id."""
        number = self.next_id
        self.next_id += 1
        self.unanswered[number] = call
        return number

    def settle(self, number: int) -> T | None:
        """Take in that a call has its outcome; return it, None if it had one before."""
        call = self.unanswered.pop(number, None)
        if call is not None:
            self._settled.append(number)
        return call

    def give_up(self, number: int) -> None:
        """Take out a call that has its outcome without its answer; `SentReleases` tells the gateway."""
        del self.unanswered[number]

    @property
    def untold(self) -> int:
        """Number of settled calls that the gateway has not been told of."""
        return len(self._settled)

    def take_settled(self, most: int) -> list[int]:
        """Return settled calls to tell the gateway, for one message."""
        settled = self._settled
        if len(settled) <= most:
            self._settled = []
            return settled
        self._settled = settled[most:]
        return settled[:most]

    def resume(self) -> list[int]:
        """Return the unanswered calls for a new connection, which tells of the settled ones too."""
        self._settled.clear()
        return list(self.unanswered)


_NOTHING: Final[tuple[Any, int]] = None, 0
_ABSENT: Final[tuple[Any, int]] = object(), 0
