"""Rank 0's duties: it publishes the order of gang calls, and notices who does not begin in time. Pure over words.

A call is published once its parts have come to all members: alone, or in a batch (`batches`). No member runs
it if one has answered its part on arrival, or if in its turn its deadline has passed, or its caller has cancelled it.
Such calls have entries too, by which all members answer their parts. A few calls are published ahead of the slowest
member, so that none of its threads waits for the loop of rank 0. Others wait with rank 0.

While a suspect waits or runs in a member's process, nothing is published that begins: the process begins what was
published before, since others may wait for it, and then it has nothing left of this world.

A member that has stopped reads no parts, so no call with it becomes complete. While one is incomplete for long, an
entry without calls is published: who is well begins it at once, and who does not is late.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from atomr_mp.protocol.world import EntryKind, MemberReader, NoteKind, RingWriter
from atomr_mp.protocol.world.page import MAX_REQUESTS
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.worlds.order.batches import OrderOfBatches
from atomr_mp_workers.worlds.order.calls import OrderOfCalls
from atomr_mp_workers.worlds.order.part_marks import PartMarks
from atomr_mp_workers.worlds.order.shared_steps import SharedStep, SharedSteps, pack_roles
from atomr_mp_workers.worlds.order.steps import UNWANTED, PartKey, StepOrder, StreamEnd

AHEAD: Final = 32
"""Most entries that not all members have ended. What is published runs, even if its session has ended since."""

MOST_OPEN: Final = 65536
"""Most calls that have come to some members and not to all."""

MOST_ENDED: Final = 1024
"""How many ended sessions are remembered: notes about their parts may be on their way."""

_WAYS: Final = (EntryKind.BEGIN, EntryKind.BATCH, EntryKind.STEP, EntryKind.STEPS)
"""Kinds of entries that begin something."""

NOTES_A_RING: Final = 1024
"""After so many notes their writer is rung: it may have waited for room."""


class Publisher:
    """Publishes entries. With the loop's turn.

    Args:
        ring: Words of the ring; no reader of an earlier epoch is left.
        epoch: The epoch that begins.
        readers: The members' lines, by rank.
        begin_timeout_ns: Within how much time a member that is idle has to begin a published entry.
    """

    def __init__(self, ring: memoryview, epoch: int, readers: Sequence[MemberReader], begin_timeout_ns: int) -> None:
        self.streams: Final = StepOrder(readers)
        """The open streams, whose steps are published too."""
        self.shared: Final = SharedSteps(readers)
        """Those that run together with others."""
        self._opening: set[PartKey] = set()
        """Streams that have not been published."""
        self._ring: Final = RingWriter(ring, epoch)
        self._readers: Final = readers
        self._timeout_ns: Final = begin_timeout_ns
        self._all: Final = (1 << len(readers)) - 1
        self._open: dict[PartKey, tuple[int, int]] = {}
        """The ranks that a call has come to, as bits, while some are missing, and when the first part came. The oldest
        is first."""
        self.calls: Final = OrderOfCalls()
        """Calls, and streams that begin, that have come to all and are not published."""
        self.batches: Final = OrderOfBatches()
        """The same of calls that run in batches."""
        self._ways: Final = deque(_WAYS)
        """Kinds of entries that begin something; the next one's turn is first."""
        self._refused: set[PartKey] = set()
        """Calls that some member has refused, or their caller cancelled, while they have not come to all."""
        self._marks: Final = PartMarks(len(readers))
        self.mixed: set[PartKey] = set()
        """Declined calls that were to run alone on some ranks only, and that this rank has not answered yet."""
        self._declined: deque[PartKey] = deque()
        """Calls that have come to all, and that no member runs: refused, late or cancelled."""
        self._cancelled: deque[PartKey] = deque()
        """Calls of ended sessions that members may have parts of, and that will not begin."""
        self._late: deque[PartKey] = deque()
        """Calls that were not published in time, and that will not begin; members may have parts of them."""
        self._ended_sessions: dict[int, None] = {}
        self._dropped: dict[PartKey, deque[PartKey]] = {}
        """Calls that were dropped before they were published, each with its line: notes about their parts may come."""
        self._closes = self._is_closed = self._wanted = False
        """Whether the last entry is to be published, and whether it is; and whether members are to ring."""
        self._published = 0
        self._behind: dict[int, tuple[int, int]] = {}
        """By rank: the entry that it has ended last and since when it was seen idle with another one published."""
        self._late_due_ns: int | None = None
        """When to look for late members again."""
        self._probed_ns = 0
        """When an entry without calls was published last."""
        self._away: Final = [0] * len(readers)
        """By rank: how often a suspect was seen to begin or cease to wait or run in the member's process."""
        self._holds = False
        """Whether one does in any of them, so that nothing is published that begins."""
        self.rung: set[int] = set()
        """Ranks whose loops have something to read; the caller rings them, and clears this."""
        self.has_published = False
        """Whether all members' threads have something to read; the caller rings them, and clears this."""

    @property
    def due_ns(self) -> int | None:
        """When to look at the latest, if nothing else happens."""
        due_ns = self._late_due_ns if self._late_due_ns is not None else self._probe_due_ns
        batch_ns = self.batches.due_ns
        return batch_ns if due_ns is None or (batch_ns is not None and batch_ns < due_ns) else due_ns

    @property
    def waits(self) -> bool:
        """Whether something waits for a member's end before it is published."""
        if self.calls or self._cancelled or self._late or self._declined or self._closes:
            return True
        return self.batches.wait_for_end or self.streams.waits or self.shared.waits

    @property
    def is_overfull(self) -> bool:
        """Whether there are more incomplete calls than are kept."""
        return len(self._open) > MOST_OPEN

    def look(self, now_ns: int) -> None:
        """Take the members' notes, and publish what is complete.

        Raises:
            WorldPageDamagedError: A member's lines cannot be believed.
        """
        self._look_once(now_ns)
        if not self._wanted and self._wants:
            self._want(wanted=True)
            fence()
            self._look_once(now_ns)  # a member may have noted or ended one before it saw that rank 0 wants to know
        if self._wanted and not self._wants:
            self._want(wanted=False)
        due_ns = self._probe_due_ns
        if due_ns is not None and now_ns >= due_ns:
            self._probed_ns = now_ns
            self._drop_left(now_ns)
            self._publish_one(EntryKind.CANCEL, [], now_ns, self._ends())

    def order_of(self, key: PartKey) -> StepOrder | SharedSteps:
        """Return the order in which a stream takes its steps."""
        return self.shared if key in self.shared else self.streams

    def end(self, key: PartKey, end: StreamEnd = UNWANTED) -> None:
        """Have a stream end on all ranks."""
        if self.order_of(key).end(key, end):
            self._declined.append(key)

    def cancel(self, session: int) -> None:
        """Have all members drop the unpublished calls of a session that has ended.

        They hear of its end at different times, and keep its parts until the ring has an entry about them.
        """
        self.streams.end_session(session)
        self._ended_sessions[session] = None
        if len(self._ended_sessions) > MOST_ENDED:
            del self._ended_sessions[next(iter(self._ended_sessions))]
        found = [key for key in (*self._open, *self._declined) if key[0] == session]
        found += self.calls.cancel(session) + self.batches.cancel(session) + self.shared.end_session(session)
        if found:
            self._cancelled += found
            self._opening.difference_update(found)
            self._open = {key: bits for key, bits in self._open.items() if key[0] != session}
            self._declined = deque(key for key in self._declined if key[0] != session)
            self._refused = {key for key in self._refused if key[0] != session}
            self.mixed = {key for key in self.mixed if key[0] != session}
            self._marks.forget_session(session)

    def withdraw(self, key: PartKey) -> bool:
        """Have all members answer their parts of a call, unrun, unless it was published; return whether they do."""
        if not self.calls.knows(key):
            return False
        if key in self.calls or self.batches.drop(key):
            self._decline(key)
        else:
            self._refused.add(key)
        return True

    def drop_call(self, key: PartKey, *, noted: bool, late: bool) -> bool:
        """Have all members drop a call, unless it was published or dropped; return whether they do.

        Args:
            key: The call.
            noted: Whether this rank has noted its own part.
            late: Whether it could not begin in time; else its caller has cancelled it.
        """
        if key in self._dropped or (key not in self.calls and self._open.pop(key, None) is None and noted):
            return False
        self.calls.forget(key)
        self._marks.forget(key)
        line = self._late if late else self._cancelled
        self._drop_into(line, key)
        line.append(key)
        return True

    def _drop_into(self, line: deque[PartKey], key: PartKey) -> None:
        """Have further parts of a call go the way of those that have come."""
        self._dropped[key] = line
        if len(self._dropped) > MOST_ENDED:
            del self._dropped[next(iter(self._dropped))]

    def _drop_left(self, now_ns: int) -> None:
        """Have all members drop calls that were left, and whose other parts have not come for long."""
        for key in [key for key in self._marks.left if now_ns >= self._open[key][1] + self._timeout_ns]:
            self._marks.forget(key)
            self._refused.discard(key)
            del self._open[key]
            self._drop_into(self._declined, key)
            self._decline(key)
            self._publish(now_ns)

    def close(self) -> None:
        """Begin nothing more: the epoch ends as planned. The last entry comes once no stream is open."""
        if not self._is_closed:
            self._closes = True
            self._open.clear()
            self.calls.clear()
            self._opening.clear()
            self._cancelled.clear()
            self._late.clear()
            self._declined.clear()
            self._refused.clear()
            self._marks.clear()
            self.mixed.clear()
            self.batches.clear()
            self.streams.close()
            self.shared.close()

    def late(self, now_ns: int) -> int | None:
        """Return the rank that should have begun an entry by now; None if there is none. Look again at `due_ns`."""
        self._late_due_ns = found = None
        for rank, reader in enumerate(self._readers):
            begun, ended = (reader.begun(), reader.ended()) if reader.is_open else (0, 0)
            if ended == self._published:
                self._behind.pop(rank, None)
                continue
            due_ns = now_ns + self._timeout_ns
            if begun == ended and not reader.is_away:  # it is idle, and has something to begin
                at, since_ns = self._behind.get(rank, (-1, 0))
                if at != ended:
                    self._behind[rank] = ended, now_ns
                elif now_ns >= since_ns + self._timeout_ns:
                    found = rank if found is None else found
                else:
                    due_ns = since_ns + self._timeout_ns
            else:
                self._behind.pop(rank, None)
            self._late_due_ns = due_ns if self._late_due_ns is None else min(due_ns, self._late_due_ns)
        return found

    @property
    def _probe_due_ns(self) -> int | None:
        """When to publish an entry without calls; None if no call is incomplete, or another entry serves as well."""
        if not self._open or self._late_due_ns is not None:
            return None
        _, since_ns = next(iter(self._open.values()))
        return max(since_ns, self._probed_ns) + self._timeout_ns

    @property
    def _wants(self) -> bool:
        """Whether members are to ring for what they note or end.

        They need not while this rank has no part that others miss: its own part comes last, and with that it looks.
        """
        return bool(self._open or self._dropped) or self.waits

    def _look_once(self, now_ns: int) -> None:
        for rank, reader in enumerate(self._readers):
            if reader.is_open:
                self._take_notes(rank, reader, now_ns)
        self._see_away()
        if hooks.hook is not None and self.calls:
            hooks.hook("world_publish", "")
        self._publish(now_ns)

    def _take_notes(self, rank: int, reader: MemberReader, now_ns: int) -> None:
        before = reader.taken
        while (note := reader.note()) is not None:
            key = note.session, note.request_id
            if self._closes or self._is_closed:
                continue
            if note.kind is NoteKind.LEFT:
                if key in self._open:
                    self._marks.left.add(key)
            elif note.session in self._ended_sessions or key in self._dropped:
                self._dropped.get(key, self._cancelled).append(key)
                self.calls.forget(key)
                self.batches.forget(key)
                self._refused.discard(key)
            else:
                self._take_part(rank, note.kind, key, now_ns)
        if reader.taken != before:
            self._ring.take(rank, reader.taken)
            if reader.taken // NOTES_A_RING != before // NOTES_A_RING:
                self.rung.add(rank)

    def _take_part(self, rank: int, kind: NoteKind, key: PartKey, now_ns: int) -> None:
        """Take in that a part has come to a member, and maybe was refused there."""
        if kind is NoteKind.OPENED or kind is NoteKind.OPENED_ALONE:
            self._opening.add(key)
        self._marks.came(key, kind)
        if kind is NoteKind.REFUSED:
            self._refused.add(key)
        bits, since_ns = self._open.get(key, (0, now_ns))
        bits |= 1 << rank
        if bits == self._all:
            self._open.pop(key, None)
            self._line_up(key, now_ns)
        else:
            self._open[key] = bits, since_ns

    def _see_away(self) -> None:
        """Take in where suspects wait or run, behind the notes: who notes a part has said so before."""
        for rank, reader in enumerate(self._readers):
            away = reader.away() if reader.is_open else 0
            if away != self._away[rank]:
                self._away[rank] = away
                self._ring.hold(rank, away)
                self.rung.add(rank)
                self._holds = any(away & 1 for away in self._away)

    def _line_up(self, key: PartKey, now_ns: int) -> None:
        """Let a call wait that has come to all."""
        if not self._marks.agree(key):  # the ranks where it runs alone would wait for the others, and these for them
            self.mixed.add(key)
            self._refused.add(key)
        if key in self._refused or self.shared.is_unwanted(key):
            self._refused.discard(key)
            self._decline(key)
        elif not (self.batches.add(key, now_ns) or self.shared.add(key)):
            self.calls.add(key)

    def _decline(self, key: PartKey) -> None:
        """Have an entry say that a call, which has come to all members, is not run."""
        self.batches.forget(key)
        self.calls.forget(key)
        self.shared.forget(key)
        self._opening.discard(key)
        self.streams.decline(key)
        self._declined.append(key)

    def _next_call(self, ended: int, now_ns: int) -> PartKey | None:
        """Return the call that is published next, and decline those that were late for their turn."""
        key = self.calls.next(ended, now_ns)
        self._decline_late(self.calls.late)
        return key

    def _next_batch(self, now_ns: int, ended: int) -> Sequence[PartKey]:
        """Return the batch that is published next, and decline the calls that were late for it."""
        calls = self.batches.next(now_ns, ended)
        self._decline_late(self.batches.late)
        return calls

    def _decline_late(self, late: list[PartKey]) -> None:
        for key in late:
            self._decline(key)
        late.clear()

    def _publish(self, now_ns: int) -> None:
        self.batches.look(now_ns)
        if not self.waits:
            return
        ends = self._ends()
        ended = min(ends)
        self.streams.settle(ended)
        self.shared.settle(ended)
        while self._published - ended < AHEAD and self._publish_next(now_ns, ends, ended) and self.waits:
            pass

    def _publish_next(self, now_ns: int, ends: Sequence[int], ended: int) -> bool:
        """Publish the next entry; return False if there is none, or no room."""
        lines = (self._cancelled, self._late, self._declined)
        for line, kind in zip(lines, (EntryKind.CANCEL, EntryKind.LATE, EntryKind.REFUSED), strict=True):
            if line:
                return self._publish_drop(line, kind, now_ns, ends)
        done = None if self._holds else self._publish_way(now_ns, ends, ended)
        if done is not None:
            return done
        if self._declined:  # the turn of late ones has come
            return self._publish_drop(self._declined, EntryKind.REFUSED, now_ns, ends)
        open_streams = len(self.streams) + len(self.shared)
        if self._closes and not open_streams and self._publish_one(EntryKind.LAST, [], now_ns, ends):
            self._closes, self._is_closed = False, True
        return False

    def _publish_way(self, now_ns: int, ends: Sequence[int], ended: int) -> bool | None:
        """Publish the next entry that begins something; return False if there is no room, None if nothing begins."""
        for _ in _WAYS:  # they take turns
            way = self._ways[0]
            self._ways.rotate(-1)
            if way is EntryKind.STEP and self.streams.is_due:
                return self._publish_step(now_ns, ends)
            if way is EntryKind.STEPS and (step := self.shared.next()) is not None:
                return self._publish_shared(step, now_ns, ends)
            if way is EntryKind.BEGIN and (key := self._next_call(ended, now_ns)) is not None:
                return self._publish_call(key, now_ns, ends)
            if way is EntryKind.BATCH and (calls := self._next_batch(now_ns, ended)):
                return self._publish_batch(calls, now_ns, ends)
        return None

    def _publish_drop(self, line: deque[PartKey], kind: EntryKind, now_ns: int, ends: Sequence[int]) -> bool:
        """Publish that some calls of a line are not run."""
        calls = [*itertools.islice(line, MAX_REQUESTS)]
        if not self._publish_one(kind, calls, now_ns, ends):
            return False
        for _ in calls:
            line.popleft()
        return True

    def _publish_batch(self, calls: Sequence[PartKey], now_ns: int, ends: Sequence[int]) -> bool:
        """Publish a batch."""
        if not self._publish_one(EntryKind.BATCH, calls, now_ns, ends):
            return False
        for key in calls:
            self.calls.forget(key)
        self.batches.published(self._published, now_ns)
        return True

    def _publish_call(self, key: PartKey, now_ns: int, ends: Sequence[int]) -> bool:
        """Publish the beginning of a call, or of a stream."""
        opens = key in self._opening
        argument = int(opens and self.streams.has_first_step(key))
        if not self._publish_one(EntryKind.BEGIN, [key], now_ns, ends, argument):
            return False
        self.calls.published(self._published)
        if opens:
            self._opening.discard(key)
            self.streams.published(key, self._published)
        return True

    def _publish_step(self, now_ns: int, ends: Sequence[int]) -> bool:
        """Publish a stream's step, or its end."""
        found = self.streams.next()
        assert found is not None
        key, end = found
        if end is None:
            if not self._publish_one(EntryKind.STEP, [key], now_ns, ends):
                return False
            self.streams.published(key, self._published)
        else:
            if not self._publish_one(EntryKind.CANCEL, [key], now_ns, ends, end.pack()):
                return False
            self.streams.published_end(key)
        return True

    def _publish_shared(self, step: SharedStep, now_ns: int, ends: Sequence[int]) -> bool:
        """Publish a step of streams that run together."""
        if not self._publish_one(EntryKind.STEPS, step.keys, now_ns, ends, data=pack_roles(step.roles)):
            return False
        self.shared.published(step, self._published)
        return True

    def _publish_one(
        self,
        kind: EntryKind,
        calls: Sequence[PartKey],
        now_ns: int,
        ends: Sequence[int],
        argument: int = 0,
        data: bytes = b"",
    ) -> bool:
        """Publish an entry; return False if there is no room."""
        sequence = self._ring.publish(kind, calls, now_ns, min(ends), argument, data)
        if not sequence:
            return False
        for rank, ended in enumerate(ends):
            if ended == self._published:
                self._behind[rank] = ended, now_ns  # it was idle until now
        self._published = sequence
        self.has_published = True
        self._late_due_ns = self._late_due_ns or now_ns + self._timeout_ns
        return True

    def _ends(self) -> list[int]:
        return [reader.ended() if reader.is_open else 0 for reader in self._readers]

    def _want(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._ring.want(wanted)


def fence() -> None:
    """Let no later load overtake an earlier store of this thread: a locked instruction does that."""
    with _LOCK:
        pass


_LOCK: Final = threading.Lock()
