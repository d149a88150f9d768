"""An actor of a world whose streams run together, for tests: it meets its peers in each step, fails and ends."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import msgspec
import numpy as np

from atomr_mp_workers import Actor, Context, Live, LiveStream, Steps, method

LIVE = 4
"""Streams that are live at a time."""


class Ask(msgspec.Struct):
    """What a stream does."""

    name: str
    upto: int
    """How many numbers it sends."""
    how: str = ""
    """What it does on some rank at some number, "" for nothing."""
    rank: int = 0
    at: int = -1
    once: str = ""
    """A file that tells that it has been done; "" if it is done each time."""


class Stepping(Actor):
    """What a test asks of a rank; the same streams reach all of them."""

    def setup(self, context: Context) -> None:
        """Begin with an empty log."""
        assert context.world is not None
        self.world = context.world
        self.log: list[Any] = []
        self.numbers: dict[int, int] = {}

    @method(thread=True, batch=Steps(max_items=LIVE))
    def count(self, live: Live[Ask, Any]) -> None:
        """Send the next number of each stream, times the sum of rank + 1, to those that have room."""
        self._step(live)

    @method(thread=True, batch=Steps())
    def many(self, live: Live[Ask, Any]) -> None:
        """Do the same with more streams."""
        self._step(live)

    @method(thread=True, batch=Steps(max_items=LIVE), resumable=True, hang_timeout_s=1.0)
    def go_on(self, live: Live[Ask, Any]) -> None:
        """Do the same, and go on in another epoch."""
        self._step(live)

    def _step(self, live: Live[Ask, Any]) -> None:
        seen = [[each.arguments.name for each in some] for some in (live, live.ready, live.new, live.gone)]
        self.log.append([self.world.epoch, [each.id for each in live], *seen])
        for each in live.gone:
            self.numbers.pop(each.id, None)
        for each in live.new:
            self.numbers[each.id] = len(each.sent)
        ready = live.ready
        if not ready:
            return
        for each in ready:
            self._misbehave_before(each)
        sums = self.world.all_reduce(np.array([self.numbers[each.id] for each in ready]) * (self.world.rank + 1))
        for each, number in zip(ready, sums.tolist(), strict=True):
            self._send(each, number)

    def _send(self, each: LiveStream[Ask, Any], number: int) -> None:
        ask, at = each.arguments, self.numbers[each.id]
        if self._is_due(each, "fails"):
            each.fail(ValueError(f"rank {ask.rank} fails at {ask.at}"))
        elif self._is_due(each, "ends") or at == ask.upto:
            each.end(f"{ask.name} of rank {self.world.rank}")
        else:
            each.send(object() if self._is_due(each, "cannot send") else number)
            raises = self._is_due(each, "raises after all")
            self.numbers[each.id] += 1
            if raises:
                raise ValueError(f"rank {ask.rank} raises")
            return
        del self.numbers[each.id]

    def _misbehave_before(self, each: LiveStream[Ask, Any]) -> None:
        ask = each.arguments
        if self._is_due(each, "raises"):
            raise ValueError(f"rank {ask.rank} raises at {ask.at}")
        if self._is_due(each, "takes long"):
            time.sleep(0.3)  # longer than the reader waits
        if self._is_due(each, "kills"):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(100)  # the process ends
        if self._is_due(each, "hangs"):
            while True:
                pass

    def _is_due(self, each: LiveStream[Ask, Any], how: str) -> bool:
        ask = each.arguments
        if ask.how != how or self.world.rank != ask.rank or self.numbers[each.id] != ask.at:
            return False
        if ask.once:
            try:
                with open(ask.once, "x"):  # noqa: PTH123
                    pass
            except FileExistsError:
                return False
        return True

    @method
    def note(self, item: Any) -> float:
        """Note an item in the order of calls, after a sum over ranks."""
        self.log.append(item)
        return float(self.world.all_reduce(np.array(self.world.rank + 1.0)))

    @method(idempotent=True)
    def noted(self) -> list[Any]:
        """Return what was noted, and the numbers of the streams that are live as far as this rank knows."""
        return [self.log, sorted(self.numbers)]

    @method(thread=True, batch=Steps(max_items=LIVE), resumable=True)
    def burst(self, live: Live[Ask, Any]) -> None:
        """Send all numbers in the first step, whether there is room or not, and end by what the stream says."""
        self.log.append([self.world.epoch, *[[each.arguments.name for each in some] for some in (live, live.gone)]])
        for each in live.new:
            ask = each.arguments
            for number in range(len(each.sent), ask.upto):
                each.send(number)
            if ask.how == "ends" or (ask.how == "ends alone" and self.world.rank == ask.rank):
                each.end("the end")

    @method(thread=True, batch=Steps())
    def returns(self, live: Live[Ask, Any]) -> Any:
        """Return something, which a step must not."""
        return len(live)
