"""The files of a world, as the supervisor makes and sends them, for tests of workers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

from atomr_mp.interop.sealed import make_sealed
from atomr_mp.protocol.messages.control import WorldFile, WorldFileKind
from atomr_mp.protocol.world.memory import STOP_BYTES, WORLD_BYTES

KINDS = (WorldFileKind.MEMORY, WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL)


class WorldSupply:
    """Makes the files of one world.

    Args:
        world: The world's number.
    """

    def __init__(self, world: int = 1) -> None:
        self._world = world
        self._stop = make_sealed("stop", STOP_BYTES)
        self.stop = memoryview(mmap.mmap(self._stop, STOP_BYTES)).cast("Q")
        self._files: dict[tuple[WorldFileKind, int, int], int] = {}

    def files(self, rank: int, generation: int) -> Iterator[tuple[WorldFile, int]]:
        """Yield the files of a process, each with a descriptor that is the receiver's."""
        for kind in KINDS:
            yield WorldFile(self._world, rank, generation, kind), os.dup(self.descriptor(kind, rank, generation))

    def own_files(self, rank: int, generation: int) -> Iterator[tuple[WorldFile, int]]:
        """Yield what a process gets before its start."""
        yield WorldFile(self._world, rank, generation, WorldFileKind.STOP), os.dup(self._stop)
        yield from self.files(rank, generation)

    def descriptor(self, kind: WorldFileKind, rank: int, generation: int) -> int:
        """Return a file, which stays this object's."""
        found = self._files.get((kind, rank, generation))
        if found is None:
            is_memory = kind is WorldFileKind.MEMORY
            found = make_sealed("world", WORLD_BYTES) if is_memory else os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._files[kind, rank, generation] = found
        return found

    def end(self, epoch: int, generations: Sequence[int]) -> None:
        """Store the stop word, and ring all."""
        self.stop[0] = epoch
        for rank, generation in enumerate(generations):
            for kind in (WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL):
                os.eventfd_write(self.descriptor(kind, rank, generation), 1)

    def close(self) -> None:
        """Close all."""
        for descriptor in (self._stop, *self._files.values()):
            os.close(descriptor)
        self._files.clear()
