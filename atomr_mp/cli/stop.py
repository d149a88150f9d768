"""`atomr-mp stop`: end a pool in good order."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, add_timeout, observe, open_pool

TIMEOUT_S: Final = 60.0
"""Twice the time that workers may take by default to finish their requests."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stop",
        help="stop a pool",
        description="Stops a pool after its workers have finished their requests, and waits until it has gone.",
    )
    add_timeout(parser, TIMEOUT_S)
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Stop a pool and wait for its end."""
    from atomr_mp.process.identity import wait_ended

    directory = open_pool(options)
    pidfd = directory.supervisor.open_pidfd()
    if pidfd is None:
        raise errors.PoolUnreachable(f"the pool at {directory.path} has just ended")
    try:
        with observe(directory) as observer:
            name = observer.welcome.pool
            observer.stop()
        if not wait_ended([pidfd], options.timeout):
            raise errors.DeadlineExceeded(
                f"pool {name} has not ended within {options.timeout:g} s: its workers may still be busy (`atomr-mp "
                f"status`); a SIGTERM to its supervisor (pid {directory.supervisor.pid}) kills them now"
            )
    finally:
        os.close(pidfd)
    sys.stdout.write(f"pool {name} has stopped\n")
    return 0
