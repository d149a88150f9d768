"""`atomr-mp events`: a pool's event log."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, run_path, whole
from atomr_mp.cli.logs import LOOK_S
from atomr_mp.protocol.words import device_words

if TYPE_CHECKING:
    from atomr_mp.process.files.events import Scalar


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "events",
        help="show what has happened to a pool",
        description="Tells what has happened to a pool and its devices, oldest first, also if the pool has ended.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--follow", "-f", action="store_true", help="go on as more happens, until Ctrl-C")
    parser.add_argument("--lines", "-n", type=whole(0), metavar="N", help="only the last N")
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the event log, and follow it if asked to."""
    from atomr_mp.process.files.events import Follower, read_events
    from atomr_mp.process.files.rundir import EVENTS

    path = run_path(options) / EVENTS
    follower = None
    try:
        # First, so that events that come while the log is read are not missed.
        follower = Follower(path) if options.follow else None
        events = list(read_events(path))
        if follower is not None:
            events += [event for event in follower.more() if event not in events]
        if not events:
            raise errors.PoolUnreachable(f"there are no events at {path.parent}")
        _print(events if options.lines is None else events[max(0, len(events) - options.lines) :], options)
        while follower is not None:
            time.sleep(LOOK_S)
            _print(follower.more(), options)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise errors.ConfigurationError(f"the event log {path} cannot be read: {error}") from error
    finally:
        if follower is not None:
            follower.close()
    return 0


def _print(events: list[dict[str, Scalar]], options: argparse.Namespace) -> None:
    for event in events:
        sys.stdout.write(f"{json.dumps(event) if options.json else _line(event)}\n")
    sys.stdout.flush()


def _line(event: dict[str, Scalar]) -> str:
    at = float(event.get("time") or 0)
    when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03}"
    who = f"{device_words(event)}: " if "device" in event else ""
    return f"{when}  {who}{event.get('text') or event.get('event')}"
