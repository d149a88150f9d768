"""What brings requests back to the worker's loop that run elsewhere."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests.off_loop import completions as module
from atomr_mp_workers.requests.off_loop.completions import MOST_SPIN_NS, SPIN_NS, STRATEGIES, Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress


class Device:
    """Has work of streams that has ended, and says once when it is to be asked for it."""

    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.asynchronous = True

    def poll(self) -> Iterator[Any]:
        """Return what has ended."""
        while self.ended:
            yield self.ended.pop()

    def watch(self, _wake: object) -> None:
        """Say nothing from now on."""


def run(*, stream: bool) -> Any:
    """Return something that runs on a stream or on a thread."""
    return SimpleNamespace(method=SimpleNamespace(stream=object() if stream else None, thread=not stream))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_stream_has_done_is_not_left_for_what_a_thread_has(strategy: str) -> None:
    """Both have come to an end at once: neither is reported again."""
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


@pytest.mark.parametrize("asynchronous", [True, False])
def test_it_looks_as_long_as_the_last_work_took(monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool) -> None:
    """Work of a device that takes a little longer than usual is waited for awake, unless it takes too long."""
    now_ns, device = [10**12], Device()
    device.asynchronous = asynchronous
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))
    completions = Completions("adaptive", device, InProgress())  # type: ignore[arg-type]

    def awake_ns(took_ns: int) -> int:
        """Return for how long it looks at work that takes so long."""
        work = run(stream=True)
        completions.begin(work)
        begun_ns, looked = now_ns[0], 0
        while now_ns[0] - begun_ns < took_ns:
            looked += 10_000 * (completions.patience_s() == 0)
            now_ns[0] += 10_000
        device.ended.append(work)
        assert completions.look()
        completions.take()
        return looked

    assert awake_ns(50_000) == 50_000
    assert awake_ns(2 * SPIN_NS) == SPIN_NS
    assert awake_ns(2 * SPIN_NS) == (2 * SPIN_NS if asynchronous else SPIN_NS)
    assert awake_ns(2 * MOST_SPIN_NS) <= 3 * SPIN_NS
    assert awake_ns(2 * MOST_SPIN_NS) == SPIN_NS
    os.close(completions.descriptor)


@pytest.mark.parametrize("wake", [Completions.wake, Completions.wake_later])
def test_a_wake_is_signalled_each_time(wake: Callable[[Completions], None]) -> None:
    """The loop polls edge-triggered, and reads nothing."""
    device: Any = Device()
    completions = Completions("adaptive", device, InProgress())
    with select.epoll() as poll:
        poll.register(completions.descriptor, select.EPOLLIN | select.EPOLLET)
        found = [bool(poll.poll(0))]
        for _ in range(2):
            wake(completions)
            found += [bool(poll.poll(0)), bool(poll.poll(0))]
    assert found == [False, True, False, True, False]
    os.close(completions.descriptor)
