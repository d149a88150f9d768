"""Callers that send values and get values back."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure
from soaking import contents
from soaking.caller import DEADLINE_S, GRACE_S, AwaitingCaller, Caller, Links

SHORT_S = 0.01
"""A deadline that may pass."""

AWAITED: Final = ("Echo.on_loop", "Awaited.give_back", "Awaited.slowly")
"""Methods whose answers are awaited: of the worker's loop, and of an event loop."""

STREAMS: Final = ("Teller.numbers", "Teller.resumed", "Teller.together", "Awaited.numbers", "Awaited.resumed")
"""Methods that stream so many numbers."""

IMPATIENT_PART: Final = 0.1
"""Fraction of the awaited calls whose task is cancelled soon."""

LEAVING_PART: Final = 0.2
"""Fraction of the long streams whose reader leaves."""

SLOW_PART: Final = 0.3
"""Fraction of the maps whose items take long enough to meet a kill."""


class Blocking(Caller):
    """Calls a few times, then waits for all."""

    def act(self) -> None:
        """Do so once."""
        chance = self.chance
        made = []
        begun_s = time.monotonic()
        for _ in range(chance.randint(1, 40)):
            value = contents.value(chance)
            method = chance.choice(["Echo.on_loop", "Echo.on_loop", "Echo.on_thread"])
            deadline_s = chance.choice([DEADLINE_S, DEADLINE_S, DEADLINE_S, SHORT_S])
            made.append((value, deadline_s, self.call(method, value, deadline_s=deadline_s)))
        if chance.random() < 0.5 and made[-1][-1] is not None:
            made[-1][-1].cancel()
        for value, deadline_s, reply in made:
            if reply is not None:
                self.settle("answer", value, reply.result, may_be_late=deadline_s == SHORT_S)
        self.in_time(begun_s)

    def settle(self, what: str, expected: Any, result: Callable[[], Any], *, may_be_late: bool = False) -> None:
        """Compare a result."""
        try:
            found = result()
        except errors.AtomrError as error:
            self.tally.error(error, *[errors.DeadlineExceeded] * may_be_late)
        else:
            self.compare(what, expected, found)


class Large(Blocking):
    """Sends and gets arrays that travel in shared memory, and has actors keep some."""

    def act(self) -> None:
        """Do so once."""
        chance = self.chance
        made: list[tuple[str, Any, atomr_mp.Reply | None]] = []
        for _ in range(chance.randint(1, 4)):
            sent = contents.Pattern(chance.randrange(10**6), "int64", [int(2 ** chance.uniform(15, 19))])
            array = sent.array
            where = chance.choice(["on_loop", "on_thread"])
            # In a lull, nothing that comes back in the device's memory.
            match chance.randrange(2 if self.links.lull_s else 0, 5):
                case 0:
                    made.append(("large echo", array, self.call(f"Echo.{where}", array)))
                case 1:
                    made.append(("large result", array, self.call(f"Maker.array_{where}", sent.seed, sent.shape[0])))
                case 2:
                    made.append(("resident memory", True, self.call("Housed.whole")))
                case 3:
                    made.append(("kept argument", True, self.call("Hoard.keep", array, int(array.sum()))))
                case _:
                    made.append(("large argument", int(array.sum()), self.call(f"Maker.sum_{where}", array)))
        for what, expected, reply in made:
            if reply is not None and chance.random() < 0.95:  # otherwise the caller ignores the reply
                self.settle(what, expected, reply.result)


class Awaiting(AwaitingCaller):
    """Has its answers awaited, some by a task that does not wait for long."""

    async def use_once(self) -> None:
        """Make a call and await it."""
        value, method = contents.value(self.chance), self.chance.choice(AWAITED)
        reply = self.call(method, value)
        if reply is not None:
            patience_s = SHORT_S if self.chance.random() < IMPATIENT_PART else None
            try:
                answer = await asyncio.wait_for(reply, patience_s)
            except TimeoutError:
                self.tally.note("awaited call that was cancelled")
            except errors.AtomrError as error:
                self.tally.error(error)
            else:
                self.compare(f"awaited answer of {method}", value, answer)


class Streaming(AwaitingCaller):
    """Reads streams, some to their end: each part comes in order, once, even if workers are lost."""

    at_once = 10

    async def use_once(self) -> None:
        """Open a stream and read it."""
        chance, count = self.chance, self.chance.randint(0, 120)
        method = chance.choice(STREAMS)
        leaves_at = chance.randint(0, 120) if chance.random() < LEAVING_PART else count + 1
        found = 0
        try:
            ahead = chance.choice([1, 4, 16, 64])
            async with self.pool.stream(method, count, ahead=ahead, first_s=DEADLINE_S, between_s=DEADLINE_S) as parts:
                async for number in parts:
                    if number != found:
                        self.tally.wrong(f"part {number} of a stream of {method}, where {found} would come")
                    found += 1
                    if found == leaves_at:
                        self.tally.note("stream that was left")
                        return
        except errors.AtomrError as error:
            if error.parts != found:
                self.tally.wrong(f"{error!r} of a stream of {method} tells of {error.parts} parts, {found} have come")
            self.tally.error(error)
        else:
            self.compare(f"stream of {method}", count, found)


