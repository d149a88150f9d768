"""When a worker is said to hang, and when not: the promises of `supervision/watchdog.py` and `stacks.py`."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.board import (
    ACTORS_THREADS,
    BOARD_BYTES,
    DEFAULT_STREAM,
    BoardReader,
    BoardWriter,
    Entry,
    PlaceKind,
    Watched,
    stream_bit,
)
from atomr_mp.supervision.stacks import CallSite, diagnose
from atomr_mp.supervision.watchdog import LOOK_NS, HangWatch, Thread, able_ns

S: Final = 1_000_000_000
FAR_NS: Final = 2**62
LOOP: Final = (PlaceKind.LOOP, 0)


def running(watched: Watched, *, request: int = 1, started_ns: int = 0, deadline_ns: int = FAR_NS) -> Entry:
    """Return a request that runs."""
    return Entry(1, request, started_ns, deadline_ns, 0, watched.pack())


@given(limit_ns=st.integers(1, 20).map(lambda limit: limit * S), able=st.lists(st.integers(0, S), max_size=60))
def test_nothing_hangs_before_it_had_its_time_and_all_do_after_it(limit_ns: int, able: list[int]) -> None:
    """Time counts as far as the worker was able to go on, from the first look at the request."""
    watch, entry = HangWatch(), running(Watched(limit_ns))
    for number, able_now in enumerate(able):
        hung = watch.look(number * S, able_now, [entry], {})
        assert (hung is entry) == (sum(able[1 : number + 1]) >= limit_ns)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_what_ends_in_its_place_gives_a_request_its_whole_time_again(ends: list[bool]) -> None:
    """As on a stream, where others are before it. What ends elsewhere does not."""
    limit = 3
    watch, entry = HangWatch(), running(Watched(limit * S, kind=PlaceKind.STREAM, number=2))
    quiet = -1
    for number, ended in enumerate(ends, start=1):
        here = {(PlaceKind.STREAM, 2): number * S} if ended else {}
        hung = watch.look(number * S, S, [entry], {**here, LOOP: number * S})
        quiet = 0 if ended else quiet + 1
        assert (hung is entry) == (quiet >= limit)


@given(st.integers(1, 4), st.integers(1, 5))
def test_what_a_thread_runs_is_judged_by_its_own_time(width: int, limit: int) -> None:
    """Whatever ends on others of the actor's threads meanwhile; and what has begun first, and hangs, holds one."""
    watched = Watched(limit * S, kind=PlaceKind.THREAD, width=width)
    watch, hangs = HangWatch(), running(watched)
    for second in range(1, limit + 1):
        others = [running(watched, request=request, started_ns=second) for request in range(2, width + 2)]
        assert watch.look(second * S, S, [hangs, *others], {watched.place: second * S}) is None
    assert watch.look((limit + 1) * S, S, [hangs, *others], {watched.place: limit * S}) is hangs


ON_EVENT_LOOP: Final = Watched(3 * S, kind=PlaceKind.EVENT_LOOP, number=1, waits=True)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_what_awaits_hangs_with_its_event_loop_only(turns: list[bool]) -> None:
    """However long it runs; another loop's turns do not count."""
    watch, entry = HangWatch(), running(ON_EVENT_LOOP)
    quiet = -1
    for number, turned in enumerate(turns, start=1):
        here = {ON_EVENT_LOOP.place: number * S} if turned else {}
        hung = watch.look(number * S, S, [entry], {**here, (PlaceKind.EVENT_LOOP, 2): number * S})
        quiet = 0 if turned else quiet + 1
        assert (hung is entry) == (quiet >= 3)


@pytest.mark.parametrize("told", ["by its caller", "by its deadline", "by its deadline, with the pool's limit"])
def test_what_was_told_to_end_on_an_event_loop_has_its_limit_from_then_on(told: str) -> None:
    """Though its loop turns; and it has the whole of it, however long it ran before."""
    deadline_ns = FAR_NS if told == "by its caller" else 20 * S
    from_deadline = told.endswith("limit")
    before = running(ON_EVENT_LOOP._replace(from_deadline=from_deadline), deadline_ns=deadline_ns)
    after = running(ON_EVENT_LOOP._replace(waits=False), deadline_ns=deadline_ns) if deadline_ns == FAR_NS else before
    watch = HangWatch()
    for second in range(1, 30):
        entry = before if second < 20 else after
        hung = watch.look(second * S, S, [entry], {ON_EVENT_LOOP.place: second * S})
        assert (hung is entry) == (second >= 23), second


def test_what_waits_for_memory_of_a_request_on_an_event_loop_does_not_hang() -> None:
    """That may take as long as it likes, and is judged for itself."""
    watch, waits = HangWatch(), running(Watched(S, waits=True), request=2)
    for second in range(1, 10):
        assert watch.look(second * S, S, [running(ON_EVENT_LOOP), waits], {ON_EVENT_LOOP.place: second * S}) is None


