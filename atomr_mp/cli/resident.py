"""`atomr-mp resident`: memory that outlives the workers, shown and freed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from atomr_mp.cli.common import Commands, add_pool, observe, open_pool, size, whole
from atomr_mp.protocol.codec import MAX_DEVICES

if TYPE_CHECKING:
    from atomr_mp.protocol.messages.operators import ResidentInfo


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "resident",
        help="show or free memory that outlives the workers",
        description="Shows or frees resident memory, which actors fill once for all later processes.",
    )
    orders = parser.add_subparsers(title="orders", metavar="ORDER", required=True)
    listing = orders.add_parser("list", help="show it", description="Shows all resident memory and who uses it.")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    add_pool(listing)
    listing.set_defaults(run=show)
    freeing = orders.add_parser(
        "free",
        help="free it",
        description="Hands resident memory to nobody any more: the next process that asks for it fills it anew. Those "
        "that use it keep it, and its memory is given back when they have ended.",
    )
    freeing.add_argument("name", metavar="NAME", help="its name")
    freeing.add_argument(
        "--device", type=whole(0, MAX_DEVICES - 1), metavar="N", help="on this device's GPU only (default: on all)"
    )
    freeing.add_argument("--version", metavar="VERSION", help="this version only (default: all)")
    freeing.add_argument("--force", action="store_true", help="also if it is in use")
    add_pool(freeing)
    freeing.set_defaults(run=free)
    return parser


def show(options: argparse.Namespace) -> int:
    """Print all resident memory."""
    with observe(open_pool(options)) as observer:
        found = observer.residents()
    blobs = [_as_json(each) for each in found.residents]
    nbytes = sum(each.nbytes for each in found.residents)
    if options.json:
        shown = {"bytes": nbytes, "max_bytes": found.max_bytes or None, "residents": blobs}
        sys.stdout.write(f"{json.dumps(shown)}\n")
    else:
        limit = f" of {size(found.max_bytes)}" if found.max_bytes else ""
        _print(blobs, f"{size(nbytes)}{limit}")
    return 0


def free(options: argparse.Namespace) -> int:
    """Free some."""
    with observe(open_pool(options)) as observer:
        freed = observer.free_resident(
            options.name, device=options.device, version=options.version, force=options.force
        )
    nbytes = sum(each.nbytes for each in freed)
    kept = sorted({user.pid for each in freed for user in each.users if user.pid is not None})
    sys.stdout.write(f"{options.name}: {size(nbytes)} freed\n")
    if kept:
        pids = ", ".join(map(str, kept))
        sys.stdout.write(f"still in use; its memory is given back when these have ended: {pids} (`atomr-mp restart`)\n")
    return 0


def _as_json(blob: ResidentInfo) -> dict[str, Any]:
    return {
        "name": blob.name,
        "version": blob.version,
        "device": blob.device,
        "gpu": blob.gpu,
        "state": blob.state,
        "bytes": blob.nbytes,
        "arrays": blob.arrays,
        "users": [{"device": user.device, "generation": user.generation, "pid": user.pid} for user in blob.users],
    }


def _print(blobs: list[dict[str, Any]], total: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "version", "GPU", "state", "memory", "arrays", "processes"):
        right = title in {"memory", "arrays"}
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for blob in blobs:
        table.add_row(
            escape(blob["name"]),
            escape(blob["version"]),
            "all" if blob["gpu"] is None else str(blob["gpu"]),
            blob["state"] if blob["state"] == "sealed" else f"[yellow]{blob['state']}[/]",
            size(blob["bytes"]),
            str(blob["arrays"]),
            ", ".join(str(user["pid"] or "-") for user in blob["users"]) or "-",
        )
    console = Console(highlight=False)
    with console.capture() as capture:  # rich would end the process by itself when nobody reads any more
        if blobs:
            console.print(table)
        console.print(f"resident memory: {total}", soft_wrap=True)
    sys.stdout.write(capture.get())
