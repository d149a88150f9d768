"""`atomr-mp libraries`: the requests of each library, by backend."""

from __future__ import annotations

import argparse
import sys

from atomr_mp import errors
from atomr_mp.cli.common import Commands
from atomr_mp.process import interpreter


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "libraries",
        help="show the requests of each library, by backend",
        description="Shows the requests of all libraries by backend, with their element types, and on what hardware "
        "each was last verified.",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects, one for a request and backend")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the support matrix, which the workers' code itself gives."""
    import subprocess

    from atomr_mp.process.spawn import WORKER_MODULE

    command = interpreter.module(f"{WORKER_MODULE}.libraries")
    with interpreter.startable():
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise errors.ConfigurationError(f"the libraries cannot be listed: {asked.stderr.strip()}")
    if options.json:
        sys.stdout.write(asked.stdout)
    else:
        _print_table(asked.stdout)
    return 0


def _print_table(text: str) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    table = Table("library", "request", "backend", "element types", "verified on")
    for row in json.loads(text):
        verified = row["verified"]
        where = f"{verified['device']}, driver {verified['driver']}, {verified['date']}" if verified else ""
        table.add_row(row["library"], row["request"], row["backend"], " ".join(row["dtypes"]) or "any", where)
    Console().print(table)
