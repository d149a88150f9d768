"""A world's pages, with writers that stop between any two stores, readers at any time, and damage."""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.world import (
    EntryKind,
    MemberReader,
    MemberWriter,
    Note,
    NoteKind,
    RingEntry,
    RingOverrunError,
    RingReader,
    RingWriter,
    Signature,
    WorldPageDamagedError,
    is_over,
    line_bytes,
    page,
    ring_bytes,
)
from tests.stores import Stores

SLOTS: Final = 6
NOTES: Final = 3
RANKS: Final = 2
EPOCH: Final = 7
WORD: Final = st.integers(0, 2**64 - 1) | st.integers(0, 9) | st.integers(2**64 - 9, 2**64 - 1)


class Change(NamedTuple):
    """A store, to one of the pages: the ring's is 0, then come those of the members."""

    page: int
    at: int
    value: int


class Published(NamedTuple):
    """An entry, and how many stores there were when it was."""

    entry: RingEntry
    stores: int


class History:
    """What rank 0 and the members have done, store by store.

    Args:
        steps: What they do, in their order: who begins the next entry, or -1 to publish one of some size.
    """

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        pages = [Stores.zeros(ring_bytes(SLOTS) // 8), *(Stores.zeros(line_bytes(NOTES) // 8) for _ in range(RANKS))]
        self.changes: list[Change] = []
        self._pages = pages
        # The epoch before has left its words.
        RingWriter(cast("memoryview", pages[0]), EPOCH - 1).publish(EntryKind.BEGIN, [(1, 1)], 1, 0)
        for each in pages[1:]:
            MemberWriter(cast("memoryview", each), EPOCH - 1).begin(1)
        self._note_stores()
        self.opened: list[int] = []
        """How many stores there are before each page is of this epoch."""
        ring = RingWriter(cast("memoryview", pages[0]), EPOCH)
        self._note_stores()
        self.opened.append(len(self.changes))
        members = []
        for each in pages[1:]:
            members.append(MemberWriter(cast("memoryview", each), EPOCH))
            self._note_stores()
            self.opened.append(len(self.changes))
        self.published: list[Published] = []
        positions = [0] * RANKS
        for now_ns, (what, size) in enumerate(steps, start=10):
            if what < 0:
                kind = list(EntryKind)[size % len(EntryKind)]
                requests = tuple((3, 100 * now_ns + each) for each in range(1 + size % 4))
                data = bytes(range(size % 30)) if kind is EntryKind.BEGIN else b""
                sequence = ring.publish(kind, requests, now_ns, min(positions), size, data)
                self._note_stores()
                if sequence:
                    entry = RingEntry(sequence, kind, requests, size, now_ns, data)
                    self.published.append(Published(entry, len(self.changes)))
            elif positions[what] < len(self.published):
                positions[what] += 1
                members[what].begin(positions[what])
                self._note_stores()
                members[what].end(positions[what])
                self._note_stores()

    def _note_stores(self) -> None:
        for number, each in enumerate(self._pages):
            self.changes += [Change(number, at, value) for at, value in each.stores]
            each.stores.clear()

    def pages(self, stores: int) -> list[memoryview]:
        """Return the pages after so many stores."""
        found = [memoryview(array("Q", [0] * len(each))) for each in self._pages]
        for number, at, value in self.changes[:stores]:
            found[number][at] = value
        return found


STEPS: Final = st.lists(
    st.tuples(st.integers(-2, RANKS - 1).map(lambda what: max(what, -1)), st.integers(0, 99)), max_size=40
)


@given(STEPS)
def test_a_writer_that_stops_after_any_store_leaves_whole_entries(steps: list[tuple[int, int]]) -> None:
    """Readers that follow see each entry once it is published."""
    history = History(steps)
    pages = history.pages(history.opened[-1])
    reader = RingReader(pages[0], EPOCH)
    entries: list[RingEntry] = []
    for stores in range(history.opened[-1], len(history.changes) + 1):
        while (entry := reader.read()) is not None:
            entries.append(entry)
        whole = [each.entry for each in history.published if each.stores <= stores]
        # A published entry is the last store of its publication.
        assert entries == whole
        if stores < len(history.changes):
            number, at, value = history.changes[stores]
            pages[number][at] = value


class Racing:
    """Stands for words as a reader sees them: before each load, some more of the stores arrive."""

    def __init__(self, words: memoryview, changes: list[Change], arrive: Iterator[int]) -> None:
        self.words = words
        self.changes = deque(changes)
        """Those that have not arrived."""
        self._arrive = arrive

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return array("Q", [self[index] for index in range(*at.indices(len(self.words)))])
        for _ in range(min(next(self._arrive), len(self.changes))):
            _, index, value = self.changes.popleft()
            self.words[index] = value
        return self.words[at]


@given(STEPS, st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(0, 400))
def test_a_reader_that_is_overtaken_gets_whole_entries_or_is_told(
    steps: list[tuple[int, int]], arrive: list[int], ahead: int
) -> None:
    """However its loads fall between the stores: entries come in order, none is left out, and none is torn."""
    history = History(steps)
    changes = [change for change in history.changes[history.opened[0] :] if change.page == 0]
    ring = history.pages(history.opened[0])[0]
    for _, index, value in changes[:ahead]:
        ring[index] = value
    racing = Racing(ring, changes[ahead:], cycle([*arrive, 1]))
    reader, found = RingReader(cast("memoryview", racing), EPOCH), []
    with contextlib.suppress(RingOverrunError):
        is_last = False
        while not is_last:
            is_last = not racing.changes
            while (entry := reader.read()) is not None:
                found.append(entry)
        assert len(found) == len(history.published)
    assert found == [each.entry for each in history.published[: len(found)]]


def read_all(pages: list[memoryview]) -> None:
    """Read all that can be read, as each kind of reader does."""
    reader = RingReader(pages[0], EPOCH)
    for _ in range(SLOTS + 1):
        if reader.read() is None:
            break
    else:
        pytest.fail("more entries than slots")


def read_lines(words: memoryview) -> None:
    """Read all that a member shows."""
    reader = MemberReader(words, EPOCH)
    assert reader.is_open in {True, False}
    assert reader.ended() <= reader.begun()
    for _ in range(NOTES + 1):
        if reader.note() is None:
            break
    else:
        pytest.fail("more notes than places")
    reader.signature(reader.met())


def check_typed(pages: list[memoryview]) -> None:
    """Read damaged pages: it ends, by a value or the error that says what is wrong."""
    for read, given_ in ((read_all, pages), *((read_lines, words) for words in pages[1:])):
        with contextlib.suppress(WorldPageDamagedError, RingOverrunError):
            read(given_)  # type: ignore[operator]


@given(STEPS, st.data())
def test_a_stray_write_gives_a_typed_error(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Readers end by what they read, or by the error that says what is wrong."""
    history = History(steps)
    stores = data.draw(st.integers(history.opened[-1], len(history.changes)))
    pages = history.pages(stores)
    words = pages[data.draw(st.integers(0, RANKS))]
    used = [at for at, word in enumerate(words) if word]
    words[data.draw(st.sampled_from(used) | st.integers(0, len(words) - 1))] = data.draw(WORD)
    check_typed(pages)


def test_no_stray_write_crashes_a_reader() -> None:
    """Each word of pages with entries that were forgotten, begun, or only published, and many values of each."""
    round_ = [(-1, 0), (0, 0), (1, 0)]
    history = History([*round_ * 4, (-1, 1), (-1, 5), (-1, 10), *[(0, 0)] * 2, (-1, 15)])
    pages = history.pages(len(history.changes))
    for words in pages:
        for at, word in enumerate(words):
            for value in {
                0,
                1,
                max(word, 1) - 1,
                min(word, 2**64 - 2) + 1,
                word ^ 1 << 40,
                2**64 - 1,
                EPOCH - 1,
                EPOCH + 1,
            }:
                words[at] = value
                check_typed(pages)
            words[at] = word


def test_what_a_member_has_not_ended_is_not_forgotten() -> None:
    """The ring is full until all have ended its oldest entry."""
    ring = memoryview(array("Q", bytes(ring_bytes(SLOTS))))
    writer, reader = RingWriter(ring, EPOCH), RingReader(ring, EPOCH)
    for number in range(SLOTS):
        assert writer.publish(EntryKind.BEGIN, [(1, number)], 5, 0) == number + 1
    assert writer.publish(EntryKind.BEGIN, [(1, 99)], 6, 0) == 0
    found = [reader.read() for _ in range(SLOTS + 1)]
    assert [each and each.requests for each in found] == [*(((1, number),) for number in range(SLOTS)), None]
    assert writer.publish(EntryKind.BEGIN, [(1, 99)], 6, 1) == SLOTS + 1
    assert writer.publish(EntryKind.BEGIN, [(1, 99)], 6, 1) == 0


def test_who_still_reads_when_the_next_epoch_begins_is_told() -> None:
    """It is not taken for damage, wherever the writer of the next epoch stands."""
    words = Stores.zeros(ring_bytes(SLOTS) // 8)
    RingWriter(cast("memoryview", words), EPOCH).publish(EntryKind.BEGIN, [(1, 2)], 5, 0)
    before = len(words.stores)
    RingWriter(cast("memoryview", words), EPOCH + 1).publish(EntryKind.BEGIN, [(3, 4)], 6, 0)
    for stores in range(before, len(words.stores) + 1):
        ring = memoryview(array("Q", bytes(ring_bytes(SLOTS))))
        for at, value in words.stores[:before]:
            ring[at] = value
        late, reader = RingReader(ring, EPOCH), RingReader(ring, EPOCH)
        assert reader.read() is not None
        for at, value in words.stores[before:stores]:
            ring[at] = value
        with contextlib.suppress(RingOverrunError):
            assert reader.read() is None
        with contextlib.suppress(RingOverrunError):
            entry = late.read()
            assert entry is None or entry.requests == ((1, 2),)


def test_notes_that_rank_0_has_not_taken_are_kept() -> None:
    """There is room again once rank 0 has said that it took some."""
    words = memoryview(array("Q", bytes(line_bytes(NOTES))))
    member, reader = MemberWriter(words, EPOCH), MemberReader(words, EPOCH)
    for number in range(NOTES):
        assert member.note(Note(NoteKind.CAME, 1, number), 0)
    assert not member.note(Note(NoteKind.CAME, 1, 99), 0)
    assert reader.note() == (NoteKind.CAME, 1, 0)
    assert member.note(Note(NoteKind.CAME, 1, 99), reader.taken)
    assert [note and note.request_id for note in (reader.note() for _ in range(NOTES + 1))] == [1, 2, 99, None]


@given(st.data())
def test_any_memory_can_be_read(data: st.DataObject) -> None:
    """With words that look right to begin with, or without."""
    pages = History([(-1, 2), (0, 0)]).pages(10**6)
    for words in pages:
        for at in data.draw(st.lists(st.integers(0, len(words) - 1) | st.integers(0, 20), max_size=20)):
            words[at] = data.draw(WORD)
    check_typed(pages)


NOTE: Final = st.builds(Note, st.sampled_from(NoteKind), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@given(st.lists(st.lists(NOTE, max_size=5), max_size=9))
def test_notes_come_once_and_in_order_and_wait_for_room(notes: list[list[Note]]) -> None:
    """Also where the writer stands between two stores; rank 0 says how many it has taken."""
    ring = memoryview(array("Q", bytes(ring_bytes(SLOTS))))
    rank_0, words = RingWriter(ring, EPOCH), Stores.zeros(line_bytes(NOTES) // 8)
    seen = memoryview(array("Q", [0] * len(words)))
    member, follower = MemberWriter(cast("memoryview", words), EPOCH), RingReader(ring, EPOCH)
    reader = MemberReader(seen, EPOCH)
    waiting = [note for several in notes for note in several]
    written: list[Note] = []
    found: list[Note] = []
    for several in notes:
        for _ in several:
            if member.note(waiting[len(written)], follower.taken(1)):
                written.append(waiting[len(written)])
            else:
                assert len(written) - follower.taken(1) == NOTES
                break
        for at, value in words.stores:
            seen[at] = value
            while (note := reader.note()) is not None:
                found.append(note)
        words.stores.clear()
        rank_0.take(1, reader.taken)
        assert found == written


def test_a_member_refuses_that_more_was_taken_than_it_wrote() -> None:
    """Else it would write over notes that rank 0 has not read."""
    member = MemberWriter(memoryview(array("Q", bytes(line_bytes(NOTES)))), EPOCH)
    with pytest.raises(WorldPageDamagedError, match="more notes were taken"):
        member.note(Note(NoteKind.CAME, 1, 2), 1)


SIGNATURE: Final = st.builds(Signature, *[st.integers(0, 2**64 - 1)] * 5)


@given(st.lists(SIGNATURE, min_size=1, max_size=6))
def test_a_signature_is_there_whole_once_it_was_met_and_until_all_have_met_the_next(given_: list[Signature]) -> None:
    """Peers are at most one collective behind, so each finds the one that it compares."""
    words = Stores.zeros(line_bytes(NOTES) // 8)
    seen = memoryview(array("Q", [0] * len(words)))
    member, reader = MemberWriter(cast("memoryview", words), EPOCH), MemberReader(seen, EPOCH)
    for number, signature in enumerate(given_, start=1):
        assert member.meet(signature) == number
        for at, value in words.stores:
            seen[at] = value
            met = reader.met()
            assert met in {number - 1, number}
            if met:
                assert reader.signature(met) == given_[met - 1]
        words.stores.clear()


def test_what_is_too_large_for_an_entry_is_refused() -> None:
    """Nothing is published then."""
    ring = memoryview(array("Q", bytes(ring_bytes())))
    writer = RingWriter(ring, EPOCH)
    with pytest.raises(ValueError, match="more than fit"):
        writer.publish(EntryKind.BEGIN, [(1, 2)], 3, 0, data=bytes(page.MAX_DATA_BYTES + 1))
    with pytest.raises(ValueError, match="more than fit"):
        writer.publish(EntryKind.BATCH, [(1, 2)] * (page.MAX_REQUESTS + 1), 3, 0)
    largest = [(1, each) for each in range(page.MAX_REQUESTS)]
    assert writer.publish(EntryKind.BATCH, largest, 3, 0, data=bytes(page.MAX_DATA_BYTES)) == 1
    entry = RingReader(ring, EPOCH).read()
    assert entry is not None
    assert (entry.requests, len(entry.data)) == (tuple(largest), page.MAX_DATA_BYTES)


def test_the_stop_word_ends_all_epochs_up_to_its_own() -> None:
    """Those after it go on."""
    stop = memoryview(array("Q", [0]))
    assert not is_over(stop, 1)
    stop[0] = 2
    assert [is_over(stop, epoch) for epoch in (1, 2, 3)] == [True, True, False]
