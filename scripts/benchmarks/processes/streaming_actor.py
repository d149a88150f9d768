"""The actors whose streams are measured."""

from __future__ import annotations

import time
from collections.abc import Iterator

from atomr_mp_workers import Actor, Context, Live, Steps, method

STEP_S = 0.005
"""How long a step of the engine takes, in which it lets others run."""


class Stream(Actor):
    """Streams numbers."""

    @method(thread=True)
    def empty(self) -> None:
        """Answer, from the thread on which streams run."""

    @method(thread=True)
    def count(self, upto: int) -> Iterator[int]:
        """Yield numbers as quickly as can be."""
        yield from range(upto)

    @method(thread=True, resumable=True)
    def tick(self, upto: int, start: int) -> Iterator[int]:
        """Yield a number each millisecond."""
        for number in range(start, upto):
            time.sleep(0.001)
            yield number


class Engine(Actor):
    """Takes its time for a step, however many streams there are."""

    def setup(self, context: Context) -> None:
        """Begin with nothing."""
        self._left: dict[int, int] = {}
        context.log.info("a step takes %g s", STEP_S)

    @method(thread=True)
    def alone(self, steps: int) -> float:
        """Return how long so many steps take without streams."""
        begun = time.perf_counter()
        for _ in range(steps):
            time.sleep(STEP_S)
        return time.perf_counter() - begun

    @method(thread=True, batch=Steps(max_items=64))
    def run(self, live: Live[int, int]) -> None:
        """Send each stream as many parts as it wants, one a step."""
        for each in live.gone:
            self._left.pop(each.id, None)
        for each in live.new:
            self._left[each.id] = each.arguments
        time.sleep(STEP_S)
        for each in live:
            self._left[each.id] -= 1
            each.send(self._left[each.id])
            if not self._left[each.id]:
                each.end()
                del self._left[each.id]
