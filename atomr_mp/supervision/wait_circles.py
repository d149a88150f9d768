"""Which parts of calls of worlds wait for each other in a circle, over several devices. Pure.

Each process says which of its parts wait for which, for the memory of its device alone. What one has said may be over
by the time another says more. A circle is one even so: each of its calls waits for the next one's end on some device,
so none of them has ended since that was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.control import BlockedPart, NamedPart
from atomr_mp.supervision.reclaim import Worker


class CirclePart(NamedTuple):
    """A part that has to be refused, and the process where it waits."""

    worker: Worker
    part: NamedPart


class WaitCircles:
    """What all processes have said."""

    def __init__(self) -> None:
        self._waits: Final[dict[Worker, dict[NamedPart, list[NamedPart]]]] = {}
        self._found = 0
        """How many circles were found: the calls of each take turns in being refused."""

    def heard(self, worker: Worker, blocked: Sequence[BlockedPart]) -> list[CirclePart]:
        """Take in which parts of a process wait for which; return those that have to be refused for others to go on."""
        self.ended(worker)
        for each in blocked:
            self._waits.setdefault(worker, {}).setdefault(each.part, []).append(each.behind)
        refused: list[CirclePart] = []
        while circle := self._circle():
            part = circle[self._found % len(circle)]
            self._found += 1
            refused += [CirclePart(each, part) for each, waits in self._waits.items() if part in waits]
            for waits in self._waits.values():
                waits.pop(part, None)
        return refused

    def ended(self, worker: Worker) -> None:
        """Forget what a process has said, which has ended."""
        self._waits.pop(worker, None)

    def _circle(self) -> list[NamedPart]:
        """Return the calls of a circle, sorted; none if there is none."""
        before: dict[NamedPart, list[NamedPart]] = {}
        for waits in self._waits.values():
            for part, others in waits.items():
                before.setdefault(part, []).extend(others)
        done: set[NamedPart] = set()
        for start, others in before.items():
            path, open_ends = [start], [iter(others)]
            while path:
                following = next(open_ends[-1], None)
                if following is None:
                    done.add(path.pop())
                    open_ends.pop()
                elif following in path:
                    return sorted(path[path.index(following) :], key=lambda each: (each.world, each.session, each.gang))
                elif following in before and following not in done:
                    path.append(following)
                    open_ends.append(iter(before[following]))
        return []
