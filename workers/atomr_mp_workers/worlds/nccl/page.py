"""The page by which a process tells the other ranks how they form a communicator. Pure over a view of words.

Its process alone writes it, by stores of aligned words. The number that makes a line hold is stored last, and 0 first
where the line was used before; whoever reads looks at it before and after. What is read comes from another process, so
its length is fixed, and its numbers are compared with what the reader knows.

Its first line is the unique id of an epoch. Behind that are two lines for each rank, of that rank's standby: a
communicator that is offered to it and to the members of other ranks, and what this process has ready.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.codec import MAX_DEVICES
from atomr_mp_workers.worlds.nccl.library import ID_BYTES

ID_WORDS: Final = ID_BYTES // 8

EPOCH: Final = 0
"""The epoch that the first line is for."""
IS_SPARE: Final = 1
"""1 if its members use the communicator that they have formed ahead; else the unique id of a new one follows."""
ID_AT: Final = 2
SERVES: Final = ID_AT + ID_WORDS
"""1 once its process is set up."""

SPARES_AT: Final = 32
SPARE_WORDS: Final = 1 + MAX_DEVICES + ID_WORDS
"""A spare's name, the processes by rank, and the unique id."""

READY_AT: Final = SPARES_AT + MAX_DEVICES * SPARE_WORDS
"""By rank: the name of the spare for its standby that this process has ready, 0 for none."""

NCCL_PAGE_BYTES: Final = -(-8 * (READY_AT + MAX_DEVICES) // 4096) * 4096

WHOLE_WORD: Final = 2**63 - 1


class Spare(NamedTuple):
    """A communicator of the members of an epoch with a standby in the place of one of them."""

    generations: tuple[int, ...]
    """The processes, by rank."""
    identity: bytes


def name_of(generations: Sequence[int]) -> int:
    """Return a number that names these processes, by rank; never 0."""
    text = ",".join(map(str, generations)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") & WHOLE_WORD | 1


class OwnPage:
    """The page of this process.

    Args:
        words: The page.
    """

    def __init__(self, words: memoryview) -> None:
        self.words: Final = words

    def offer(self, epoch: int, identity: bytes | None) -> None:
        """Tell how the members of an epoch meet: by a new communicator's unique id; None for the spare."""
        words = self.words
        words[EPOCH] = 0
        words[IS_SPARE] = int(identity is None)
        for at, word in enumerate(_words(identity or bytes(ID_BYTES))):
            words[ID_AT + at] = word
        words[EPOCH] = epoch

    def offer_spare(self, rank: int, spare: Spare) -> None:
        """Offer a communicator to the standby of a rank, and to the members of the other ranks."""
        words, at = self.words, SPARES_AT + rank * SPARE_WORDS
        words[at] = 0
        for place, generation in enumerate(spare.generations, start=at + 1):
            words[place] = generation
        for place, word in enumerate(_words(spare.identity), start=at + 1 + MAX_DEVICES):
            words[place] = word
        words[at] = name_of(spare.generations)

    def show_serves(self) -> None:
        """Say that this process is set up."""
        self.words[SERVES] = 1

    def show_ready(self, rank: int, name: int) -> None:
        """Say that the spare for the standby of a rank is ready here; 0 for none."""
        self.words[READY_AT + rank] = name


def read_offer(words: memoryview, epoch: int) -> tuple[bytes | None] | None:
    """Return the unique id that a page has for an epoch, None in its place for the spare; None if it has none yet."""
    if words[EPOCH] != epoch:
        return None
    is_spare, identity = bool(words[IS_SPARE]), _bytes(words, ID_AT)
    if words[EPOCH] != epoch:
        return None
    return (None if is_spare else identity,)


def read_spare(words: memoryview, rank: int, size: int) -> Spare | None:
    """Return the spare that a page offers to the standby of a rank of so many; None if there is none."""
    at = SPARES_AT + rank * SPARE_WORDS
    name = words[at]
    if not name:
        return None
    found = Spare(tuple(words[at + 1 : at + 1 + size].tolist()), _bytes(words, at + 1 + MAX_DEVICES))
    return found if words[at] == name == name_of(found.generations) else None


def serves(words: memoryview) -> bool:
    """Return whether the process of a page is set up."""
    return bool(words[SERVES])


def has_ready(words: memoryview, rank: int, name: int) -> bool:
    """Return whether a page says that a spare for the standby of a rank is ready."""
    return bool(words[READY_AT + rank] == name)


def _words(identity: bytes) -> memoryview:
    return memoryview(identity).cast("Q")


def _bytes(words: memoryview, at: int) -> bytes:
    return array("Q", words[at : at + ID_WORDS].tolist()).tobytes()
