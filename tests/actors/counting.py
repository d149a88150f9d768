"""Actors whose methods yield 0, 1, 2, … by threads, event loops and steps, at a pace at which faults meet them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator

import msgspec

from atomr_mp_workers import Actor, Context, Live, Steps, method

PACE_S = 0.001
"""Kills and cuts have to meet a stream between its parts, wherever they fall, so its parts take their time."""


def pause(number: int) -> float:
    """Return how long to wait before a part: now and then for a while, else not at all."""
    return 20 * PACE_S if number % 40 == 39 else PACE_S if number % 4 == 3 else 0.0


class Count(msgspec.Struct):
    """What a caller of `Counting.together` sends."""

    upto: int


class Counting(Actor):
    """On one thread."""

    def setup(self, context: Context) -> None:
        """Begin with nothing."""
        context.log.debug("nothing is counted yet")
        self._next: dict[int, int] = {}

    @method(thread=True)
    def plain(self, upto: int) -> Generator[int, None, int]:
        """Yield numbers; return how many there are."""
        for number in range(upto):
            time.sleep(pause(number))  # the duration is tested: see PACE_S
            yield number
        return upto

    @method(thread=True, idempotent=True)
    def again(self, upto: int) -> Generator[int, None, int]:
        """Do the same; it may begin again."""
        return (yield from self.plain(upto))

    @method(thread=True, resumable=True)
    def start(self, upto: int, start: int) -> Generator[int, None, int]:
        """Do the same from a number on."""
        for number in range(start, upto):
            time.sleep(pause(number))  # the duration is tested: see PACE_S
            yield number
        return upto

    @method(thread=True, resumable=True)
    def sent(self, upto: int, sent: list[int]) -> Generator[int, None, int]:
        """Do the same behind what was sent."""
        assert sent == list(range(len(sent)))
        while len(sent) < upto:
            time.sleep(pause(len(sent)))  # the duration is tested: see PACE_S
            sent.append(len(sent))
            yield sent[-1]
        return upto

    @method(thread=True, batch=Steps(max_items=8), resumable=True)
    def together(self, live: Live[Count, int]) -> None:
        """Do the same for many, a number each a step."""
        time.sleep(PACE_S)  # the duration is tested: see PACE_S
        for each in live.gone:
            self._next.pop(each.id, None)
        for each in live.new:
            assert each.sent == list(range(len(each.sent)))
            self._next[each.id] = len(each.sent)
        for each in live.ready:
            number = self._next[each.id]
            if number < each.arguments.upto:
                each.send(number)
                self._next[each.id] += 1
            else:
                each.end(number)
                del self._next[each.id]


class CountingLoop(Actor):
    """On an event loop."""

    max_running = 16

    @method(idempotent=True)
    async def again(self, upto: int) -> AsyncIterator[int]:
        """Yield numbers; it may begin again."""
        for number in range(upto):
            await asyncio.sleep(pause(number))  # the duration is tested: see PACE_S
            yield number

    @method(resumable=True)
    async def start(self, upto: int, start: int) -> AsyncIterator[int]:
        """Do the same from a number on."""
        for number in range(start, upto):
            await asyncio.sleep(pause(number))  # the duration is tested: see PACE_S
            yield number

    @method(resumable=True)
    async def sent(self, upto: int, sent: list[int]) -> AsyncIterator[int]:
        """Do the same behind what was sent."""
        assert sent == list(range(len(sent)))
        for number in range(len(sent), upto):
            await asyncio.sleep(pause(number))  # the duration is tested: see PACE_S
            yield number
