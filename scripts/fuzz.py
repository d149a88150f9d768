"""Has the code take what it was not made for, at random (see `scripts/fuzz`)."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Final

from fuzzing import running
from fuzzing.target import Target
from fuzzing.targets import TARGETS

CORPUS: Final = Path(__file__).parents[1] / "tests" / "fuzz" / "corpus"


def main() -> int:
    """Run targets; return 1 if they have found something."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Fuzzes all that takes bytes from others.")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="by default all; may be repeated")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="checked first, and where finds are written")
    parser.add_argument("--list", action="store_true", help="name the targets")
    options = parser.parse_args()
    if options.list:
        print(*TARGETS, sep="\n")
        return 0
    print(f"seed {options.seed}")
    found = 0
    for name in options.target or TARGETS:
        with TARGETS[name]() as target:
            found += run(target, options.seed, options.seconds, options.corpus)
    print("failed" if found else "all is well")
    return 1 if found else 0


def run(target: Target, seed: int, seconds: float, corpus: Path) -> int:
    """Check a target's corpus, then random inputs; return the number of finds."""
    begun_s = time.monotonic()
    known, finds = running.replay(target, corpus)
    done, new = running.fuzz(target, seed, seconds=seconds)
    print(f"{target.name}: {known} known and {done} new inputs in {time.monotonic() - begun_s:.0f} s")
    for find in (*finds, *new):
        print(f"\n{running.keep(target, corpus, find)}\n{find.why}\n", flush=True)
    return len(finds) + len(new)


if __name__ == "__main__":
    sys.exit(main())
