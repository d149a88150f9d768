"""Watches the pool for all viewers of the page at all front ends: one session, as long as somebody views it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.protocol.messages.operators import Status
from atomr_mp.serve.metrics import CONNECTIONS, IN_FLIGHT, STREAMS, Counters
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.shared_look import SharedLook
from atomr_mp.serve.watch.snapshot import Look, news, snapshot

INTERVAL_S: Final = 1.0
"""Time between two looks; an event of the supervisor causes a look at once."""

FOLLOW_S: Final = 0.1
"""How often a front end checks whether another has seen something new, or no longer watches."""

RETRY_S: Final = 0.5
"""Time between attempts to find a pool that is away."""

MOST_NEWS: Final = 50
"""How many of the latest events are shown."""


Basis = tuple[Status | None, list[dict[str, Any]]]
"""The last status, and the latest events."""


class Observer:
    """The latest look at a pool, for any number of viewers. For the event loop's thread.

    A slow viewer misses looks but no events: each look has the latest events.

    Args:
        source: The source of the pool.
        counters: The front ends' counters.
        shared: The latest look, shared by all front ends.
    """

    def __init__(self, source: PoolSource, counters: Counters, shared: SharedLook) -> None:
        self.shared: Final = shared
        self._source: Final = source
        self._counters: Final = counters
        self._viewers = 0
        self._latest = b""
        self._number = 0
        self._changed: asyncio.Event = asyncio.Event()
        self._watching: _Watching | None = None

    @contextlib.contextmanager
    def viewer(self) -> Iterator[None]:
        """Watch the pool within the `with` blocks of all viewers."""
        self._viewers += 1
        if self._watching is None:
            self._watching = _Watching(self)
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._watching.stop()
                self._watching = None
                self._latest = b""

    async def next(self, after: int) -> tuple[int, bytes]:
        """Return the latest look that is newer than one, with its number.

        Args:
            after: The number of the last look that the viewer has seen, 0 for none.
        """
        while self._number <= after or not self._latest:
            await self._changed.wait()
        return self._number, self._latest

    def encode(self, shown: dict[str, Any]) -> bytes:
        """Return a look in the page's form, with the front ends' own figures."""
        total = self._counters.total
        http = {"in_flight": total(IN_FLIGHT), "connections": total(CONNECTIONS), "streams": total(STREAMS)}
        return encode_json(shown | {"http": http})

    def publish(self, watching: _Watching, look: bytes) -> None:
        """Take a look from the thread that watches."""
        if watching is not self._watching:
            return  # no viewer was left for a while, and another thread watches now
        self._latest = look
        self._number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def session_path(self) -> Path:
        """Path of the supervisor's socket.

        Raises:
            PoolUnreachable: There is no pool now.
        """
        return self._source.pool.run_dir / SESSION_SOCKET


class _Watching:
    """A thread that looks at the pool, or follows another front end's looks, until it is stopped."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._news: deque[dict[str, Any]] = deque(maxlen=MOST_NEWS)
        self._last: Status | None = None
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def _run(self) -> None:
        shared, seen = self._observer.shared, 0
        while not self._stop.is_set():
            if shared.acquire():
                try:
                    self._look()
                finally:
                    shared.release()
            elif (found := shared.latest(seen)) is not None:
                seen, look = found
                self._tell(look)
            self._stop.wait(FOLLOW_S)

    def _look(self) -> None:
        """Look at the pool for all front ends; continue from the last front end's look."""
        if basis := self._observer.shared.basis():
            self._last, news_so_far = msgspec.msgpack.decode(basis, type=Basis)
            self._news.extend(news_so_far)
        while not self._stop.is_set():
            try:
                with OperatorSession(self._observer.session_path) as session:
                    self._watch(session)
            except (errors.AtomrError, OSError, TimeoutError) as error:
                self._publish({"lost": str(error)[:400], "news": list(self._news)})
                self._stop.wait(RETRY_S)  # nothing tells that a pool was started

    def _watch(self, session: OperatorSession) -> None:
        base: Look | None = None
        while not self._stop.is_set():
            look = Look(time.monotonic(), session.status())
            if self._last is not None and self._last.supervisor_pid == look.status.supervisor_pid:
                self._news.extend(news(self._last, look.status))
            self._last = look.status
            self._publish(snapshot(base, look) | {"news": list(self._news)})
            if base is None or look.at_s - base.at_s >= INTERVAL_S:
                base = look
            until_s = look.at_s + INTERVAL_S
            with contextlib.suppress(TimeoutError):
                session.next_event(max(0.0, until_s - time.monotonic()))
                while True:  # one look serves all events that come together
                    session.next_event(0.005)

    def _publish(self, shown: dict[str, Any]) -> None:
        look = self._observer.encode(shown)
        self._observer.shared.publish(look, msgspec.msgpack.encode((self._last, list(self._news))))
        self._tell(look)

    def _tell(self, look: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._observer.publish, self, look)
