"""Closes streams that have lost their last reference."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Final, Protocol

from atomr_mp.client import interrupts
from atomr_mp.client.reply import StreamReply

_LOG: Final = logging.getLogger("atomr_mp.client")


class ClosingLane(Protocol):
    """The lane that has sent a stream's request, as its closer uses it."""

    def close_stream(self, stream: StreamReply, /) -> None:
        """Release a stream. Any thread."""


class StreamCloser:
    """A thread of a client, from its first stream on.

    A stream is found by whichever thread collects garbage, which may hold any lock of the client's, and of threading's.
    So that thread closes nothing and starts no thread: it hands the stream over, by the one queue that bears this.
    """

    def __init__(self) -> None:
        self._found: Final[SimpleQueue[tuple[ClosingLane, StreamReply] | None]] = SimpleQueue()
        self._decided: Final = threading.Lock()
        """Taken for good by who starts the thread, or by `close`, after which none is started."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, the first time."""
        if self._decided.acquire(blocking=False):
            self._thread = threading.Thread(target=self._run, name="atomr-mp streams", daemon=True)
            self._thread.start()

    def put(self, lane: ClosingLane, stream: StreamReply) -> None:
        """Have a stream closed. Any thread, whatever it holds."""
        self._found.put((lane, stream))

    def close(self) -> None:
        """End the thread; with no lock held. May be called twice. The client has ended its streams."""
        if self._decided.acquire(blocking=False):
            return
        self._found.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            interrupts.wait(thread.join)

    def _run(self) -> None:
        while (found := self._found.get()) is not None:
            lane, stream = found
            try:
                lane.close_stream(stream)
            except Exception:  # noqa: BLE001 - other streams are not to blame
                _LOG.exception("stream %d of %s could not be closed", stream.id, stream.method)
            del lane, stream, found
