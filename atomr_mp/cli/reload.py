"""`atomr-mp reload`: have the devices run the code that is there now, one after the other."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, add_timeout, counted, observe, open_pool
from atomr_mp.cli.worlds import tell_held

TIMEOUT_S: Final = 1800.0
"""Long, since each device in turn may take as long as a restart."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "reload",
        help="load the actors' code and the configuration again",
        description="Reads the configuration file again, if the pool was started with one, and replaces the workers "
        "one device at a time, after each has finished its requests; waits until all are ready. Gives up at the "
        "first that does not start; the devices behind it keep the old code. While another reload runs, it waits for "
        "its end.",
    )
    add_timeout(parser, TIMEOUT_S)
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Reload and wait for the end."""
    begun = time.monotonic()
    directory = open_pool(options)
    with observe(directory) as observer:
        count = len(observer.welcome.devices)
        try:
            pending = observer.reload(options.timeout)
        except TimeoutError as error:
            raise errors.DeadlineExceeded(
                f"the reload is not done within {options.timeout:g} s; it goes on, see `atomr-mp events`"
            ) from error
        took_s = time.monotonic() - begun
        sys.stdout.write(f"{counted(count, 'device')} reloaded, after {took_s:.1f} s\n")
        if pending:
            sys.stdout.write(f"a restart of the pool is needed for: {', '.join(pending)}\n")
        sys.stdout.flush()
        tell_held(observer, range(count))
    return 0
