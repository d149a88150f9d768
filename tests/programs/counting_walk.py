"""A client whose threads read and write counters at random, and check each read against the writes of all clients.

Arguments: run directory, a file of figures, this client's number, seed, how many steps a thread takes, and the
counters, as shared, in hex. Each write adds 1 to all elements of a counter. Says "ok", or what was wrong.
"""

from __future__ import annotations

import mmap
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp

THREADS: Final = 3
CLIENTS: Final = 2
BEGUN, SENT, DONE = range(3)
"""Figures of each thread for each counter: writes that it is about to send, has sent, and knows to have ended."""


class Walk:
    """The steps of one thread.

    Args:
        pool: Its client, which other threads use too.
        counters: The counters.
        figures: The writes, by client, thread, counter and figure; only the thread itself changes its own.
        client: The client's number.
        thread: The thread's number.
        seed: Decides about the steps.
    """

    def __init__(
        self, pool: atomr_mp.Pool, counters: list[Any], figures: Any, client: int, thread: int, seed: int
    ) -> None:
        self._pool, self._counters, self._figures, self._client = pool, counters, figures, client
        self._own = figures[client, thread]
        self._random = random.Random(f"{seed} {client} {thread}")
        device, other = pool.device(0), pool.device(1)
        self._ones = [device.full(counter.shape, 1, "float64") for counter in counters]
        self._near = [device.empty(counter.shape, "float64") for counter in counters]
        self._far = [other.empty(counter.shape, "float64") for counter in counters]
        self._writing: list[tuple[int, atomr_mp.Reply]] = []

    def run(self, steps: int) -> None:
        """Take the steps."""
        looks: list[Callable[[int], Any]] = [
            lambda at: self._counters[at].numpy(),
            lambda at: self._counters[at][1::3].numpy(),
            lambda at: np.asarray(self._counters[at]),
            lambda at: self._copied(at, self._near[at]),
            lambda at: self._copied(at, self._far[at]),
            lambda at: self._pool.call("Keeper.total", self._counters[at], device=1).result() / len(self._counters[at]),
            lambda at: self._pool.call("Keeper.total", self._counters[at]).result() / len(self._counters[at]),
        ]
        for _ in range(steps):
            at = self._random.randrange(len(self._counters))
            match self._random.randrange(4):
                case 0:
                    self._write(at).result()
                    self._own[at, DONE] += 1
                case 1:
                    self._writing.append((at, self._write(at)))
                case 2:
                    self._pool.device(0).zeros(1000, "float64").free()
                case _:
                    self._look(at, self._random.choice(looks))
            if len(self._writing) > self._random.randrange(10):
                self._wait()
        self._wait()

    def _write(self, at: int) -> atomr_mp.Reply:
        counter = self._counters[at]
        self._own[at, BEGUN] += 1
        match self._random.randrange(4):
            case 0:
                reply = self._pool.call("Keeper.add", counter, 1.0)
            case 1:
                reply = self._pool.call("Keeper.add_on_thread", counter, 1.0)
            case _:
                reply = self._pool.device(0).blas.axpy(self._ones[at], counter)
        self._own[at, SENT] += 1
        return reply

    def _wait(self) -> None:
        for at, reply in self._writing:
            reply.result()
            self._own[at, DONE] += 1
        self._writing.clear()

    def _copied(self, at: int, target: Any) -> Any:
        self._counters[at].copy_to(target)
        return target.numpy()

    def _look(self, at: int, look: Callable[[int], Any]) -> None:
        """Read a counter: all writes that came before must be in it, and none may be in part of it."""
        figures = self._figures[:, :, at]
        ours = np.arange(CLIENTS) == self._client
        least = int(figures[ours, :, SENT].sum() + figures[~ours, :, DONE].sum())
        seen = np.unique(look(at))
        most = int(figures[:, :, BEGUN].sum())
        if len(seen) != 1 or not least <= seen[0] <= most:
            raise AssertionError(f"read {seen[:5]} of counter {at}, with {least} writes before it and {most} in all")


def main() -> None:
    """Walk, on all threads."""
    run_dir, path, client, seed, steps, *shared = sys.argv[1:]
    with Path(path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    figures = np.frombuffer(memory, np.int64).reshape(CLIENTS, THREADS, len(shared), 3)
    wrong: list[BaseException] = []

    def walk(pool: atomr_mp.Pool, counters: list[Any], thread: int) -> None:
        try:
            Walk(pool, counters, figures, int(client), thread, int(seed)).run(int(steps))
        except BaseException as error:  # noqa: BLE001 - the test is told
            wrong.append(error)

    with atomr_mp.connect(run_dir=run_dir) as pool:
        pool.wait_ready()
        counters = [pool.claim(bytes.fromhex(each)) for each in shared]
        threads = [threading.Thread(target=walk, args=(pool, counters, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{type(wrong[0]).__name__}: {wrong[0]}" if wrong else "ok", flush=True)


if __name__ == "__main__":
    main()
