from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.process.files.events import FORMER, LOST, MAX_EVENT_BYTES, EventLog, Follower, Scalar, read_events
from tests.support import full_disk

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
EVENTS = st.lists(st.dictionaries(st.text(min_size=1), SCALARS, max_size=5), max_size=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is to be."""
    return tmp_path / "events.jsonl"


def numbers(path: Path) -> list[Scalar]:
    """Return what the events of a log are numbered with."""
    return [event["n"] for event in read_events(path)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(EVENTS)
def test_what_was_appended_is_read(path: Path, events: list[dict[str, Scalar]]) -> None:
    """Every event survives, in order, also when it is read while the log is open."""
    path.unlink(missing_ok=True)
    with EventLog(path, max_bytes=2**30) as log:
        for event in events:
            log.append(event)
        assert list(read_events(path)) == events


def test_no_log_has_no_events(path: Path) -> None:
    """A pool that never ran is not an error."""
    assert list(read_events(path)) == []


def test_the_log_stays_bounded_and_keeps_the_newest(path: Path) -> None:
    """Old parts go, the order stays, and a later life of the supervisor continues."""
    for life in range(4):
        with EventLog(path, max_bytes=100, keep=2) as log:
            for n in range(100):
                log.append({"n": life * 100 + n})
    sizes = {found.name: found.stat().st_size for found in path.parent.iterdir()}
    assert sizes.keys() == {path.name, f"{path.name}.1", f"{path.name}.2"}
    assert max(sizes.values()) <= 100
    found = numbers(path)
    assert found == list(range(400 - len(found), 400))
    assert len(found) > 20


def test_with_nothing_kept_only_the_newest_part_is_there(path: Path) -> None:
    """A bound is a bound."""
    with EventLog(path, max_bytes=20, keep=0) as log:
        for n in range(100):
            log.append({"n": n})
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert numbers(path)[-1] == 99


def test_reading_while_the_log_rotates_repeats_and_loses_nothing(path: Path) -> None:
    """A reader that has begun holds the parts it has found."""
    with EventLog(path, max_bytes=100, keep=2) as log:
        for n in range(40):
            log.append({"n": n})
        before = numbers(path)
        reading = read_events(path)
        found = [next(reading)["n"]]
        for n in range(40, 400):
            log.append({"n": n})
        found += [event["n"] for event in reading]
        assert found[: len(before)] == before
        assert found == sorted(set(found), key=found.index)


def test_a_full_disk_loses_events_but_counts_them(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A part of an event is taken back; the next that fits says how many are missing, once."""
    with EventLog(path) as log:
        log.append({"n": 0})
        with full_disk(path.stat().st_size + 2):
            log.append({"n": 1})
            log.append({"n": 2})
        log.append({"n": 3})
        log.append({"n": 4})
    assert list(read_events(path)) == [{"n": 0}, {"n": 3, LOST: 2}, {"n": 4}]
    first, last = caplog.messages
    assert f"{path} cannot be written: " in first
    assert last == f"{path} can be written again"


def test_an_event_too_long_is_lost_and_counted(path: Path) -> None:
    """One of just the longest length is not."""
    with EventLog(path) as log:
        log.append({"n": "x" * MAX_EVENT_BYTES})
        log.append({"n": "x" * (MAX_EVENT_BYTES - 100)})
    (event,) = read_events(path)
    assert event[LOST] == 1


def test_text_that_is_not_unicode_is_written_readably(path: Path) -> None:
    """File names may hold any byte; an event must not fail for that."""
    with EventLog(path) as log:
        log.append({"n": "/tmp/\udcff", "pid": 1})
    assert list(read_events(path)) == [{"n": "/tmp/\\udcff", "pid": 1}]


JUNK = {
    "half an event": b'{"n":1,"m":"xxx',
    "not JSON": b"\xc1" * 10,
    "a list": b"[1]",
    "a number": b"1",
    "an object in an object": b'{"n":{"m":1}}',
    "lists without end": b'{"n":' + b"[" * 10_000,
    "a number of ten thousand digits": b'{"n":' + b"9" * 10_000 + b"}",
    "text that is not UTF-8": b'{"n":"\xff"}',
    "a line without end": b"x" * (3 * MAX_EVENT_BYTES),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_damaged_line_costs_no_other(path: Path, junk: bytes) -> None:
    """Its bytes are reported; the log goes on behind it, also where the machine has ended within a line."""
    with EventLog(path) as log:
        log.append({"n": 0})
    with path.open("ab") as file:
        file.write(junk)
    with EventLog(path) as log:
        log.append({"n": 1})
        log.append({"n": 2})
    skipped: list[tuple[Path, int]] = []
    assert list(read_events(path, on_skipped=lambda *each: skipped.append(each))) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert skipped == [(path, len(junk) + 1)]


def test_what_a_former_version_has_written_is_read_before_the_lines(path: Path) -> None:
    """It wrote msgpack, in files of another name; damage ends a part of it."""
    former = path.with_suffix(FORMER)
    Path(f"{former}.1").write_bytes(msgpack.packb({"n": 0}) + b"\xc1 no msgpack")
    former.write_bytes(msgpack.packb({"n": 1}) + msgpack.packb({"n": None}))
    with EventLog(path) as log:
        log.append({"n": 2})
    assert numbers(path) == [0, 1, None, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_skipped(path: Path, data: bytes) -> None:
    """Reading never raises, whatever the file holds, or that of a former version."""
    path.with_suffix(FORMER).write_bytes(data)
    assert all(type(event) is dict for event in read_events(path))
    path.with_suffix(FORMER).unlink()
    path.write_bytes(data)
    skipped: list[int] = []
    events = list(read_events(path, on_skipped=lambda _part, count: skipped.append(count)))
    assert all(type(event) is dict for event in events)
    assert sum(skipped) <= len(data)
    assert events or skipped or not data


def test_a_log_that_cannot_be_opened_is_a_typed_error(path: Path) -> None:
    """A link is not followed; closing twice is fine."""
    path.symlink_to("elsewhere")
    with pytest.raises(errors.ConfigurationError, match="cannot be opened"):
        EventLog(path)
    path.unlink()
    log = EventLog(path)
    log.close()
    log.close()


def test_what_comes_is_followed_across_rotations(path: Path) -> None:
    """Each event from now on is shown once and in order, whether or not the log exists yet."""
    early = Follower(path)
    assert early.more() == []
    with EventLog(path, max_bytes=300, keep=50) as log:
        log.append({"n": -1})
        late = Follower(path)
        seen: list[Scalar] = []
        for n in range(60):
            log.append({"n": n, "text": "x" * 50})
            if n % 2:
                seen += [event["n"] for event in late.more()]
        assert seen == list(range(60))
        assert early.more()
    late.close()
    late.close()
    early.close()


def test_what_is_no_event_is_passed_over_by_who_follows(path: Path) -> None:
    """What is half written is waited for."""
    with EventLog(path) as log:
        follower = Follower(path)
        with path.open("ab") as file:
            file.write(b'\xc1 no JSON\n{"n":')
            file.flush()
            assert follower.more() == []
            file.write(b"0}\n")
        assert follower.more() == [{"n": 0}]
        log.append({"n": 1})
        assert follower.more() == [{"n": 1}]
        path.rename(f"{path}.1")
    with EventLog(path) as log:
        log.append({"n": 2})
        assert follower.more() == [{"n": 2}]
    follower.close()
