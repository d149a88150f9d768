"""Random use of one pool by several clients while its workers and clients are killed (see `scripts/soak`).

Client processes call from threads, event loops, callbacks and maps, with values and with refs, and hand refs to each
other. Every result is compared with what it has to be; a request may fail only with what a dead worker, a passed
deadline, a full window or an open view explains. After each round nothing may be left waiting or held: no bytes, slabs,
leases, descriptors, threads, processes; and no process may have grown.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from rich.console import Console

from soaking.soak import Soak


def main() -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description="Uses a pool at random while its workers and clients are killed."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, help="after each, everything has to be as it was; default: by the time")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"seed {options.seed}, {options.minutes:g} minutes")
    wrong = Soak(console, options.minutes * 60, options.rounds, options.seed).run()
    for each, count in Counter(wrong).most_common():
        console.print(f"wrong, {count} times: {each}", style="red", markup=False)
    console.print("[red]failed[/]" if wrong else "[green]all is well[/]")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
