"""The threads that actors have of their own."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Final, Protocol

from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.fair_queue import FairQueue
from atomr_mp_workers.requests.peers import WEIGHT
from atomr_mp_workers.requests.request import Request, Run


class WaitingBatches(Protocol):
    """What waits for batches of a method."""

    def is_due(self) -> bool:
        """Whether there may be a batch now."""


class ActorThreads:
    """Run requests of one actor off the loop; they begin in order, as many at a time as there are threads.

    Args:
        name: The actor's name.
        count: How many there are.
        device: Whose work they do.
    """

    def __init__(self, name: str, count: int, device: WorkerDevice) -> None:
        self.count: Final = count
        self._device = device
        self.waiting: FairQueue[Request] = FairQueue(WEIGHT)
        """Requests that have not started; the next one is started when a thread is idle."""
        self.ahead = 0
        """How much they have been given that has not come back."""
        self.batched: list[WaitingBatches] = []
        """The actor's methods whose requests are put together."""
        self.owes_batch = False
        """What ran last was a single request, so a batch is next, if there is one."""
        self._inbox: SimpleQueue[Run] = SimpleQueue()
        for _ in range(count):
            # A daemon: a method that never returns must not keep a worker alive that was told to leave.
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, request: Run) -> None:
        """Run what has begun; then it says that it has `finished`."""
        self.ahead += 1
        self.owes_batch = isinstance(request, Request)
        self._inbox.put(request)

    def _run(self) -> None:
        while True:
            request = self._inbox.get()
            try:
                self._device.on_thread(request.call)
            except BaseException as error:  # noqa: BLE001 - of the device, which has not done what it was given
                request.raised = error
            request.finished()
            del request
