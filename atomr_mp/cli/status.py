"""`atomr-mp status`: how a pool and its devices are."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.cli.common import (
    Commands,
    add_pool,
    counted,
    duration,
    observe,
    open_pool,
    run_path,
    short_count,
    short_duration,
    short_size,
    short_time,
    size,
    whole,
)
from atomr_mp.cli.worlds import world_line
from atomr_mp.operator.pool_status import (
    DEGRADED,
    DOWN,
    HEALTHY,
    LOST,
    UNREACHABLE,
    DeviceStatus,
    PoolStatus,
    WorldStatus,
    status_of,
)
from atomr_mp.protocol.words import place_of, these_devices

if TYPE_CHECKING:
    from rich.console import Console


EXIT: Final = {HEALTHY: 0, DEGRADED: 1, DOWN: 2, UNREACHABLE: 3}
WRONG_USAGE: Final = 2


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="show the state of a pool and its devices",
        description="Shows the state of a pool and its devices.",
        epilog="Exit status: 0 healthy (all devices and worlds are ready), 1 degraded (some are not, or logs and "
        "events cannot be written), 2 down (no pool "
        "runs there, it stops, or no device is ready) or wrong usage, 3 unreachable (its supervisor runs, and does not "
        "answer this command). All devices count, also with --device.",
    )
    parser.add_argument(
        "--device",
        type=whole(0),
        action="append",
        metavar="N",
        help="show only this device; may be given several times (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, also if the pool is down")
    add_pool(parser)
    parser.set_defaults(run=run, error_status=WRONG_USAGE)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the status; the exit status tells it too."""
    supervisor = None
    try:
        directory = open_pool(options)
        supervisor = directory.supervisor
        from atomr_mp.operator.session import ANSWER_S

        with observe(directory) as observer:
            shown = status_of(observer.status(ANSWER_S), directory.path, time.time())
    except errors.AtomrError as error:
        lives = supervisor is not None and supervisor.alive()
        shown = PoolStatus(
            pool=_name(options),
            state=UNREACHABLE if lives else DOWN,
            reason=error.message,
            run_dir=_path(options),
            supervisor_pid=supervisor.pid if lives and supervisor is not None else None,
        )
    else:  # an InvalidRequest from here is the user's, and no state of the pool
        if options.device:
            shown.devices = _chosen(shown.devices, options.device)
    if options.json:
        sys.stdout.write(f"{msgspec.json.encode(shown).decode()}\n")
    else:
        _print(shown)
    return EXIT[shown.state]


def _chosen(devices: Sequence[DeviceStatus], wanted: Sequence[int]) -> list[DeviceStatus]:
    """Return the devices of these numbers, in their own order.

    Raises:
        InvalidRequest: One does not exist.
    """
    there = [device.index for device in devices]
    for index in wanted:
        if index not in there:
            raise errors.InvalidRequest(f"there is no device {index}; this pool has {these_devices(there)}")
    return [device for device in devices if device.index in wanted]


