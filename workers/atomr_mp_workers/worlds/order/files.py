"""EDGE: the files of a world: memory that its members map, and bells by which they wake each other.

Each process writes its own memory and reads that of others. A former process's files are closed when the next epoch is
joined; its memory stays mapped as long as a view of it is left. Mailboxes on devices wait here until they are taken.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from atomr_mp import errors
from atomr_mp.interop.sealed import check_sealed
from atomr_mp.protocol.messages.control import WorldFile, WorldFileKind
from atomr_mp.protocol.world.memory import (
    DEVICE_PAGE_AT,
    LINE_BYTES,
    LINES_AT,
    MAILBOX_AT,
    PAGE_BYTES,
    RING_AT,
    RING_BYTES,
    STOP_BYTES,
    WORLD_BYTES,
)


@dataclass(frozen=True)
class EpochPages:
    """What the members of an epoch share, by rank."""

    stop: memoryview
    """Words of the supervisor's page: the stop word, and the cause."""
    ring: memoryview
    """Words of rank 0's ring."""
    lines: tuple[memoryview, ...]
    """Words of each member's lines."""
    mailboxes: tuple[memoryview, ...]
    """Bytes of each member's mailbox."""
    loop_bells: tuple[int, ...]
    thread_bells: tuple[int, ...]


class WorldFiles:
    """The files of one world, as far as this process has got them."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[WorldFileKind, int, int], int] = {}
        """By kind, rank and generation; those of memory until it is mapped."""
        self._memories: dict[tuple[int, int], memoryview] = {}
        """Mapped memory by rank and generation."""
        self._stop: memoryview | None = None

    def add(self, file: WorldFile, descriptor: int) -> None:
        """Take in a file, with its descriptor."""
        generation = 0 if file.kind is WorldFileKind.STOP else file.generation
        rank = 0 if file.kind is WorldFileKind.STOP else file.rank
        before = self._descriptors.pop((file.kind, rank, generation), None)
        if before is not None:
            os.close(before)
        self._descriptors[file.kind, rank, generation] = descriptor

    def loop_bell(self, rank: int, generation: int) -> int:
        """Return the descriptor that wakes a process's loop.

        Raises:
            ProtocolError: It has not come.
        """
        return self._descriptor(WorldFileKind.LOOP_BELL, rank, generation)

    def thread_bell(self, rank: int, generation: int) -> int:
        """Return the descriptor that wakes a process's thread of the world.

        Raises:
            ProtocolError: It has not come.
        """
        return self._descriptor(WorldFileKind.THREAD_BELL, rank, generation)

    @property
    def mailboxes(self) -> list[tuple[int, int]]:
        """The ranks and generations of processes whose mailboxes wait to be taken, in the order of their arrival."""
        return [(rank, generation) for kind, rank, generation in self._descriptors if kind is WorldFileKind.MAILBOX]

    def take_mailbox(self, rank: int, generation: int) -> int | None:
        """Return the descriptor of a process's mailbox, which is the caller's; None if none waits."""
        return self._descriptors.pop((WorldFileKind.MAILBOX, rank, generation), None)

    def drop_mailbox(self, rank: int, generation: int) -> None:
        """Close the mailbox of a process, if it waits."""
        mailbox = self.take_mailbox(rank, generation)
        if mailbox is not None:
            os.close(mailbox)

    def device_page(self, rank: int, generation: int) -> memoryview:
        """Return the page of this process that its device and its host share; it stays mapped.

        Raises:
            ProtocolError: The memory has not come, or is not what it should be.
        """
        return self._memory(rank, generation, writable=True)[DEVICE_PAGE_AT : DEVICE_PAGE_AT + PAGE_BYTES]

    def pages(self, rank: int, generations: Sequence[int]) -> EpochPages:
        """Map the shared memory of an epoch's members, and return it with their bells.

        Args:
            rank: The rank of this process, which may write its own memory.
            generations: The processes of the members, by rank.

        Raises:
            ProtocolError: A file has not come, or is not what it should be.
        """
        if self._stop is None:
            descriptor = self._descriptors.pop((WorldFileKind.STOP, 0, 0), None)
            if descriptor is None:
                raise errors.ProtocolError("the file of the stop word has not come")
            self._stop = _map(descriptor, STOP_BYTES, writable=False)
        members = list(enumerate(generations))
        memories = [self._memory(each, generation, writable=each == rank) for each, generation in members]
        return EpochPages(
            self._stop.cast("Q"),
            _words(memories[0], RING_AT, RING_BYTES),
            tuple(_words(memory, LINES_AT, LINE_BYTES) for memory in memories),
            tuple(memory[MAILBOX_AT:DEVICE_PAGE_AT] for memory in memories),
            tuple(self.loop_bell(each, generation) for each, generation in members),
            tuple(self.thread_bell(each, generation) for each, generation in members),
        )

    def close_former(self, generations: Sequence[int]) -> None:
        """Close what belongs to processes that came before these, by rank."""
        for key in [key for key in self._descriptors if _is_former(*key[1:], generations)]:
            os.close(self._descriptors.pop(key))
        for place in [place for place in self._memories if _is_former(*place, generations)]:
            del self._memories[place]

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
        self._memories.clear()
        self._stop = None

    def _memory(self, rank: int, generation: int, *, writable: bool) -> memoryview:
        memory = self._memories.get((rank, generation))
        if memory is None:
            descriptor = self._descriptor(WorldFileKind.MEMORY, rank, generation)
            del self._descriptors[WorldFileKind.MEMORY, rank, generation]
            memory = self._memories[rank, generation] = _map(descriptor, WORLD_BYTES, writable=writable)
        return memory

    def _descriptor(self, kind: WorldFileKind, rank: int, generation: int) -> int:
        descriptor = self._descriptors.get((kind, rank, generation))
        if descriptor is None:
            raise errors.ProtocolError(
                f"the {kind.name.lower().replace('_', ' ')} of rank {rank}, generation {generation}, has not come"
            )
        return descriptor


def _is_former(rank: int, generation: int, generations: Sequence[int]) -> bool:
    return generation > 0 and rank < len(generations) and generation < generations[rank]


def _map(descriptor: int, nbytes: int, *, writable: bool) -> memoryview:
    """Map a file, and close its descriptor.

    Raises:
        ProtocolError: It has another size, or is not sealed in its size.
    """
    try:
        check_sealed(descriptor, nbytes)
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        return memoryview(mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, access))
    except OSError as error:
        raise errors.ProtocolError(f"a world's memory cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)


def _words(memory: memoryview, at: int, nbytes: int) -> memoryview:
    return memory[at : at + nbytes].cast("Q")
