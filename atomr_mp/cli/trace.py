"""`atomr-mp trace`: a running pool's timeline, as a file for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, observe, open_pool, seconds
from atomr_mp.protocol.timeline import LONGEST_S

DEFAULT_S: Final = 5.0

NICENESS: Final = 10
"""Of this process: where no processor is idle, the pool goes first. Written at the usual one, the file of a pool on two
processors makes calls three times as much slower."""

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a trace early."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="record what a running pool does, for a viewer",
        description="Records what the clients and the workers of a running pool do for some seconds, as a file for "
        "https://ui.perfetto.dev or chrome://tracing. Ctrl-C ends it early and keeps what there is. One trace runs at "
        "a time.",
    )
    parser.add_argument(
        "--seconds",
        type=seconds(most=LONGEST_S),
        default=DEFAULT_S,
        metavar="S",
        help=f"how long, at most {LONGEST_S:g} (default: %(default)g)",
    )
    parser.add_argument("--output", "-o", default="trace.json", metavar="FILE", help="- for standard output")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Trace the pool and write the file."""
    from atomr_mp.cli import INTERRUPTED
    from atomr_mp.operator.trace.tracer import PoolTracer

    _check_name(options)
    with observe(open_pool(options)) as observer, _signalled() as signals:
        tracer = PoolTracer(observer, options.seconds, lambda: bool(signals))
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        with _opened(options.output) as file:
            sys.stderr.write(f"tracing pool {observer.welcome.pool} for {options.seconds:g} s; Ctrl-C ends it early\n")
            sys.stderr.flush()
            try:
                facts = tracer.run(file)
            except OSError as error:
                raise errors.ConfigurationError(
                    f"the trace cannot be written to {options.output}, which has a part of it: {error.strerror}"
                ) from error
    early = f"; it ended early, since {facts['ended_early']}" if "ended_early" in facts else ""
    where = "standard output" if options.output == "-" else options.output
    sys.stderr.write(f"{facts['seconds']:.1f} s of pool {facts['pool']} in {where}{lost(facts)}{early}\n")
    return INTERRUPTED if signals else 0


def lost(facts: dict[str, Any]) -> str:
    """Return words for what is missing in a file, by the names that the file itself has for it; empty for nothing."""
    counts = {name: facts.get(name, 0) for name in ("dropped", "unmatched", "events_left_out")}
    return "".join(f", {name} {count}" for name, count in counts.items() if count)


@contextlib.contextmanager
def _signalled() -> Iterator[list[int]]:
    """Note signals that would end this process, so that it ends with a whole file."""
    signals: list[int] = []
    before = {each: signal.signal(each, lambda number, _frame: signals.append(number)) for each in ENDING}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _check_name(options: argparse.Namespace) -> None:
    """Check that the file may be written, before the trace.

    Raises:
        ConfigurationError: It exists.
    """
    if options.output != "-" and not options.force and Path(options.output).is_file():
        raise errors.ConfigurationError(f"{options.output} exists; name another file, or replace it by --force")


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Open the file to write.

    Raises:
        ConfigurationError: It cannot be written.
    """
    if name == "-":
        sys.stdout.flush()
        with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as out:
            yield out
        return
    try:
        file = Path(name).open("wb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise errors.ConfigurationError(f"the output cannot be written: {error}") from error
    with file:
        yield file
