"""The ring in which rank 0 publishes the order of a world's gang calls. Pure over a view of words."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

from atomr_mp.protocol.board.page import complement
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.world.page import (
    ARGUMENT,
    CLAIMED,
    ENTRY_EPOCH,
    ENTRY_WORDS,
    EPOCH,
    EPOCH_AGAIN,
    FIRST_HELD,
    FIRST_TAKEN,
    HEAD,
    LATEST,
    MAGIC,
    MAX_DATA_BYTES,
    MAX_RANKS,
    MAX_REQUESTS,
    MOST,
    PUBLISHED_NS,
    RING_AT,
    SEQUENCE,
    SHAPE,
    SLOT_WORDS,
    SUM,
    WANTED,
    EntryKind,
    RingEntry,
    RingOverrunError,
    WorldPageDamagedError,
    sum_of,
    twice,
)

_KINDS: Final = {int(kind): kind for kind in EntryKind}


class RingWriter:
    """Rank 0's side. One thread only.

    Args:
        words: The ring, as unsigned 64-bit words; no reader of an earlier epoch is left.
        epoch: The epoch that begins.
    """

    def __init__(self, words: memoryview, epoch: int) -> None:
        self._words = words
        self._epoch = epoch
        self._slots: Final = (len(words) - RING_AT) // SLOT_WORDS
        self._sequence = self._head = 0
        self._kept: Final[deque[tuple[int, int]]] = deque()
        """Sequence number and end of each entry that is kept."""
        self._tail = 0
        words[EPOCH_AGAIN] = complement(epoch)
        words[HEAD] = words[CLAIMED] = words[WANTED] = words[LATEST] = 0
        for rank in range(MAX_RANKS):
            words[FIRST_TAKEN + rank] = words[FIRST_HELD + rank] = 0
        words[0] = MAGIC
        words[EPOCH] = epoch

    def publish(
        self,
        kind: EntryKind,
        requests: Sequence[tuple[int, int]],
        now_ns: int,
        ended: int,
        argument: int = 0,
        data: bytes = b"",
    ) -> int:
        """Publish an entry; return its sequence number, 0 if there is no room before a member has ended more.

        Args:
            kind: What is to be done.
            requests: Session and request id of each request, at most `MAX_REQUESTS`.
            now_ns: CLOCK_MONOTONIC.
            ended: The sequence number up to which all members have ended all.
            argument: As the kind needs it.
            data: The call, where rank 0 alone has received it; at most `MAX_DATA_BYTES`.

        Raises:
            ValueError: It is larger than an entry may be.
        """
        if len(requests) > MAX_REQUESTS or len(data) > MAX_DATA_BYTES:
            raise ValueError(f"{len(requests)} requests and {len(data)} bytes of data, more than fit an entry")
        count = ENTRY_WORDS + 2 * len(requests) + -(-len(data) // 8)
        claimed = self._head + -(-count // SLOT_WORDS)
        if not self._forget(claimed, ended):
            return 0
        sequence = self._sequence + 1
        shape = kind | len(requests) << 8 | len(data) << 24
        entry = [sequence, self._epoch, shape, argument, now_ns, 0]
        for each in requests:
            entry += each
        entry += memoryview(data.ljust(-(-len(data) // 8) * 8, b"\0")).cast("Q")
        entry[SUM] = sum_of(entry, self._head)
        words, slot_words = self._words, self._slots * SLOT_WORDS
        words[CLAIMED] = claimed
        at = self._head * SLOT_WORDS % slot_words
        for word in entry:
            words[RING_AT + at] = word
            at = at + 1 if at + 1 < slot_words else 0
        words[LATEST] = self._sequence = sequence
        words[HEAD] = self._head = claimed
        self._kept.append((sequence, claimed))
        return sequence

    def take(self, rank: int, count: int) -> None:
        """Say how many notes of a member were taken, in all."""
        self._words[FIRST_TAKEN + rank] = count

    def hold(self, rank: int, away: int) -> None:
        """Say which word of a member's absences was seen. If it is odd, nothing that begins is published behind this.

        Args:
            rank: The member's rank.
            away: The word, as `MemberReader.away` has returned it.
        """
        self._words[FIRST_HELD + rank] = away

    def want(self, wanted: bool) -> None:  # noqa: FBT001 - the value of the word
        """Say whether members are to ring when they have noted a part, or ended an entry."""
        self._words[WANTED] = int(wanted)

    def _forget(self, claimed: int, ended: int) -> bool:
        """Make room up to a slot; return False if that would forget what some member has not ended."""
        kept = self._kept
        while claimed - self._tail > self._slots:
            if not kept or kept[0][0] > ended:
                return False
            _, self._tail = kept.popleft()
        return True


class RingReader:
    """A reader of one epoch's entries, each once and in order.

    Args:
        words: The ring, as unsigned 64-bit words.
        epoch: The epoch that it follows; its ring is open.

    Raises:
        WorldPageDamagedError: It is no ring of this epoch.
    """

    def __init__(self, words: memoryview, epoch: int) -> None:
        self._words = words
        self._epoch = epoch
        self._slots: Final = (len(words) - RING_AT) // SLOT_WORDS
        if words[0] != MAGIC:
            raise WorldPageDamagedError("the first word of the ring is another")
        if words[EPOCH] != epoch:
            raise WorldPageDamagedError(f"the ring is of epoch {words[EPOCH]}, not {epoch}")
        self._at = self.sequence = 0
        """Where the next entry begins, in slots, and the number of the latest one that was read."""

    def read(self) -> RingEntry | None:
        """Return the next entry, None if none is published.

        Raises:
            RingOverrunError: The reader was too slow, or a later epoch begins in the ring.
            WorldPageDamagedError: What is there cannot have been written by the rules.
        """
        try:
            return self._read()
        except WorldPageDamagedError:
            if self._words[EPOCH_AGAIN] != complement(self._epoch):
                raise RingOverrunError from None
            raise

    def _read(self) -> RingEntry | None:
        words, at = self._words, self._at
        head = words[HEAD]
        if head == at:
            return None
        if not at < head < MOST:
            raise WorldPageDamagedError("fewer entries are published than were read, or more than can be")
        start = self._copy(at * SLOT_WORDS, ENTRY_WORDS)
        shape = start[SHAPE]
        count, nbytes = shape >> 8 & 0xFFFF, shape >> 24 & 0xFFFF
        length = ENTRY_WORDS + 2 * count + -(-nbytes // 8)
        after = at + -(-length // SLOT_WORDS)
        fits = count <= MAX_REQUESTS and nbytes <= MAX_DATA_BYTES and after - at <= min(head - at, self._slots)
        entry = self._copy(at * SLOT_WORDS, length) if fits else start
        claimed = words[CLAIMED]
        if claimed - at > self._slots and claimed < MOST:
            raise RingOverrunError
        if not fits or not head <= claimed < MOST:
            raise WorldPageDamagedError("an entry is longer than what is published")
        self._check(entry, at)
        self._at, self.sequence = after, entry[SEQUENCE]
        requests = iter(entry[ENTRY_WORDS : ENTRY_WORDS + 2 * count])
        return RingEntry(
            entry[SEQUENCE],
            _KINDS[shape & 0xFF],
            tuple(zip(requests, requests, strict=True)),
            entry[ARGUMENT],
            entry[PUBLISHED_NS],
            array("Q", entry[ENTRY_WORDS + 2 * count :]).tobytes()[:nbytes],
        )

    def taken(self, rank: int) -> int:
        """Return how many notes of a member rank 0 has taken."""
        return self._words[FIRST_TAKEN + rank]

    def held(self, rank: int) -> int:
        """Return which word of a member's absences rank 0 has seen last."""
        return self._words[FIRST_HELD + rank]

    @property
    def wants_bell(self) -> bool:
        """Whether rank 0 wants to be rung. Look at this behind what it would be rung for, and a fence."""
        return bool(self._words[WANTED])

    def _copy(self, begin: int, count: int) -> list[int]:
        whole = self._slots * SLOT_WORDS
        begin %= whole
        words, end = self._words, begin + count
        if end <= whole:
            return words[RING_AT + begin : RING_AT + end].tolist()
        return words[RING_AT + begin : RING_AT + whole].tolist() + words[RING_AT : RING_AT + end - whole].tolist()

    def _check(self, entry: list[int], at: int) -> None:
        """Refuse an entry that breaks a rule.

        Raises:
            WorldPageDamagedError: It does.
        """
        found, entry[SUM] = entry[SUM], 0
        rules = (
            (found == sum_of(entry, at), "an entry does not match its sum"),
            (entry[ENTRY_EPOCH] == self._epoch, "an entry is of another epoch"),
            (self.sequence == entry[SEQUENCE] - 1, "an entry has a number out of turn"),
            (entry[SHAPE] & 0xFF in _KINDS and entry[SHAPE] >> 40 == 0, "an entry is of a kind that does not exist"),
            (
                max(entry[ENTRY_WORDS:][: 2 * (entry[SHAPE] >> 8 & 0xFFFF)], default=0) <= MAX_U64,
                "an entry has a number that no session or request can have",
            ),
        )
        for holds, why in rules:
            if not holds:
                raise WorldPageDamagedError(why)


def latest(words: memoryview, epoch: int) -> int:
    """Return the sequence number of the latest entry of an epoch, 0 if there is none. The header is enough of a ring.

    Raises:
        WorldPageDamagedError: The words of the epoch do not agree, or there cannot be so many entries.
    """
    if words[0] != MAGIC or ring_epoch(words) != (epoch, epoch):
        return 0
    found = words[LATEST]
    if found >= MOST:
        raise WorldPageDamagedError("more entries are published than can be")
    return found


def ring_epoch(words: memoryview) -> tuple[int, int]:
    """Return the epoch of a ring, and the one that is about to begin there, or the same.

    Raises:
        WorldPageDamagedError: The words of the epoch do not agree.
    """
    return twice(words, EPOCH, "the ring's epoch")
