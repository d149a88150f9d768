"""`atomr-mp logs`: the logs of workers and the supervisor."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, run_path, whole

LINES: Final = 50

LOOK_S: Final = 0.2
"""How often `--follow` looks, since the standard library has no event for a file that grows."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "logs",
        help="show what workers and the supervisor have written",
        description="Shows the end of the logs, also those of a pool that has ended. The supervisor of a pool in the "
        "foreground writes to its terminal instead.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="DEVICE|supervisor", help="index of a device, or `supervisor` (default: all)"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on as more is written, until Ctrl-C")
    parser.add_argument(
        "--lines",
        "-n",
        type=whole(0),
        default=LINES,
        metavar="N",
        help="lines to begin with, of each (default: %(default)s)",
    )
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the ends of logs, and follow them if asked to."""
    logs = [Log(path) for path in _paths(run_path(options), options.source)]
    out = sys.stdout.buffer
    prefixed = len(logs) > 1
    for log in logs:
        log.print(log.last(options.lines), out, prefixed=prefixed)
    out.flush()
    while options.follow:
        for log in logs:
            log.print(log.more(), out, prefixed=prefixed)
        out.flush()
        time.sleep(LOOK_S)
    return 0


class Log:
    """A log file that may be followed. A rotation empties it, and it goes on from there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._half = b""

    def last(self, lines: int) -> list[bytes]:
        """Return the last lines."""
        with self._path.open("rb") as file:
            last = deque(file, maxlen=lines)
            self._at = file.tell()
        return list(last)

    def more(self) -> list[bytes]:
        """Return the whole lines that were written since."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._at:
                    self._at = 0
                file.seek(self._at)
                data = self._half + file.read()
                self._at = file.tell()
        except FileNotFoundError:  # removed; it may come back
            return []
        lines = data.splitlines(keepends=True)
        self._half = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        return lines

    def print(self, lines: list[bytes], out: BinaryIO, *, prefixed: bool) -> None:
        """Write lines, with the log's name in front if wanted."""
        prefix = f"{self._path.stem}: ".encode() if prefixed else b""
        out.writelines(prefix + line.rstrip(b"\n") + b"\n" for line in lines)


def _paths(directory: Path, source: str | None) -> list[Path]:
    logs = sorted(directory.glob("*.log")) if directory.is_dir() else []
    if not logs:
        raise errors.PoolUnreachable(f"there are no logs at {directory}")
    if source is None:
        return logs
    wanted = directory / ("supervisor.log" if source == "supervisor" else f"device-{source}.log")
    if wanted not in logs:
        raise errors.InvalidRequest(
            f"there is no log of {source} at {directory}; there are: {', '.join(log.stem for log in logs)}"
        )
    return [wanted]