@given(st.integers(1, 4))
def test_what_a_thread_is_to_do_next_is_not_judged(width: int) -> None:
    """Its time begins when one is free; what has no limit keeps it waiting for as long as it takes."""
    place = Watched(kind=PlaceKind.THREAD, width=width)
    long = [running(place, request=request, started_ns=request) for request in range(width)]
    then = [running(place._replace(limit_ns=2 * S), request=request, started_ns=9) for request in (7, 8)]
    watch = HangWatch()
    assert not any(watch.look(second * S, S, [*long, *then], {}) for second in range(100))
    assert [watch.look(0, S, [*long[1:], *then], {}) for _ in range(3)] == [None, None, then[0]]


def test_without_a_limit_of_its_own_a_request_has_until_its_deadline() -> None:
    """And the pool's limit after it."""
    watch = HangWatch()
    entry = running(Watched(2 * S, from_deadline=True), deadline_ns=10 * S)
    hung = [watch.look(second * S, S, [entry], {}) is entry for second in range(14)]
    assert hung == [False] * 12 + [True] * 2


def test_what_is_not_watched_never_hangs() -> None:
    """Actors may say so."""
    watch = HangWatch()
    assert not any(watch.look(second * S, S, [running(Watched())], {}) for second in range(10_000))


def test_what_waits_for_others_is_judged_only_when_there_are_none() -> None:
    """What it waits for is judged for itself, by its own limit."""
    watch = HangWatch()
    waiting = running(Watched(2 * S, waits=True))
    other = running(Watched(100 * S, kind=PlaceKind.STREAM), request=2)
    assert not any(watch.look(second * S, S, [waiting, other], {}) for second in range(50))
    ended = dict.fromkeys([(PlaceKind.STREAM, 0)], 50 * S)
    assert [watch.look(second * S, S, [waiting], ended) is waiting for second in range(50, 54)] == [
        *(False, False, True, True)
    ]


def test_the_same_id_started_again_is_another_request() -> None:
    """Ids are the clients'."""
    watch, limited = HangWatch(), Watched(2 * S)
    for second in range(20):
        assert watch.look(second * S, S, [running(limited, started_ns=second)], {}) is None


threads = st.dictionaries(
    st.integers(1, 5), st.builds(Thread, st.sampled_from("RSDTt"), st.integers(0, 9), st.integers(0, 9))
)


@given(elapsed_ns=st.integers(0, 10 * S), before=threads, now=threads)
def test_no_more_counts_than_has_passed_and_no_more_than_a_look_at_a_time(
    elapsed_ns: int, before: dict[int, Thread], now: dict[int, Thread]
) -> None:
    """Whatever the kernel tells; a supervisor that was away gives time again."""
    assert 0 <= able_ns(elapsed_ns, before, now) <= min(elapsed_ns, LOOK_NS)


