"""What brings requests back to the worker's loop that run elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests.off_loop.completions import STRATEGIES, Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress


class Device:
    """Has work of streams that has ended, and says once when it is to be asked for it."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def poll(self) -> Iterator[Any]:
        """Return what has ended."""
        while self.ended:
            yield self.ended.pop()

    def watch(self, _wake: object) -> None:
        """Say nothing any more."""


def run(*, stream: bool) -> Any:
    """Return something that runs on a stream or on a thread."""
    return SimpleNamespace(method=SimpleNamespace(stream=object() if stream else None, thread=not stream))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_stream_has_done_is_not_left_for_what_a_thread_has(strategy: str) -> None:
    """Both have come to an end at once: nobody tells of either again."""
    device: Any = Device()
    completions = Completions(strategy, device, InProgress())
    on_thread, on_stream = run(stream=False), run(stream=True)
    for each in (on_thread, on_stream):
        completions.begin(each)
    completions.add(on_thread)
    device.ended.append(on_stream)
    assert completions.look()
    assert completions.take() == [on_thread, on_stream]
    assert not completions.in_progress.requests
    os.close(completions.descriptor)
