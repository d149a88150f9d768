"""The progress of `atomr-mp map` on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from atomr_mp.cli.common import counted, duration

if TYPE_CHECKING:
    from atomr_mp.mapping.run import Progress

SHOW_EVERY_S: Final = 0.1
"""How often the bar is drawn."""

LINE_EVERY_S: Final = 10.0
"""How often a line is written, also if nothing has come meanwhile."""

Show = Callable[["Progress"], None]
"""Takes the latest progress."""


def shown_progress(total: int | None) -> contextlib.AbstractContextManager[Show]:
    """Show progress while the `with` lasts.

    Args:
        total: Number of items; None if it is not known.
    """
    return _bar(total) if sys.stderr.isatty() else lines(total)


@contextlib.contextmanager
def lines(total: int | None, every_s: float = LINE_EVERY_S) -> Iterator[Show]:
    """Write a line about the latest progress now and then, from a thread of its own."""
    latest: list[Progress] = []
    ended, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every_s):
            if latest:
                sys.stderr.write(f"atomr-mp: {line(latest[0], total, time.monotonic() - begun)}\n")
                sys.stderr.flush()

    def show(progress: Progress) -> None:
        latest[:] = [progress]

    teller = threading.Thread(target=tell, name="atomr-mp progress", daemon=True)
    teller.start()
    try:
        yield show
    finally:
        ended.set()
        teller.join()


def line(progress: Progress, total: int | None, took_s: float) -> str:
    """Return the progress as one reads it: "300 of 1,000 items (30%), 20/s, about 35.0 s left"."""
    rate = (progress.done - progress.recorded) / max(took_s, 1e-9)
    of = counted(progress.done, "item") if total is None else f"{progress.done:,} of {counted(total, 'item')}"
    words = [of if not total else f"{of} ({progress.done / total:.0%})", *_notes(progress, rate)]
    if total is not None and rate:
        words.append(f"about {duration((total - progress.done) / rate)} left")
    return ", ".join(words)


def _notes(progress: Progress, rate: float) -> list[str]:
    """Return the words for the rate, failures, restarts and repetitions."""
    words = [f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"]
    if progress.failed:
        words.append(f"{progress.failed:,} failed")
    if progress.restarts:
        words.append(counted(progress.restarts, "restart"))
    if progress.resubmitted:
        words.append(f"{progress.resubmitted:,} sent again")
    return words


@contextlib.contextmanager
def _bar(total: int | None) -> Iterator[Show]:
    """Show a bar."""
    from rich import progress as bars
    from rich.console import Console

    columns: list[bars.ProgressColumn] = [
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[told]}"),
    ]
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, told="")
        begun = shown = time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown < SHOW_EVERY_S and progress.done != total:
                return
            shown = now
            rate = (progress.done - progress.recorded) / max(now - begun, 1e-9)
            bar.update(task, completed=progress.done, told=", ".join(_notes(progress, rate)))

        yield show
