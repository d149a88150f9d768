"""Places in a mailbox on a GPU, in the table of its process, and on its page. The same for all members of a world.

A mailbox has room for several processes of each rank, by their generation: what a dying one still writes goes to its
own place, which no epoch reads before three more of that rank have been there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.world.page import MAX_RANKS

PROCESSES: Final = 4
"""Places for processes of each rank."""

BLOCKS: Final = 64
"""Most blocks of a kernel."""

BLOCKS_SHIFT: Final = 16
"""Where the number of blocks is in a signature's second word: kernels with different ones would wait for each other."""

WORLDS: Final = 4
"""Most worlds of a process: the supervisor's `MOST_ON_GPU`."""

RESIDENT: Final = 2
"""So many blocks fit on a multiprocessor, by the bounds that the kernels are compiled with."""

WORKERS: Final = 512
"""Most threads of a block that work."""

WATCHERS: Final = 32
"""Threads of a block that watch."""

HEADER_BYTES: Final = 64
PARITIES: Final = 2

SMALL_BYTES: Final = 32 * 2**10
"""Up to this size every rank sends all of its elements to all."""

LINE_BYTES: Final = 16
LINES: Final = SMALL_BYTES // 8

HALF_BYTES: Final = 16 * 2**20
"""Size of each half of the part that others read."""

AT_ONCE_BYTES: Final = 8 * 2**20
"""Up to this size a rank puts all of its rows into a half before others read; larger ones flow through it."""

# Words of the page, which lies in the host's memory.
PAGE_WORDS: Final = 24
STOP: Final = 0
"""The latest epoch that is over."""
CODE: Final = 8
"""Why the first collective of the epoch has ended early, 0 if none has. It is written last."""
RANK: Final = 9
SEQUENCE: Final = 10
THEIRS: Final = 11
"""Three words of what a peer calls."""
OWN: Final = 14
"""Three words of what this rank calls."""
WAITING: Final = 20
"""Number of the collective that has waited for a while, 0 if none does."""
WAITS_IN: Final = 21
"""Two words of what it is."""
GLANCED: Final = 23
"""Another number whenever the kernel that waits has looked for the others' headers again, in vain."""

# Codes.
STOPPED: Final = 1
LATE: Final = 2
MISMATCH: Final = 3
PAIRS: Final = 4
WORN: Final = 5

_TABLE: Final = struct.Struct(f"=5Q6I{MAX_RANKS}Q{MAX_RANKS}I")
TABLE_BYTES: Final = _TABLE.size


class MailboxLayout(NamedTuple):
    """Where the parts of a mailbox begin, in bytes; the order is that of the kernels' `Layout`."""

    headers: int
    flags: int
    taken: int
    flag_stride: int
    lines: int
    line_count: int
    halves: int
    half: int

    @property
    def nbytes(self) -> int:
        """The size of a mailbox."""
        return self.halves + 2 * self.half


def layout_of(ranks: int) -> MailboxLayout:
    """Return the layout of the mailboxes of a world of so many ranks."""
    slots = ranks * PROCESSES
    flags = slots * PARITIES * HEADER_BYTES
    stride = -(-8 * slots // 128) * 128
    taken = flags + BLOCKS * stride
    lines = _whole(taken + BLOCKS * stride)
    halves = _whole(lines + slots * PARITIES * LINES * LINE_BYTES)
    return MailboxLayout(0, flags, taken, stride, lines, LINES, halves, HALF_BYTES)


def slot_of(rank: int, generation: int) -> int:
    """Return the place of a process in the mailboxes of others."""
    return rank * PROCESSES + generation % PROCESSES


def pack_table(
    epoch: int, rank: int, slots: Sequence[int], mailboxes: Sequence[int], *, rehearses: bool = False
) -> bytes:
    """Return a table as a process has it when it joins an epoch: no collective has begun.

    Args:
        epoch: The epoch; 0 before one is joined.
        rank: The rank of the process.
        slots: The places of the members by rank, see `slot_of`.
        mailboxes: The addresses of their mailboxes by rank.
        rehearses: Whether nobody else is there: this rank's data stands for that of all.
    """
    rest = [0] * (MAX_RANKS - len(slots))
    sizes = len(slots), rank, slots[rank]
    return _TABLE.pack(0, 0, 0, epoch, 0, *sizes, 0, 0, rehearses, *mailboxes, *rest, *slots, *rest)


def most_blocks(multiprocessors: int) -> int:
    """Return how many blocks a kernel has at most, so that those of all worlds of a GPU are resident together."""
    return max(1, min(BLOCKS, multiprocessors * RESIDENT // WORLDS))


def way_of(width: int, rows: int, most: int = BLOCKS) -> tuple[bool, int]:
    """Return whether rows flow through a half, and how many blocks move them; the same on GPUs of one kind.

    Args:
        width: Bytes of a row.
        rows: How many there are.
        most: The most blocks.
    """
    flows = -(-width // 16) * 16 * rows > AT_ONCE_BYTES  # each row begins at a whole group of 16 bytes
    return flows, most if flows else max(1, min(most, -(-width // (16 * WORKERS))))


def _whole(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


# What a rank does in a collective.
GIVES: Final = 1
"""It puts its elements into its mailbox."""
WANTS: Final = 2
"""It reads the result."""
PAIRED: Final = 4
"""It says to whom it sends and from whom it receives."""
