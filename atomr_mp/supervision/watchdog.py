"""Decides whether a worker hangs: by the progress of its requests, as its board shows it. Pure.

A heartbeat would tell whether some thread of the worker gets the interpreter's lock, not whether a request gets on. So
each request that runs is followed for itself: it hangs if it has run for longer than its limit, and nothing has ended
for as long in the place where it runs (the loop, a stream), where others may come before it. An actor's threads begin
what they are given in order; so there it is known which have begun, and each of those is judged by its own time alone.
On an actor's event loop many run at a time, and wait there as long as they may. One of them hangs if its loop has not
turned for as long as its limit; or, once it was told to end, or its deadline has passed, by its own time since then.

A false alarm is worse than a late one. So the time that counts is not the clock's. It passes only as far as the worker
could have done something in it: not while its threads waited for a processor or were stopped, and not while the
supervisor itself was away. And a limit that nobody has set for this actor begins where the deadline has passed: then
at least nobody waits for the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.board import Entry, PlaceKind, Watched

LOOK_NS: Final = 1_000_000_000
"""Time between two looks at a worker; no look counts for more."""

Place = tuple[PlaceKind, int]
Key = tuple[int, int, int, bool]


class Thread(NamedTuple):
    """The kernel's counts for a thread of the worker."""

    state: str
    """As /proc shows it: "R" runs or waits for a processor, "T" and "t" are stopped."""
    ran_ns: int
    delayed_ns: int
    """How long it has waited for a processor."""


def able_ns(elapsed_ns: int, before: Mapping[int, Thread], now: Mapping[int, Thread]) -> int:
    """Return for how much of the time between two looks a worker was able to go on.

    Args:
        elapsed_ns: The time; what goes beyond `LOOK_NS` is the supervisor's own delay.
        before: The worker's threads at the first look; empty if nobody has looked.
        now: At the second.
    """
    elapsed_ns = min(elapsed_ns, LOOK_NS)
    if not before or any(thread.state in {"T", "t"} for thread in now.values()):
        return 0
    kept_ns = [_kept_ns(elapsed_ns, before[tid], thread) for tid, thread in now.items() if tid in before]
    return max(0, elapsed_ns - max(kept_ns, default=elapsed_ns))


def _kept_ns(elapsed_ns: int, before: Thread, now: Thread) -> int:
    """Return how long a thread was kept from running: the kernel counts that when it runs again, not before."""
    if now.state == "R" and now.ran_ns == before.ran_ns:
        return elapsed_ns
    return max(0, now.delayed_ns - before.delayed_ns)  # a thread's id may have become another's


class HangWatch:
    """Follows one incarnation."""

    def __init__(self) -> None:
        self._now = 0
        """The time that counts, in ns."""
        self._since: dict[Key, int] = {}
        """When each watched request was first seen to have begun, by `_now`."""
        self._ended_ns: dict[Place, int] = {}
        self._moved: dict[Place, int] = {}
        """When something was last seen to have ended in each place, by `_now`."""

    def look(self, now_ns: int, able_ns: int, running: Sequence[Entry], ended_ns: Mapping[Place, int]) -> Entry | None:
        """Judge a look at the board; return the oldest request that hangs, if there is one.

        Args:
            now_ns: The clock's time, which is that of deadlines.
            able_ns: The part of the time since the last look that counts.
            running: What runs.
            ended_ns: When a request has last ended in each place, or an event loop has turned.
        """
        self._now += able_ns
        for place, at_ns in ended_ns.items():
            if at_ns > self._ended_ns.get(place, 0):
                self._ended_ns[place] = at_ns
                self._moved[place] = self._now
        watched = list(_begun(running))
        alone = all(each.waits and each.kind is not PlaceKind.EVENT_LOOP for _, each in watched)
        since: dict[Key, int] = {}
        hung = None
        for entry, how in watched:
            if how.limit_ns and not (how.from_deadline and now_ns < entry.deadline_ns):
                on_loop = how.kind is PlaceKind.EVENT_LOOP
                is_told = on_loop and (not how.waits or now_ns >= entry.deadline_ns)
                key = entry.session, entry.request_id, entry.started_ns, is_told
                since[key] = self._since.get(key, self._now)
                if on_loop:
                    moved = 0 if is_told else self._moved.get(how.place, 0)
                elif how.waits:
                    # For others, and those are judged for themselves; unless there are none.
                    moved = max(self._moved.values(), default=0) if alone else self._now
                else:
                    moved = 0 if how.kind is PlaceKind.THREAD else self._moved.get(how.place, 0)
                if hung is None and self._now - max(since[key], moved) >= how.limit_ns:
                    hung = entry
        self._since = since
        return hung


def _begun(running: Sequence[Entry]) -> Iterator[tuple[Entry, Watched]]:
    """Yield, oldest first, what runs and how it is watched, but for what a thread has been given to do next."""
    starts: dict[Place, set[int]] = {}
    for entry in running:
        how = Watched.unpack(entry.watched)
        if how.kind is PlaceKind.THREAD:
            begun = starts.setdefault(how.place, set())
            if len(begun) < how.width:
                begun.add(entry.started_ns)  # several that run together have it in common
            elif entry.started_ns not in begun:
                continue
        yield entry, how
