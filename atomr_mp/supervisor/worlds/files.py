"""The files that the members of a world share: each process has some of its own, and each world has its stop word.

Their descriptors are made here, given to the processes that need them, and closed here when their process has ended.
Memory is sealed in its size, so that no side can make another one fault. A mailbox is memory on a device: its process
makes it, and its descriptor is kept here without a look at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.world.memory import DEVICE_PAGE_AT, LINES_AT, PAGE_BYTES, RING_AT, STOP_BYTES, WORLD_BYTES
from atomr_mp.protocol.world.page import FIRST_TAKEN, NOTES_AT
from atomr_mp.protocol.world.stop import store_stop
from atomr_mp.transport.descriptors import Descriptor

NAME: Final = "atomr-mp-world"
"""Begins the names of the memory."""

OF_OTHERS: Final = (WorldFileKind.MEMORY, WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL)
"""The files of a process that the other members get."""

_RING: Final = (1).to_bytes(8, "little")


class ProcessFiles:
    """The files of one process of a world.

    Args:
        name: The process, for the name of its memory.
        on_device: Whether it waits for other ranks on its device.

    Raises:
        OSError: No descriptor is left, or no memory.
    """

    def __init__(self, name: str, *, on_device: bool = False) -> None:
        with contextlib.ExitStack() as undo:
            own = undo.enter_context(Descriptor(_sealed(f"{NAME}-{name}", WORLD_BYTES)))
            page = mmap.mmap(own.fileno(), PAGE_BYTES, offset=DEVICE_PAGE_AT) if on_device else None
            shared = undo.enter_context(Descriptor(_read_only(own.fileno())))
            bells = [undo.enter_context(Descriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))) for _ in range(2)]
            undo.pop_all()
        self._own: Descriptor | None = own
        self._shared: Final = dict(zip(OF_OTHERS, (shared, *bells), strict=True))
        self._mailbox: Descriptor | None = None
        self._page: Final = page
        """The page that its device reads, mapped to be written."""

    def take_own(self) -> dict[WorldFileKind, Descriptor]:
        """Return the files as the process itself gets them, once; they are the caller's."""
        assert self._own is not None
        own, self._own = self._own, None
        bells = {kind: self._shared[kind].share() for kind in (WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL)}
        return {WorldFileKind.MEMORY: own, **bells}

    def share(self) -> dict[WorldFileKind, Descriptor]:
        """Return the files as another member gets them, the memory to be read only; they are the caller's."""
        return {kind: each.share() for kind, each in self._shared.items()}

    def keep_mailbox(self, mailbox: Descriptor | None) -> bool:
        """Keep the mailbox of the process, once; return whether there is one now.

        Args:
            mailbox: The descriptor, which is the caller's; None if it has got lost.

        Raises:
            ProtocolError: There was one already.
        """
        if self._mailbox is not None:
            raise errors.ProtocolError("a process has one mailbox in a world, and this is its second one")
        self._mailbox = None if mailbox is None else mailbox.share()
        return self._mailbox is not None

    def share_mailbox(self) -> Descriptor | None:
        """Return the mailbox as another process gets it, the caller's to close; None if it has not come."""
        return None if self._mailbox is None else self._mailbox.share()

    def stop(self, epoch: int) -> None:
        """Have its device end its waits in this epoch, and in those before it."""
        if self._page is not None:
            with memoryview(self._page).cast("Q") as words:
                words[0] = epoch

    def ring(self) -> None:
        """Ring both bells."""
        for kind in (WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL):
            descriptor = self._shared[kind].fileno()
            # A process may have made it blocking. One that is full is heard all the same.
            if _has_room(descriptor):
                with contextlib.suppress(BlockingIOError):
                    os.write(descriptor, _RING)

    def lines(self) -> memoryview:
        """Return a copy of the first words of the process's lines."""
        return self._words(LINES_AT, NOTES_AT)

    def ring_header(self) -> memoryview:
        """Return a copy of the first words of the process's ring."""
        return self._words(RING_AT, FIRST_TAKEN)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of memory that are kept open here."""
        return [self._memory, *([] if self._mailbox is None else [self._mailbox.fileno()])]

    @property
    def _memory(self) -> int:
        return self._shared[WorldFileKind.MEMORY].fileno()

    def _words(self, at: int, count: int) -> memoryview:
        return memoryview(os.pread(self._memory, 8 * count, at)).cast("Q")

    def close(self) -> None:
        """Close the files here; whoever has got them keeps them. May be called twice."""
        for each in (self._own, self._mailbox, *self._shared.values()):
            if each is not None:
                each.close()
        if self._page is not None:
            self._page.close()


class StopFile:
    """The stop word of one world, written here alone.

    Args:
        name: The world.

    Raises:
        OSError: No descriptor is left.
    """

    def __init__(self, name: str) -> None:
        with Descriptor(_sealed(f"{NAME}-{name}-stop", STOP_BYTES)) as own:
            self._memory: Final = mmap.mmap(own.fileno(), STOP_BYTES)
            self._shared: Final = Descriptor(_read_only(own.fileno()))
        self._words: Final = memoryview(self._memory).cast("Q")

    def store(self, epoch: int, rank: int, cause: str) -> None:
        """Say that this epoch, and all before it, are over; see `store_stop`."""
        store_stop(self._words, epoch, rank, cause)

    def share(self) -> Descriptor:
        """Return the file as a process gets it, to be read only; it is the caller's."""
        return self._shared.share()

    @property
    def memory(self) -> int:
        """The descriptor of the memory."""
        return self._shared.fileno()

    def close(self) -> None:
        """Close it here."""
        self._words.release()
        self._memory.close()
        self._shared.close()


def _has_room(bell: int) -> bool:
    poll = select.poll()
    poll.register(bell, select.POLLOUT)
    return bool(poll.poll(0))


def _sealed(name: str, nbytes: int) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _read_only(descriptor: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
