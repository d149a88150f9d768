"""The supervisor of a pool that this application has started: stopped in good order when the application closes it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.protocol.words import counted


class OwnedSupervisor:
    """A supervisor that is a child of this process.

    Args:
        process: The supervisor.
        run_dir: Its pool's run directory.
        close_streams: Ends the application's own streams, for which a worker that stops would wait.
        drain_timeout_s: How long the pool's workers may take to finish what they hold when it stops.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        run_dir: Path,
        close_streams: Callable[[], None],
        drain_timeout_s: float = 0.0,
    ) -> None:
        self._process = process
        self._socket = run_dir / SESSION_SOCKET
        self._close_streams = close_streams
        self._drain_timeout_s = drain_timeout_s

    def stop(self, interrupted: bool) -> None:  # noqa: FBT001 - see interrupts.wait
        """Have the pool stopped in good order, and wait for its end. The caller's own session stays open until then.

        Args:
            interrupted: The person who runs the application has pressed Ctrl-C already.

        Raises:
            KeyboardInterrupt: The pool has ended; or this was the second interrupt, and it has not.
        """
        self._close_streams()
        # Without an answer, or a descriptor to ask with, the end of the caller's session has to do.
        with (
            contextlib.suppress(errors.AtomrError, OSError),
            OperatorSession(self._socket) as observer,
        ):
            observer.stop()
            if interrupted:
                self._tell(observer)
            try:
                self._process.wait()
            except KeyboardInterrupt:
                if not interrupted:
                    self._tell(observer)
                    self._process.wait()
                raise

    def wait(self) -> None:
        """Wait until it has ended. Blocks."""
        self._process.wait()

    def _tell(self, observer: OperatorSession) -> None:
        """Tell the person who has pressed Ctrl-C why the pool does not end at once, if it does not."""
        with contextlib.suppress(errors.AtomrError, OSError):  # it has ended meanwhile
            waiting = observer.status().unanswered
            if waiting:
                requests = counted(waiting, "request")
                sys.stderr.write(
                    f"atomr-mp: waiting for {requests}, at most {self._drain_timeout_s:g} s; Ctrl-C again kills\n"
                )
                sys.stderr.flush()
