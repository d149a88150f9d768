"""The GPUs that Ray has given to an actor, each with a lock until every process of its pool is gone. An edge."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process import census
from atomr_mp.process.files import safedir
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.identity import Identity, wait_ended

AGAIN_S: Final = 0.05
"""Time between attempts to take a lock that is held: the kernel cannot wait for it with a deadline."""


class GpuLocks:
    """Locks of GPUs by their UUIDs, among the processes of one user on one machine. For one thread at a time.

    The kernel releases a lock when its process ends. Other processes of its pool may use the GPU a moment longer. So
    the file names the pool's run directory, and the next holder waits for those processes.

    Args:
        directory: Where the locks are.
        run_dir: The run directory of the pool that will use the GPUs.
    """

    def __init__(self, directory: Path, run_dir: Path) -> None:
        self._directory: Final = directory
        self._run_dir: Final = run_dir
        self._held: dict[str, int] = {}

    def take(self, uuids: Sequence[str], timeout_s: float) -> None:
        """Take the locks of GPUs, and keep every lock that is held already. Blocks.

        Raises:
            PoolBusy: Processes of another pool still hold one after `timeout_s`.
            ConfigurationError: The directory is not safe, or cannot be used.
        """
        until = time.monotonic() + timeout_s
        safedir.make(self._directory)
        safedir.check(self._directory)
        for uuid in sorted(set(uuids) - self._held.keys()):  # in one order, so that no two pools wait for each other
            try:
                descriptor = os.open(
                    self._directory / uuid.replace("/", "_"),
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                )
            except OSError as error:
                raise errors.ConfigurationError(f"the lock of GPU {uuid} cannot be used: {error}") from error
            try:
                self._lock(descriptor, uuid, until)
            except BaseException:
                os.close(descriptor)
                raise
            self._held[uuid] = descriptor

    def close(self) -> None:
        """Release all locks. Call it when no process of the pool is left."""
        while self._held:
            _, descriptor = self._held.popitem()
            os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _lock(self, descriptor: int, uuid: str, until: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise errors.PoolBusy(f"GPU {uuid} is held by the pool at {_holder(descriptor)}") from None
                time.sleep(AGAIN_S)
        former = _holder(descriptor)
        if former and former != str(self._run_dir):  # our own pool's start ends what is left in its directory
            left = wait_pool_gone(Path(former), until)
            if left:
                raise errors.PoolBusy(
                    f"GPU {uuid} is held by processes of the pool at {former}, whose owner has ended: pid "
                    f"{', '.join(map(str, left))}",
                    supervisor_pid=left[0],
                )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(self._run_dir).encode(), 0)


def given_gpus(ids: Sequence[object], visible: str | None) -> Sequence[str]:
    """Return the GPUs, as indices or UUIDs, that Ray has given to this process by CUDA_VISIBLE_DEVICES.

    Args:
        ids: The GPUs that Ray says it has given.
        visible: CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigurationError: The variable names other GPUs: the pool would use GPUs that belong to somebody else.
    """
    given = [str(each) for each in ids]
    named = [] if visible is None else [each.strip() for each in visible.split(",") if each.strip()]
    if not given or named != given:
        raise errors.ConfigurationError(
            f"Ray has given GPUs {', '.join(given) or 'none'} to this actor, and CUDA_VISIBLE_DEVICES is "
            f"{'not set' if visible is None else repr(visible)}: leave that variable to Ray "
            "(no RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES, nothing in runtime_env)"
        )
    return named


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode("utf-8", "replace")


def wait_pool_gone(run_dir: Path, until: float) -> list[int]:
    """Wait until no process of a pool is left; return their pids if some do not end in time."""
    while True:
        with contextlib.ExitStack() as stack:
            watched: dict[int, int] = {}
            for identity in _processes(run_dir):
                pidfd = identity.open_pidfd()
                if pidfd is not None:
                    stack.callback(os.close, pidfd)
                    watched[pidfd] = identity.pid
            if not watched:
                return []
            wait_ended(watched, max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:
                return sorted(watched.values())


def _processes(run_dir: Path) -> list[Identity]:
    """Return the supervisor of a pool and the processes that it started, as far as they live."""
    found = []
    with contextlib.suppress(errors.AtomrError):  # no supervisor holds the directory
        found.append(RunDirectory.open(run_dir).supervisor)
    for pid, process in census.look(run_dir, gpus=False).processes.items():
        if process.marked and not process.zombie:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                found.append(Identity.of(pid))
    return found
