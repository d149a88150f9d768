"""Our own faults in the handling of one request: the request's error, the log's lines, and what many of them mean.

Only with the loop's turn. Where a request can be taken out whole, `Envelope.undo` does so and its caller gets an
`InternalError`. Elsewhere what was half done is known to nobody, and the worker ends (`HalfDoneError`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.board import BoardWriter, Counter
from atomr_mp.protocol.exceptions import describe, forget_frames, traceback_of
from atomr_mp_workers.requests.raised import without_descriptor

MOST: Final = 10
"""How many faults within `WITHIN_NS` are too many: of one session, its messages are to blame; as many of others beside
those of the worst session, and this process is."""

WITHIN_NS: Final = 60_000_000_000


class OwnFaults:
    """Notes faults.

    Args:
        board: Counts them.
        replace: Asks the supervisor for another process in place of this one, with the reason.
    """

    def __init__(self, board: BoardWriter, replace: Callable[[str], object]) -> None:
        self._board = board
        self._replace = replace
        self._latest: deque[tuple[int, int]] = deque(maxlen=1000)
        """Time and session of the latest faults, oldest first."""
        self._is_leaving = False
        self.expel: Callable[[int, str], object] = lambda _number, _why: None
        """Ends a session by its number, with the reason; set by the loop."""

    def note(self, fault: BaseException, session: int, what: str) -> errors.InternalError | errors.Overloaded:
        """Log and count a fault; return the error for the caller.

        Where this process has no descriptor left, that is no fault of ours, nor of the session.

        Args:
            fault: The exception; it loses its frames.
            session: Number of the session that sent the message.
            what: The method, or another name of the work for a person.
        """
        lacking = without_descriptor(what, fault)
        if lacking is not None:
            forget_frames(fault)
            return lacking
        reference = secrets.token_hex(4)
        _LOG.error("internal error %s in %s of session %d:\n%s", reference, what, session, traceback_of(fault))
        error = errors.InternalError(
            f"{what}: the worker met a fault of its own ({describe(fault)}) and goes on; its log has the stack under "
            f"{reference} (atomr-mp logs)",
            reference=reference,
        )
        forget_frames(fault)
        self._board.count(Counter.INTERNAL_ERRORS)
        self._judge(session, time.monotonic_ns())
        return error

    def _judge(self, session: int, now_ns: int) -> None:
        """End a session, or this process, if there were too many faults."""
        latest = self._latest
        latest.append((now_ns, session))
        while now_ns - latest[0][0] > WITHIN_NS:
            latest.popleft()
        if self._is_leaving:
            return
        counts = Counts(number for _, number in latest)
        if _beside_the_worst(counts) >= MOST:
            self._is_leaving = True
            self._replace(
                f"it has met {len(latest)} faults of its own within a minute, of several sessions; see its log"
            )
        elif counts[session] == MOST:
            self.expel(session, f"its messages have met {MOST} faults of the worker within a minute; see the log")


def _beside_the_worst(counts: Counts[int]) -> int:
    """Return the number of faults beside those of the session that has most."""
    return counts.total() - max(counts.values())


_LOG: Final = logging.getLogger("atomr_mp.worker")