@pytest.mark.parametrize(
    ("before", "now", "able"),
    [
        (Thread("S", 5, 0), Thread("S", 5, 0), S),
        (Thread("R", 0, 0), Thread("R", S, 0), S),
        (Thread("R", 0, 0), Thread("R", S // 4, 3 * S // 4), S // 4),
        (Thread("R", 7, 0), Thread("R", 7, 0), 0),
        (Thread("S", 7, 0), Thread("T", 7, 0), 0),
        (Thread("S", 7, 0), Thread("t", 7, 0), 0),
    ],
    ids=["sleeps", "spins", "has to share", "gets nothing", "is stopped", "is traced"],
)
def test_what_kept_a_worker_from_running_does_not_count(before: Thread, now: Thread, able: int) -> None:
    """A thread that waits for a processor, or is stopped, is not hung."""
    idle = Thread("S", 1, 1)
    assert able_ns(S, {1: before, 2: idle}, {1: now, 2: idle}) == able
    assert able_ns(3600 * S, {1: before}, {1: now}) == able
    assert able_ns(S, {}, {1: now}) == 0, "nobody has looked before"


WORKERS: Final = "/site/atomr_mp_workers"
SERVE: Final = f'  File "{WORKERS}/host.py", line 189 in _serve\n  File "{WORKERS}/host.py", line 90 in run\n'
IDLE: Final = f'  File "{WORKERS}/host.py", line 276 in _sleep\n{SERVE}'
CALL: Final = f'  File "{WORKERS}/requests/request.py", line 91 in call\n'


def stack(*frames: str, current: bool = False) -> str:
    """Return a paragraph, as `faulthandler` writes it."""
    head = "Current thread" if current else "Thread"
    return f"{head} 0x00007f0000000000 (most recent call first):\n{''.join(frames)}\n"


MINE: Final = '  File "/mine.py", line 7 in spin\n'
SUBMIT: Final = f'  File "{WORKERS}/device/cuda_streams.py", line 107 in submit\n'
CUPY: Final = '  File "/site/cupy/__init__.py", line 800 in asnumpy\n'


WORK: Final = f'  File "{WORKERS}/requests/off_loop/tasks.py", line 9 in work\n'
TURN: Final = f'  File "{WORKERS}/requests/off_loop/event_loop.py", line 9 in _serve\n'
SELECT: Final = '  File "/lib/selectors.py", line 468 in select\n'


@pytest.mark.parametrize(
    ("text", "kind", "answers", "where", "function"),
    [
        (stack(MINE, WORK, TURN) + stack(IDLE), PlaceKind.EVENT_LOOP, True, CallSite.PYTHON, "spin"),
        (stack(MINE, TURN) + stack(MINE, CALL) + stack(IDLE), PlaceKind.EVENT_LOOP, True, CallSite.PYTHON, "spin"),
        (stack(CUPY, MINE, WORK, TURN) + stack(IDLE), PlaceKind.EVENT_LOOP, False, CallSite.CUDA, "asnumpy"),
        (stack(SELECT, TURN) + stack(IDLE), PlaceKind.EVENT_LOOP, True, CallSite.PYTHON, None),
        (stack(TURN) + stack(IDLE), PlaceKind.EVENT_LOOP, True, CallSite.PYTHON, None),
        (stack(IDLE) + stack(MINE, CALL, SERVE, current=True), PlaceKind.LOOP, True, CallSite.PYTHON, "spin"),
        (stack(MINE, CALL, SERVE, current=True), PlaceKind.LOOP, False, CallSite.NATIVE, "spin"),
        (stack(CUPY, MINE, CALL, SERVE, current=True), PlaceKind.STREAM, False, CallSite.CUDA, "asnumpy"),
        (stack(MINE, CALL) + stack(IDLE, current=True), PlaceKind.THREAD, True, CallSite.PYTHON, "spin"),
        (stack(MINE, CALL) + stack(CUPY, CALL, SERVE, current=True), PlaceKind.THREAD, True, CallSite.PYTHON, "spin"),
        (stack(MINE, CALL, SUBMIT, SERVE, current=True), PlaceKind.STREAM, True, CallSite.PYTHON, "spin"),
        (stack(IDLE, current=True), PlaceKind.STREAM, True, CallSite.CUDA, None),
        ("", PlaceKind.LOOP, False, CallSite.NATIVE, None),
        ("Thread 0x0 (most recent", PlaceKind.LOOP, False, CallSite.NATIVE, None),
    ],
    ids=[
        "in a task",
        "in a callback",
        "cuda in a task",
        "awaits",
        "awaits in a loop in C",
        "python",
        "native",
        "cuda",
        "thread",
        "two",
        "on a stream",
        "enqueued",
        "nothing",
        "torn",
    ],
)
def test_stacks_tell_where_it_is(
    text: str,
    kind: PlaceKind,
    answers: bool,  # noqa: FBT001
    where: CallSite,
    function: str | None,
) -> None:
    """The thread that runs the method, and what kind of code is innermost."""
    hang = diagnose(text, kind, answers=answers)
    assert (hang.where, hang.at and hang.at.function) == (where, function)
    assert hang.method is None or hang.method.function == "spin" or hang.at is hang.method
    assert function is None or function in hang.stack


@pytest.mark.parametrize(
    ("text", "kind", "answers", "where"),
    [
        (stack(MINE, CALL, SERVE, current=True), PlaceKind.STREAM, False, CallSite.CUDA),
        (stack(MINE, CALL, SERVE, current=True), PlaceKind.STREAM, True, CallSite.PYTHON),
        (stack(MINE, CALL) + stack(IDLE, current=True), PlaceKind.THREAD, True, CallSite.CUDA),
        ("", PlaceKind.STREAM, False, CallSite.CUDA),
    ],
    ids=["in c", "in python", "on a thread", "nothing"],
)
def test_unfinished_work_tells_a_wait_for_the_device_from_other_c_code(
    text: str,
    kind: PlaceKind,
    answers: bool,  # noqa: FBT001
    where: CallSite,
) -> None:
    """What runs Python code hangs there, whatever it has given to the device."""
    assert diagnose(text, kind, answers=answers, unfinished=True).where is where


def test_work_is_unfinished_of_whom_it_concerns() -> None:
    """Of the request's own stream, of actors' threads if it runs on one, and of the default stream."""
    on_stream = Watched(1, kind=PlaceKind.STREAM, number=3).device_bits
    on_thread = Watched(1, kind=PlaceKind.THREAD, number=3).device_bits
    on_loop = Watched(1).device_bits
    assert on_stream & stream_bit(3)
    assert not on_stream & (stream_bit(4) | ACTORS_THREADS)
    assert on_thread & ACTORS_THREADS
    assert not on_thread & stream_bit(3)
    assert on_loop == on_loop & on_stream & on_thread == DEFAULT_STREAM
    board = bytearray(BOARD_BYTES)
    writer, reader = BoardWriter(memoryview(board)), BoardReader(memoryview(board))
    assert not reader.surveyed_ns
    writer.survey(7, stream_bit(3) | DEFAULT_STREAM)
    assert (reader.surveyed_ns, reader.unfinished) == (7, stream_bit(3) | DEFAULT_STREAM)


@given(st.text(), st.sampled_from(PlaceKind), st.booleans())
def test_any_text_tells_something(text: str, kind: PlaceKind, answers: bool) -> None:  # noqa: FBT001
    """It is another process's."""
    assert diagnose(text, kind, answers=answers).where in CallSite
