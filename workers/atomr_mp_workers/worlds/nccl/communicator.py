"""One communicator, and its gate. Any thread, except where it says otherwise.

A use of a communicator whose abort has begun loses the CUDA context. So all calls go through the gate, a lock that the
abort takes first. A call that waits inside for a dead rank keeps the lock, and only the abort ends its wait: the abort
takes the lock for a while, and goes on without.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from atomr_mp_workers.worlds.nccl.communicator_states import CommAction, CommEvent, CommState, comm_step
from atomr_mp_workers.worlds.nccl.library import IN_PROGRESS, Nccl, failed

INSIDE_S: Final = 1.0
"""How long an abort waits for a call that is inside the library."""

ABORT_S: Final = 8.0
"""How long an abort may take. It takes half a second, and never returns where a CUDA graph holds the communicator."""

LOOK_S: Final = 0.0005
"""Time between two looks at a call that goes on for long."""

SOON_S: Final = 0.002
"""So long it is looked at all the time: most calls are put within microseconds."""


class GateShutError(Exception):
    """The communicator takes no more calls."""


class Communicator:
    """One communicator.

    Args:
        nccl: The library.
        size: How many ranks there are.
        rank: This process's.
        use: Makes the device current for a thread.
        replace: Asks for another process, and says why.
    """

    def __init__(
        self, nccl: Nccl, size: int, rank: int, use: Callable[[], object], replace: Callable[[str], object]
    ) -> None:
        self.size: Final = size
        self.rank: Final = rank
        self.state = CommState.FORMING
        self.failure = ""
        """Why it could not be formed, "" if nothing has failed."""
        self._nccl: Final = nccl
        self._use: Final = use
        self._replace: Final = replace
        self._handle = 0
        self._gate: Final = threading.Lock()
        self._states: Final = threading.Lock()
        """Guards the state."""
        self._gone: Final = threading.Event()
        """Is set at its end, or when its abort is late."""

    @property
    def is_shut(self) -> bool:
        """Whether it takes no more calls, or will take none."""
        return self.state not in {CommState.FORMING, CommState.READY}

    def form(self, identity: bytes, first_use: Callable[[Communicator], object]) -> bool:
        """Form it with the other ranks, and return whether it is ready. Waits for them; `close` ends the wait.

        Args:
            identity: The unique id.
            first_use: Puts calls of all kinds on a stream, and waits for them, or raises `GateShutError`.
        """
        self._use()
        try:
            self._check(self._poll(self._init, identity), "form a communicator")
            first_use(self)
        except GateShutError:
            return False
        except Exception as error:  # noqa: BLE001 - of the first use, whatever the device says
            self.failure = str(error)
            self._feed(CommEvent.FAILED)
            return False
        self._feed(CommEvent.FORMED)
        return self.state is CommState.READY

    def call(self, function: str, *arguments: Any) -> int:
        """Put a call on a stream through the gate, and return its status; the last argument is the stream.

        Raises:
            GateShutError: It takes no more calls.
        """
        *given, stream = arguments
        return self._poll(lambda: getattr(self._nccl, function)(*given, self._handle, stream))

    def fail(self, why: str) -> None:
        """Shut the gate, since a call has failed."""
        self.failure = self.failure or why
        self._feed(CommEvent.FAILED)

    def close(self) -> None:
        """Shut the gate, and have a thread abort it. Does not wait. Once is enough."""
        self._feed(CommEvent.CLOSE)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until nothing of it is left; return whether that is so."""
        return self._gone.wait(timeout_s)

    def _init(self, identity: bytes) -> int:
        status, self._handle = self._nccl.init(identity, self.size, self.rank)
        return status

    def _poll(self, call: Callable[..., int], *arguments: Any) -> int:
        """Do a call, and wait until it has ended; return its status."""
        status, begun_s = self._inside(call, *arguments), time.monotonic()
        while status == IN_PROGRESS:
            time.sleep(LOOK_S if time.monotonic() - begun_s > SOON_S else 0)
            status = self._inside(lambda: self._nccl.state(self._handle))
        return status

    def _inside(self, call: Callable[..., int], *arguments: Any) -> int:
        with self._gate:
            if self.is_shut:
                raise GateShutError
            return call(*arguments)

    def _check(self, status: int, what: str) -> None:
        if status:
            raise failed(status, what)

    def _feed(self, event: CommEvent) -> None:
        with self._states:
            move = comm_step(self.state, event)
            self.state = move.state
        for action in move.actions:
            self._act(action)

    def _act(self, action: CommAction) -> None:
        match action:
            case CommAction.ABORT:
                threading.Thread(target=self._abort, name="nccl-abort", daemon=True).start()
            case CommAction.REPLACE:
                self._gone.set()
                self._replace(f"an abort of NCCL has not returned within {ABORT_S:g} s")

    def _abort(self) -> None:
        limit = threading.Timer(ABORT_S, self._feed, (CommEvent.OVERDUE,))
        limit.daemon = True
        limit.start()
        self._use()
        is_free = self._gate.acquire(timeout=INSIDE_S)
        try:
            self._feed(CommEvent.CLEAR)
            if self._handle:
                self._nccl.abort(self._handle)
        finally:
            if is_free:
                self._gate.release()
        limit.cancel()
        self._feed(CommEvent.RETURNED)
        self._gone.set()
