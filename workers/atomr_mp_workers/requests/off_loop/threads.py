"""The threads that actors have of their own."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.off_loop.runner import ActorRunner, WaitingRequests
from atomr_mp_workers.requests.request import Request, Run


class Inbox(Protocol):
    """The runs for one thread, in their order; None ends the thread."""

    def put(self, run: Run | None, /) -> None:
        """Add a run. Any thread."""

    def get(self) -> Run | None:
        """Wait for the next run, and return it. The thread itself."""


class ActorThreads(ActorRunner):
    """Runs requests of one actor off the loop; they begin in order, as many at a time as there are threads.

    The steps of a stream stay on the thread of its first step.

    Args:
        name: The actor's name.
        count: How many threads there are.
        device: The device that they work on.
        waiting: Where requests wait; by default sessions take turns.
        make_inbox: Makes the inbox of a thread.
    """

    def __init__(
        self,
        name: str,
        count: int,
        device: WorkerDevice,
        waiting: WaitingRequests | None = None,
        make_inbox: Callable[[], Inbox] = SimpleQueue,
    ) -> None:
        super().__init__(count, waiting)
        self._device = device
        self._inboxes: Final = [make_inbox() for _ in range(count)]
        self._idle = deque(range(count))
        self._on: dict[Run, int] = {}
        """The thread of each run."""
        self._next: deque[Run] = deque()
        """Runs for the next idle threads."""
        self._reserved: dict[int, StreamRequest] = {}
        """Threads that streams keep for themselves until they end."""
        for inbox in self._inboxes:
            # A daemon: a method that never returns must not keep a worker alive that was told to leave.
            threading.Thread(target=self._run, args=(inbox,), name=name, daemon=True).start()

    def put(self, stream: StreamRequest) -> None:
        """Let a stream that has begun wait for its thread."""
        if stream in self._reserved.values():
            self.waiting.put_back(stream, stream.owner, stream.priority)  # or it might wait for itself
        else:
            super().put(stream)

    @property
    def is_plain(self) -> bool:
        """Whether any request may run on any of the threads."""
        return self.count == 1 and not self._reserved

    def has_room(self, request: Request) -> bool:
        """Return whether a thread is idle that the request may run on."""
        thread = request.thread if isinstance(request, StreamRequest) else -1
        if thread >= 0:
            return thread in self._idle and self._reserved.get(thread, request) is request
        return any(each not in self._reserved for each in self._idle)

    def run(self, request: Run) -> None:
        """Run a request that has begun; it reports `finished` at its end."""
        self.ahead += 1
        self.owes_batch = isinstance(request, Request)
        if self.count == 1:
            thread = 0
        elif isinstance(request, StreamRequest) and request.thread >= 0:
            thread = request.thread
        else:
            found = next((each for each in self._idle if each not in self._reserved), None)
            if found is None:
                self._next.append(request)
                return
            thread = found
        self._start(request, thread)

    def came_back(self, request: Run) -> None:
        """Record that a call has come back: its thread is idle."""
        self.ahead -= 1
        thread = self._on.pop(request)
        if isinstance(request, StreamRequest) and request.method.exclusive:
            if request.goes_on:
                self._reserved[thread] = request
            else:
                self._reserved.pop(thread, None)
        self._idle.append(thread)
        if self._next and thread not in self._reserved:
            self._start(self._next.popleft(), thread)

    def close(self) -> None:
        """End the threads, each after its last run; none of them takes another one."""
        for inbox in self._inboxes:
            inbox.put(None)

    def _start(self, request: Run, thread: int) -> None:
        if isinstance(request, StreamRequest):
            request.thread = thread
        self._on[request] = thread
        if self.count > 1:
            self._idle.remove(thread)
        else:
            self._idle.clear()
        self._inboxes[thread].put(request)

    def _run(self, inbox: Inbox) -> None:
        # Makes the thread's stream, which takes longer than a short request; if it fails, it does so again for that.
        with contextlib.suppress(Exception), self._device.thread_context():
            pass
        while (request := inbox.get()) is not None:
            self.work(request)
            request.finished()
            del request

    def work(self, request: Run) -> None:
        """Run a request; never raises. One of the threads."""
        try:
            self._device.on_thread(request.call, request.times)
        except BaseException as raised:  # noqa: BLE001 - of the device, which has not done what it was given
            request.fail(raised)
