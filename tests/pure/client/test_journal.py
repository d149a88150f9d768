"""A map's journal, whatever befalls its file."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.mapping.finished import open_finished
from atomr_mp.mapping.journal import Journal
from atomr_mp.mapping.journal_frames import Frame, frames
from atomr_mp.mapping.journal_repair import repair
from atomr_mp.mapping.schedule import Failure, RecordedResult
from tests.pure.client.test_refs import FakeClient

Open = Callable[..., Journal]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Iterator[Open]:
    """Give what opens the journal again."""
    opened: list[Journal] = []

    def open_again(method: str = "A.square", *, idempotent: bool = True, retry_failed: bool = False) -> Journal:
        for each in opened:
            each.close()
        opened.append(Journal(path, method, ["number"], idempotent=idempotent, retry_failed=retry_failed))
        return opened[-1]

    yield open_again
    for each in opened:
        each.close()


def write(journal: Journal, numbers: range) -> None:
    """Have the squares of numbers done."""
    for number in numbers:
        assert journal.outcome(number, number) is None
        journal.done(number, number * number)


def read(journal: Journal, numbers: range) -> list[Any]:
    """Return the journal's outcomes, None for open items."""
    outcomes = [journal.outcome(number, number) for number in numbers]
    return [outcome.value if isinstance(outcome, RecordedResult) else outcome for outcome in outcomes]


def test_what_was_done_is_known_when_it_is_opened_again(journal: Open) -> None:
    """Items come in any order; the others are not known."""
    first = journal()
    assert read(first, range(3)) == [None] * 3
    first.done(2, 4)
    first.done(0, 0)
    assert read(journal(), range(4)) == [0, None, 4, None]


@pytest.mark.parametrize("elements", [0, 3, 5000, 100_000])
def test_arrays_come_back_as_they_were_and_are_the_readers(journal: Open, elements: int) -> None:
    """An array may travel in the body, as a frame, or in shared memory."""
    array = np.arange(elements, dtype=np.float32)
    first = journal()
    first.outcome(0, array)
    first.done(0, {"array": array})
    outcome = journal().outcome(0, array.copy())
    assert isinstance(outcome, RecordedResult)
    np.testing.assert_array_equal(outcome.result()["array"], array)
    outcome.result()["array"][:] = 0


def test_wherever_it_is_cut_off_what_came_before_is_known(journal: Open, path: Path) -> None:
    """A record is whole or not there; what is written after the cut is not lost."""
    write(journal(), range(5))
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        found = read(journal(), range(6))
        known = sum(outcome is not None for outcome in found)
        assert found == [number * number for number in range(known)] + [None] * (6 - known)
        write(journal(), range(known, 6))
        assert read(journal(), range(6)) == [number * number for number in range(6)]


@given(at=st.integers(0, 10**6), to=st.integers(0, 255))
def test_damage_is_never_taken_for_a_result(tmp_path_factory: pytest.TempPathFactory, at: int, to: int) -> None:
    """Any byte may have become any other: what comes out is true, or missing, or the file is refused."""
    path = tmp_path_factory.mktemp("damaged") / "journal"
    first = Journal(path, "A.square", ["number"], idempotent=True)
    write(first, range(5))
    first.close()
    damaged = bytearray(path.read_bytes())
    damaged[at % len(damaged)] = to
    path.write_bytes(damaged)
    try:
        again = Journal(path, "A.square", ["number"], idempotent=True)
    except (errors.JournalMismatch, errors.JournalDamaged):
        assert path.read_bytes() == damaged, "what is refused is not touched"
        repair(path, "A.square", ["number"])
        again = Journal(path, "A.square", ["number"], idempotent=True)
        assert read(again, range(5)).count(None) <= 1, "more is lost than what was damaged"
    assert all(outcome in {None, number * number} for number, outcome in enumerate(read(again, range(5))))
    again.close()


def places(path: Path) -> list[Frame]:
    """Return where the records of a whole journal are."""
    return list(frames(path.read_bytes()))


