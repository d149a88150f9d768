"""Communicators that are formed ahead: which process forms which, however its looks and its epochs interleave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from hypothesis import given
from hypothesis import strategies as some

from atomr_mp_workers.worlds.nccl.library import ID_BYTES
from atomr_mp_workers.worlds.nccl.page import NCCL_PAGE_BYTES, OwnPage
from atomr_mp_workers.worlds.nccl.spares import Spares

SIZE: Final = 3
VICTIM: Final = 1
FIRST: Final = (1, 1, 1)
SECOND: Final = (1, 2, 1)
"""The processes once the standby has taken over."""


class Place:
    """One process's spares, over a library that forms at once."""

    def __init__(self, where: tuple[int, int], pages: dict[tuple[int, int], memoryview]) -> None:
        self.page: Final = OwnPage(pages[where])
        self.begun = 0
        """How many communicators were begun."""
        self.has_asked = False

        def make() -> Any:
            assert not self.has_asked
            self.begun += 1
            return SimpleNamespace(is_shut=False, close=bool)

        rank, generation = where
        ways = {"unique_id": lambda: bytes(ID_BYTES), "make": make, "form": lambda *_given: True}
        maker = SimpleNamespace(rank=rank, size=SIZE, **ways)
        self.spares: Final = Spares(generation, cast("Any", maker), self.page, pages)
        self.page.show_serves()

    def look(self, *, is_late: bool) -> None:
        """Look at the pages; late: as a look that has begun before the epoch ended."""
        was = self.spares._members
        if is_late and self.has_asked and self.spares._was_member:
            self.spares._members = FIRST
        self.spares._look()
        self.spares._members = was

    def ask(self) -> None:
        """Ask for the spare of the next epoch, once."""
        if not self.has_asked:
            self.spares.left()
            self.has_asked = True
            self.spares.take(SECOND)


@given(
    some.lists(some.tuples(some.integers(0, SIZE - 1), some.sampled_from(["look", "late look", "ask"])), max_size=24)
)
def test_no_process_forms_a_communicator_twice_or_once_its_epoch_has_asked(walk: list[tuple[int, str]]) -> None:
    """It would meet no other rank, and would keep a thread and memory of the device."""
    wheres = [(0, 1), (VICTIM, 1), (VICTIM, 2), (2, 1)]
    pages = {where: memoryview(bytearray(NCCL_PAGE_BYTES)).cast("Q") for where in wheres}
    places = [Place(where, pages) for where in ((0, 1), (VICTIM, 2), (2, 1))]
    for place in (places[0], places[2]):
        place.spares.joined(FIRST)
    for who, what in walk:
        place = places[who]
        if what == "ask":
            place.ask()
        else:
            place.look(is_late=what == "late look")
    assert all(place.begun <= 1 for place in places)
