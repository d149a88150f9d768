"""One of a soak's clients, a program: it uses the pool on orders, and reports the outcomes.

Arguments: the run directory, and a seed. It leaves when its input ends, and is killed at any time.
"""

from __future__ import annotations

import gc
import queue
import random
import sys
import threading
import time
from functools import partial
from typing import Final

import atomr_mp
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded
from soaking import words
from soaking.caller import GRACE_S, Caller, Links
from soaking.calls import AnyOf, Large, Noted
from soaking.census import trim
from soaking.everything import use_all
from soaking.recovery import Cutter, FailedWriter, LateReader, Loaded
from soaking.refs import AwaitingRefUser, RefUser
from soaking.tally import Tally

CALLERS: Final[tuple[type[Caller], ...]] = (
    RefUser,
    RefUser,
    RefUser,
    AwaitingRefUser,
    Large,
    AnyOf,
    Noted,
    Loaded,
    LateReader,
    FailedWriter,
)
"""Callers that run at the same time, each on a thread of its own."""

WITHOUT_REFS: Final[tuple[type[Caller], ...]] = (Large, AnyOf, AnyOf, Noted, Loaded, LateReader)

COUNT_EVERY_S: Final = 0.5

NEXT_S: Final = 20.0
"""How long it may take, after a worker's planned end, until the next one is there."""


class Generations:
    """Checks that generations only grow, and that each ends once.

    Args:
        tally: Is told if they do not.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._latest: dict[int, int] = {}
        self._ended: set[tuple[int, int]] = set()

    def __call__(self, event: DeviceChanged | IncarnationEnded) -> None:
        """Take an event in."""
        if isinstance(event, IncarnationEnded):
            key = event.device, event.generation
            if key in self._ended:
                self._tally.wrong(f"generation {event.generation} of device {event.device} has ended twice")
            self._ended.add(key)
            return
        device = event.device
        if device.generation < self._latest.get(device.index, 0) or (
            device.admitted and (device.index, device.generation) in self._ended
        ):
            self._tally.wrong(f"device {device.index} has gone back to generation {device.generation}")
        self._latest[device.index] = device.generation


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
        """Follow orders until the input ends."""
        threading.Thread(target=self._listen, daemon=True).start()
        while isinstance(told := self._told.get(), words.Use):
            self._use(told)
            self._say(words.Left())

    def _use(self, told: words.Use) -> None:
        with atomr_mp.connect(run_dir=self._run_dir, name="soak") as pool:
            pool.wait_ready()
            tally = Tally(told.spared, partial(_has_ended, pool) if told.planned else None, cuts=told.cuts)
            self._links = Links(pool, tally, told.until_s, self._say, told.lull_every_s)
            pool.on_event(Generations(tally))
            kinds = CALLERS if told.refs else WITHOUT_REFS
            if told.cuts:
                kinds = (*kinds, Cutter)
            callers = [make(self._links, random.Random(self._chance.random())) for make in kinds]
            threads = [threading.Thread(target=each.run, name=type(each).__name__, daemon=True) for each in callers]
            for thread in threads:
                thread.start()
            self._wait(threads, told.until_s + GRACE_S, tally)
            self._links.shares.clear()
            self._links = None
            del callers, threads
            gc.collect()
            use_all(
                pool, refs=told.refs, planned=told.planned, cuts=told.cuts
            )  # with that, what was collected is given back too
            self._say(tally.take())
            self._say(words.Rested())
            if self._told.get() is None:
                self._told.put(None)
        gc.collect()
        trim()

    def _wait(self, threads: list[threading.Thread], until_s: float, tally: Tally) -> None:
        """Wait for the callers, and report their progress meanwhile."""
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


def _has_ended(pool: atomr_mp.Pool, device: int, generation: int) -> bool:
    """Return whether a device comes to a later generation: the order in which clients hear of an end is open."""
    until_s = time.monotonic() + NEXT_S
    while pool.devices[device].generation <= generation:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)  # the client mostly knows of ended generations already
    return True


if __name__ == "__main__":
    Program(sys.argv[1], int(sys.argv[2])).run()