def _link_lines(links: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines about how GPUs reach each other: one if all pairs do so alike."""
    ways = [_way(each) for each in links]
    if len(set(ways)) == 1:
        yield f"the GPUs {ways[0]}"
        return
    for link, way in zip(links, ways, strict=True):
        one, other = link["gpus"]
        yield f"GPUs {one} and {other} {way}"


def _way(link: dict[str, Any]) -> str:
    """Return the words for how two GPUs reach each other."""
    if not link["access"]:
        return "do not reach each other"
    return f"reach each other over {'NVLink' if link['nvlink'] else 'PCIe'}"


def _remote_lines(remote: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about remote clients."""
    state = f"pid {remote['pid']}" if remote["listening"] else "starting"
    state += f", pid {remote['standby_pid']} stands by" if remote["standby_pid"] else ""
    again = f", started again {counted(remote['restarts'], 'time')}" if remote["restarts"] else ""
    yield f"remote clients: {remote['address']} ({state}{again}), {remote['refused']} refused"
    for each in remote["sessions"]:
        cut = "" if each["connected"] else ", cut"
        yield f"    {each['client']} (key {each['key']}{cut}): {size(each['kept_bytes'])} under way"


def _name(options: argparse.Namespace) -> str:
    """Return the words for a pool that cannot be asked for its name: its directory, if that was given, or the name."""
    named = options.run_dir is not None or (options.pool is None and "ATOMR_MP_RUN_DIR" in os.environ)
    found = str(run_path(options)) if named else options.pool
    return found or os.environ.get("ATOMR_MP_POOL", "default")


def _path(options: argparse.Namespace) -> str | None:
    try:
        return str(run_path(options))
    except errors.ConfigurationError:  # the pool's name is not valid
        return None


def _print(shown: PoolStatus) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    # Written here, since rich would end the process when nobody reads any more.
    with console.capture() as capture:
        _render(msgspec.to_builtins(shown), shown.worlds, console)
    sys.stdout.write(capture.get())


_KERNELS: Final = {
    "all": ("all clients, remote ones too, may launch kernels of their own",),
    "off": ("no client may launch kernels of its own",),
}
"""What is shown of `kernels` where it is not the default."""


def _render(shown: dict[str, Any], worlds: Sequence[WorldStatus], console: Console) -> None:
    from rich.console import Group
    from rich.markup import escape

    colour = {HEALTHY: "green", DEGRADED: "yellow", DOWN: "red", UNREACHABLE: "red"}[shown["state"]]
    why = f": {escape(shown['reason'])}" if shown["reason"] else ""
    console.print(f"pool [bold]{escape(shown['pool'])}[/] is [{colour}]{shown['state']}[/]{why}")
    if shown["backend"] is None:
        return
    console.print(
        f"{shown['backend']} backend, up {duration(shown['uptime_s'])}, supervisor {shown['supervisor_pid']} "
        f"({size(shown['supervisor_memory_bytes'])}), {counted(shown['sessions'], 'client')}, version "
        f"{shown['version']}\nrun directory {escape(shown['run_dir'])}"
    )
    for line in _pool_lines(shown):
        console.print(line, markup=False)
    console.print(Group(*_tables(shown["devices"])), soft_wrap=False)
    for device in shown["devices"]:
        for line in _remarks(device):
            console.print(f"{title(device)}{escape(line)}")
    for line in (*_KERNELS.get(shown["kernels"], ()), *_link_lines(shown["gpu_links"])):
        console.print(line, highlight=False, markup=False)
    for world in worlds:
        console.print(world_line(world), highlight=False, markup=False)
    if shown["remote"] is not None:
        for line in _remote_lines(shown["remote"]):
            console.print(line, highlight=False, markup=False)
    for found in shown["quarantined"]:
        where = ", ".join(f"device {end['device']} generation {end['generation']}" for end in found["where"])
        console.print(
            f"[yellow]refused[/] since {duration(time.time() - found['since'])}: {escape(found['method'])}, "
            f"fingerprint {found['fingerprint']}, has ended {counted(found['ends'], 'worker')} ({where}); `atomr-mp "
            f"admit {found['fingerprint'][:8]}` lets it in again"
        )


def _pool_lines(shown: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about the pool besides its figures."""
    if shown["unwritable"] and shown["unwritable"] not in shown["reason"]:
        yield f"{shown['unwritable']}: {LOST}"
    if shown["reloading"]:
        yield "the pool is being reloaded, one device at a time"
    if shown["reload_failed"]:
        since = duration(time.time() - shown["reload_failed_at"])
        yield f"the last reload failed {since} ago: {shown['reload_failed']}"
    if shown["resident_bytes"]:
        yield f"resident memory {size(shown['resident_bytes'])}"


def title(device: dict[str, Any]) -> str:
    """Return the words for a device: its number, with its GPU and worker if its GPU has several."""
    place = place_of(device["gpu"], device["worker"], device["workers_per_gpu"])
    return f"device {device['index']} ({place})" if place else f"device {device['index']}"


def _remarks(device: dict[str, Any]) -> Iterator[str]:
    """Yield a device's remarks, besides its figures."""
    if device["reason"]:
        yield f" is {device['state']}: {device['reason']}"
    if device["circuit"] == "half_open":
        yield ": its circuit is half open: its worker is on trial"
    elif device["retry_after_s"]:
        yield f": its circuit is open, a start in {device['retry_after_s']:.1f} s"
    for each in device["batches"]:
        if each["batches"]:
            yield (
                f", {each['method']}: in batches of {each['mean_items']:.1f}, "
                f"after {each['mean_wait_s'] * 1e3:.1f} ms (means of {counted(each['items'], 'request')})"
            )
    for each in device["plans"]:
        asked = each["hits"] + each["misses"]
        yield (
            f", {each['library']}: {counted(each['kept'], 'plan')}, there for {each['hits'] / asked:.1%} of "
            f"{counted(asked, 'request')}{', by ' + each['engine'] if each['engine'] else ''}"
        )
    if (graphs := device["graphs"]) is not None:
        yield from _graph_lines(graphs)
    yield from _notes(device)


def _notes(device: dict[str, Any]) -> Iterator[str]:
    """Yield a device's faults and notes."""
    if device["internal_errors"]:
        yield (
            f": {counted(device['internal_errors'], 'request')} met a fault of the runtime itself (InternalError); "
            f"please report what `atomr-mp logs {device['index']}` has of it"
        )
    for note in device["notes"]:
        yield f": {note}"
    if device["standby"] and device["standby"]["note"]:
        yield f": {device['standby']['note']}"


def _graph_lines(graphs: dict[str, int]) -> Iterator[str]:
    """Yield the lines about the programs' graphs."""
    if graphs["captured"]:
        launched = f"{counted(graphs['captured'], 'graph')}, launched {counted(graphs['replayed'], 'time')}"
        busy = f", {counted(graphs['busy'], 'run')} step by step behind an unread verdict" if graphs["busy"] else ""
        yield f", programs: {launched}{busy}"
    reasons = {
        "not_capturable": "a step that cannot be recorded",
        "capture_failed": "the device's refusal, see `atomr-mp logs`",
        "no_memory": "want of memory",
    }
    for name, reason in reasons.items():
        if graphs[name]:
            yield f", programs: {graphs[name]} without a graph for {reason}"


def _tables(devices: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield the tables: of the devices, and of what libraries have achieved, if that is known."""
    yield _table(devices)
    if any(device["work"] for device in devices):
        yield _work_table(devices)


def _table(devices: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)  # 80 columns are enough for all
    shared = any(device["workers_per_gpu"] > 1 for device in devices)
    place = ("gpu", "wkr") if shared else ()
    for name in ("dev", *place, "name", "state", "gen", "pid", "ends", "standby", "queue", "run", "age", "mem"):
        left = name in {"name", "state", "standby"}
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "name")
    for device in devices:
        table.add_row(
            str(device["index"]),
            *((str(device["gpu"]), str(device["worker"])) if shared else ()),
            device["name"],
            device["state"] if device["state"] == "ready" else f"[yellow]{device['state']}[/]",
            str(device["generation"]),
            str(device["pid"] or "-"),
            str(device["restarts"]),
            _standby_word(device["standby"]),
            short_count(device["queue_depth"]),
            str(device["running"]),
            short_duration(device["running_for_s"]) if device["running"] else "-",
            short_size(device["memory_bytes"]) if device["pid"] else "-",
        )
    return table


MOST_WORK: Final = 12
"""Methods of libraries that the table shows."""


def _work_table(devices: list[dict[str, Any]]) -> Any:
    """Return the table of what libraries have achieved, over all devices: the methods with the longest execution."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name in ("library method", "requests", "mean time", "GFLOP/s", "GB/s"):
        table.add_column(name, justify="left" if name == "library method" else "right", no_wrap=True)
    figures: dict[str, list[dict[str, Any]]] = {}
    for each in itertools.chain.from_iterable(device["work"] for device in devices):
        figures.setdefault(each["method"], []).append(each)
    took = {method: sum(_took_s(each) for each in found) for method, found in figures.items()}
    for method in sorted(took, key=lambda method: took[method], reverse=True)[:MOST_WORK]:
        requests = sum(each["requests"] for each in figures[method])
        table.add_row(
            method,
            short_count(requests),
            short_time(took[method] / requests),
            *(_mean_rate(figures[method], name) for name in ("gflops", "gbytes_per_s")),
        )
    return table


def _took_s(figures: dict[str, Any]) -> float:
    """Return how long a method's requests were executed on a device, all together."""
    return float(figures["requests"] * figures["mean_s"])


def _mean_rate(figures: list[dict[str, Any]], name: str) -> str:
    """Return the mean of a rate over devices, by the time of execution on each; "-" where it is not known."""
    known = [each for each in figures if each[name] is not None]
    took_s = sum(map(_took_s, known))
    return f"{sum(each[name] * _took_s(each) for each in known) / took_s:,.4g}" if took_s else "-"


def _standby_word(standby: dict[str, Any] | None) -> str:
    """Return a worker's standby in a word or two."""
    if standby is None or standby["mode"] == "none":
        return "-"
    return str(standby["mode"]) if standby["mode"] != "hot" else f"hot {standby['state']}"
