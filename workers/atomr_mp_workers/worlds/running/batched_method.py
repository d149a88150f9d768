"""A batched method of a world's actor: its parts are decoded as they come, and rank 0 puts the calls together.

What is wrong with one part must not change a batch on one rank only. So a part is decoded, and its key computed, before
its member notes that it has come; a member that cannot do that refuses the part, and no member runs the call. With the
loop's turn.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.board import BoardWriter
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.batches.batch_run import BatchedMethod, BatchRun
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.gangs import SharedRuns
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.request import Request, Stage
from atomr_mp_workers.worlds.order.batches import BatchedPart
from atomr_mp_workers.worlds.running.gang_queue import GangQueue


class GangBatchedMethod(BatchedMethod, SharedRuns):
    """The parts of a world's batched method. Calls with examples are put together here, as those of any method.

    Args:
        method: The method.
        number: Its number among batched methods, on the board.
        envelope: The envelope, for the steps before and after a request's own work.
        store: The device's memory.
        board: The board, for figures.
        queue: The queue of the world's thread.
    """

    def __init__(
        self, method: Method, number: int, envelope: Envelope, store: Store, board: BoardWriter, queue: GangQueue
    ) -> None:
        super().__init__(method, number, envelope, store, board)
        self._queue: Final = queue

    def add(self, request: Request) -> None:
        """Let a request wait, unless it is refused."""
        if request.gang is None:
            super().add(request)
            return
        if request.alone:  # a suspect shares no batch
            self._queue.add(request, request.peer.session)
            return
        fits, group = False, None
        try:
            fits, group = self._prepare(request)
        finally:
            owner, nbytes = request.peer.session, request.payload_bytes + request.memory_bytes
            part = BatchedPart(self.method.name, self.limits, group, owner, nbytes, request.deadline_ns)
            self._queue.add_to_batch(request, part, fits=fits)

    def together(self, requests: Sequence[Request]) -> BatchRun | None:
        """Begin requests that run as one or not at all, and return their run; None if they were answered instead."""
        now_ns = time.monotonic_ns()
        begun = [request for request in requests if self._envelope.begin(request, now_ns)]
        run = self._run_of(begun) if len(begun) == len(requests) else None
        if run is not None:
            self._board.batch(self._number, [now_ns - each.received_ns for each in begun], [1] * len(begun))
            return run
        for request in begun:
            if request.stage == Stage.RUNNING:
                request.error = errors.CollectiveAborted(
                    f"another request of the same batch of {self.method.name} could not begin on this rank",
                    maybe_executed=False,
                )
                request.kept_out = True
                self._envelope.complete(request)
        return None

    def _prepare(self, request: Request) -> tuple[bool, Hashable]:
        """Decode a part; return whether it was not refused, and its key."""
        return self._group_of(request) if is_fit(request, self._envelope) else (False, None)


def is_fit(request: Request, envelope: Envelope) -> bool:
    """Decode a part that will share an entry; return False if it was refused, and so answered."""
    if request.refs and not request.dropped:
        why = f"{request.method.name}: a ref among the arguments of a call of a world, whose ranks share no memory"
        envelope.refuse(request, errors.InvalidRequest(why))
    return not request.dropped and envelope.admit(request)
