"""A pool that is fuzzed, and a client beside the fuzzer that nothing may harm."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import atomr_mp
from atomr_mp import errors
from fuzzing.targets.annotations import ACTOR

DEADLINE_S: Final = 60.0
"""Longest wait for anything: what takes longer waits for something that does not come."""


class Neighbourhood:
    """One worker, hosted, and a client. Use it with `with`.

    Args:
        settings: Of the pool.
    """

    def __init__(self, **settings: Any) -> None:
        self._directory: Final = Path(tempfile.mkdtemp(prefix="atomr-mp-fuzz-", dir="/tmp"))
        self.run_dir: Final = self._directory / "run"
        self.pool: Final = atomr_mp.start(
            actors=[ACTOR], gpus=1, backend="host", run_dir=self.run_dir, max_restarts=10**6, **settings
        )
        self._pid = self._ask()
        self._held = self._holdings()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the pool, and remove its files."""
        self.pool.close()
        shutil.rmtree(self._directory)

    def check(self) -> None:
        """Check that the neighbour is answered, by the same process, and that nothing was left behind.

        Raises:
            AssertionError: It is not so.
        """
        pid, before = self._ask(), self._pid
        self._pid = pid
        assert pid == before, f"worker {before} has ended, and {pid} has taken its place"
        remote = self.pool.status().remote
        assert remote is None or not remote.restarts, f"the relay has ended {remote.restarts} times"
        wait(lambda: self._holdings() == self._held, lambda: f"{self._held} were held, and now {self._holdings()}")

    def check_supervisor(self) -> None:
        """Check that the pool lives: the same supervisor, and a worker, perhaps another.

        Raises:
            AssertionError: It is not so.
        """
        supervisor = self.pool.supervisor_pid
        wait(self._is_answered, lambda: f"the pool does not come back: {self.pool!r}")
        assert self.pool.status().supervisor_pid == supervisor

    def _is_answered(self) -> bool:
        try:
            self._pid = self._ask()
        except errors.PoolLost:
            raise
        except errors.AtomrError:
            return False
        return True

    def _ask(self) -> int:
        assert self.pool.call("Annotated_.echo", ["neighbour"], deadline_s=DEADLINE_S).result() == ["neighbour"]
        found: int = self.pool.call("Annotated_.pid", deadline_s=DEADLINE_S).result()
        return found

    def _holdings(self) -> dict[str, int]:
        """Return the counts of sessions, queued requests and leases."""
        status = self.pool.status()
        worker = status.devices[0]
        return {"sessions": status.sessions, "queued": worker.queue_depth, "leases": worker.leases}


def wait(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for what no event tells.

    Raises:
        AssertionError: It has not come in time.
    """
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, what()
        time.sleep(0.002)
