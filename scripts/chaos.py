"""Random use of one pool while everything goes wrong that can (see `scripts/chaos`).

It is the soak with all kinds of faults. It checks throughout that each request has one outcome, in time, and has run at
most once; that results are right, and each client's own; that generations only grow; that a spared device is not
affected by the others; that nothing is left of a worker two seconds after its death; and that no request is condemned
for kills from outside. After each round nothing may be held, open or running that was not there before, or that the
supervisor does not know. The seed decides about all faults and their times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import facts
from soaking.chaos import KILLS, Chaos
from soaking.soak import Shape
from soaking.worlds import WorldWalk

KILLS_ROUND_S = 30.0
"""How long a round is if kills are counted."""


def main() -> int:
    """Run the chaos; return the exit status."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/chaos",
        description="Uses a pool at random while everything goes wrong that can.",
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=0, help="go on until so many processes were killed, quicker")
    parser.add_argument(
        "--outside", action="store_true", help="only kill workers, from outside: no request may be condemned for that"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="after each, everything has to be as it was; default: by the time, and until all was met",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--clients", type=int, default=4, help="half of them are killed, at random (default: 4)")
    parser.add_argument("--devices", type=int, default=2, help="two at least: one is spared (default: 2)")
    parser.add_argument("--backend", choices=["host", "cuda"], default="host")
    parser.add_argument("--standby", choices=["hot", "warm", "none"], default="none")
    parser.add_argument("--world", action="store_true", help="use overlapping worlds of four devices instead")
    parser.add_argument("--output", type=Path, help="write figures there, as JSON")
    options = parser.parse_args()
    if options.devices < 2 or options.clients < 2:
        parser.error("two devices and two clients are needed at least")
    if options.world:
        return worlds(options.minutes, options.seed, options.clients, options.standby)
    victims = options.clients // 2
    shape = Shape(options.devices, options.clients - victims, victims, options.backend, options.standby)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"seed {options.seed}")
    begun_s = time.monotonic()
    duration_s, rounds = (KILLS_ROUND_S, 1) if options.kills else (options.minutes * 60, options.rounds)
    chaos = Chaos(console, duration_s, rounds, options.seed, shape, kills=options.kills, outside=options.outside)
    wrong = chaos.run() + doctor(chaos.run_dir)
    for each, count in Counter(wrong).most_common():
        console.print(f"wrong, {count} times: {each}", style="red", markup=False)
    if options.output is not None:
        found = figures(chaos, vars(options), wrong, time.monotonic() - begun_s)
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print("[red]failed[/]" if wrong else f"[green]all is well[/] after {chaos.killed} kills")
    return 1 if wrong else 0


def worlds(minutes: float, seed: int, clients: int, standby: str) -> int:
    """Use worlds at random; return the exit status."""
    walk = WorldWalk(minutes * 60, seed, clients, standby)
    walk.run()
    for name, count in sorted(walk.counts.items()):
        sys.stdout.write(f"{name}: {count}\n")
    for each, count in Counter(walk.wrong).most_common():
        sys.stdout.write(f"wrong, {count} times: {each}\n")
    return 1 if walk.wrong else 0


def doctor(run_dir: Path) -> list[str]:
    """Ask `atomr-mp doctor --leaks` for leftovers of a pool that has ended; return them."""
    command = [sys.executable, "-m", "atomr_mp.cli", "doctor", "--leaks", "--json", "--run-dir", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"the doctor exits with {done.returncode}: {done.stdout or done.stderr}"]


def figures(chaos: Chaos, options: dict[str, Any], wrong: list[str], took_s: float) -> dict[str, Any]:
    """Return the figures of a run."""
    gone_ms = sorted(round(each * 1000, 1) for each in chaos.gone_s)
    return {
        "machine": facts(),
        "options": {name: value for name, value in options.items() if name != "output"},
        "took_s": round(took_s, 1),
        "kills": chaos.killed,
        "kills_by_kind": {
            **{kind: chaos.counts[kind] for kind in KILLS},
            "by a fault in a worker": chaos.killed - sum(chaos.counts[kind] for kind in KILLS),
        },
        "nothing_left_of_a_worker_after_ms": {
            "count": len(gone_ms),
            "median": statistics.median(gone_ms) if gone_ms else None,
            "worst": gone_ms[-1] if gone_ms else None,
        },
        "held_before_and_after": chaos.held,
        "counts": dict(sorted(chaos.counts.items())),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
