"""Forms communicators of the members with a standby in the place of one, ahead of the epoch that needs them.

The pages say all that it takes. A standby says there that it serves. The first of the other ranks offers it a spare,
with a unique id, and the rest of the members find that it is of their processes. A spare lives until one of its
processes has ended, or until its epoch takes it. What a page says to be ready is kept so long; so rank 0 of the next
epoch decides for all whether it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from atomr_mp_workers.worlds.nccl.communicator import Communicator
from atomr_mp_workers.worlds.nccl.page import OwnPage, Spare, has_ready, name_of, read_spare, serves

if TYPE_CHECKING:  # it needs CuPy
    from atomr_mp_workers.worlds.nccl.making import CommMaker

LOOK_S: Final = 0.05
"""Time between two looks at the pages."""

Pages = Mapping[tuple[int, int], memoryview]
"""The pages of all processes that are known, by rank and generation."""


class Spares:
    """The spares that this process takes part in.

    Args:
        generation: This process.
        maker: Makes communicators.
        page: This process's page.
        pages: All pages.
    """

    def __init__(self, generation: int, maker: CommMaker, page: OwnPage, pages: Pages) -> None:
        self._rank: Final = maker.rank
        self._size: Final = maker.size
        self._generation: Final = generation
        self._maker: Final = maker
        self._page: Final = page
        self._pages: Final = pages
        self._members: tuple[int, ...] | None = None
        """The processes of the present epoch, by rank; None outside of epochs."""
        self._was_member = False
        self._made: Final[dict[int, tuple[tuple[int, ...], Communicator]]] = {}
        """By the rank of the standby: the processes and the communicator, which is forming or ready."""
        self._taken: tuple[int, ...] = ()
        """The processes whose epoch was the last to ask for a spare; nothing is formed for them after that."""
        self._lock: Final = threading.Lock()
        """Guards these."""
        self._wakes: Final = threading.Event()
        self._is_closed = False
        self._serves = False

    def serve(self) -> None:
        """Take part from now on: this process is set up."""
        if not self._serves:
            self._serves = True
            self._page.show_serves()
            threading.Thread(target=self._run, name="nccl-spares", daemon=True).start()

    def joined(self, generations: Sequence[int]) -> None:
        """Take in that this process is in an epoch of these, by rank."""
        self._members, self._was_member = tuple(generations), True
        self._wakes.set()

    def left(self) -> None:
        """Take in that it is in no epoch."""
        self._members = None

    def take(self, generations: Sequence[int]) -> Communicator | None:
        """Return the spare of these processes, which is the caller's from now on; None if none is ready."""
        wanted = tuple(generations)
        with self._lock:
            self._taken = wanted
            rank = next((rank for rank, (members, _) in self._made.items() if members == wanted), None)
            if rank is None:
                return None
            _, found = self._made.pop(rank)
            # The word stays: rank 0 may look at it later. It asks only if it has the spare itself, so once.
            is_ready = has_ready(self._page.words, rank, name_of(wanted))
        if not is_ready or found.is_shut:
            found.close()
            return None
        return found

    def is_ready_everywhere(self, generations: Sequence[int]) -> bool:
        """Return whether the pages of all these processes say that the spare of these is ready."""
        name = name_of(generations)
        pages = [self._pages.get(where) for where in enumerate(generations) if where[0] != self._rank]
        return all(
            page is not None and any(has_ready(page, rank, name) for rank in range(self._size)) for page in pages
        )

    def forget(self, rank: int, generation: int) -> None:
        """Close the spares of a process that has ended."""
        with self._lock:
            lost = [standby for standby, (members, _) in self._made.items() if members[rank] == generation]
            for standby in lost:
                self._drop(standby)

    def close(self) -> None:
        """Close all; no more are made."""
        self._is_closed = True
        self._wakes.set()
        with self._lock:
            for standby in list(self._made):
                self._drop(standby)

    def _drop(self, standby: int) -> None:
        _, communicator = self._made.pop(standby)
        self._page.show_ready(standby, 0)
        communicator.close()

    def _run(self) -> None:
        while not self._is_closed:
            self._look()
            self._wakes.wait(LOOK_S)
            self._wakes.clear()

    def _look(self) -> None:
        members, pages = self._members, dict(self._pages)
        if members is not None:
            for rank in range(self._size):
                latest = max((each for owner, each in pages if owner == rank), default=0)
                if rank != self._rank and latest > members[rank] and serves(pages[rank, latest]):
                    self._take_part(pages, rank, (*members[:rank], latest, *members[rank + 1 :]))
        elif not self._was_member and self._size > 1:
            first = 0 if self._rank else 1
            latest = max((each for owner, each in pages if owner == first), default=0)
            for generation in range(latest, 0, -1):
                page = pages.get((first, generation))
                spare = None if page is None else read_spare(page, self._rank, self._size)
                if spare is not None and self._is_own(pages, first, generation, spare):
                    self._form(self._rank, spare)
                    return

    def _is_own(self, pages: Pages, first: int, generation: int, spare: Spare) -> bool:
        """Return whether a spare is of this process, the one that offers it, and others that are here."""
        found = spare.generations
        is_of_both = found[self._rank] == self._generation and found[first] == generation
        return is_of_both and all(where in pages for where in enumerate(found))

    def _take_part(self, pages: Pages, standby: int, generations: tuple[int, ...]) -> None:
        """Form the spare for a standby, as its first member or as another one."""
        with self._lock:
            made = self._made.get(standby)
            if made is not None and made[0] == generations:
                return
        first = 1 if standby == 0 else 0
        if first != self._rank:
            spare = read_spare(pages[first, generations[first]], standby, self._size)
            if spare is not None and spare.generations == generations:
                self._form(standby, spare)
            return
        spare = Spare(generations, self._maker.unique_id())
        if self._form(standby, spare):
            self._page.offer_spare(standby, spare)

    def _form(self, standby: int, spare: Spare) -> bool:
        """Form a spare in a thread; return False where that was begun, or comes too late."""
        with self._lock:
            made = self._made.get(standby)
            are_here = all(where in self._pages for where in enumerate(spare.generations))
            is_over = self._is_closed or spare.generations == self._taken
            if is_over or not are_here or (made is not None and made[0] == spare.generations):
                return False
            if made is not None:
                self._drop(standby)
            communicator = self._maker.make()
            self._made[standby] = spare.generations, communicator

        def form() -> None:
            is_ready = self._maker.form(communicator, spare.identity)
            with self._lock:
                if is_ready and self._made.get(standby, ((), None))[1] is communicator:
                    self._page.show_ready(standby, name_of(spare.generations))

        threading.Thread(target=form, name="nccl-spare", daemon=True).start()
        return True
