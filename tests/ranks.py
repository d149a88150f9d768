"""The ranks of a world for tests: real memory and bells; the ranks are threads, or processes of their own."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.world import MemberReader, MemberWriter, is_over
from atomr_mp.protocol.world.memory import (
    LINE_BYTES,
    LINES_AT,
    MAILBOX_AT,
    MAILBOX_SLOTS,
    SLOT_BYTES,
    STOP_BYTES,
    WORLD_BYTES,
)
from atomr_mp_workers import own_process
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.meeting import Meeting
from atomr_mp_workers.worlds.exchange.world import OwnWorld
from tests.support import DEADLINE_S

EPOCH: Final = 7

FORKS: Final = multiprocessing.get_context("fork")

Method = Callable[[OwnWorld], Any]
"""What a rank runs in a gang call."""

SendingMethod = Callable[[OwnWorld, Callable[[Any], None]], None]
"""The same in a process of its own; it is given what sends to the test."""


def _memory(name: str, nbytes: int) -> mmap.mmap:
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)


class Rank:
    """What one process has of an epoch.

    Args:
        ranks: All of them.
        rank: Which one it is.
    """

    def __init__(self, ranks: Ranks, rank: int) -> None:
        views = [memoryview(each).toreadonly() for each in ranks.maps]
        views[rank] = memoryview(ranks.maps[rank])
        lines = [each[LINES_AT : LINES_AT + LINE_BYTES].cast("Q") for each in views]
        boxes = [each[MAILBOX_AT : MAILBOX_AT + MAILBOX_SLOTS * SLOT_BYTES] for each in views]
        self.writer = MemberWriter(lines[rank], EPOCH)
        self.reader = MemberReader(lines[rank], EPOCH)
        self.lines = lines[rank]
        self.left: list[int] = []
        """Ranks that are reported to have left it waiting."""
        readers = [MemberReader(each, EPOCH) for each in lines]
        self.meeting = Meeting(
            EpochPlace("tp", rank, EPOCH, self.writer, readers, boxes, ranks.bells, ranks.ended, self.left.append)
        )
        self.world = OwnWorld("tp", rank, ranks.size)
        self.world.serve()
        self.world.enter(self.meeting)
        self.waits = threading.Event()
        """Whether it has begun to wait for others."""
        self._poll = self.meeting._poll
        self.meeting._poll = self  # type: ignore[assignment, misc]
        self._sequence = 0
        self.named = ""
        """The method that is said to run."""

    def poll(self, _most_ms: int = 0) -> None:
        """Wait, and say so first."""
        self.waits.set()
        self._poll.poll()

    def call(self, method: Method) -> Any:
        """Run a method in the next gang call; return what it returns or raises."""
        self._sequence += 1
        self.writer.begin(self._sequence)
        self.meeting.begin(self._sequence, method=self.named)
        try:
            return method(self.world)
        except errors.AtomrError as error:
            return error
        finally:
            self.writer.end(self._sequence)
            self.meeting.end()


class Ranks:
    """A world's memory and bells, and the supervisor's part.

    Args:
        size: How many ranks there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.maps = [_memory("world", WORLD_BYTES) for _ in range(size)]
        self.bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(size)]
        self._stop = memoryview(_memory("stop", STOP_BYTES)).cast("Q")
        self._threads = ThreadPoolExecutor(size)

    def join(self) -> list[Rank]:
        """Let all join, as threads."""
        self.all = [Rank(self, rank) for rank in range(self.size)]
        return self.all

    def ended(self) -> errors.CollectiveAborted | None:
        """Return the error once the epoch is over."""
        if not is_over(self._stop, EPOCH):
            return None
        return errors.CollectiveAborted("over", world="tp", epoch=EPOCH, rank=0, cause="killed by SIGKILL")

    def stop(self) -> None:
        """End the epoch."""
        self._stop[0] = EPOCH
        for bell in self.bells:
            os.eventfd_write(bell, 1)

    def call(self, *methods: Method) -> list[Any]:
        """Run a gang call: one method for all ranks, or one for each. Return what each rank returns or raises."""
        chosen = methods * self.size if len(methods) == 1 else methods
        calls = [self._threads.submit(each.call, method) for each, method in zip(self.all, chosen, strict=True)]
        try:
            return [each.result(DEADLINE_S) for each in calls]
        except TimeoutError:
            self.stop()
            raise AssertionError("a rank waits and nobody comes") from None

    def start(self, rank: int, method: Method) -> Callable[[], Any]:
        """Begin a gang call on one rank; return what waits for its outcome."""
        call = self._threads.submit(self.all[rank].call, method)
        return lambda: call.result(DEADLINE_S)

    def close(self) -> None:
        """End all."""
        self.stop()
        self._threads.shutdown()
        for bell in self.bells:
            os.close(bell)


@contextmanager
def joined(size: int) -> Iterator[Ranks]:
    """Yield ranks that have joined, as threads of this process."""
    ranks = Ranks(size)
    ranks.join()
    try:
        yield ranks
    finally:
        ranks.close()


@contextmanager
def forked(size: int, method: SendingMethod) -> Iterator[tuple[Ranks, Sequence[Any]]]:
    """Run a gang call in a process for each rank; yield the ranks, and each process with the pipe to read it from.

    Args:
        size: How many ranks there are.
        method: Is called with the world, and with what sends to the pipe. An error is sent.
    """
    ranks, processes = Ranks(size), []
    together = FORKS.Barrier(size)
    for rank in range(size):
        here, there = FORKS.Pipe(duplex=False)
        processes.append((FORKS.Process(target=_run, args=(ranks, rank, method, there, together), daemon=True), here))
        processes[-1][0].start()
        there.close()
    try:
        yield ranks, processes
    finally:
        ranks.close()
        for process, here in processes:
            process.join(DEADLINE_S)
            assert process.exitcode is not None, "a process did not end"
            here.close()


def _run(ranks: Ranks, rank: int, method: SendingMethod, pipe: Any, together: Any) -> None:
    own_process.settle()
    own = Rank(ranks, rank)
    together.wait(DEADLINE_S)
    outcome = own.call(lambda world: method(world, pipe.send))
    if outcome is not None:
        pipe.send(outcome)
