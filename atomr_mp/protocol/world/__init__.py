"""A world's pages: shared memory in which its members agree on an order of gang calls. Pure over views of words.

A world has a *ring*, written by rank 0 alone, and each member has *lines*, written by that member alone; a word of the
supervisor's, in memory of its own, says which epochs are over, and behind it stands why (`stop`). All are aligned
64-bit words, and each store and load is one word. Readers look without a lock, also at what a stopped or dead writer
has left.

A member notes in its lines that its part of a request has come (`MemberWriter.note`). Rank 0 publishes entries in the
ring (`RingWriter.publish`); all members begin them in that order, and note in their lines the sequence number that they
have begun, before they run anything, and the one that they have ended, with its outcome. In a collective they compare
signatures.

**A whole entry or none.** The words of the ring that the writer is about to change are claimed first (`CLAIMED`), then
written, then published by one store (`HEAD`). A reader copies an entry, and believes the copy if its words were not
claimed anew meanwhile; else it was too slow, and says so. Notes work in the same way, but wait for their one reader.

**Another process's memory is untrusted.** An entry carries a sum over its words, its sequence number and its place. The
words of an epoch, and of what has begun, stand twice, as they are and turned over, the second one written first. What
breaks a rule raises `WorldPageDamagedError`; no number from a page is used as a size or place before it is checked.
"""

from __future__ import annotations

from atomr_mp.protocol.world.lines import MemberReader, MemberWriter
from atomr_mp.protocol.world.page import (
    EntryKind,
    Note,
    NoteKind,
    Outcome,
    RingEntry,
    RingOverrunError,
    Signature,
    WorldPageDamagedError,
    line_bytes,
    ring_bytes,
)
from atomr_mp.protocol.world.ring import RingReader, RingWriter, ring_epoch
from atomr_mp.protocol.world.stop import cause_of_stop, is_over, store_stop

__all__ = [
    "EntryKind",
    "MemberReader",
    "MemberWriter",
    "Note",
    "NoteKind",
    "Outcome",
    "RingEntry",
    "RingOverrunError",
    "RingReader",
    "RingWriter",
    "Signature",
    "WorldPageDamagedError",
    "cause_of_stop",
    "is_over",
    "line_bytes",
    "ring_bytes",
    "ring_epoch",
    "store_stop",
]
