"""SIGKILL of a worker: until it answers again, and until the caller of a request in flight knows."""

from __future__ import annotations

import os
import signal
import statistics
from time import perf_counter, sleep

from benchmarks.contestant import Contestant, Recovery
from benchmarks.sizes import Sizes

IDLE_S = 0.1
"""How long a worker is left alone before it is killed, so that nothing of its own start is under way."""


def recovery(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the medians, if the contestant restarts its workers."""
    contestant.start(1)
    way = contestant.recovery()
    if way is None:
        return {}
    fifo = str(contestant.directory / "holding")
    os.mkfifo(fifo)
    idle, held = [], []
    for _ in range(sizes.kills):
        idle.append(idle_kill_s(way))
        held.append(_held_kill_s(way, fifo))
    return {"idle_kill": statistics.median(idle) * 1e3, "held_kill": statistics.median(held) * 1e3}


def idle_kill_s(way: Recovery) -> float:
    """Kill, and call until there is an answer."""
    pid = _settled(way)
    begun = perf_counter()
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            way.empty()
        except way.lost:
            continue
        return perf_counter() - begun


def _held_kill_s(way: Recovery, fifo: str) -> float:
    """Kill while a request runs, and wait for its error."""
    pid = _settled(way)
    wait = way.hold(fifo)
    with open(fifo, "rb") as running:  # noqa: PTH123 - returns once the request has opened it too
        running.read()
    begun = perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        wait()
    except way.lost:
        return perf_counter() - begun
    raise RuntimeError("a request was answered by a worker that had been killed")


def _settled(way: Recovery) -> int:
    """Return the process of a worker that answers and has been left alone for a while."""
    pid = way.pid()
    way.empty()
    sleep(IDLE_S)
    return pid
