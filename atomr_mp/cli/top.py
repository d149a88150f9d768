"""`atomr-mp top`: a live view of a pool: states, rates, latencies, queues, memory, the last faults."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.cli.common import (
    Commands,
    add_pool,
    counted,
    duration,
    observe,
    open_pool,
    seconds,
    short_count,
    short_duration,
    short_size,
    size,
)
from atomr_mp.operator.figures import quantile

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from atomr_mp.operator.session import OperatorSession
    from atomr_mp.protocol.messages.operators import RemoteStatus, Status, WorkerStatus

INTERVAL_S: Final = 1.0

SETTLE_S: Final = 5.0
"""How long a supervisor may take, after its sessions have ended, to give its run directory back."""

PIPE_WIDTH: Final = 160
"""Columns, if the output is not a terminal."""

MOST_METHODS: Final = 12
"""Most methods shown, those that were called most in the interval first."""

METHOD_WIDTH: Final = 36

QUIT: Final = frozenset({b"q", b"Q"})
"""Keys that end it."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "top",
        help="watch a pool",
        description="Shows a pool's devices until `q` or Ctrl-C: state, requests and errors a second, latencies from "
        "arrival to answer, what runs and waits, memory, calls over HTTP by method, and the last faults. Figures are "
        "those of the last interval.",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one view, of one interval, and end; also where there is no terminal"
    )
    parser.add_argument(
        "--interval",
        type=seconds(),
        default=INTERVAL_S,
        metavar="S",
        help="seconds between views (default: %(default)g)",
    )
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Show views, one or many."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    directory = open_pool(options)
    with observe(directory) as observer:
        before = sample(observer)
        time.sleep(options.interval)
        after = sample(observer)
        if options.once or not console.is_terminal:
            with console.capture() as capture:
                console.print(view(before, after))
            sys.stdout.write(capture.get())
            return 0
        try:
            with _keys() as quits, Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(view(before, after), refresh=True)
                    if quits(options.interval):
                        return 0
                    before, after = after, sample(observer)
        except KeyboardInterrupt:
            return 0
        except errors.PoolLost:
            # The lock is empty after an orderly end: a killed supervisor had no time to empty it.
            if not after.status.stopping and not directory.ended_in_order(SETTLE_S):
                raise
            sys.stdout.write(f"the pool {after.status.pool} was stopped\n")
            return 0


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits some seconds; it returns True at once when a key says to end."""
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if keyboard is None:
        yield _no_key
        return
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    keys = select.poll()
    keys.register(keyboard, select.POLLIN)

    def quits(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while keys.poll(max(0.0, until_s - time.monotonic()) * 1000):
            key = os.read(keyboard, 1)
            if not key or key in QUIT:  # no key: the terminal is gone
                return True
        return False

    try:
        yield quits
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> bool:
    """Wait, without a terminal for keys."""
    time.sleep(seconds)
    return False


Calls = tuple[int, int, list[int]]
"""How many calls of a method have ended, how many of them with an error, and their histogram."""


class Sample(NamedTuple):
    """A snapshot, and when it was taken."""

    at_s: float
    status: Status
    methods: dict[str, Calls] = {}  # noqa: RUF012 - nobody writes to it
    """Calls over HTTP by method; none of a pool that is not served."""


def sample(observer: OperatorSession) -> Sample:
    """Take a snapshot."""
    from atomr_mp.operator.session import ANSWER_S
    from atomr_mp.serve.watch.history import sums
    from atomr_mp.serve.watch.served import served_figures

    sessions = observer.inventory(ANSWER_S).sessions
    return Sample(time.monotonic(), observer.status(ANSWER_S), sums(served_figures(sessions)))


def view(before: Sample, after: Sample) -> RenderableType:
    """Return the view for the time between two snapshots."""
    from rich.console import Group
    from rich.markup import escape

    status = after.status
    up = duration(time.time() - status.supervisor_started_at)
    ready = sum(worker.device.state.value == "ready" and not worker.standstill for worker in status.workers)
    still = [f"{worker.device.title}: {escape(worker.standstill)}" for worker in status.workers if worker.standstill]
    head = (
        f"pool [bold]{escape(status.pool)}[/], {status.backend} backend, up {up}, {ready} of "
        f"{counted(len(status.workers), 'device')} ready, {counted(status.sessions, 'client')}, supervisor "
        f"{size(status.supervisor_memory_bytes)}"
    )
    faults = [
        f"{worker.device.title}, {duration(max(0.0, time.time() - worker.last_fault_at))} ago: "
        f"{escape(worker.last_fault)}"
        for worker in sorted(status.workers, key=lambda worker: -worker.last_fault_at)
        if worker.last_fault
    ]
    told = [*methods(before, after), *batches(before, after), *(["last faults:", *faults] if faults else ["no faults"])]
    far = [] if status.remote is None else [remote_line(status.remote)]
    return Group(head, *far, _table(before, after), *still, *told)


def remote_line(remote: RemoteStatus) -> str:
    """Return a line about remote clients."""
    cut = sum(not each.connected for each in remote.sessions)
    sessions = counted(len(remote.sessions), "session") + (f" ([yellow]{cut} cut[/])" if cut else "")
    kept = sum(each.kept_bytes for each in remote.sessions)
    again = f", relay started again {counted(remote.restarts, 'time')}" if remote.restarts else ""
    state = "" if remote.listening else ", [yellow]relay starting[/]"
    return f"remote clients: {sessions}, {size(kept)} under way, {remote.refused} refused{again}{state}"


def batches(before: Sample, after: Sample) -> list[str]:
    """Return a line for each batched method that had batches between two snapshots, under a title."""
    from rich.markup import escape

    lines = []
    for earlier, worker in zip(before.status.workers, after.status.workers, strict=True):
        if earlier.device.generation != worker.device.generation:
            continue  # a new worker's figures start from 0
        for old, new in zip(earlier.batches, worker.batches, strict=False):
            count, items = new.batches - old.batches, new.items - old.items
            if count and items:
                wait = _latency((new.wait_s - old.wait_s) / items * 1e9)
                rate = _rate(count / max(after.at_s - before.at_s, 1e-3))
                lines.append(
                    f"{worker.device.title}, {escape(new.method)}: {rate}/s of {items / count:.1f} requests, "
                    f"after {wait} (means)"
                )
    return ["batches:", *lines] if lines else []


def methods(before: Sample, after: Sample) -> list[RenderableType]:
    """Return a table of the methods that were called most over HTTP, if the pool is served."""
    from rich.markup import escape

    if not after.methods:
        return []
    table = _empty_table()
    table.add_column("calls over HTTP", overflow="ellipsis", no_wrap=True, max_width=METHOD_WIDTH)
    for title in ("calls/s", "err/s", "p50", "p99", "calls", "errors"):
        table.add_column(title, justify="right", no_wrap=True)
    seconds = max(after.at_s - before.at_s, 1e-3)
    rows = []
    for method, (ended, failed, buckets) in after.methods.items():
        was_ended, was_failed, earlier = before.methods.get(method, (0, 0, [0] * len(buckets)))
        counts = [late - early for late, early in zip(buckets, earlier, strict=True)]
        rows.append(
            (
                -(ended - was_ended),
                method,
                _rate((ended - was_ended) / seconds),
                _rate((failed - was_failed) / seconds),
                _latency(quantile(counts, 0.5)),
                _latency(quantile(counts, 0.99)),
                short_count(ended),
                short_count(failed),
            )
        )
    for _, method, *cells in sorted(rows)[:MOST_METHODS]:
        table.add_row(escape(method), *cells)
    left_out = len(rows) - MOST_METHODS
    return [table, *([f"and {counted(left_out, 'method')} less called"] if left_out > 0 else [])]


def _empty_table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)  # 80 columns are enough for all


def _table(before: Sample, after: Sample) -> RenderableType:
    table = _empty_table()
    shared = any(worker.device.workers_per_gpu > 1 for worker in after.status.workers)
    rates = ("req/s", "err/s", "p50", "p99", "run", "age", "queue", "mem", "slabs")
    # Without the generation, where a GPU has several devices: 80 columns are full.
    for title in ("dev", *(("gpu", "wkr") if shared else ()), "state", *(() if shared else ("gen",)), "ends", *rates):
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    for earlier, worker in zip(before.status.workers, after.status.workers, strict=True):
        state = worker.device.state.value
        if state == "ready" and worker.device.circuit.value == "half_open":
            state = "half open"  # no longer than others: 80 columns are full
        table.add_row(
            str(worker.device.index),
            *((str(worker.device.gpu), str(worker.device.worker)) if shared else ()),
            state if state == "ready" else f"[yellow]{state}[/]",
            *(() if shared else (str(worker.device.generation),)),
            str(worker.device.restarts),
            *figures(earlier, worker, after.at_s - before.at_s),
            str(worker.running),
            short_duration(worker.running_for_s) if worker.running else "-",
            short_count(worker.queue_depth),
            short_size(worker.memory_bytes) if worker.device.worker_pid else "-",
            short_size(worker.slab_bytes),
        )
    return table


def figures(before: WorkerStatus, after: WorkerStatus, seconds: float) -> tuple[str, str, str, str]:
    """Return rates of requests and of errors, median and 99th percentile of latencies, as one reads them."""
    new, old = after.figures, before.figures
    answered = new.answered + new.failed - old.answered - old.failed
    errors = new.failed + new.expired + new.rejected + new.lost - old.failed - old.expired - old.rejected - old.lost
    counts = [late - early for late, early in zip(new.latencies, old.latencies, strict=True)]
    seconds = max(seconds, 1e-3)
    median, late = quantile(counts, 0.5), quantile(counts, 0.99)
    return _rate(answered / seconds), _rate(errors / seconds), _latency(median), _latency(late)


def _rate(value: float) -> str:
    return short_count(round(value)) if value >= 10 or value == 0 else f"{value:.1f}"


def _latency(ns: Any) -> str:
    if ns is None:
        return "-"
    for unit, scale in (("µs", 1e3), ("ms", 1e6)):
        if ns < 999.5 * scale:
            return f"{ns / scale:.3g}{unit}"
    return short_duration(ns / 1e9)
