"""The words of a world's pages: their places and meanings. Pure."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp.protocol.board.page import ALL_ONES, complement

MAGIC: Final = 0x61746F6D72776C31
MOST: Final = 2**62
"""No counter gets there in the life of a world."""

# The ring's first words. Each "again" is the word before it, turned over, and written before it.
EPOCH: Final = 1
EPOCH_AGAIN: Final = 2
HEAD: Final = 3
"""Slots that were published."""
CLAIMED: Final = 4
"""Slots that were published or are being written."""
WANTED: Final = 5
"""1 while rank 0 wants to be rung when a member has noted a part, or ended an entry."""
LATEST: Final = 6
"""Sequence number of the latest entry, for whoever reads no entries."""
FIRST_TAKEN: Final = 16
"""Word of how many notes rank 0 has taken of each member."""
MAX_RANKS: Final = 64
FIRST_HELD: Final = FIRST_TAKEN + MAX_RANKS
"""Word of each member's `AWAY` as rank 0 has seen it last. While it is odd, rank 0 publishes nothing that begins."""
RING_AT: Final = FIRST_HELD + MAX_RANKS

SLOT_WORDS: Final = 8
"""An entry takes whole slots; that of one request without data takes one."""

SLOTS: Final = 4096

# The words of an entry; behind them the requests' identities, two words each, and the data.
SEQUENCE: Final = 0
ENTRY_EPOCH: Final = 1
SHAPE: Final = 2
"""Kind in 8 bits, number of requests in 16, bytes of data in 16."""
ARGUMENT: Final = 3
PUBLISHED_NS: Final = 4
SUM: Final = 5
ENTRY_WORDS: Final = 6

