"""The memory of one process of a world: its lines, its ring, and its mailbox, by offset. Pure.

Each process of a member has its own, so what a dying process still writes reaches nobody of the next epoch. Its owner
alone writes there. The ring is used while the process is rank 0.
"""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.world.page import line_bytes, ring_bytes

PAGE_BYTES: Final = 4096


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


LINES_AT: Final = 0
LINE_BYTES: Final = line_bytes()

RING_AT: Final = _whole_pages(LINE_BYTES)
RING_BYTES: Final = ring_bytes()

MAILBOX_AT: Final = RING_AT + _whole_pages(RING_BYTES)

SLOT_BYTES: Final = 2**20
"""Size of a slot of the mailbox."""

MAILBOX_SLOTS: Final = 4
"""A rank is one exchange ahead of the slowest at most. An exchange in two steps has a slot for each."""

DEVICE_PAGE_AT: Final = MAILBOX_AT + SLOT_BYTES * MAILBOX_SLOTS
"""A page that the owner's GPU reads and writes. The supervisor stores its first word: the latest epoch that is over, so
that kernels end their waits even where the owner's code is stuck."""

WORLD_BYTES: Final = DEVICE_PAGE_AT + PAGE_BYTES
"""Size of the memory of one process. It is taken as it is used."""

STOP_BYTES: Final = PAGE_BYTES
"""Size of the memory of a world's stop word, which is its first word."""
