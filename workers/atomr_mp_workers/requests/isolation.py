"""Suspect requests, which run while no other does, since each may end the worker. Only with the loop's turn.

A suspect comes here once it is its turn in the queue. While it waits or runs here, no other request is admitted. It
starts when all earlier requests have ended, not only the running ones: those may wait for memory that requests still to
start hold. Where it only waits, calls of worlds begin that were published, since other processes may wait for them;
their rank 0 publishes no more (`publisher`).

A part of a gang call comes here once it is its turn by the world's order, and starts once all members have stopped all
else. Until then nothing of it has begun on any of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.request import Request


class Isolation:
    """Requests that have to run alone.

    Args:
        envelope: The envelope, for the steps before and after a request's own work.
        is_at_work: Whether an admitted request has not ended.
        is_settled: Whether nothing begins any more in this process while a suspect waits.
        flush: Sends waiting answers, so that none is lost with the suspect.
        wake: Has the loop look again at requests that were not admitted.
        run: Runs a request that has begun, or has it run elsewhere.
        pass_over: Takes note of a part of a gang call that is not run.
    """

    def __init__(
        self,
        envelope: Envelope,
        is_at_work: Callable[[], bool],
        is_settled: Callable[[], bool],
        flush: Callable[[], None],
        wake: Callable[[], None],
        run: Callable[[Request], None],
        pass_over: Callable[[Request], None],
    ) -> None:
        self.active = False
        """Whether a suspect waits or runs, so that no other request is admitted."""
        self._envelope = envelope
        self._is_at_work = is_at_work
        self._is_settled = is_settled
        self._flush = flush
        self._wake = wake
        self._run = run
        self._pass_over = pass_over
        self._waiting: deque[Request] = deque()
        self.running = False
        """Whether a suspect has begun."""

    def take(self, requests: Iterable[Request]) -> None:
        """Take requests in."""
        self._waiting.extend(requests)
        self.active = True
        self.advance()

    def advance(self) -> None:
        """Start the next suspect, once all else has stopped running."""
        waiting = self._waiting
        self._note_answer()
        while waiting and not self.running:
            dropped, gang = waiting[0].dropped, waiting[0].gang
            if not dropped and (gang is not None or not waiting[0].peer.session.ended):
                if self._is_at_work() or not self._is_settled():
                    break
                if gang is not None and not self._envelope.gangs.is_quiet(gang):
                    break
                self._flush()
            request = waiting.popleft()
            if self._envelope.begin(request, time.monotonic_ns()):
                self.running = True
                self._envelope.isolate(request)
                self._run(request)
                self._note_answer()
            elif gang is not None and not dropped:
                self._pass_over(request)
        self.active = self.running or bool(waiting)
        if not self.active:
            self._wake()

    def _note_answer(self) -> None:
        """Record that the suspect was answered: none is under way, and this process goes on."""
        if self.running and not self._is_at_work():
            self.running = False
            self._envelope.isolate(None)