MAX_REQUESTS: Final = 512
MAX_DATA_BYTES: Final = 4096
MAX_ENTRY_SLOTS: Final = -(-(ENTRY_WORDS + 2 * MAX_REQUESTS + MAX_DATA_BYTES // 8) // SLOT_WORDS)

# A member's lines.
OPEN: Final = 1
"""The epoch that it has joined last, once all other words belong to that epoch."""
BEGUN: Final = 4
"""Sequence number of the latest entry that it has begun."""
BEGUN_AGAIN: Final = 5
ENDED: Final = 6
"""Sequence number up to which it has ended all."""
NOTED: Final = 7
"""How many notes it has written."""
MET: Final = 8
"""Number of the latest collective that has its signature there."""
QUIET: Final = 9
"""Sequence number of the latest entry for which nothing else runs in the member's process until it ends."""
AWAY: Final = 10
"""How often a suspect has begun or ceased to wait or run in the member's process: odd while one does."""
FIRST_SIGNATURE: Final = 16
SIGNATURE_WORDS: Final = 8
"""Number of the collective, the signature's five words, their sum."""
SIGNATURES: Final = 2
"""A member can be one collective ahead of one that has yet to compare."""
OUTCOMES_AT: Final = FIRST_SIGNATURE + SIGNATURES * SIGNATURE_WORDS
"""What the latest entries have come to: each word has a sequence number and an `Outcome`."""
OUTCOMES: Final = 64
"""More than may be published and not have ended on all members."""
OUTCOME_BITS: Final = 2
STEP_OUTCOMES_AT: Final = OUTCOMES_AT + OUTCOMES
"""What the streams of the latest steps have come to: for each of as many entries the entry's number, the streams'
outcomes in the order of the entry, and their sum."""
MAX_STEPPED: Final = 64
"""Most streams that take a step together."""
STEP_WORDS: Final = 2 + MAX_STEPPED * OUTCOME_BITS // 64
NOTES_AT: Final = STEP_OUTCOMES_AT + OUTCOMES * STEP_WORDS
NOTE_WORDS: Final = 4
"""Kind, session, request id, sum."""
NOTES: Final = 2048


class EntryKind(IntEnum):
    """Kinds of a ring's entries."""

    BEGIN = 1
    """One request is run. With data, the entry is the call itself: the request was sent to rank 0 alone. A stream
    begins, and takes its first step if the argument is 1."""
    BATCH = 2
    """Requests are run as one."""
    STEP = 3
    """A stream takes a step."""
    CREDIT = 4
    """A stream may go on: the argument is how much."""
    CANCEL = 5
    """Requests that have not begun are dropped; or one open stream ends, and the argument says why (`stream_end`)."""
    LAST = 6
    """Nothing comes behind it: each member leaves the epoch once it has ended this entry."""
    REFUSED = 7
    """Some members have answered their parts of requests on arrival: no member runs them."""
    STEPS = 8
    """Streams of one method take a step together. The data say how each of them stands (`shared_steps`)."""
    LATE = 9
    """Requests that have not begun are dropped, since rank 0 has not published them in time."""


class NoteKind(IntEnum):
    """Kinds of a member's notes."""

    CAME = 1
    """The member's part of a request has come."""
    REFUSED = 2
    """The part has come, and the member has answered it at once."""
    OPENED = 3
    """The member's part of a stream has come."""
    CAME_ALONE = 4
    """The member's part of a request has come, which has to run alone."""
    OPENED_ALONE = 5
    """The member's part of a stream has come, which has to run alone."""
    LEFT = 6
    """The connection of a part that has come has ended; further parts of its call may never come."""


class Outcome(IntEnum):
    """What an entry has come to on one member."""

    ENDED = 0
    """Its request has ended, with a result."""
    GOES_ON = 1
    """Its stream goes on: it can take another step."""
    FAILED = 2
    """Its request has ended with an error, or did not run here."""
    LEFT = 3
    """Its stream has failed, and its method does not know that yet; only of streams that run together."""


class RingEntry(NamedTuple):
    """One entry of the ring."""

    sequence: int
    """1 for the first one of an epoch."""
    kind: EntryKind
    requests: tuple[tuple[int, int], ...]
    """Session and request id of each."""
    argument: int
    """Amount of credit."""
    published_ns: int
    data: bytes


class Note(NamedTuple):
    """One note of a member."""

    kind: NoteKind
    session: int
    request_id: int


class Signature(NamedTuple):
    """What the members of a collective have to agree on."""

    elements: int
    dtype: int
    operator: int
    root: int
    kind: int


class WorldPageDamagedError(Exception):
    """Something has written over a page, or its writer breaks a rule; the message says which one."""


class RingOverrunError(Exception):
    """The reader was too slow: an entry that it has not read yet was forgotten."""


def sum_of(words: Iterable[int], place: int) -> int:
    """Return a sum over words and their place."""
    return zlib.crc32(array("Q", words), place & 0xFFFFFFFF) | 1 << 32  # never 0, as unwritten memory is


def ring_bytes(slots: int = SLOTS) -> int:
    """Return the bytes of a ring, without the stop word."""
    return 8 * (RING_AT + SLOT_WORDS * slots)


def line_bytes(notes: int = NOTES) -> int:
    """Return the bytes of a member's lines."""
    return 8 * (NOTES_AT + NOTE_WORDS * notes)


def twice(words: memoryview, at: int, what: str) -> tuple[int, int]:
    """Return the two values of a word that stands twice: the stored one, and the one that is stored or about to be.

    Raises:
        WorldPageDamagedError: The first is newer than the second, or cannot be.
    """
    stored = words[at]
    coming = complement(words[at + 1])  # behind the other, since it is written before it
    if not stored and coming == ALL_ONES:
        return 0, 0  # new memory
    if stored > coming:
        raise WorldPageDamagedError(f"the word of {what} was changed")
    if coming >= MOST:
        raise WorldPageDamagedError(f"the word of {what} is larger than can be")
    return stored, coming


def store_twice(words: memoryview, at: int, value: int) -> None:
    """Store a word that stands twice."""
    words[at + 1] = complement(value)
    words[at] = value
