"""One scenario of one contestant, a program: prints its numbers as JSON.

Arguments: the scenario, the contestant, a directory for its files, the sizes as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.contestants import load
from benchmarks.scenarios import scenario
from benchmarks.sizes import Sizes


def main() -> None:
    """Measure; the contestant's end is not part of it."""
    measured, name, directory, sizes = sys.argv[1:]
    with load(name, Path(directory)) as contestant:
        found = scenario(measured)(contestant, Sizes(**json.loads(sizes)))
    print(json.dumps(found))


if __name__ == "__main__":  # peers may start their processes by importing this again
    main()
