"""`atomr-mp map`: a file of items through one method of an actor, into a file of results."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, counted, duration, seconds, whole
from atomr_mp.cli.map_progress import shown_progress
from atomr_mp.cli.start import add_world
from atomr_mp.protocol.amounts import LONGEST_S
from atomr_mp.protocol.codec import MAX_DEVICES
from atomr_mp.protocol.messages.data import MAX_PRIORITY, MIN_PRIORITY

if TYPE_CHECKING:
    from atomr_mp.cli.items import Items
    from atomr_mp.mapping.journal import Journal
    from atomr_mp.mapping.run import Progress
    from atomr_mp.pool import Pool

FAILURES_SHOWN: Final = 10

_NO_POOL: Final = (errors.PoolLost, errors.DeviceUnavailable)
"""Errors of the pool, not of an item: the pool has stopped taking work."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "map",
        help="run a file of items through a method",
        description="Calls a method once for each item of a file, on all devices of a running pool or (with --actor) "
        "of one that is started for this job, and writes the results in the items' order. An item that was lost with "
        "its worker is sent again if it did not run, or if the method is idempotent.",
        epilog="Failed items do not end the job. In .jsonl output each is a line "
        '{"error": {"code": ..., "message": ...}} in its place. In .npy output its row is NaN (0 if the results are '
        "integers, False if booleans), and FILE.failures.jsonl says which rows these are. The output appears when the "
        "job is done. With --journal the same command takes up a job again that was cut off, or lost its pool: "
        "items in the journal are not run again, and the output is that of an undisturbed job. "
        "Exit status: 0 all items succeeded, 1 some failed, 2 the job could not be run.",
    )
    parser.add_argument("method", metavar="ACTOR.METHOD", help="a method that takes an item as its one argument")
    parser.add_argument(
        "--input", required=True, metavar="FILE", help=".jsonl, one item a line (- for stdin); or .npy, one item a row"
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help=".jsonl (- for stdout); or .npy, if all results are numbers or arrays of one shape",
    )
    parser.add_argument(
        "--in-flight", type=whole(1), metavar="N", help="items sent and not answered (default: by speed)"
    )
    parser.add_argument(
        "--batch-size",
        type=whole(1),
        metavar="N",
        help="items in flight for each device in any case (default: four full batches of the method, eight if quick)",
    )
    parser.add_argument(
        "--attempts", type=whole(1), default=3, metavar="N", help="how often an item may run (default: %(default)s)"
    )
    parser.add_argument(
        "--deadline",
        type=seconds(most=LONGEST_S),
        metavar="S",
        help="seconds that an attempt may take, queueing included",
    )
    parser.add_argument(
        "--priority",
        type=whole(MIN_PRIORITY, MAX_PRIORITY),
        default=0,
        metavar="N",
        help="-8 to 7; below 0 lets others' calls go first",
    )
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="record outcomes in this file; the same command goes on from there, whatever has ended this one",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="with --journal: try again the items that failed in earlier runs, also those that the pool refuses since "
        "they ended workers (it admits them again)",
    )
    parser.add_argument(
        "--repair-journal",
        action="store_true",
        help="with --journal: if that is damaged, save its whole records, keep the damaged file as FILE.damaged, go on",
    )
    add_pool(parser)
    own = parser.add_argument_group("a pool for this job alone")
    own.add_argument("--actor", action="append", metavar="TARGET", help="start one that runs this, see `start`")
    own.add_argument("--gpus", default="all", metavar="all|N|0,2", help="its devices (default: %(default)s)")
    own.add_argument(
        "--workers-per-gpu", type=whole(1, MAX_DEVICES), metavar="N", help="devices of each GPU (default: 1)"
    )
    add_world(own)
    own.add_argument("--backend", choices=("auto", "cuda", "host"), default="auto", help="default: %(default)s")
    parser.set_defaults(run=run, error_status=2)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the job; the exit status says whether all items succeeded."""
    from atomr_mp.cli.items import open_items

    _check_files(options)
    items = open_items(options.input)
    latest: list[Progress] = []
    try:
        return _run(options, items, latest)
    except _NO_POOL as error:
        if latest and options.journal:
            error.message = f"{error.message}; {_kept(options, latest)}"
        raise
    except KeyboardInterrupt:
        sys.stderr.write(f"atomr-mp: {_interrupted(options, latest)}\n")
        raise


def _run(options: argparse.Namespace, items: Items, latest: list[Progress]) -> int:
    """Run the job on a pool; `latest` has its progress."""
    from atomr_mp.cli.results import open_results
    from atomr_mp.mapping.finished import recorded_outcomes
    from atomr_mp.mapping.run import Failure, Progress

    with open_results(options.output) as results, contextlib.ExitStack() as opened:
        report = _Report("row" if options.input.endswith(".npy") else "line")
        finished = _finished(options, items)
        pool = opened.enter_context(_pool(options)) if finished is None else None
        with shown_progress(items.total) as show:

            def on_progress(progress: Progress) -> None:
                latest[:] = [progress]
                show(progress)

            if finished is not None:
                opened.callback(finished.close)
                outcomes = recorded_outcomes(finished, items.each)
            else:
                assert pool is not None
                outcomes = _outcomes(pool, options, items, on_progress)
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome, Failure) and isinstance(outcome.error, _NO_POOL):
                    raise errors.unraised(outcome.error)  # all further items would end so
                if isinstance(outcome, Failure) and (pool is None or options.actor):
                    _drop_advice(outcome.error, options)
                failure = results.write(index, outcome)
                if failure is not None:
                    report.failed(index, failure.error.code, failure.error.message)
        results.commit()
        if finished is not None:
            on_progress(Progress(finished.items, report.failures, 0, 0, 0, finished.items))
    for line in report.lines(latest[-1], options.output):
        sys.stderr.write(f"{line}\n")
    return 1 if report.failures else 0


def _finished(options: argparse.Namespace, items: Items) -> Journal | None:
    """Return the job's journal if nothing of the job is left to be done, so that it needs no pool."""
    if not options.journal or items.total is None or options.repair_journal:
        return None
    from atomr_mp.mapping.finished import open_finished

    return open_finished(Path(options.journal), options.method, items.total, retry_failed=options.retry_failed)


