"""SIGKILL of a worker: until it answers again, and until the caller of a request in flight knows."""

from __future__ import annotations

import os
import signal
import statistics
from time import perf_counter, sleep

from benchmarks.contestant import SILENCE_S, Contestant, Recovery, SilenceError
from benchmarks.sizes import Sizes

IDLE_S = 0.3
"""How long a worker is left alone before it is killed, so that nothing of its own start is under way: the threads of
NumPy's BLAS look for work for 0.1 s after they were made, each on a core."""


def recovery(contestant: Contestant, sizes: Sizes) -> dict[str, float | str]:
    """Return the medians, and the name of the error, as far as the contestant knows that a worker was lost."""
    contestant.start(1)
    way = contestant.recovery()
    if way is None:
        return {}
    fifo = str(contestant.directory / "holding")
    os.mkfifo(fifo)
    found: dict[str, float | str] = {}
    idle, held = [], []
    for _ in range(sizes.kills if way.empty else 1):
        if way.empty is not None:
            idle.append(idle_kill_s(way))
        held.append(_held_kill(way, fifo))
    if idle:
        found["idle_kill"] = statistics.median(idle) * 1e3
    if all(seconds is not None for seconds, _ in held):
        found["held_kill"] = statistics.median(seconds for seconds, _ in held if seconds is not None) * 1e3
    found["held_error"] = " or ".join(sorted({name for _, name in held}))
    return found


def idle_kill_s(way: Recovery) -> float:
    """Kill, and call until there is an answer."""
    assert way.empty is not None
    pid = _settled(way)
    begun = perf_counter()
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            way.empty()
        except way.lost:
            continue
        except SilenceError:  # that call is lost, and nobody says so; the caller gives up and makes another
            continue
        return perf_counter() - begun


def _held_kill(way: Recovery, fifo: str) -> tuple[float | None, str]:
    """Kill while a request runs, and wait for its error; return how long that took, if it came, and what it is."""
    pid = _settled(way)
    wait = way.hold(fifo)
    with open(fifo, "rb") as running:  # noqa: PTH123 - returns once the request has opened it too
        running.read()
    begun = perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        wait()
    except SilenceError:
        return None, f"nothing within {SILENCE_S:g} s"
    except way.lost as error:
        return perf_counter() - begun, type(error).__name__
    raise RuntimeError("a request was answered by a worker that had been killed")


def _settled(way: Recovery) -> int:
    """Return the process of a worker that answers and has been left alone for a while."""
    pid = way.pid()
    if way.empty is not None:
        way.empty()
    sleep(IDLE_S)
    return pid
