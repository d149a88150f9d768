"""`atomr-mp ready`: whether a pool answers, by a real request to each device."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, check_runs, counted, open_pool, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atomr_mp.client.reply import Reply
    from atomr_mp.pool import Pool
    from atomr_mp.protocol.messages.devices import DeviceInfo
    from atomr_mp.world import World

DEADLINE_S: Final = 5.0


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ready",
        help="tell whether every device answers a request",
        description="Joins the pool as any client does and has each device answer a small request, for its memory's "
        "statistics. A device whose worker is busy in a method that does not return is not ready. Worlds have to be "
        "ready, too.",
        epilog="Exit status: 0 every device has answered and every world is ready, 1 not.",
    )
    parser.add_argument(
        "--deadline",
        type=seconds(),
        default=DEADLINE_S,
        metavar="S",
        help="seconds for all of it (default: %(default)g)",
    )
    parser.add_argument("--any", action="store_true", help="succeed if one device answers")
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask every device; the exit status tells."""
    from atomr_mp.client.client import Client
    from atomr_mp.pool import Pool
    from atomr_mp.transport.session import SessionConnection

    begun = time.monotonic()
    directory = open_pool(options)
    check_runs(directory)
    connection = SessionConnection.connect(directory.session_socket, queue_s=options.deadline)
    hello_s = max(0.001, begun + options.deadline - time.monotonic())
    client = Client(connection, "atomr-mp ready", probe=True, hello_s=hello_s)
    with Pool(client, directory.path) as pool:
        failures = ask(pool, begun + options.deadline)
        worlds = pool.worlds
        waiting = wait_for(worlds, begun + options.deadline)
        count = len(pool.devices)
        tried = [info.index for info in pool.devices if info.circuit.value == "half_open"]
    for device in tried:
        sys.stderr.write(f"device {device} is on trial: its circuit is half open after too many ends\n")
    for device, error in sorted(failures.items()):
        sys.stderr.write(f"device {device} does not answer: {error}\n")
    for why in waiting:
        sys.stderr.write(f"{why}\n")
    answered = count - len(failures)
    if (failures or waiting) and not (options.any and answered):
        of_worlds = f", {len(worlds) - len(waiting)} of {counted(len(worlds), 'world')} ready" if waiting else ""
        raise errors.DeviceUnavailable(f"{answered} of {counted(count, 'device')} answered{of_worlds}")
    took_ms = (time.monotonic() - begun) * 1000
    sys.stdout.write(f"{answered} of {counted(count, 'device')} answered within {took_ms:.0f} ms\n")
    return 0


def wait_for(worlds: Sequence[World], until: float) -> list[str]:
    """Return why worlds are not ready in time, a line for each of these."""
    found = []
    for world in worlds:
        try:
            world.wait_ready(max(0.0, until - time.monotonic()))
        except (TimeoutError, errors.DeviceUnavailable) as error:
            found.append(str(error))
    return found


def ask(pool: Pool, until: float) -> dict[int, str]:
    """Return the devices that do not answer in time, and why."""
    from atomr_mp.protocol.libraries.memory import Statistics

    replies: dict[int, Reply] = {}
    failures: dict[int, str] = {}
    for info in pool.devices:
        # All at once, so that a stuck device takes no time from the others; unsent requests wait in the client.
        left_s = max(0.001, until - time.monotonic())
        try:
            replies[info.index] = pool.device(info.index).request("memory", Statistics(), left_s)
        except errors.DeviceUnavailable as error:
            failures[info.index] = error.message
    for index, reply in replies.items():
        failed = reply.exception()
        if failed is not None:
            failures[index] = _why(failed, pool.devices[index])
    return failures


def _why(failed: BaseException, info: DeviceInfo) -> str:
    """Return why a device has not answered, in words."""
    from atomr_mp.process.scheduling import standstill
    from atomr_mp.protocol.messages.devices import DeviceState

    state = f"it is {info.state.value}{': ' if info.reason else ''}{info.reason}"
    if not isinstance(failed, errors.DeadlineExceeded):
        return f"{failed} ({state})"
    if info.pid and (still := standstill(info.pid)) is not None:
        return str(still)
    if info.state is not DeviceState.READY:
        return state
    return f"its worker (pid {info.pid}) is ready and does not answer in time: it is busy with a method, or stuck"