@pytest.mark.parametrize("bit", [0, 9, 50, 60, 90, 150, 280])
def test_a_flipped_bit_is_no_torn_end(journal: Open, path: Path, bit: int) -> None:
    """A journal that is whole behind it is refused; repaired, all but that record is known, and the old file stays."""
    first = journal()
    write(first, range(20))
    first.close()
    whole = path.read_bytes()
    frame = places(path)[7]
    damaged = bytearray(whole)
    damaged[frame.at + bit // 8 % (frame.end - frame.at)] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(errors.JournalDamaged, match=r"20 records can be saved: .*--repair-journal"):
        journal()
    assert path.read_bytes() == damaged
    repair(path, "A.square", ["number"])
    assert path.with_name("journal.damaged").read_bytes() == damaged
    assert read(journal(), range(20)) == [None if number == 6 else number * number for number in range(20)]
    again = journal()
    again.ended(20)
    again.close()
    repair(path, "A.square", ["number"])
    assert not path.with_name("journal.damaged.2").exists(), "what is whole is left alone"


def test_of_a_damaged_journal_nothing_is_sent_twice_that_may_have_run(journal: Open, path: Path) -> None:
    """Whichever records are lost: an item that was sent has its result, or is set aside."""
    first = journal(idempotent=False)
    for number in range(6):
        first.outcome(number, number)
        first.sending(number)
    first.unsent(2)
    assert first.outcome(2, 2) is None
    first.sending(2)
    for number in (0, 1, 2, 3):
        first.done(number, number * number)
    first.close()
    whole = path.read_bytes()
    for begin, end in itertools.combinations(range(1, len(places(path))), 2):
        path.write_bytes(whole)
        found = places(path)
        damaged = bytearray(whole)
        damaged[found[begin].at : found[end].at] = bytes(found[end].at - found[begin].at)
        path.write_bytes(damaged)
        repair(path, "A.square", ["number"])
        again = journal(idempotent=False)
        outcomes = read(again, range(6))
        assert None not in outcomes
        again.ended(6)
        for outcome in outcomes:
            assert isinstance(outcome, int) or isinstance(outcome.error, errors.Cancelled)
        again.close()


def test_where_there_is_no_room_no_empty_journal_stays(path: Path) -> None:
    """It would look as if a job had been begun."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(errors.ConfigurationError, match="cannot be used"):
            Journal(path, "A.square", ["number"], idempotent=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.exists()
    Journal(path, "A.square", ["number"], idempotent=True).close()


def test_another_job_s_journal_is_refused(journal: Open, path: Path) -> None:
    """Another method is found at once, another item when it comes, missing ones at the end; the file is untouched."""
    write(journal(), range(5))
    content = path.read_bytes()
    with pytest.raises(errors.JournalMismatch, match=r"is the journal of A\.square\(number\), this job is of A\.root"):
        journal("A.root")
    with pytest.raises(errors.JournalMismatch, match="item 3, counted from 0, is another than"):
        journal().outcome(3, 30)
    with pytest.raises(errors.JournalMismatch, match="the input has 4 items"):
        journal().ended(4)
    journal().ended(7)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"results\n", b"\x92", b"\0" * 5000])
def test_a_file_that_is_no_journal_is_left_alone(journal: Open, path: Path, content: bytes) -> None:
    """It may be somebody's results."""
    path.write_bytes(content)
    if content == b"\x92":  # how a journal begins, too: one that was cut off at once
        write(journal(), range(1))
        return
    with pytest.raises(errors.JournalMismatch, match="is no journal"):
        journal()
    assert path.read_bytes() == content


def test_a_journal_is_written_by_one(path: Path) -> None:
    """A second map of the same job is refused while the first runs."""
    first = Journal(path, "A.square", ["number"], idempotent=True)
    with pytest.raises(errors.ConfigurationError, match="in use by another map"):
        Journal(path, "A.square", ["number"], idempotent=True)
    first.close()
    Journal(path, "A.square", ["number"], idempotent=True).close()


def test_a_fork_does_not_keep_it_in_use(path: Path) -> None:
    """The end of the child does not free what its parent uses, either."""
    reading, writing = os.pipe()
    first = Journal(path, "A.square", ["number"], idempotent=True)
    context = multiprocessing.get_context("fork")
    ending, lasting = (
        context.Process(target=target, args=args) for target, args in ((first.close, ()), (os.read, (reading, 1)))
    )
    try:
        for child in (ending, lasting):
            child.start()
        ending.join()
        with pytest.raises(errors.ConfigurationError, match="in use by another map"):
            Journal(path, "A.square", ["number"], idempotent=True)
        first.close()
        Journal(path, "A.square", ["number"], idempotent=True).close()
    finally:
        os.write(writing, b".")
        lasting.join()
        os.close(reading)
        os.close(writing)


def test_what_would_be_too_long_to_be_read_is_refused(journal: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that cannot be read would make all that follow look damaged."""
    monkeypatch.setattr("atomr_mp.mapping.journal.MAX_RECORD_BYTES", 4 * 2**20)
    opened = journal()
    write(opened, range(2))
    assert opened.outcome(2, 2) is None
    with pytest.raises(errors.InvalidRequest, match="item 2"):
        opened.done(2, [np.zeros(2**20, "uint8")] * 5)
    assert opened.outcome(3, 3) is None
    opened.done(3, 9)
    assert read(journal(), range(4)) == [0, 1, None, 9]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error is typed."""
    with pytest.raises(errors.ConfigurationError, match="cannot be used"):
        Journal(tmp_path / "no" / "such", "A.square", [], idempotent=True)


def test_what_failed_is_set_aside_until_it_is_to_be_tried_again(journal: Open) -> None:
    """Its error keeps its facts."""
    first = journal()
    first.outcome(0, 0)
    first.failed(Failure(0, errors.ActorFailed("no", exception="ValueError", traceback_text="..."), 2))
    found = journal().outcome(0, 0)
    assert isinstance(found, Failure)
    assert isinstance(found.error, errors.ActorFailed)
    assert (found.attempts, found.error.exception, found.error.maybe_executed) == (2, "ValueError", True)
    again = journal(retry_failed=True)
    write(again, range(1))
    assert read(journal(), range(1)) == [0]


def test_what_was_under_way_and_may_not_run_twice_is_set_aside(journal: Open) -> None:
    """Unless it is known that it has not run; and for what may run twice it is no matter."""
    first = journal(idempotent=False)
    for number in range(4):
        assert first.outcome(number, number) is None
    for number in (0, 1, 2):
        first.sending(number)
    first.done(0, 0)
    first.unsent(2)
    done, interrupted, *others = read(journal(idempotent=False), range(4))
    assert (done, others) == (0, [None, None])
    assert isinstance(interrupted.error, errors.Cancelled)
    assert interrupted.error.maybe_executed
    assert read(journal(idempotent=False, retry_failed=True), range(4)) == [0, None, None, None]
    assert read(journal(), range(4)) == [0, None, None, None]


@given(
    ends=st.lists(st.sampled_from(["sent", "done", "failed", "not sent"]), min_size=1, max_size=8),
    damaged=st.booleans(),
)
def test_once_each_item_has_come_out_a_journal_is_finished(
    tmp_path_factory: pytest.TempPathFactory, ends: list[str], *, damaged: bool
) -> None:
    """Also where items that may have run were set aside: no pool is needed to tell so again, and it tells the same."""
    path = tmp_path_factory.mktemp("finished") / "journal"
    first = Journal(path, "A.square", ["number"], idempotent=False)
    for number, end in enumerate(ends):
        first.outcome(number, number)
        first.sending(number)
        if end == "done":
            first.done(number, number)
        elif end == "failed":
            first.failed(Failure(number, errors.ActorFailed("no", exception="ValueError"), 1))
        elif end == "not sent":
            first.unsent(number)
    first.close()
    if damaged:
        repair(path, "A.square", ["number"])
    told = []
    again = Journal(path, "A.square", ["number"], idempotent=False)
    for number in range(len(ends)):
        if again.outcome(number, number) is None:
            again.sending(number)
            told.append(str(again.done(number, number)))
        else:
            told.append(str(again.outcome(number, number)))
    again.close()
    size = path.stat().st_size
    finished = open_finished(path, "A.square", len(ends), retry_failed=False)
    assert finished is not None
    outcomes = [finished.outcome(number, number) for number in range(len(ends))]
    assert [str(outcome) for outcome in outcomes] == told
    finished.close()
    assert path.stat().st_size == size


def test_a_pipe_in_its_place_is_refused(path: Path) -> None:
    """Opening it does not wait for another end."""
    os.mkfifo(path)
    assert open_finished(path, "A.square", 1, retry_failed=False) is None
    with pytest.raises(errors.ConfigurationError, match="cannot be used"):
        Journal(path, "A.square", ["number"], idempotent=True)


def test_refs_are_refused(journal: Open) -> None:
    """They end with their worker."""
    ref = FakeClient().ref()
    with pytest.raises(errors.InvalidRequest, match="item 0, counted from 0, has a ref"):
        journal().outcome(0, [ref])
    again = journal()
    again.outcome(0, 0)
    with pytest.raises(errors.InvalidRequest, match="the result of item 0 has a ref"):
        again.done(0, [ref])
