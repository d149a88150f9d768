"""The carried client beside today's remote client, in turns. Prints medians, and the ratios within each round.

    PYTHONPATH=scripts:. .venv/bin/python -m benchmarks.standalone.tunnel_turns --rounds 9 [--json FILE]

Two pools run, one behind a gateway and one behind a relay, each with one worker; a bare relay of pyzmq is the floor. A
round measures each of them once, the first one in turns too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import psutil

import atomr_mp
from benchmarks.standalone.remote_clients import (
    LARGE_BYTES,
    bare,
    bulk_mb_s,
    p50_p99,
    pool_rate,
    relay_rate,
    served,
    times,
)

SWITCH: Final = "ATOMR_MP_TUNNEL"
UPLOADED_BYTES: Final = 8 * 2**20


@contextmanager
def switched(value: str) -> Iterator[tuple[atomr_mp.Pool, atomr_mp.Pool]]:
    """Give a pool and its remote client, with the switch off or on."""
    os.environ[SWITCH] = value
    with served() as found:
        yield found


def beside(work: Callable[[], object], call: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the 99th percentile of a call while another thread works."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    working = threading.Thread(target=run)
    working.start()
    try:
        return p50_p99(times(call))
    finally:
        over.set()
        working.join()


def measured(pool: atomr_mp.Pool, far: atomr_mp.Pool) -> dict[str, float]:
    """Measure one client once."""
    figures: dict[str, float] = {}
    status = pool.status().remote
    assert status is not None
    between = psutil.Process(status.pid)

    def call() -> None:
        far.call("Echo.again").result()

    processor = sum(between.cpu_times()[:2])
    figures["empty p50 us"], figures["empty p99 us"] = p50_p99(times(call))
    figures["its process, cpu us a call"] = (sum(between.cpu_times()[:2]) - processor) * 1e6 / 400
    figures["64 in flight /s"] = pool_rate(far)
    content = np.ones(LARGE_BYTES // 8)
    both = [bulk_mb_s(far, content) for _ in range(3)]
    figures["put MB/s"] = statistics.median(put for put, _ in both)
    figures["numpy MB/s"] = statistics.median(numpy for _, numpy in both)
    figures["beside put p50 us"], figures["beside put p99 us"] = beside(lambda: far.device().put(content).free(), call)
    uploaded = np.ones(UPLOADED_BYTES // 8)
    figures["beside uploads p50 us"], figures["beside uploads p99 us"] = beside(
        lambda: far.call("Echo.seen", uploaded).result(), call
    )
    return figures


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    with bare() as (raw, _), switched("0") as today, switched("1") as tunnel:

        def relayed() -> None:
            raw.send(b"x")
            raw.recv()

        for number in range(options.rounds):
            found: dict[str, dict[str, float]] = {}
            floor = p50_p99(times(relayed))
            found["floor"] = {"empty p50 us": floor[0], "empty p99 us": floor[1], "64 in flight /s": relay_rate(raw)}
            turns = [("today", today), ("tunnel", tunnel)]
            for name, (pool, far) in turns[:: 1 if number % 2 else -1]:
                found[name] = measured(pool, far)
            rounds.append(found)
            print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{'':28} {'floor':>10} {'today':>10} {'tunnel':>10} {'ratio':>7} {'from':>7} {'to':>7}")
    for name in rounds[0]["today"]:
        each = sorted(found["tunnel"][name] / found["today"][name] for found in rounds)
        medians = [
            f"{statistics.median(found[who][name] for found in rounds):10.1f}" if name in rounds[0][who] else " " * 10
            for who in ("floor", "today", "tunnel")
        ]
        print(f"{name:28} {' '.join(medians)} {statistics.median(each):7.2f} {each[0]:7.2f} {each[-1]:7.2f}")
    if options.json is not None:
        content = {"date": time.strftime("%Y-%m-%d"), "rounds": rounds}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
