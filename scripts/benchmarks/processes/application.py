"""An application with one worker, a program to be killed: prints the supervising process, then waits.

Arguments: the contestant's name, its directory. It prints the pids of what it has started beside the worker, in a line.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from benchmarks.contestants import load


def main() -> None:
    """Start, use, tell, wait."""
    name, directory = sys.argv[1:]
    with load(name, Path(directory)) as contestant:
        contestant.start(1)
        contestant.connect().empty()
        print(*contestant.processes().get("supervisor", []), flush=True)
        signal.pause()


if __name__ == "__main__":  # peers may start their processes by importing this again
    main()
