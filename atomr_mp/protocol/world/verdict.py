"""Whether a request may have been executed, from a world's pages alone. Pure over views of words."""

from __future__ import annotations

from collections.abc import Sequence

from atomr_mp.protocol.world.lines import MemberReader
from atomr_mp.protocol.world.page import (
    FORGOTTEN,
    LAST_FORGOTTEN,
    RUNNING,
    RingOverrunError,
    WorldPageDamagedError,
    twice,
)
from atomr_mp.protocol.world.ring import RingReader, ring_epoch


class WorldVerdict:
    """The facts of an epoch whose stop word is stored, so that members begin no other entry.

    Args:
        ring: The ring, as unsigned 64-bit words.
        lines: Each member's lines.
        epoch: The epoch.
    """

    def __init__(self, ring: memoryview, lines: Sequence[memoryview], epoch: int) -> None:
        self.defect = ""
        """Why the pages are not believed, "" if they are. Then everything may have been executed."""
        self._begun: set[tuple[int, int]] = set()
        """Session and request id of all that a member has begun, as far as the ring has it."""
        self._forgotten_ns = 0
        try:
            self._look(ring, lines, epoch)
        except (WorldPageDamagedError, RingOverrunError) as damage:
            self.defect = str(damage) or "the ring was written while it was judged"

    def maybe_executed(self, session: int, request_id: int, sent_ns: int) -> bool:
        """Return whether any member may have executed a request, or a step of it.

        Args:
            session: Its session.
            request_id: Its id.
            sent_ns: When its client has sent it, by CLOCK_MONOTONIC, or earlier.
        """
        return bool(self.defect) or sent_ns <= self._forgotten_ns or (session, request_id) in self._begun

    def _look(self, ring: memoryview, lines: Sequence[memoryview], epoch: int) -> None:
        begun = max((_begun(words, epoch) for words in lines), default=0)
        opened, opening = ring_epoch(ring)
        if opening > epoch:
            raise WorldPageDamagedError("the ring is of a later epoch")
        if opened < epoch:
            if begun:
                raise WorldPageDamagedError("an entry has begun, and none was published")
            return
        reader = RingReader(ring, epoch, oldest=True)
        _, self._forgotten_ns = twice(ring, FORGOTTEN, "what is forgotten")
        latest = first = 0
        while (entry := reader.read()) is not None:
            first = first or entry.sequence
            latest = entry.sequence
            if latest <= begun and entry.kind in RUNNING:
                self._begun.update(entry.requests)
        if begun > max(latest, ring[LAST_FORGOTTEN]) or first > ring[LAST_FORGOTTEN] + 1:
            raise WorldPageDamagedError("entries are missing")


def _begun(words: memoryview, epoch: int) -> int:
    """Return the latest entry of an epoch that a member has begun."""
    member = MemberReader(words, epoch)
    joined, joining = member.joined()
    if joining > epoch:
        raise WorldPageDamagedError("a member has joined a later epoch")
    # One that was killed while it joined has begun nothing; but so looks one whose word was changed.
    return member.begun() if epoch in {joined, joining} else 0
