"""Streams on the board: places of their own, steps, and what is found out about damage."""

from __future__ import annotations

import random

import pytest

from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter, PlaceKind, Watched, check
from atomr_mp.protocol.board.page import FIRST_STREAM, SLOT_WORDS, SLOTS, STEPS, STREAM_SLOTS

NOW_NS = 10**12
WATCHED = Watched(10**9, kind=PlaceKind.THREAD, number=0).pack()


@pytest.fixture
def board() -> tuple[BoardWriter, BoardReader]:
    """A new board."""
    memory = memoryview(bytearray(BOARD_BYTES))
    return BoardWriter(memory), BoardReader(memory)


def open_stream(writer: BoardWriter, number: int, now_ns: int) -> int:
    """Have a stream take its first step, as any request does, and return its place."""
    slot = writer.start(1, number, now_ns, now_ns + 1)
    place = writer.open_stream(1, number, now_ns, now_ns + 1)
    writer.end(slot, now_ns + 1)
    return place


def test_a_stream_is_known_as_started_however_many_start_after_it(board: tuple[BoardWriter, BoardReader]) -> None:
    """It runs in its steps only, and takes no other's place."""
    writer, reader = board
    place = open_stream(writer, 7, NOW_NS)
    for n in range(2 * SLOTS):
        writer.end(writer.start(2, n, NOW_NS + 10 + n, 0), NOW_NS + 11 + n)
    assert 7 in {request for _, session, request, _ in reader.left() if session == 1}
    assert reader.running() == []
    later_ns = NOW_NS + 10**6
    writer.start_step(place, 1, 7, later_ns, later_ns + 5, WATCHED)
    (running,) = reader.running()
    assert (running.session, running.request_id, running.started_ns, running.watched) == (1, 7, later_ns, WATCHED)
    assert reader.look()[0] == [running]
    assert [end for _, session, request, end in reader.left() if (session, request) == (1, 7)] == [0]
    writer.end_step(place, later_ns + 9)
    assert reader.running() == []
    assert reader.look() == ([], {})
    assert check.defect(reader.words, later_ns + 10) == ""


def test_a_place_that_is_used_again_moves_the_memory_of_starts(board: tuple[BoardWriter, BoardReader]) -> None:
    """Only up to the start of the stream that had it."""
    writer, reader = board
    places = [open_stream(writer, n, NOW_NS + 100 * n) for n in range(STREAM_SLOTS)]
    assert sorted(places) == list(range(STREAM_SLOTS))
    before_ns = reader.known_since_ns()
    for n in (700, 3):
        writer.close_stream(places[n])
    assert open_stream(writer, 5000, NOW_NS + 10**6) == places[700]
    assert reader.known_since_ns() == max(before_ns, NOW_NS + 100 * 700)
    assert check.defect(reader.words, NOW_NS + 10**7) == ""


@pytest.mark.parametrize("seed", range(20))
def test_whatever_streams_do_the_board_is_believed(board: tuple[BoardWriter, BoardReader], seed: int) -> None:
    """Between any two words that the worker writes it may have died: after each of ours it is whole."""
    writer, reader = board
    choice, now_ns = random.Random(seed), NOW_NS
    live: list[int] = []
    stepping: list[int] = []
    ids: dict[int, int] = {}
    for number in range(200):
        now_ns += 10
        match choice.randrange(4):
            case 0:
                live.append(open_stream(writer, number, now_ns))
                ids[live[-1]] = number
            case 1 if live:
                place = live.pop(choice.randrange(len(live)))
                stepping.append(place)
                writer.start_step(place, 1, ids[place], now_ns, now_ns + 5, WATCHED)
            case 2 if stepping:
                place = stepping.pop(choice.randrange(len(stepping)))
                writer.end_step(place, now_ns)
                live.append(place)
            case 3 if live:
                writer.close_stream(live.pop())
        assert check.defect(reader.words, now_ns + 10) == ""
    assert len(reader.running()) == len(stepping)


@pytest.mark.parametrize("word", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("value", [0, 2**64 - 1, 12345])
def test_a_stray_write_to_a_stream_s_entry_is_found(
    board: tuple[BoardWriter, BoardReader], word: int, value: int
) -> None:
    """The word that names the started stream carries a sum."""
    writer, reader = board
    for n in range(4):
        open_stream(writer, n, NOW_NS + n)
    reader.words[FIRST_STREAM + SLOT_WORDS + word] = value
    assert check.defect(reader.words, NOW_NS + 10**6)


def test_a_count_of_steps_that_is_too_low_is_found(board: tuple[BoardWriter, BoardReader]) -> None:
    """Entries have numbers that were never given then."""
    writer, reader = board
    for n in range(4):
        open_stream(writer, n, NOW_NS + n)
    reader.words[STEPS] = 2
    assert check.defect(reader.words, NOW_NS + 10**6)


def test_an_event_loop_s_turns_are_told_while_something_runs(board: tuple[BoardWriter, BoardReader]) -> None:
    """Turns are numbered. A time in the future is a damaged board."""
    writer, reader = board
    watched = Watched(10**9, kind=PlaceKind.EVENT_LOOP, number=2, waits=True)
    slot = writer.start(1, 7, 10, 2**62, watched.pack())
    writer.loops()[2] = 40
    running, progress = reader.look()
    assert [entry.request_id for entry in running] == [7]
    assert progress == {(PlaceKind.EVENT_LOOP, 2): 40}
    assert check.defect(reader.words, 40) == ""
    assert "future" in check.defect(reader.words, 39)
    writer.end(slot, 50)
    place = writer.open_stream(1, 8, 51, 52)
    writer.start_step(place, 1, 8, 53, 2**62, watched.pack())
    writer.watch_step(place, watched._replace(waits=False).pack())
    (entry,) = reader.look()[0]
    assert not Watched.unpack(entry.watched).waits
