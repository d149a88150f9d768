"""Tells of a remote session: to callbacks of replies, futures of event loops, listeners of the pool."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply, set_done
from atomr_mp.protocol.messages import session

if TYPE_CHECKING:
    import asyncio

Event = session.DeviceChanged | session.IncarnationEnded


class Deliveries:
    """Callbacks, futures and listeners that are due.

    Hold the session's lock, except for `call_back`, `deliver` and `on_lost`.

    Args:
        lock: The session's.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.listeners: Final[list[Callable[[Event], object]]] = []
        self._events: Final[deque[Event]] = deque()
        self._finished: Final[deque[Reply]] = deque()
        """Replies of threads, whose callbacks run once the lock is free."""
        self._for_loops: Final[dict[asyncio.AbstractEventLoop, list[Reply]]] = {}
        """Replies whose futures and callbacks their loop sees to."""
        self._lost_listeners: Final[list[Callable[[errors.PoolLost], object]]] = []
        self._lost: errors.PoolLost | None = None
        self._lost_untold = False

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has."""
        with self._lock:
            lost = self._lost
            if lost is None:
                self._lost_listeners.append(listener)
        if lost is not None:
            run_callback(listener, lost)

    def lose(self, lost: errors.PoolLost) -> None:
        """Take in that the session has ended."""
        self._lost, self._lost_untold = lost, True

    def forget_in_child(self, lock: threading.RLock, lost: errors.PoolLost) -> None:
        """Drop everything, in a forked child."""
        self._lock, self._lost = lock, lost

    def hear(self, event: Event) -> None:
        """Take in a lifecycle event."""
        self._events.append(event)

    def hand_out(self, reply: Reply) -> None:
        """Resolve the future of a reply that has news, and run its callbacks once it has ended."""
        loop = getattr(reply.lane, "loop", None)
        if loop is not None:
            if reply.future is None and not reply.callbacks:
                return
            waiting = self._for_loops.setdefault(loop, [])
            waiting.append(reply)
            if len(waiting) == 1:
                try:
                    loop.call_soon_threadsafe(self.deliver, loop)
                except RuntimeError:  # the loop is closed
                    del self._for_loops[loop]
        elif reply.callbacks:
            self._finished.append(reply)

    def deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """Resolve the futures and run the callbacks of a loop's replies, in the loop."""
        with self._lock:
            replies = self._for_loops.pop(loop, [])
        for reply in replies:
            if reply.future is not None:
                set_done(reply.future)
            if not reply.is_over:
                continue
            callbacks, reply.callbacks = reply.callbacks or (), None
            for callback in callbacks:
                run_callback(callback, reply)

    def call_back(self) -> None:
        """Run callbacks that are due. Do not hold the lock: they may call, wait, and close the client."""
        if self._lost_untold and self._lost is not None:
            self._lost_untold = False
            for told in self._lost_listeners:
                run_callback(told, self._lost)
        while self._events or self._finished:
            try:
                event = self._events.popleft() if self._events else None
                reply = None if event is not None else self._finished.popleft()
            except IndexError:  # another thread has taken it
                continue
            if event is not None:
                for listener in self.listeners:
                    run_callback(listener, event)
            if reply is not None:
                callbacks, reply.callbacks = reply.callbacks or (), None
                for callback in callbacks:
                    run_callback(callback, reply)


def run_callback(callback: Callable[[Any], object], argument: object) -> None:
    """Call back, and log an error that the callback raises: the receiving thread is not to blame."""
    try:
        callback(argument)
    except Exception:
        logging.getLogger("atomr_mp.client").exception("a callback of a remote client failed")