def _outcomes(
    pool: Pool, options: argparse.Namespace, items: Items, on_progress: Callable[[Progress], None]
) -> Iterator[Any]:
    """Return the outcomes of a job on a pool."""
    return pool.map(
        options.method,
        items.each,
        in_flight=options.in_flight,
        batch_size=options.batch_size,
        attempts=options.attempts,
        deadline_s=options.deadline,
        priority=options.priority,
        return_failures=True,
        on_progress=on_progress,
        journal=options.journal,
        retry_failed=options.retry_failed,
        repair_journal=options.repair_journal,
    )


def _drop_advice(error: errors.AtomrError, options: argparse.Namespace) -> None:
    """Leave out of an error what one could do with a pool that has ended with its job."""
    if isinstance(error, errors.PoisonRequest):
        error.message = (
            f"{error.method} with these arguments has ended {counted(error.ends, 'worker')}, at last when nothing else "
            f"ran there{'; --retry-failed tries it again' if options.journal else ''}"
        )


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that would overwrite one another.

    Raises:
        ConfigurationError: Two of input, output and journal are one file.
    """
    files: dict[Path, str] = {}
    for name in ("input", "output", "journal"):
        given = getattr(options, name)
        if given is None or given == "-":
            continue
        path = Path(given).resolve()
        path = next((other for other in files if _is_same(path, other)), path)
        if path in files:
            raise errors.ConfigurationError(
                f"--{name} and --{files[path]} are the same file, {given}; give each a file of its own"
            )
        files[path] = name


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them does not exist yet
        return path == other


def _interrupted(options: argparse.Namespace, latest: list[Progress]) -> str:
    """Return a line about an interrupted job: the kept items, and how to go on."""
    done = latest[0].done if latest else 0
    if options.journal:
        return f"interrupted: {_kept(options, latest)}"
    return (
        f"interrupted: nothing is kept of {counted(done, 'item')} that had been done; the same command begins anew. "
        "With --journal FILE it would go on"
    )


def _kept(options: argparse.Namespace, latest: list[Progress]) -> str:
    """Return how many items a journal has, and how to go on."""
    done = latest[0].done if latest else 0
    return f"{counted(done, 'item')} in {options.journal}; the same command goes on from there"


class _Report:
    """The summary at the end.

    Args:
        place: The name of an item's place in the input: a line, counted from 1, or a row, counted from 0.
    """

    def __init__(self, place: Literal["line", "row"]) -> None:
        self.failures = 0
        self._place = place
        self._shown: list[str] = []
        self._begun = time.monotonic()

    def failed(self, index: int, code: str, message: str) -> None:
        """Note a failed item."""
        self.failures += 1
        if self.failures <= FAILURES_SHOWN:
            place = f"{self._place} {index + (self._place == 'line')}"
            self._shown.append(f"atomr-mp: {place} failed: {code}: {' '.join(message.split())}")

    def lines(self, end: Progress, output: str) -> Iterator[str]:
        """Yield the lines to print."""
        yield from self._shown
        if self.failures > FAILURES_SHOWN:
            yield f"atomr-mp: {counted(self.failures - FAILURES_SHOWN, 'more item')} failed, see the output"
        took_s = time.monotonic() - self._begun
        kept = f", {end.recorded:,} of them by the journal" if end.recorded else ""
        rate = (end.done - end.recorded) / max(took_s, 1e-9)
        yield (
            f"{counted(end.done, 'item')}{kept} in {duration(took_s)} ({rate:,.0f}/s), "
            f"{self.failures:,} failed, {counted(end.restarts, 'worker restart')}, {counted(end.resubmitted, 'item')} "
            f"sent again; results in {'stdout' if output == '-' else output}"
        )


@contextlib.contextmanager
def _pool(options: argparse.Namespace) -> Iterator[Pool]:
    """Yield the pool that the options name, or one of the job's own."""
    import atomr_mp

    if options.world and not options.actor:
        raise errors.ConfigurationError("--world is of a pool that is started for this job: name its --actor")
    if options.actor:
        from atomr_mp.startup.config import actor_specs
        from atomr_mp.startup.world_settings import world_of_all

        names = [actor.name for actor in actor_specs(options.actor)]
        pool = atomr_mp.start(
            actors=options.actor,
            gpus=options.gpus,
            worlds=world_of_all(options.world, names) if options.world else None,
            **({} if options.workers_per_gpu is None else {"workers_per_gpu": options.workers_per_gpu}),
            backend=options.backend,
            pool=options.pool,
            run_dir=options.run_dir,
        )
    else:
        pool = atomr_mp.connect(
            options.pool, run_dir=Path(options.run_dir) if options.run_dir else None, name="atomr-mp map"
        )
    with pool:
        yield pool
