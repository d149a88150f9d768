"""The runtime with its signals on: a pool with metrics, one with spans, and two without either."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contestant import Empty, Signals
from benchmarks.subjects.signals import OFF

if TYPE_CHECKING:
    from atomr_mp import Pool

ACTOR: Final = Path(__file__).with_name("echo_actor.py")
TRACED_ACTOR: Final = Path(__file__).with_name("traced_echo_actor.py")
SCRAPER: Final = Path(__file__).with_name("scraper.py")
RECORDED: Final = 0.01
"""Part of the calls whose spans are recorded, where that is not all of them."""


def signalled(directory: Path, stack: ExitStack) -> Signals:
    """Start the pools, each with one device; return how each has empty calls made.

    Args:
        directory: For their files.
        stack: Ends them.
    """
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
    from opentelemetry.trace import NonRecordingSpan, SpanContext

    def empty(name: str, actor: Path = ACTOR, **settings: Any) -> Empty:
        call = _started(stack, directory / name, actor, **settings).actor("Echo").empty
        call().result()
        return lambda: call().result()

    off, again = empty("off"), empty("again")
    metered = empty("metered", metrics="unix:metrics.sock")
    traced = empty("traced", TRACED_ACTOR)
    scrape = _scraper(stack, directory / "metered" / "metrics.sock")
    return {
        OFF: lambda: _plainly(off),
        "again": lambda: _plainly(again),
        "metrics": lambda: _plainly(metered, scrape),
        "unrecorded": lambda: _with_spans(traced, ParentBased(ALWAYS_ON), NonRecordingSpan(SpanContext(1, 1, False))),
        "sampled": lambda: _with_spans(traced, ParentBased(TraceIdRatioBased(RECORDED))),
        "traced": lambda: _with_spans(traced, ParentBased(ALWAYS_ON)),
    }


def _started(stack: ExitStack, run_dir: Path, actor: Path, **settings: Any) -> Pool:
    import atomr_mp

    pool = atomr_mp.start(actors=[f"Echo={actor}:Echo"], gpus=1, backend="host", run_dir=run_dir, **settings)
    return stack.enter_context(pool)


def _scraper(stack: ExitStack, path: Path) -> Callable[[], object]:
    """Start what reads the metrics, and return what has it read them once; it is not waited for."""
    process = stack.enter_context(
        subprocess.Popen([sys.executable, str(SCRAPER), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)  # at which it ends
    if not process.stdout.readline():
        raise RuntimeError("the metrics cannot be read")
    descriptor = process.stdin.fileno()

    def scrape() -> None:

        os.write(descriptor, b"\n")

    return scrape


@contextmanager
def _plainly(empty: Empty, at_first: Callable[[], object] = lambda: None) -> Iterator[Empty]:
    at_first()
    yield empty


@contextmanager
def _with_spans(empty: Empty, sampler: Any, current: Any = None) -> Iterator[Empty]:
    """Have spans made in this process, and thrown away in batches, as they would be sent.

    Args:
        empty: Makes the calls.
        sampler: Decides which are recorded.
        current: The span in which they are made, None for none.
    """
    from opentelemetry.trace import INVALID_SPAN, use_span

    from atomr_mp import tracing
    from benchmarks.processes.traced_echo_actor import provider

    made = provider(sampler)
    tracing.instrument(made)
    try:
        with use_span(current or INVALID_SPAN):
            yield empty
    finally:
        tracing.uninstrument()
        made.shutdown()
