"""Memory that one process writes while another reads it, both at full speed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atomr_mp.serve.watch.shared_sample import SharedSample
from tests.support import DEADLINE_S

FOUND = 3000
"""Samples that are looked at."""

FORKS = multiprocessing.get_context("fork")


@contextmanager
def written_by(write: Callable[[], object]) -> Iterator[None]:
    """Have another process write until the block ends."""
    process = FORKS.Process(target=write, daemon=True)
    process.start()
    try:
        yield
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL


def samples(descriptor: int) -> None:
    """Publish samples that say their own number, for ever."""
    shared = SharedSample(descriptor)
    number = 1
    shared.publish_history(b"kept")
    while True:
        number += 1
        shared.publish(b"%d" % number * (1 + number % 50))
        sum(range(number % 500))  # so that readers meet each moment of a write, and the time after it


def test_samples_of_another_process_are_whole_and_come_once() -> None:
    """Each has the number that it was published with, numbers only rise, and what lies beside the samples is kept."""
    descriptor = os.memfd_create("look")
    try:
        shared, seen, found = SharedSample(descriptor), 0, 0
        with written_by(lambda: samples(descriptor)):
            until_s = time.monotonic() + DEADLINE_S
            while found < FOUND:
                assert time.monotonic() < until_s, f"only {found} samples were found"
                latest = shared.latest(seen)
                assert not seen or shared.history() == b"kept"
                if latest is not None:
                    number, sample = latest
                    assert number > seen
                    assert sample == b"%d" % number * (1 + number % 50)
                    seen, found = number, found + 1
        latest = shared.latest()  # the writer was killed, mostly while it wrote
        assert latest is not None
        assert latest[0] >= seen
        assert shared.history() == b"kept"
    finally:
        os.close(descriptor)
