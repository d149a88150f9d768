"""`atomr-mp pools`: the pools of this user, and the run directories that killed ones have left."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.cli.common import Commands, duration, observe

if TYPE_CHECKING:
    from atomr_mp.process.files.rundir import PoolEntry

STALE: Final = "stale"

ASKED_AT_ONCE: Final = 32
"""Supervisors that are asked at a time: one that does not answer must not keep the others waiting."""

ANSWER_S: Final = 5.0
"""How long a supervisor may take to answer; one that starts may need longer, and is asked again by the next list."""

TITLES: Final = ("pool", "state", "devices", "clients", "pid", "up", "run directory")


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pools",
        help="list the pools of this user",
        description="Lists the pools of this user on this machine: those under the default directory, and those "
        "elsewhere whose workers run. A pool that is `stale` was killed, and has left its run directory behind.",
        epilog="Exit status: 0, whatever the pools' state is; `status` tells the state of one by its exit status.",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects, one for each pool")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the pools."""
    from atomr_mp.process import census
    from atomr_mp.process.files.rundir import RunDirectory

    entries = RunDirectory.list_pools(census.run_dirs())
    with ThreadPoolExecutor(ASKED_AT_ONCE) as asking:
        pools = list(asking.map(_described, entries))
    if options.json:
        sys.stdout.write(f"{json.dumps(pools)}\n")
    elif pools:
        _print(pools)
    else:
        sys.stdout.write("no pool of this user runs here\n")
    return 0


def _described(entry: PoolEntry) -> dict[str, Any]:
    """Ask a pool; return its object of `--json`."""
    from atomr_mp.operator.pool_status import UNREACHABLE, status_of
    from atomr_mp.process.files.rundir import RunDirectory

    shown: dict[str, Any] = {
        "pool": entry.name,
        "state": STALE,
        "reachable": False,
        "reason": "",
        "run_dir": str(entry.path),
        "supervisor_pid": entry.supervisor_pid,
        "backend": None,
        "version": None,
        "since": None,
        "clients": None,
        "devices": [],
    }
    try:
        directory = RunDirectory.open(entry.path)
        shown["state"] = UNREACHABLE
        with observe(directory, ANSWER_S) as observer:
            status = observer.status(ANSWER_S)
    except errors.AtomrError as error:
        return {**shown, "reason": error.message}
    found = msgspec.to_builtins(status_of(status, entry.path, time.time()))
    devices = [{name: device[name] for name in ("index", "name", "state", "pid")} for device in found["devices"]]
    told = {name: found[name] for name in ("pool", "state", "reason", "supervisor_pid", "backend", "version")}
    since = status.supervisor_started_at
    return {**shown, **told, "reachable": True, "since": since, "clients": found["sessions"], "devices": devices}


def _print(pools: list[dict[str, Any]]) -> None:
    rows = [TITLES, *(_row(pool) for pool in pools)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        sys.stdout.write(f"{'  '.join([*cells, row[-1]])}\n")
    for pool in pools:
        if pool["reason"]:
            sys.stdout.write(f"pool {pool['pool']} is {pool['state']}: {pool['reason']}\n")


def _row(pool: dict[str, Any]) -> tuple[str, ...]:
    ready = sum(device["state"] == "ready" for device in pool["devices"])
    return (
        pool["pool"],
        pool["state"],
        f"{ready} of {len(pool['devices'])}" if pool["reachable"] else "-",
        str(pool["clients"]) if pool["reachable"] else "-",
        str(pool["supervisor_pid"]) if pool["state"] != STALE else "-",
        duration(time.time() - pool["since"]) if pool["reachable"] else "-",
        pool["run_dir"],
    )
