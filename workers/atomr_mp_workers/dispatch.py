"""Where and when requests run: on the loop, on their actor's thread, or on a stream. The loop's thread only.

Requests are taken in the order in which they arrived; that is the order in which they borrow memory. One whose memory
is in use waits for it: on a stream, in its thread's queue, or parked if it is the loop's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.device.base import Device
from atomr_mp_workers.envelope import Envelope, Request
from atomr_mp_workers.peers import Peer
from atomr_mp_workers.threads import ActorThread, Completions

TURN_NS: Final = 500_000
"""How long a turn runs queued requests before the loop looks at its channels again."""

QUICK_NS: Final = 50_000
"""Requests that take no longer are answered together with those that follow in the same turn."""

FLUSH_REPLIES: Final = 64
FLUSH_BYTES: Final = 2**20
"""At this size an outbox is sent without waiting for the turn's end."""


class Dispatcher:
    """Runs requests.

    Args:
        envelope: What comes before and after a request's own work.
        completions: Where requests come back that other threads have run.
        device: Makes events.
        threads: Actors' threads, by method.
        outbox: Peers with replies to send.
        flush: Sends them.
    """

    def __init__(
        self,
        envelope: Envelope,
        completions: Completions,
        device: Device,
        threads: dict[str, ActorThread],
        outbox: dict[Peer, None],
        flush: Callable[[], None],
    ) -> None:
        self.queue: Final[deque[Request]] = deque()
        """Requests that have not been looked at."""
        self._envelope = envelope
        self._completions = completions
        self._device = device
        self._threads = threads
        self._outbox = outbox
        self._flush = flush
        self._parked: list[Request] = []
        """Requests that have begun, and wait for memory which others use."""

    @property
    def busy(self) -> bool:
        """Whether requests run elsewhere, or wait for some that do."""
        return bool(self._completions.underway or self._parked)

    def take(self, requests: Iterable[Request]) -> None:
        """Take requests in."""
        for request in requests:
            if request.method.thread and not request.refs:
                self._hand_over(request)
            else:
                self.queue.append(request)

    def work(self) -> bool:
        """Run what is queued, for a bounded time; return whether that time is over."""
        queue, envelope = self.queue, self._envelope
        until_ns = time.monotonic_ns() + TURN_NS
        while queue:
            request = queue.popleft()
            method = request.method
            if method.typical_ns > QUICK_NS:
                self._flush()  # nobody's answer waits for, or is lost with, what may take long
            peer = request.peer
            self._outbox[peer] = None
            if method.thread:
                if envelope.admit(request):
                    self._hand_over(request)
            elif envelope.begin(request) and not self._start(request):
                envelope.lend(request)
                self._parked.append(request)
            if len(peer.replies) >= FLUSH_REPLIES or peer.reply_bytes > FLUSH_BYTES:
                self._flush()
            if time.monotonic_ns() >= until_ns:
                return True
        return False

    def take_back(self) -> None:
        """Complete what others have run, and start what has waited for it."""
        for request in self._completions.take():
            thread = self._threads.get(request.method.name)
            if thread is not None:
                thread.running = None
            self._complete(request)
        self.advance()

    def advance(self) -> None:
        """Start what has waited for a thread, or for memory, that has become free; and what waits for that in turn."""
        freed = True
        while freed:
            freed = False
            for thread in dict.fromkeys(self._threads.values()):
                freed |= self._feed(thread)
            if self._parked:
                freed |= self._unpark()

    def fail_all(self, error: errors.ContextPoisoned) -> None:
        """Answer what runs or waits here: its results are not to be trusted, or will never come."""
        for request in (*self._completions.underway.take_all(), *self._parked):
            self._outbox[request.peer] = None
            self._envelope.fail(request, error)
        self._parked.clear()

    def _start(self, request: Request) -> bool:
        """Run a request that has begun, or put it on its stream; False if what it waits for has to end first."""
        stream = request.method.stream
        if stream is None:
            if request.after and not _is_free(request):
                return False
            request.call()
            self._envelope.complete(request)
            return True
        if request.after and not stream.takes(request.after):
            return False
        self._envelope.lend(request)
        if request.event is None:
            request.event = self._device.make_event()
        self._completions.begin(request)
        if stream.submit(request, request.after, sum([block.nbytes for block, _ in request.borrows])):
            self._completions.underway.end(request)
            self._envelope.complete(request)
        return True

    def _hand_over(self, request: Request) -> None:
        """Let a request wait for its actor's thread."""
        thread = self._threads[request.method.name]
        thread.waiting.append(request)
        if self._feed(thread):
            self.advance()

    def _feed(self, thread: ActorThread) -> bool:
        """Start the next request that waits for an actor's thread, if the thread and its memory are free.

        Returns:
            Whether memory may be free now: a request was passed over.
        """
        freed = False
        while thread.running is None and thread.waiting:
            request = thread.waiting[0]
            if not request.dropped and not _is_free(request):
                break
            thread.waiting.popleft()
            if self._envelope.begin(request):
                self._completions.begin(request)
                thread.run(request)
            else:
                freed = True
            self._outbox[request.peer] = None
        return freed

    def _unpark(self) -> bool:
        """Start those requests whose memory has become free; return whether there were any."""
        waiting, self._parked = self._parked, []
        for request in waiting:
            self._outbox[request.peer] = None
            if not self._start(request):
                self._parked.append(request)
        return len(self._parked) < len(waiting)

    def _complete(self, request: Request) -> None:
        self._outbox[request.peer] = None
        self._envelope.complete(request)


def _is_free(request: Request) -> bool:
    """Return whether nothing uses the request's memory any more that came before it."""
    return all(event.done for event in request.after)