class Noted(Caller):
    """Checks that each request has one outcome, in time, and has run as often as that outcome allows: at most once.

    The actor notes what it runs in a file of this caller's.
    """

    def __init__(self, links: Links, chance: random.Random) -> None:
        super().__init__(links, chance)
        # Reached by the workers through /proc, and gone with this process, however that ends.
        noted = os.memfd_create("noted", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, noted)
        self._path: Final = f"/proc/{os.getpid()}/fd/{noted}"
        self._outcomes: dict[str, errors.AtomrError | None] = {}
        self._last = 0

    def act(self) -> None:
        """Make some requests, wait for them, compare."""
        chance = self.chance
        called: Counter[str] = Counter()
        made = []
        begun_s = time.monotonic()
        for _ in range(chance.randint(1, 30)):
            self._last += 1
            tag = f"{self._last}"
            method = chance.choice(["Once.note", "Once.note_on_thread"])
            deadline_s = chance.choice([DEADLINE_S, DEADLINE_S, SHORT_S])
            reply = self.call(method, self._path, tag, deadline_s=deadline_s)
            if reply is not None:
                if chance.random() < 0.3:
                    reply.add_done_callback(lambda _, tag=tag: called.update([tag]))  # type: ignore[misc]
                    called[tag] -= 1
                made.append((tag, deadline_s, reply))
        for tag, deadline_s, reply in made:
            error = reply.exception()
            self._outcomes[tag] = error
            if error is None:
                self.compare("noted", tag, reply.result())
            else:
                self.tally.error(error, *[errors.DeadlineExceeded] * (deadline_s == SHORT_S))
        self.in_time(begun_s)
        if any(count > 0 for count in called.values()):
            self.tally.wrong(f"called back more than once: {called}")
        if len(self._outcomes) > 2000:
            self.rest()

    def rest(self) -> None:
        """Compare the runs with the outcomes."""
        ran = Counter(Path(self._path).read_text(encoding="utf-8").split())
        for tag, error in self._outcomes.items():
            if ran[tag] > 1:
                self.tally.wrong(f"request {tag} has run {ran[tag]} times")
            elif error is None and not ran[tag]:
                self.tally.wrong(f"request {tag} was answered and has not run")
            elif isinstance(error, errors.RequestError) and not error.maybe_executed and ran[tag]:
                self.tally.wrong(f"request {tag} has run, and was told not to have: {error!r}")
        self.tally.note("compared with what has run")
        self._outcomes.clear()


class CalledBack(Blocking):
    """Gets its results by callbacks."""

    def act(self) -> None:
        """Do so once."""
        made = []
        for _ in range(20):
            value = contents.value(self.chance)
            reply = self.call("Echo.on_thread", value)
            if reply is not None:
                called = threading.Event()
                reply.add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
                made.append((value, reply, called))
        for value, reply, called in made:
            if not called.wait(GRACE_S / 2):
                self.tally.wrong(f"no callback of {reply!r}")
            self.settle("callback", value, reply.result)


class Mapping(Caller):
    """Maps numbers to themselves."""

    def act(self) -> None:
        """Do so once."""
        slowly = self.chance.random() < SLOW_PART
        count = self.chance.randint(1, 30 if slowly else 500)
        method = "Echo.slowly" if slowly else "Echo.number"
        answers = list(self.pool.map(method, range(count), return_failures=True))
        for answer in answers:
            if isinstance(answer, Failure):
                self.tally.error(answer.error)
        wrong = [i for i, answer in enumerate(answers) if answer != i and not isinstance(answer, Failure)]
        if wrong or len(answers) != count:
            self.tally.wrong(f"a map of {count} items gave {len(answers)}, wrong at {wrong[:5]}")
        self.tally.note("map")


class AnyOf(Caller):
    """Acts as one of the other callers at a time, which together would leave the refs' users no time."""

    def __init__(self, links: Links, chance: random.Random) -> None:
        super().__init__(links, chance)
        kinds = (Blocking, Awaiting, CalledBack, Mapping, Streaming)
        self._others: Final[list[Caller]] = [each(links, chance) for each in kinds]

    def act(self) -> None:
        """Act as one of them."""
        self.chance.choice(self._others).act()
