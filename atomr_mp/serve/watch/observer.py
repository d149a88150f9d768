"""Watches the pool for all viewers of the page at all front ends: one session, as long as somebody views it.

The history is recorded all the time, by one of the front ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import EVENTS, SESSION_SOCKET
from atomr_mp.process.gpus.driver import Driver
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.operators import Status
from atomr_mp.serve.metrics import IN_FLIGHT, STREAMS, VIEWERS, Counters
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.history import STEP_S, ChartHistory
from atomr_mp.serve.watch.shared_sample import SharedSample
from atomr_mp.serve.watch.snapshot import StatusSample, snapshot
from atomr_mp.serve.watch.story import Story

INTERVAL_S: Final = 1.0
"""Time between two samples; an event of the supervisor causes a sample at once."""

FOLLOW_S: Final = 0.1
"""How often a front end checks whether another has seen something new, or no longer watches."""

LATER_S: Final = 0.05
"""How long after the time of a point it is taken: a timer may be a little early."""

RETRY_S: Final = 0.5
"""Time between attempts to find a pool that is away."""


class Observer:
    """The latest sample of a pool, for any number of viewers. For the event loop's thread.

    A slow viewer misses samples but no events: each sample has the latest events, from the pool's event log.

    Args:
        source: The source of the pool.
        counters: The front ends' counters.
        shared: The latest sample, shared by all front ends.
    """

    def __init__(self, source: PoolSource, counters: Counters, shared: SharedSample) -> None:
        self.shared: Final = shared
        self._source: Final = source
        self._counters: Final = counters
        self._viewers = 0
        self._latest = b""
        self._number = 0
        self._changed: asyncio.Event = asyncio.Event()
        self._watching: _Watching | None = None
        self._driver: Final = Driver()

    def begin(self) -> None:
        """Record the history from now on, for as long as the event loop runs."""
        if self._watching is None:
            threading.Thread(target=self._record_alone, name="history", daemon=True).start()
        asyncio.get_running_loop().call_later(STEP_S - time.time() % STEP_S + LATER_S, self.begin)

    def record(self, status: Status | None) -> float:
        """Add a point to the history if one is due. For who has acquired the shared sample.

        Returns:
            The time of the last point, in seconds since 1970.
        """
        history = self.history()
        now_s = time.time()
        if history.is_due(now_s):
            usage = self._driver.usage() if status is not None and status.backend == "cuda" else {}
            workers = status.workers if status is not None else []
            history.record(now_s, self._counters.methods.all(), workers, usage)
            self.shared.publish_history(msgspec.msgpack.encode(history))
        return history.at_s

    def history(self) -> ChartHistory:
        """Return the history of all front ends; an empty one if there is none yet."""
        history = self.shared.history()
        return msgspec.msgpack.decode(history, type=known(ChartHistory)) if history else ChartHistory()

    def _record_alone(self) -> None:
        """Add a point while the page has no viewers."""
        if not self.history().is_due(time.time()):
            return
        status = None
        with contextlib.suppress(errors.AtomrError, OSError, TimeoutError):
            status = self._source.pool.figures()
        if self.shared.acquire():
            try:
                self.record(status)
            finally:
                self.shared.release()

    @contextlib.contextmanager
    def viewer(self) -> Iterator[None]:
        """Watch the pool within the `with` blocks of all viewers."""
        self._viewers += 1
        self._counters.own[VIEWERS] += 1
        if self._watching is None:
            self._watching = _Watching(self._source, self.shared, self._encode, self._publish)
        try:
            yield
        finally:
            self._viewers -= 1
            self._counters.own[VIEWERS] -= 1
            if not self._viewers:
                self._watching.stop()
                self._watching = None
                self._latest = b""

    async def next(self, after: int) -> tuple[int, bytes]:
        """Return the latest sample that is newer than one, with its number.

        Args:
            after: The number of the last sample that the viewer has seen, 0 for none.
        """
        while self._number <= after or not self._latest:
            await self._changed.wait()
        return self._number, self._latest

    def _encode(self, shown: dict[str, Any], status: Status | None) -> bytes:
        """Return a sample in the page's form, with the front ends' own figures, in which viewers do not count.

        A point is added to the history if one is due.
        """
        at_s, total = self.record(status), self._counters.total
        viewers = total(VIEWERS)
        http = {"in_flight": max(0, total(IN_FLIGHT) - viewers), "streams": max(0, total(STREAMS) - viewers)}
        return encode_json(shown | {"now": time.time(), "history": at_s, "http": http})

    def _publish(self, sample: bytes) -> None:
        """Take a sample from the thread that watches."""
        self._latest = sample
        self._number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class _Watching:
    """A thread that samples the pool, or follows another front end's samples, until it is stopped.

    Args:
        source: The source of the pool.
        shared: The latest sample, shared by all front ends.
        encode: Returns a sample, from the page's content and the pool's status; called on this thread.
        publish: Takes each sample, on the event loop's thread.
    """

    def __init__(
        self,
        source: PoolSource,
        shared: SharedSample,
        encode: Callable[[dict[str, Any], Status | None], bytes],
        publish: Callable[[bytes], None],
    ) -> None:
        self._source = source
        self._shared = shared
        self._encode = encode
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._story: Story | None = None
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def _run(self) -> None:
        shared, seen = self._shared, 0
        while not self._stop.is_set():
            if shared.acquire():
                try:
                    self._sample()
                finally:
                    shared.release()
            elif (found := shared.latest(seen)) is not None:
                seen, sample = found
                self._tell(sample)
            self._stop.wait(FOLLOW_S)

    def _sample(self) -> None:
        """Take samples of the pool for all front ends."""
        try:
            while not self._stop.is_set():
                try:
                    run_dir = self._source.pool.run_dir
                    if self._story is None:
                        with contextlib.suppress(OSError):  # the page goes on without it
                            self._story = Story(run_dir / EVENTS)
                    with OperatorSession(run_dir / SESSION_SOCKET) as session:
                        self._watch(session, run_dir)
                except (errors.AtomrError, OSError, TimeoutError) as error:
                    self._show({"lost": str(error)[:400]}, None)
                    self._stop.wait(RETRY_S)  # nothing tells that a pool was started
        finally:
            if self._story is not None:
                self._story.close()
                self._story = None

    def _watch(self, session: OperatorSession, run_dir: Path) -> None:
        base: StatusSample | None = None
        while not self._stop.is_set():
            sample = StatusSample(time.monotonic(), session.status())
            self._show(snapshot(base, sample) | {"run_dir": str(run_dir)}, sample.status)
            if base is None or sample.at_s - base.at_s >= INTERVAL_S:
                base = sample
            until_s = sample.at_s + INTERVAL_S
            with contextlib.suppress(TimeoutError):
                session.next_event(max(0.0, until_s - time.monotonic()))
                while True:  # one sample serves all events that come together
                    session.next_event(0.005)

    def _show(self, shown: dict[str, Any], status: Status | None) -> None:
        told: dict[str, Any] = {"news": [], "timeline": {}}
        with contextlib.suppress(OSError):
            told = told if self._story is None else self._story.shown()
        sample = self._encode(shown | told, status)
        self._shared.publish(sample)
        self._tell(sample)

    def _tell(self, sample: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, sample)

    def _take(self, sample: bytes) -> None:
        if not self._stop.is_set():  # else no viewer was left for a while, and another thread may watch now
            self._publish(sample)
