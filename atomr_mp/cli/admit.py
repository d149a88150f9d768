"""`atomr-mp admit`: let a request back in that was found to end workers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, counted, observe, open_pool

if TYPE_CHECKING:
    from atomr_mp.protocol.messages.operators import QuarantinedRequest


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "admit",
        help="admit a quarantined request again",
        description="Admits a request again that was refused because it ended workers (PoisonRequest); `status` lists "
        "them. If it ends workers again, it is refused again.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("fingerprint", metavar="FINGERPRINT", nargs="?", help="its fingerprint, or the first part")
    which.add_argument("--all", action="store_true", help="all refused requests")
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Admit the requests that were named."""
    with observe(open_pool(options)) as observer:
        found = observer.status().quarantined
        for each in found if options.all else [_meant(found, options.fingerprint)]:
            observer.admit(each.request)
            sys.stdout.write(
                f"{each.request.method} with the arguments of fingerprint {each.request.fingerprint.hex()} is admitted "
                f"again; it has ended {counted(each.ends, 'worker')}\n"
            )
    return 0


def _meant(found: list[QuarantinedRequest], beginning: str) -> QuarantinedRequest:
    """Return the one request whose fingerprint begins with these digits.

    Raises:
        InvalidRequest: There is none, or more than one.
    """
    meant = [each for each in found if each.request.fingerprint.hex().startswith(beginning.lower())]
    if len(meant) != 1:
        number = counted(len(meant), "request") if meant else "no request"
        raise errors.InvalidRequest(
            f"{number} in quarantine with a fingerprint that begins with {beginning!r}; `atomr-mp status` lists them"
        )
    return meant[0]
