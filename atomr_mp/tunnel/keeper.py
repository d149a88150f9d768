"""The thread that makes the further connections of a client's channels, however little these are used.

A relay keeps a channel without a connection for a time only, and a client may be idle for hours. So each channel is
looked at twice a second; after a cut, or while a connection comes about, whenever something is due.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from atomr_mp.protocol.own_time import OwnTime
from atomr_mp.tunnel.forks import drop_in_child

LOOK_NS: Final = 500_000_000
"""How often all channels are looked at."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Keepable(Protocol):
    """A channel; or a session, which has one after another."""

    @property
    def ended(self) -> bool:
        """Whether it needs no further keeping."""

    @property
    def due_ns(self) -> int | None:
        """When `keep` is to be called; None for no particular time."""

    @property
    def awaited(self) -> int | None:
        """The descriptor that speaks when `keep` is to be called, while a connection comes about."""

    def keep(self, now_ns: int, paused_ns: int) -> None:
        """Take the next step that is due, after this process has not run for `paused_ns`."""


class ChannelKeeper:
    """Keeps channels until they have ended. Thread-safe; its thread lives while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Final[weakref.WeakSet[Keepable]] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._wake = -1
        """Descriptor that wakes the thread; -1 without a thread."""
        drop_in_child(self)

    def add(self, channel: Keepable) -> None:
        """Keep a channel from now on.

        Raises:
            OSError: No descriptor is left.
        """
        with self._lock:
            self._kept.add(channel)
            if self._thread is None:
                wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                thread = threading.Thread(target=self._run, name="atomr-mp tunnel", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    os.close(wake)
                    raise
                self._thread, self._wake = thread, wake

    def wake(self, _channel: object = None) -> None:
        """Wake the thread, which then looks at all channels."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def join(self) -> None:
        """Wait until the thread has ended, if no channel is left."""
        self.wake()
        with self._lock:
            thread = None if any(not channel.ended for channel in self._kept) else self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self._lock, self._thread = threading.Lock(), None  # a thread of the parent may hold the other
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _run(self) -> None:
        own = OwnTime(time.monotonic())
        while True:
            channels = self._living()
            if not channels:
                return
            now_ns = time.monotonic_ns()
            paused_ns = int(own.look(now_ns / 1e9) * 1e9)
            for channel in channels:
                try:
                    channel.keep(now_ns, paused_ns)
                except Exception:  # noqa: BLE001 - the others are kept on
                    _LOG.exception("a channel to the pool's relay is not kept")
            self._wait(channels)
            del channels, channel

    def _living(self) -> Sequence[Keepable]:
        with self._lock:
            for channel in [channel for channel in self._kept if channel.ended]:
                self._kept.discard(channel)
            living = list(self._kept)
            if not living:
                os.close(self._wake)
                self._thread, self._wake = None, -1
            return living

    def _wait(self, channels: Sequence[Keepable]) -> None:
        poll, now_ns = select.poll(), time.monotonic_ns()
        poll.register(self._wake, select.POLLIN)
        until_ns = now_ns + LOOK_NS
        for channel in channels:
            with contextlib.suppress(OSError, ValueError):  # it is being closed
                if (descriptor := channel.awaited) is not None:
                    poll.register(descriptor, select.POLLIN)
            if (due_ns := channel.due_ns) is not None:
                until_ns = min(until_ns, due_ns)
        poll.poll(max(0, until_ns - now_ns + 999_999) // 1_000_000)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
