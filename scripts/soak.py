"""Random use of one pool by several clients while its workers and clients are killed (see `scripts/soak`).

Client processes call from threads, event loops, callbacks and maps, with values and with refs, and hand refs to each
other. Every result is compared with what it has to be; a request may fail only with an error that a dead worker, a
passed deadline, a full window or an open view explains. After each round nothing may be left waiting or held: no bytes,
slabs, leases, descriptors, threads, processes; and no process may have grown.

With `--recycle` no worker is killed. The pool replaces each at that age, which no request may notice unless it needs
memory that went with a worker; and a worker may hold no more than its predecessors did.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import facts
from soaking.recycling import Recycling
from soaking.soak import Soak

LEAST_AGE_S = 5.0
"""Youngest age: a worker has to live longer than its start and its use in every way take."""


def main() -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/soak",
        description="Uses a pool at random while its workers and clients are killed.",
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, help="after each, everything has to be as it was; default: by the time")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument(
        "--recycle", type=float, metavar="SECONDS", help="kill no worker: the pool replaces each at this age"
    )
    parser.add_argument("--json", type=Path, help="write figures there, as JSON")
    options = parser.parse_args()
    if options.recycle is not None and options.recycle < LEAST_AGE_S:
        parser.error(f"workers have to become {LEAST_AGE_S:g} s old at least")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"seed {options.seed}, {options.minutes:g} minutes")
    arguments = console, options.minutes * 60, options.rounds, options.seed
    soak = Soak(*arguments) if options.recycle is None else Recycling(*arguments, age_s=options.recycle)
    begun_s = time.monotonic()
    wrong = soak.run()
    for each, count in Counter(wrong).most_common():
        console.print(f"wrong, {count} times: {each}", style="red", markup=False)
    if options.json is not None:
        found = figures(soak, vars(options), wrong, time.monotonic() - begun_s)
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print("[red]failed[/]" if wrong else "[green]all is well[/]")
    return 1 if wrong else 0


def figures(soak: Soak, options: dict[str, Any], wrong: list[str], took_s: float) -> dict[str, Any]:
    """Return the figures of a run."""
    return {
        "machine": facts(),
        "options": {name: value for name, value in options.items() if name != "json"},
        "took_s": round(took_s, 1),
        "rounds": soak.rounds,
        "recycles_by_round_and_device": soak.recycles if isinstance(soak, Recycling) else [],
        "held_before_and_after": soak.held,
        "own_bytes_by_round": soak.own_bytes,
        "counts": dict(sorted(soak.counts.items())),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
