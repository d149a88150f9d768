"""The boards of a pool's workers, read after the death of a supervisor that can report them no more. An edge.

A supervisor that is killed takes its workers with it, and no client hears which calls they had started. The node's
actor outlives them. It opens each worker's board as soon as the supervisor tells of that worker, and reads all boards
once the workers have ended, when they are final.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.client.client import Client
from atomr_mp.client.lanes.session import LONGEST_WAIT_S
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.process.identity import wait_ended
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, check
from atomr_mp.transport.session import SessionConnection

KEPT: Final = 4
"""Boards that are kept of each device. Calls that were lost with an earlier worker were reported long ago."""

END_S: Final = 1.0
"""How long workers may take to end after their supervisor."""


class Started(NamedTuple):
    """The calls that a pool had started."""

    ids: list[int]
    """Their ids, of all sessions together. Two sessions may use the same one."""
    known_for_ns: int | None
    """All that started within so many nanoseconds are among them; None for all that ever did."""


class Boards:
    """The boards of a running pool. Its thread ends with the pool.

    Args:
        run_dir: The pool's run directory.

    Raises:
        PoolLost: The pool has ended.
    """

    def __init__(self, run_dir: Path) -> None:
        self._client: Final = Client(SessionConnection.connect(run_dir / SESSION_SOCKET), name="ray-boards")
        self._supervisor: Final = os.pidfd_open(self._client.supervisor_pid)
        self._open: dict[int, dict[int, Board | None]] = {}
        """By device and generation; None for one whose worker had ended before it was opened."""
        self._blind = False
        """Whether some worker's board could not be opened while that worker lived."""
        self._since_ns = 0
        """Calls that were sent before this time may have been started without being on these boards."""
        self._ids: list[int] | None = None
        """The ids of the calls that had started, once they are known."""
        self._read = threading.Event()
        self._client.listeners.append(self._look)
        self._look()
        threading.Thread(target=self._run, name="atomr-mp ray boards", daemon=True).start()

    def started(self, within_s: float) -> Started | None:
        """Return the calls that had started when the supervisor died; None if that is not known. Blocks."""
        self._read.wait(within_s)
        if self._ids is None:
            return None
        return Started(self._ids, time.monotonic_ns() - self._since_ns if self._since_ns else None)

    def _look(self, _event: object = None) -> None:
        """Open the boards of new workers. The thread that hears of them calls this for each change, one at a time."""
        for device in self._client.devices:
            boards = self._open.setdefault(device.index, {})
            if device.worker_pid is None or device.generation in boards:
                continue
            board = boards[device.generation] = Board.of(device.worker_pid)
            if board is None:
                self._blind |= _lives(device.worker_pid)
                self._since_ns = time.monotonic_ns()  # of one that has ended, after its last start
            if len(boards) > KEPT:
                oldest = boards.pop(min(boards))
                if oldest is not None:
                    oldest.close()
                self._since_ns = time.monotonic_ns()

    def _run(self) -> None:
        try:
            with contextlib.suppress(errors.AtomrError):
                while True:
                    self._client.wait_until(lambda: False, LONGEST_WAIT_S)
            if wait_ended([self._supervisor], END_S):  # else only this session has ended
                self._ids = self._read_boards()
        finally:
            self._read.set()
            self._client.close()
            os.close(self._supervisor)
            for boards in self._open.values():
                for board in boards.values():
                    if board is not None:
                        board.close()

    def _read_boards(self) -> list[int] | None:
        """Return the ids that all boards show once no worker runs; None if one cannot be read, or does not end."""
        ids: list[int] = []
        if self._blind:
            return None
        for generations in self._open.values():
            for board in filter(None, generations.values()):
                if not wait_ended([board.pidfd], END_S):
                    return None
                known_ns = board.read(ids)
                if known_ns is None:
                    return None
                self._since_ns = max(self._since_ns, known_ns)
        return ids


class Board:
    """A worker's board.

    Args:
        pidfd: The worker's process; owned from here on.
        memory: The board; owned from here on.
    """

    def __init__(self, pidfd: int, memory: mmap.mmap) -> None:
        self.pidfd: Final = pidfd
        self._memory: Final = memory

    @classmethod
    def of(cls, pid: int) -> Board | None:
        """Return the board of a process; None if it has none, has ended, or cannot be looked at."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            paths = {each.stat().st_ino: each for each in Path(f"/proc/{pid}/fd").iterdir() if _is_board(each)}
            if len(paths) == 1:  # it may have several descriptors of one, but then no other
                return cls(pidfd, _map(*paths.values()))
        except (OSError, ValueError):  # it has ended, or is not ours to look at
            pass
        os.close(pidfd)
        return None

    def read(self, ids: list[int]) -> int | None:
        """Add the ids of the calls that were started; return the time since when all are known, None if it is damaged.

        The process must have ended.
        """
        with memoryview(self._memory) as memory:
            board = BoardReader(memory)
            try:
                if check.defect(board.words, time.monotonic_ns()):
                    return None
                ids += [request for _, _, request, _ in board.left()]
                return board.known_since_ns()
            finally:
                board.release()

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self.pidfd)


def _lives(pid: int) -> bool:
    """Return whether a process may be running still."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # no descriptor is left for looking
        return True
    try:
        return not wait_ended([pidfd], 0)
    finally:
        os.close(pidfd)


def _is_board(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("/memfd:atomr-mp-board")
    except FileNotFoundError:  # closed since
        return False


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, BOARD_BYTES, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
