"""The command line, `atomr-mp`: one command a file, each with `add`, which declares it, and `run`.

A command's module imports what it needs when it runs, so that `--help` and `version` are there at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from atomr_mp import __version__, errors
from atomr_mp.cli.common import Parser, leaves
from atomr_mp.output import hold_standard, print_anything

COMMANDS: Final = (
    "start",
    "serve",
    "pools",
    "status",
    "ready",
    "stop",
    "restart",
    "reload",
    "resident",
    "admit",
    "keys",
    "logs",
    "events",
    "top",
    "trace",
    "doctor",
    "map",
    "config",
    "libraries",
    "version",
)

INTERRUPTED: Final = 128 + 2
"""Exit status of an interrupt, as shells report SIGINT."""

PIPE_CLOSED: Final = 128 + 13
"""Exit status after the reader of the output has gone, as shells report SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    error_status = 1
    hold_standard()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # it was closed when Python began
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - a number
    print_anything()
    try:
        options, unknown = _parser().parse_known_args(argv)
        if unknown:
            options.parser.refuse(unknown)
        error_status = options.error_status
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except (errors.AtomrError, TimeoutError) as error:
        sys.stderr.write(f"atomr-mp: {' '.join(str(error).split())}\n")
        return error_status
    except UnicodeEncodeError as error:  # what was typed goes where only text can be
        sys.stderr.write(f"atomr-mp: {error.object!a:.200} has bytes that are no text\n")
        return error_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more at its end, and would report the closed pipe.
        _print_no_more()
        return PIPE_CLOSED
    except OSError as error:  # of a full disk under standard output, say
        sys.stderr.write(f"atomr-mp: {error}\n")
        _print_no_more()
        return error_status


def _print_no_more() -> None:
    """Throw away the output that is still to be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser() -> Parser:
    parser = Parser(
        prog="atomr-mp",
        description="Hosts GPU work in isolated processes and keeps it answering when a GPU context dies.",
        epilog="Exit status: 0 well, 1 an error (one line on stderr says which), 2 wrong usage, 130 interrupted; "
        "`status` and `map` have their own, see their help.",
    )
    parser.add_argument("--version", action="version", version=f"atomr-mp {__version__}", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = importlib.import_module(f"atomr_mp.cli.{name}").add(commands)
        command.set_defaults(error_status=command.get_default("error_status") or 1)
        for each in leaves(command):
            each.set_defaults(parser=each)
    return parser
