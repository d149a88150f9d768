"""The base of all callers."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

import atomr_mp
from atomr_mp import errors
from soaking import contents
from soaking.tally import Tally
from soaking.words import Share

DEADLINE_S: Final = 30.0
"""Deadline of requests that have to be answered: far more than a worker takes to come back."""

LATE_S: Final = 10.0
"""How much later than their deadline a caller may have looked at all its outcomes, on a busy machine."""

LULL_S: Final = 5.0
LULL_PART: Final = 0.2
"""How long clients hold no buffers at a time: so long, or that part of all the time if it is less."""

GRACE_S: Final = 90.0
"""How long callers may take to come to an end: longer than any deadline."""


class Links:
    """What a client's callers share.

    Args:
        pool: The pool.
        tally: Where to note what happens.
        until_s: When to come to an end, CLOCK_MONOTONIC.
        offer: Hands a share to another client, perhaps.
        lull_every_s: How often clients hold no buffers for a while; 0 for never.
    """

    def __init__(
        self,
        pool: atomr_mp.Pool,
        tally: Tally,
        until_s: float,
        offer: Callable[[Share], None],
        lull_every_s: float = 0.0,
    ) -> None:
        self.pool: Final = pool
        self.tally: Final = tally
        self.until_s: Final = until_s
        self.offer: Final = offer
        self.shares: Final[deque[Share]] = deque()
        """What others have shared; to be claimed by whoever takes it."""
        self._lull_every_s: Final = lull_every_s

    @property
    def lull_s(self) -> float:
        """For how long all clients have to hold no buffers from now on, at the same time."""
        every_s = self._lull_every_s
        if not every_s:
            return 0.0
        return max(0.0, min(LULL_S, LULL_PART * every_s) - time.monotonic() % every_s)

    @property
    def to_the_lull_s(self) -> float:
        """How long buffers may still be held."""
        return self._lull_every_s - time.monotonic() % self._lull_every_s if self._lull_every_s else math.inf


class Caller(ABC):
    """Does one thing again and again, on a thread of its own.

    Args:
        links: What it shares with the others.
        chance: Its own.
    """

    holds_buffers: ClassVar[bool] = False

    def __init__(self, links: Links, chance: random.Random) -> None:
        self.links: Final = links
        self.pool: Final = links.pool
        self.tally: Final = links.tally
        self.chance: Final = chance

    def run(self) -> None:
        """Go on until the time is over."""
        name = type(self).__name__
        try:
            while (now_s := time.monotonic()) < self.links.until_s:
                if self.holds_buffers and (lull_s := self.links.lull_s):
                    self.rest()
                    gc.collect()
                    time.sleep(min(lull_s, self.links.until_s - now_s))
                else:
                    self.act()
            self.rest()
        except BaseException as error:
            self.tally.wrong(f"{name} ended with {error!r}")
            raise

    @abstractmethod
    def act(self) -> None:
        """Do something that ends soon."""

    def rest(self) -> None:  # noqa: B027 - not all hold anything
        """Release everything."""

    def call(
        self, method: str, *arguments: Any, device: int | None = None, deadline_s: float = DEADLINE_S
    ) -> atomr_mp.Reply | None:
        """Call; None if that is refused."""
        try:
            return self.pool.call(method, *arguments, device=device, deadline_s=deadline_s)
        except errors.AtomrError as error:
            self.tally.error(error)
            return None

    def in_time(self, begun_s: float) -> None:
        """See that a caller who has all outcomes of what it began to call then has not waited beyond its deadline."""
        waited_s = time.monotonic() - begun_s
        if waited_s > DEADLINE_S + LATE_S:
            self.tally.wrong(f"a caller has waited for {waited_s:.1f} s, its deadline was {DEADLINE_S:g} s")

    def compare(self, what: str, expected: Any, found: Any) -> None:
        """Compare a result with what it has to be."""
        self.tally.note(what)
        if not contents.same(expected, found):
            self.tally.wrong(f"{what}: {found!r} instead of {expected!r}")


class AwaitingCaller(Caller):
    """Lives in one event loop for a while, and does many things there at once."""

    at_once: ClassVar[int] = 30
    """Most of them."""

    def act(self) -> None:
        """Live through one event loop."""
        asyncio.run(self._live())

    async def _live(self) -> None:
        until_s = min(self.links.until_s, time.monotonic() + self.chance.random())
        while time.monotonic() < until_s:
            await asyncio.gather(*(self.use_once() for _ in range(self.chance.randint(1, self.at_once))))

    @abstractmethod
    async def use_once(self) -> None:
        """Do something that ends soon."""
