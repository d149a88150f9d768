"""Random use of one pool by several clients while its workers are killed and replaced (see `scripts/soak`).

Threads, event loops, callbacks and maps of two clients call at once. Every answer is compared with what was sent; a
request may fail only with what a dead worker, a passed deadline or a full window explains. At the end nothing may be
left waiting, and neither descriptors nor memory may have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from rich.console import Console

import atomr_mp
from atomr_mp import errors
from atomr_mp.map import Failure

ACTOR: Final = Path(__file__).with_name("soak_actor.py")

EXCUSED: Final = (
    errors.WorkerLost,
    errors.DeviceUnavailable,
    errors.Overloaded,
    errors.DeadlineExceeded,
    errors.Cancelled,
)
"""What a request may end with here."""

GRACE_S: Final = 90.0
"""How long the callers may take to come to an end: longer than any deadline."""

GROWTH_BYTES: Final = 64 * 2**20
"""What this process may have grown by from a tenth of the time on."""


def main() -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(description="Uses a pool at random while its workers are killed.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"seed {options.seed}, {options.minutes:g} minutes")
    wrong = Soak(console, options.minutes * 60, options.seed).run()
    for each in wrong:
        console.print(f"[red]wrong: {each}[/]")
    console.print("[red]failed[/]" if wrong else "[green]all is well[/]")
    return 1 if wrong else 0


class Soak:
    """One run.

    Args:
        console: Where to report.
        duration_s: How long.
        seed: Of all random choices.
    """

    def __init__(self, console: Console, duration_s: float, seed: int) -> None:
        self._console = console
        self._duration_s = duration_s
        self._until = 0.0
        self._random = random.Random(seed)
        self._counts: collections.Counter[str] = collections.Counter()
        self._wrong: list[str] = []
        self._lock = threading.Lock()
        self._memory: list[int] = []

    def run(self) -> list[str]:
        """Run; return what went wrong."""
        with (
            atomr_mp.start(
                actors=[f"{ACTOR}:Echo"],
                gpus=2,
                backend="host",
                max_restarts=10**6,
                within_s=1.0,
                backoff_initial_s=0.0,
            ) as pool,
            atomr_mp.connect(run_dir=pool.run_dir) as other,
        ):
            descriptors = psutil.Process().num_fds()
            self._until = time.monotonic() + self._duration_s
            callers = [
                self._thread(caller, client)
                for client in (pool, other)
                for caller in (self._block, self._block, self._await, self._call_back, self._map)
            ]
            killer = self._thread(self._kill, pool)
            self._report(pool)
            killer.join()
            late_s = time.monotonic() + GRACE_S
            for caller in callers:
                caller.join(max(0.0, late_s - time.monotonic()))
            self._wrong += [f"{caller.name} still waits" for caller in callers if caller.is_alive()]
        self._check_growth(descriptors)
        return self._wrong

    # --- callers ---------------------------------------------------------------------------------------------------

    def _block(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        """Call a few times, then wait for all."""
        made = []
        for _ in range(chance.randint(1, 60)):
            value = _value(chance)
            method = chance.choice(["Echo.on_loop", "Echo.on_loop", "Echo.on_thread"])
            made.append((value, self._call(pool, method, value, deadline_s=chance.choice([20, 20, 20, 0.01]))))
        if chance.random() < 0.5 and made[-1][1] is not None:
            made[-1][1].cancel()
        for value, reply in made:
            if reply is not None:
                self._settle(value, reply.result)

    def _await(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        """Live in one event loop for a while."""

        async def one() -> None:
            value = _value(chance)
            reply = self._call(pool, "Echo.on_loop", value, deadline_s=20)
            if reply is not None:
                try:
                    answer = await reply
                except errors.AtomrError as error:
                    self._note_error(error)
                else:
                    self._compare(value, answer)

        async def use() -> None:
            until = min(self._until, time.monotonic() + 5 * chance.random())
            while time.monotonic() < until:
                await asyncio.gather(*(one() for _ in range(chance.randint(1, 50))))

        asyncio.run(use())

    def _call_back(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        """Leave it to callbacks."""
        made = []
        for _ in range(20):
            value = _value(chance)
            reply = self._call(pool, "Echo.on_thread", value, deadline_s=20)
            if reply is not None:
                called = threading.Event()
                reply.add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
                made.append((value, reply, called))
        for value, reply, called in made:
            if not called.wait(GRACE_S / 2):
                self._wrong.append(f"no callback of {reply!r}")
            self._settle(value, reply.result)

    def _map(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        """Map numbers to themselves."""
        count = chance.randint(1, 5000)
        answers = list(pool.map("Echo.number", range(count), return_failures=True))
        wrong = [i for i, answer in enumerate(answers) if answer != i and not isinstance(answer, Failure)]
        if wrong or len(answers) != count:
            self._wrong.append(f"a map of {count} items gave {len(answers)}, wrong at {wrong[:5]}")
        self._note("map")

    def _kill(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        """Kill a worker, or have one replaced."""
        time.sleep(3 * chance.random())
        try:
            if chance.random() < 0.7:
                os.kill(chance.choice(pool.devices).pid, signal.SIGKILL)
                self._note("kill")
            else:
                pool.restart(chance.randrange(2))
                self._note("restart")
        except ProcessLookupError:  # it comes back just now
            return

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _thread(self, act: Callable[[atomr_mp.Pool, random.Random], None], pool: atomr_mp.Pool) -> threading.Thread:
        chance = random.Random(self._random.random())

        def run() -> None:
            try:
                while time.monotonic() < self._until:
                    act(pool, chance)
            except BaseException as error:
                self._wrong.append(f"{act.__name__} ended with {error!r}")
                raise

        thread = threading.Thread(target=run, name=act.__name__, daemon=True)
        thread.start()
        return thread

    def _call(self, pool: atomr_mp.Pool, method: str, value: Any, *, deadline_s: float) -> atomr_mp.Reply | None:
        try:
            return pool.call(method, value, deadline_s=deadline_s)
        except errors.AtomrError as error:
            self._note_error(error)
            return None

    def _settle(self, value: Any, result: Callable[[], Any]) -> None:
        try:
            answer = result()
        except errors.AtomrError as error:
            self._note_error(error)
        else:
            self._compare(value, answer)

    def _compare(self, value: Any, answer: Any) -> None:
        if not (np.array_equal(value, answer) if isinstance(value, np.ndarray) else value == answer):
            self._wrong.append(f"sent {value!r}, got {answer!r}")
        self._note("answer")

    def _note_error(self, error: errors.AtomrError) -> None:
        if not isinstance(error, EXCUSED):
            self._wrong.append(f"unexpected: {error!r}")
        self._note(error.code)

    def _note(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _report(self, pool: atomr_mp.Pool) -> None:
        while (left_s := self._until - time.monotonic()) > 0:
            time.sleep(min(left_s, max(1.0, self._duration_s / 60)))
            self._memory.append(psutil.Process().memory_info().rss)
            workers = ", ".join(f"{worker.memory_bytes >> 20} MiB" for worker in pool.status().workers)
            counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self._counts.items()))
            self._console.print(f"{left_s:6.0f} s left: {counts}; {self._memory[-1] >> 20} MiB here, workers {workers}")

    def _check_growth(self, descriptors: int) -> None:
        left = psutil.Process().num_fds()
        if left > descriptors:
            self._wrong.append(f"{left} descriptors are open, {descriptors} were at the beginning")
        warm = self._memory[len(self._memory) // 10]
        if self._memory[-1] > warm + GROWTH_BYTES:
            self._wrong.append(f"this process has grown from {warm >> 20} to {self._memory[-1] >> 20} MiB")


def _value(chance: random.Random) -> Any:
    match chance.randrange(5):
        case 0 | 1:
            return chance.randrange(10**9)
        case 2:
            return chance.randbytes(chance.randrange(200))
        case 3:
            return np.frombuffer(chance.randbytes(8 * chance.randint(1, 200)), np.int64)
        case _:
            return np.frombuffer(chance.randbytes(8 * chance.randint(2000, 20000)), np.int64)


if __name__ == "__main__":
    sys.exit(main())
