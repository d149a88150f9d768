"""`atomr-mp config`: the settings that a start would use, and where each comes from."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from atomr_mp.cli.common import Commands
from atomr_mp.cli.start import add_settings, given_settings


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="show the settings that a start would use, and where each comes from",
        description="Checks the settings that `atomr-mp start` with the same options would use, and shows them with "
        "where each comes from: an option, the environment (ATOMR_MP_NAME), the file, or the default. It refuses what "
        "`start` would refuse on this machine, with its devices, keys and packages.",
    )
    parser.add_argument("--show", action="store_true", help="print them all; otherwise they are only checked")
    parser.add_argument("--json", action="store_true", help="print them as one JSON object")
    parser.add_argument(
        "--portable", action="store_true", help="check only what holds on every machine, not whether this one has it"
    )
    add_settings(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Check the settings, and print them if asked to."""
    from atomr_mp.startup.config import gather
    from atomr_mp.startup.planning import check, make_plan
    from atomr_mp.startup.rehearsal import rehearse

    found = gather(options.config, given_settings(options))
    if options.portable:
        check(found.settings)
    else:
        rehearse(make_plan(found.settings))
    values = msgspec.to_builtins(found.settings)
    shown = {name: {"value": values[name], "from": source} for name, source in found.sources.items()}
    if options.json:
        sys.stdout.write(f"{json.dumps(shown)}\n")
    elif options.show:
        width = max(map(len, shown))
        for name, each in shown.items():
            sys.stdout.write(f"{name:{width}}  {json.dumps(each['value'])}  ({each['from']})\n")
    for name in found.unknown:
        sys.stderr.write(f"{name} is not a setting, and is ignored\n")
    return 0
