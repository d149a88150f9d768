"""A process's part in one epoch: what has come to it, what is next by the ring, what it begins and ends.

With the loop's turn, unless stated. Once a page is found damaged, or the stop word has been seen, nothing begins.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from atomr_mp.protocol.world import (
    EntryKind,
    MemberReader,
    MemberWriter,
    Note,
    NoteKind,
    Outcome,
    RingEntry,
    RingOverrunError,
    RingReader,
    WorldPageDamagedError,
    cause_of_stop,
    is_over,
    ring_epoch,
)
from atomr_mp_workers.worlds.order.batches import BatchedPart
from atomr_mp_workers.worlds.order.files import EpochPages
from atomr_mp_workers.worlds.order.publisher import Publisher, fence
from atomr_mp_workers.worlds.order.shared_steps import SteppedPart, unpack_roles
from atomr_mp_workers.worlds.order.steps import PartKey, StreamEnd

RING_AFTER_NS: Final = 100_000_000
"""After so long, at most, rank 0 is rung for notes for which it does not ask."""

DOUBT_NS: Final = 1_000_000_000
"""How long, at most, a member that was found to be late has until the second look."""


class JoinedEpoch:
    """One epoch that this process has joined.

    Args:
        pages: What its members share.
        rank: The rank of this process.
        number: The epoch's number.
        begin_timeout_ns: Within how much time a member that is idle has to begin a published entry.
    """

    def __init__(self, pages: EpochPages, rank: int, number: int, begin_timeout_ns: int) -> None:
        self.number: Final = number
        self.rank: Final = rank
        self.pages: Final = pages
        self.writer: Final = MemberWriter(pages.lines[rank], number)
        self.readers: Final = tuple(MemberReader(lines, number) for lines in pages.lines)
        self.publisher: Final = None if rank else Publisher(pages.ring, number, self.readers, begin_timeout_ns)
        self.damage = ""
        """Why the pages are not believed, "" while they are."""
        self._ring: RingReader | None = None
        self._notes: deque[Note] = deque()
        """Those that were not written yet."""
        self.is_given_up = False
        """Whether nothing begins any longer, since a call was aborted here. Any thread."""
        self.is_closed = False
        """Whether the last entry of the ring has ended here."""
        self._order: deque[RingEntry] = deque()
        """Entries that were read and have not begun."""
        self._timeout_ns: Final = begin_timeout_ns
        self._noted = self._taken = 0
        """Notes that were written, and that rank 0 has taken as far as it was seen."""
        self._quiet = 0
        """The entry for which this process is quiet, as it has said last."""
        self.stuck_ns: int | None = None
        """The time since which the other members have nothing to do but to become quiet; None if they have."""
        self._unheld_ns: int | None = None
        """The time since which rank 0 has not seen that a suspect waits here; None if nothing waits for that."""
        self._untaken_ns: int | None = None
        """The time since which rank 0 has not taken the next note; None if it has taken all."""
        self._has_rung = False
        """Whether rank 0 was rung for that."""
        self._ring_after_ns: Final = min(RING_AFTER_NS, begin_timeout_ns // 8)
        self._doubt_ns: Final = min(DOUBT_NS, begin_timeout_ns // 4)
        self._doubted: tuple[int, int] | None = None
        """A rank that was found to be late, and when to look again; None if none was at the last look."""

    @property
    def is_over(self) -> bool:
        """Whether the stop word says that the epoch is over. Any thread."""
        return is_over(self.pages.stop, self.number)

    @property
    def is_left(self) -> bool:
        """Whether the epoch is over, or this process has found that it cannot go on. Any thread."""
        return self.is_given_up or bool(self.damage) or self.is_over

    @property
    def stop_cause(self) -> tuple[int, str]:
        """The rank where its end came from, -1 if from none, and the cause; by the supervisor's page. Any thread."""
        return cause_of_stop(self.pages.stop, self.number)

    @property
    def owes(self) -> bool:
        """Whether there is something that only a look does: notes to write, or calls to publish."""
        return bool(self._notes) or (self.publisher is not None and self.publisher.waits)

    @property
    def due_ns(self) -> int | None:
        """When to look at the latest, if nothing else happens."""
        again_ns = None if self._doubted is None else self._doubted[1]
        if self.publisher is not None:
            due_ns = self.publisher.due_ns
            return due_ns if again_ns is None or (due_ns is not None and due_ns < again_ns) else again_ns
        if again_ns is not None:
            return again_ns
        if self._untaken_ns is not None and not self._has_rung:
            return self._untaken_ns + self._ring_after_ns
        since_ns = self._since_ns
        return None if since_ns is None else since_ns + self._timeout_ns

    @property
    def _since_ns(self) -> int | None:
        """The time since which rank 0 has not done what it was rung for; None if it has."""
        untaken_ns = self._untaken_ns if self._has_rung else None
        return min([each for each in (untaken_ns, self._unheld_ns) if each is not None], default=None)

    def late(self, now_ns: int) -> int | None:
        """Return a rank that should have done something by now, None if there is none. Look again at `due_ns`.

        Rank 0 is late if it does not take notes, or see that a suspect waits here; others if they do not begin what
        is published. A rank is late if two looks find it so: before the first, all processes may have stood still.

        Raises:
            WorldPageDamagedError: A page cannot be believed.
        """
        rank = self._found_late(now_ns)
        if rank is None:
            self._doubted = None
        elif self._doubted is None or self._doubted[0] != rank:
            self._doubted = rank, now_ns + self._doubt_ns
        elif now_ns >= self._doubted[1]:
            return rank
        return None

    def _found_late(self, now_ns: int) -> int | None:
        if self.publisher is not None:
            return self.publisher.late(now_ns)
        since_ns = self._since_ns
        return 0 if since_ns is not None and now_ns >= since_ns + self._timeout_ns else None

    def note(self, key: PartKey, kind: NoteKind = NoteKind.CAME) -> None:
        """Note, with the next look, that a part has come, or was answered on arrival."""
        self._notes.append(Note(kind, *key))

    def note_for_batch(self, key: PartKey, part: BatchedPart) -> None:
        """Note, with the next look, that a part has come that waits for a batch."""
        if self.publisher is not None:
            self.publisher.batches.know(key, part)
        self.note(key)

    def note_for_steps(self, key: PartKey, part: SteppedPart, *, has_room: bool) -> None:
        """Note, with the next look, that a part has come of a stream that runs together with others."""
        if self.publisher is not None:
            self.publisher.shared.know(key, part, has_room=has_room)
        self.note(key)

    def look(self, now_ns: int) -> None:
        """Write notes and wake rank 0 for them; as rank 0, publish and wake the others' threads of the world."""
        try:  # as in `_noticing`, which takes longer
            self._write_notes(now_ns)
            if self.publisher is not None:
                self.publisher.look(now_ns)
                self._ring_for_entries(self.publisher)
        except (WorldPageDamagedError, RingOverrunError) as error:
            self._notice(error)

    def _ring_for_entries(self, publisher: Publisher) -> None:
        if publisher.has_published:
            publisher.has_published = False
            ring(self.pages.thread_bells[1:])
        if publisher.rung:
            rung, publisher.rung = publisher.rung - {0}, set()
            ring(self.pages.loop_bells[rank] for rank in rung)

    def next(self) -> RingEntry | None:
        """Return the next entry; None if none is there, or none may begin."""
        if self.is_given_up or self.is_closed:
            return None
        try:  # as in `_noticing`, which takes longer
            while not self._order and (entry := self._read()) is not None:
                begins = entry.kind in _OF_ONE_CALL and len(entry.requests) == 1
                begins |= entry.kind in _OF_SEVERAL and bool(entry.requests)
                if not begins and entry.kind not in _OF_NO_CALL:
                    raise WorldPageDamagedError(f"entry {entry.sequence} is of a kind that is not in use")
                if entry.kind is EntryKind.CANCEL:
                    StreamEnd.unpack(entry.argument, len(self.readers))
                elif entry.kind is EntryKind.STEPS:
                    unpack_roles(entry.data, len(entry.requests), len(self.readers))
                self._order.append(entry)
        except (WorldPageDamagedError, RingOverrunError) as error:
            self._notice(error)
        return self._order[0] if self._order and not self.damage else None

    def begin(self) -> bool:
        """Begin the next entry; False if the epoch is over, so that it must not run."""
        if self.damage:
            return False
        self.writer.begin(self._order[0].sequence)
        fence()  # either whoever stores the stop word sees the mark, or this sees the word
        if self.is_over:
            return False
        self._order.popleft()
        return True

    def end(self, sequence: int, outcome: Outcome = Outcome.ENDED) -> None:
        """Say that an entry has ended, and wake rank 0 if it waits for that. The thread that the entry has run on."""
        self.writer.end(sequence, outcome)
        self._tell_end()

    def end_steps(self, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """Do the same for a step of streams that run together, with the outcome of each."""
        self.writer.end_steps(sequence, outcomes)
        self._tell_end()

    def _tell_end(self) -> None:
        fence()
        if self.rank and self._ring is not None and self._ring.wants_bell:
            ring((self.pages.loop_bells[0],))

    def pass_over(self, sequence: int) -> None:
        """End an entry that has begun and is not run, and wake peers that may wait for this member."""
        self.end(sequence, Outcome.FAILED)
        for bells in (self.pages.thread_bells, self.pages.loop_bells):
            ring(bell for rank, bell in enumerate(bells) if rank != self.rank)

    def be_quiet(self, sequence: int) -> bool:
        """Say that nothing else runs here until an entry ends; return whether the same holds for all members.

        Args:
            sequence: The entry's number. It has begun.
        """
        if self.is_over or self.is_given_up or self.damage:
            return False
        if self._quiet != sequence:
            self._quiet = sequence
            self.writer.be_quiet(sequence)
            ring(bell for rank, bell in enumerate(self.pages.loop_bells) if rank != self.rank)
        others: list[bool] = []
        with self._noticing():
            others = [_is_quiet(reader, sequence) for reader in self.readers]
        return bool(others) and all(others)

    def be_away(self, now_ns: int, *, away: bool, has_parts: bool) -> None:
        """Say whether a suspect waits or runs here, so that rank 0 publishes nothing that begins.

        Args:
            now_ns: CLOCK_MONOTONIC.
            away: Whether one does.
            has_parts: Whether there is something here that may still be published.
        """
        if self.writer.be_away(away) and self.rank:
            ring((self.pages.loop_bells[0],))
        is_unheld = away and has_parts and not self.is_held
        self._unheld_ns = (self._unheld_ns or now_ns) if is_unheld else None

    @property
    def is_held(self) -> bool:
        """Whether nothing more that begins is published while a suspect waits or runs here."""
        with self._noticing():
            self._open_ring()
        away = self.writer.away
        return bool(away & 1) and self._ring is not None and self._ring.held(self.rank) == away

    def not_quiet(self, sequence: int, now_ns: int, patience_ns: int) -> int | None:
        """Return a rank for which this process, quiet for an entry, has waited for too long; None if there is none.

        Time counts while no member runs an earlier entry, so that nothing is lost with the epoch. Who is not quiet may
        be so for another world's suspect, whose members wait for this process.
        """
        rank, waits = None, self._quiet == sequence
        with self._noticing():
            for each, reader in enumerate(self.readers):
                if waits and not _is_quiet(reader, sequence):
                    rank = each if rank is None else rank
                    begun = reader.begun()
                    waits = begun >= sequence or (reader.is_away and begun == reader.ended())
        if rank is None or not waits:
            self.stuck_ns = None
            return None
        self.stuck_ns = self.stuck_ns or now_ns
        return rank if now_ns >= self.stuck_ns + patience_ns else None

    def close(self) -> None:
        """Take in that the last entry has ended here, and have the loop look once more: the process leaves then."""
        self.is_closed = True
        self.wake_loop()

    def wake_loop(self) -> None:
        """Have the loop look once more."""
        ring((self.pages.loop_bells[self.rank],))

    def wake_thread(self) -> None:
        """Wake this process's thread of the world. Any thread."""
        ring((self.pages.thread_bells[self.rank],))

    def _read(self) -> RingEntry | None:
        self._open_ring()
        return None if self._ring is None else self._ring.read()

    def _write_notes(self, now_ns: int) -> None:
        before = self._noted
        if self._noted != self._taken or self._notes:
            self._open_ring()
            taken = 0 if self._ring is None else self._ring.taken(self.rank)
            while self._notes and self.writer.note(self._notes[0], taken):
                self._notes.popleft()
                self._noted += 1
            if taken == self._noted:
                self._untaken_ns = None
            elif self._untaken_ns is None or taken != self._taken:
                self._untaken_ns, self._has_rung = now_ns, False
            self._taken = taken
            if self.rank and self._untaken_ns is not None:
                self._ring_for_notes(now_ns, self._untaken_ns, has_noted=self._noted != before)

    def _ring_for_notes(self, now_ns: int, untaken_ns: int, *, has_noted: bool) -> None:
        """Wake rank 0 for notes if it asks for that, or has not taken them for some time.

        Rank 0 looks by itself once it gets its own part, which is sent last. But that one may never come.
        """
        if has_noted:
            fence()
            rings = self._has_rung or self._ring is None or self._ring.wants_bell
        else:
            rings = not self._has_rung and now_ns >= untaken_ns + self._ring_after_ns
            if rings:
                self._untaken_ns = now_ns  # it has as much time as if it had been rung at once
        if rings:
            self._has_rung = True
            ring((self.pages.loop_bells[0],))

    def _open_ring(self) -> None:
        if self._ring is None and ring_epoch(self.pages.ring)[0] == self.number:
            self._ring = RingReader(self.pages.ring, self.number)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Record what is wrong with a page, unless the epoch is over: then others may write there."""
        try:
            yield
        except (WorldPageDamagedError, RingOverrunError) as error:
            self._notice(error)

    def _notice(self, error: WorldPageDamagedError | RingOverrunError) -> None:
        """Record what is wrong with a page, unless the epoch is over: then others may write there."""
        if self.is_over:
            self.damage = ""
        elif isinstance(error, RingOverrunError):
            self.damage = "entries of the ring were forgotten before they were read here"
        else:
            self.damage = f"a page of the world is damaged: {error}"


def _is_quiet(reader: MemberReader, sequence: int) -> bool:
    """Return whether a member is quiet for an entry, or has ended it unrun."""
    return reader.quiet() >= sequence or reader.ended() >= sequence


def ring(bells: Iterable[int]) -> None:
    """Ring bells."""
    for bell in bells:
        with contextlib.suppress(BlockingIOError):  # it has been rung more often than can be counted
            os.eventfd_write(bell, 1)


_OF_ONE_CALL: Final = frozenset({EntryKind.BEGIN, EntryKind.STEP})
"""Kinds of entries of one call each."""

_OF_SEVERAL: Final = frozenset({EntryKind.BATCH, EntryKind.STEPS})
"""Kinds of entries of several calls that run as one."""

_OF_NO_CALL: Final = frozenset({EntryKind.CANCEL, EntryKind.REFUSED, EntryKind.LATE, EntryKind.LAST})
"""Kinds of entries that begin nothing."""
