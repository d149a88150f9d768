"""One of several client processes, a program: says "ready", waits for a line, calls for a while, prints its rate.

Arguments: the contestant's name, its directory, seconds, window, bytes of payload. It leaves when its input ends.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.contestant import Client
from benchmarks.contestants import load
from benchmarks.subjects.throughput import flood


def main() -> None:
    """Connect, warm up, wait, measure."""
    name, directory, seconds, window, payload_bytes = sys.argv[1:]
    payload = bytes(int(payload_bytes))
    with load(name, Path(directory)) as contestant:
        client = contestant.connect()
        flood(client, payload, 200, int(window))
        print("ready", flush=True)
        sys.stdin.readline()
        print(_rate(client, payload, float(seconds), int(window)), flush=True)
        sys.stdin.read()


def _rate(client: Client, payload: bytes, seconds: float, window: int) -> float:
    """Return answers a second; what is in flight at the end is awaited, but does not count."""
    submit, take = client.submit, client.take
    flight: deque[Any] = deque(submit(payload) for _ in range(window))
    answered = 0
    begun = perf_counter()
    until = begun + seconds
    while (now := perf_counter()) < until:
        take(flight.popleft())
        flight.append(submit(payload))
        answered += 1
    while flight:
        take(flight.popleft())
    return answered / (now - begun)


if __name__ == "__main__":  # peers may start their processes by importing this again
    main()
