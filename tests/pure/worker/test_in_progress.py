"""What runs elsewhere than on the loop, as other threads ask for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests.off_loop.in_progress import InProgress


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("often")
def test_threads_may_ask_while_the_loop_starts_and_ends_requests() -> None:
    """As allocations on actors' threads do."""
    in_progress = InProgress()
    asked = threading.Event()

    def loop() -> None:
        runs: list[Any] = [SimpleNamespace(method=SimpleNamespace(stream=stream)) for stream in (None, 1, None)]
        while not asked.is_set():
            for run in runs:
                in_progress.begin(run)
            for run in runs:
                in_progress.end(run)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        for _ in range(200_000):
            in_progress.ended(1)
    finally:
        asked.set()
        thread.join()
    assert in_progress.ended(in_progress.last)
