"""`atomr-mp doctor`: the pool as the kernel shows it, against its supervisor's account."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, run_path

if TYPE_CHECKING:
    from atomr_mp.supervision.audit.findings import Finding

NOT_WELL: Final = 1
NOT_LOOKED: Final = 2

COLOURS: Final = {"ok": "green", "held": "yellow", "unaccounted": "red", "unwell": "red"}


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="look for processes, memory and files that a pool should not have, or lacks",
        description="Looks at processes, descriptors, shared memory, sockets and the GPUs' processes from outside, and "
        "compares them with what the supervisor believes; also where that was killed. Each line is `ok`; `held`, which "
        "a living process still has; `unaccounted`; or `unwell`, a stopped process, a silent supervisor or a world "
        "that is not ready. Differences are looked at again for some seconds.",
        epilog="Exit status: 0 it has looked; 1 something is unwell, or with --leaks anything is unaccounted for; 2 it "
        "could not look.",
    )
    parser.add_argument("--leaks", action="store_true", help="exit with 1 if anything is unaccounted for")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_pool(parser)
    parser.set_defaults(run=run, error_status=NOT_LOOKED)
    return parser


def run(options: argparse.Namespace) -> int:
    """Look, and print the findings."""
    from atomr_mp.operator.doctor import examine

    path = run_path(options)
    if not path.is_dir():
        raise errors.PoolUnreachable(f"there is no pool at {path}; name its run directory")
    supervision, findings = examine(path)
    unaccounted = sum(finding.state == "unaccounted" for finding in findings)
    unwell = sum(finding.state == "unwell" for finding in findings)
    if options.json:
        shown = {
            "run_dir": str(path),
            "supervisor": supervision,
            "unaccounted": unaccounted,
            "unwell": unwell,
            "findings": [finding._asdict() for finding in findings],
        }
        sys.stdout.write(f"{json.dumps(shown)}\n")
    else:
        _print(path, findings, unaccounted, unwell)
    return NOT_WELL if unwell or (options.leaks and unaccounted) else 0


def _print(path: Path, findings: list[Finding], unaccounted: int, unwell: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table: Any = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "what", "since", ""):
        table.add_column(title, no_wrap=title == "since")
    for each in findings:
        since = "" if each.since is None else time.strftime("%m-%d %H:%M:%S", time.localtime(each.since))
        colour = COLOURS[each.state]
        remedy = f"\n[bold]{escape(each.remedy)}[/]" if each.remedy else ""
        table.add_row(f"[{colour}]{each.state}[/]", each.kind, since, escape(each.what) + remedy)
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
        wrong = [f"[red]{unaccounted} unaccounted for[/]"] if unaccounted else []
        wrong += [f"[red]{unwell} unwell[/]"] if unwell else []
        console.print(f"{escape(str(path))}: {', '.join(wrong) or '[green]all is well[/]'}", soft_wrap=True)
    sys.stdout.write(capture.get())
