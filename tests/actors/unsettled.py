"""An actor of a world whose collectives seem right until their call ends, as on a GPU, for tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, Live, Steps, method
from atomr_mp_workers.worlds.exchange import meeting

WRONG: Final = -1
"""What a collective that has failed has left."""

_settled = meeting.Meeting.settled
_fails: list[meeting.Meeting] = []


def settled(self: meeting.Meeting) -> errors.RequestError | None:
    """Find at the call's end that a collective has failed, for which the epoch ends."""
    if not _fails:
        return _settled(self)
    _fails.clear()
    self._left_waiting(self.rank)
    return errors.CollectiveAborted("aborted", maybe_executed=True, world=self.name, epoch=self.epoch, cause="failed")


meeting.Meeting.settled = settled  # type: ignore[method-assign]


class Ask(msgspec.Struct):
    """What a stream does."""

    upto: int
    at: int
    once: str


class Unsettled(Actor):
    """Sends numbers; once, at one of them, what it sends is wrong, and the call's end tells."""

    def setup(self, context: Context) -> None:
        """Remember the world."""
        self.rank = context.world.rank
        self.numbers: dict[int, int] = {}

    @method(thread=True, resumable=True)
    def numbers_of(self, ask: Ask, start: int) -> Generator[int, None, Any]:
        """Yield numbers."""
        for number in range(start, ask.upto):
            yield self._number(ask, number)

    @method(thread=True, resumable=True, batch=Steps())
    def step(self, live: Live[Ask, Any]) -> None:
        """Send the next number of each stream, and the one behind it."""
        for each in live.gone:
            self.numbers.pop(each.id, None)
        for each in live.new:
            self.numbers[each.id] = len(each.sent)
        for each in live.ready:
            for _ in range(2):
                number = self.numbers[each.id]
                if number < each.arguments.upto:
                    self.numbers[each.id] += 1
                    each.send(self._number(each.arguments, number))
            if self.numbers[each.id] == each.arguments.upto:
                each.end()

    @method(idempotent=True)
    def call(self, ask: Ask) -> int:
        """Return a number."""
        return self._number(ask, ask.at)

    def _number(self, ask: Ask, number: int) -> int:
        once = Path(f"{ask.once}-{self.rank}")
        if number == ask.at and not once.exists():
            once.touch()
            _fails.append(None)  # type: ignore[arg-type]
            return WRONG
        return number
