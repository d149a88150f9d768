"""Clients' reads of buffers, for which later writers wait: noted on arrival, timed from their turn on.

A client that copies a buffer, or lends it to another device, reads it outside this process. It says when it has done
so. If it never does, since it was stopped or what it waits for takes long, writers are refused after some time: they
must not wait for ever, and must not write what may still be read. Only with the loop's turn. No clock: times are
arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.borrows import PassingRead, time_for_ns


class PassingReads:
    """The reads of all sessions' clients."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[PassingRead, list[Block]]] = {}
        """By session and the client's id."""
        self.waited: Final[set[Event]] = set()
        """Events of reads for which requests may wait. No stream may wait for them: they are not work of the device."""
        self._overdue: Final[dict[Event, PassingRead]] = {}
        self.has_ended = False
        """Whether requests may go on, or are refused, since one has ended or its time was over; whoever looks after
        these requests resets it."""

    def begin(self, holder: Holder, arrays: Sequence[DeviceArray], number: int, event: Event) -> None:
        """Note a read on its arrival; its time begins with `grant`.

        Args:
            holder: The holder of its session.
            arrays: What it reads.
            number: The client's id for it, which no other of the session has.
            event: A new event, which it ends.

        Raises:
            BorrowConflict: A view excludes it.
        """
        read = PassingRead(event, sum([array.nbytes for array in arrays]), holder.pid)
        blocks = list(dict.fromkeys([array.block for array in arrays]))
        noted: list[Block] = []
        try:
            for block in blocks:
                block.borrows.open_read(read)
                noted.append(block)
        except errors.BorrowConflict:
            _forget(read, noted)
            raise
        holder.passing_reads.add(number)
        self._open[holder.number, number] = read, blocks
        self.waited.add(event)

    def grant(self, holder: Holder, number: int, now_ns: int) -> None:
        """Begin the time of a read: all earlier writers have ended, and its client hears of that."""
        found = self._open.get((holder.number, number))
        if found is not None:
            read, _ = found
            read.until_ns = now_ns + time_for_ns(read.nbytes)

    def covers(self, holder: Holder, number: int, block: Block) -> bool:
        """Return whether it is the turn of a read, which is of this memory: until its end no request writes there."""
        read, blocks = self._open.get((holder.number, number), _NONE)
        return read is not None and read.until_ns is not None and block in blocks

    def end(self, holder: Holder, number: int) -> None:
        """End a read, if there is one of this id."""
        found = self._open.pop((holder.number, number), None)
        if found is None:
            return
        read, blocks = found
        holder.passing_reads.discard(number)
        _forget(read, blocks)
        self.waited.discard(read.event)
        self._overdue.pop(read.event, None)
        read.event.end()
        self.has_ended = True

    def are_of(self, session: int) -> bool:
        """Return whether there is a read of a session."""
        return any(number == session for number, _ in self._open)

    @property
    def due_ns(self) -> int | None:
        """When the next read's time is over; CLOCK_MONOTONIC."""
        if not self.waited:
            return None
        return min(
            [read.until_ns for read, _ in self._open.values() if read.until_ns and not read.overdue], default=None
        )

    def expire(self, now_ns: int) -> None:
        """Let no request wait any longer for reads whose time is over; from now on writers are refused."""
        for read, _ in self._open.values():
            if read.until_ns is not None and read.until_ns <= now_ns and not read.overdue:
                read.overdue = True
                self.waited.discard(read.event)
                self._overdue[read.event] = read
                read.event.end()
                self.has_ended = True

    def refusal(self, after: Iterable[Event]) -> errors.BorrowConflict | None:
        """Return why a request that has waited for these events must not run, None if it may."""
        if self._overdue:
            for event in after:
                read = self._overdue.get(event)
                if read is not None:
                    return read.conflict()
        return None


_NONE: Final[tuple[None, list[Block]]] = None, []


def _forget(read: PassingRead, blocks: Iterable[Block]) -> None:
    for block in blocks:
        block.borrows.close_read(read)
