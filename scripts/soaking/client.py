"""One of a soak's clients, a program: it uses the pool whenever it is told to, and says what has come of it.

Arguments: the run directory, and a seed. It leaves when its input ends, and is killed at any time.
"""

from __future__ import annotations

import gc
import queue
import random
import sys
import threading
import time
from typing import Final

import atomr_mp
from soaking import words
from soaking.caller import GRACE_S, Caller, Links
from soaking.calls import AnyOf, Large
from soaking.census import trim
from soaking.everything import use_all
from soaking.refs import AwaitingRefUser, RefUser
from soaking.tally import Tally

CALLERS: Final[tuple[type[Caller], ...]] = (
    RefUser,
    RefUser,
    RefUser,
    AwaitingRefUser,
    Large,
    AnyOf,
)
"""What runs at a time, each on a thread of its own."""

COUNT_EVERY_S: Final = 0.5


class Program:
    """The program.

    Args:
        run_dir: The pool's run directory.
        seed: Of all random choices.
    """

    def __init__(self, run_dir: str, seed: int) -> None:
        self._run_dir = run_dir
        self._chance = random.Random(seed)
        self._told: queue.SimpleQueue[words.Use | words.Leave | None] = queue.SimpleQueue()
        self._links: Links | None = None
        self._saying = threading.Lock()

    def run(self) -> None:
        """Do as told until the input ends."""
        threading.Thread(target=self._listen, daemon=True).start()
        while isinstance(told := self._told.get(), words.Use):
            self._use(told)
            self._say(words.Left())

    def _use(self, told: words.Use) -> None:
        tally = Tally(told.spared)
        with atomr_mp.connect(run_dir=self._run_dir, name="soak") as pool:
            pool.wait_ready()
            self._links = Links(pool, tally, told.until_s, self._say)
            callers = [make(self._links, random.Random(self._chance.random())) for make in CALLERS]
            threads = [threading.Thread(target=each.run, name=type(each).__name__, daemon=True) for each in callers]
            for thread in threads:
                thread.start()
            self._wait(threads, told.until_s + GRACE_S, tally)
            self._links.shares.clear()
            self._links = None
            del callers, threads
            gc.collect()
            use_all(pool)  # with that, what was collected is given back too
            self._say(tally.take())
            self._say(words.Rested())
            if self._told.get() is None:
                self._told.put(None)
        gc.collect()
        trim()

    def _wait(self, threads: list[threading.Thread], until_s: float, tally: Tally) -> None:
        """Wait for the callers, and say meanwhile what they have done."""
        while waiting := [thread for thread in threads if thread.is_alive()]:
            waiting[0].join(COUNT_EVERY_S)
            self._say(tally.take())
            if time.monotonic() > until_s:
                for thread in waiting:
                    tally.wrong(f"{thread.name} still waits")
                return

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            message = words.TO_CLIENT.decode(line)
            if not isinstance(message, words.Share):
                self._told.put(message)
            elif (links := self._links) is not None:
                links.shares.append(message)
        self._told.put(None)

    def _say(self, message: words.FromClient) -> None:
        with self._saying:
            sys.stdout.buffer.write(words.line(message))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    Program(sys.argv[1], int(sys.argv[2])).run()
