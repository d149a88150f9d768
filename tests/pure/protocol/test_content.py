"""What is undefined in a block, against a model that has each byte."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.memory.content import (
    Content,
    Culprit,
    WrittenPart,
    after_absence,
    after_failure,
    after_hearing,
    after_write,
    blame,
    covers,
)

SIZE = 24

lengths = st.integers(0, 4)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Return layouts of bytes in a block."""
    rows, columns = draw(lengths), draw(lengths)
    strides = draw(st.sampled_from([(columns, 1), (1, rows), (columns + 1, 1), (4, 2), (-columns, 1), (6, -1)]))
    low = Layout("uint8", (rows, columns), strides, 0).span[0]
    return Layout("uint8", (rows, columns), strides, -low)


def elements(layout: Layout) -> set[int]:
    """Return the bytes of an array."""
    (rows, columns), (down, right) = layout.shape, layout.strides
    return {layout.offset + row * down + column * right for row in range(rows) for column in range(columns)}


parts = st.builds(WrittenPart, layouts(), st.sampled_from(["", "", "", "L", None]))
steps = st.lists(st.tuples(st.sampled_from(["failure", "write", "absence"]), parts), max_size=12)


def culprit(order: int) -> Culprit:
    """Return who is to blame."""
    return Culprit("Actor.method", order, "actor_failed", "on purpose", order)


@given(steps, layouts())
def test_no_reader_sees_a_byte_that_a_failed_writer_left(taken: list[tuple[str, WrittenPart]], read: Layout) -> None:
    """Unless it was written since, or the same was written again; and what was never touched is not refused."""
    content: Content | None = None
    undefined: dict[int, set[WrittenPart]] = {}
    touched: set[int] = set()
    for order, (kind, part) in enumerate(taken):
        written = elements(part.layout)
        if kind == "failure":
            content = after_failure(content, part, culprit(order))
            for byte in written:
                undefined.setdefault(byte, set()).add(part)
            touched |= set(range(*part.layout.span))
        elif kind == "absence":
            content = after_absence(content, part, culprit(order))
            touched |= set(range(*part.layout.span))
        elif content is not None:
            content = after_write(content, part, order)
            if part.triangle == "":
                for byte in written:
                    undefined.pop(byte, None)
            if part.triangle is not None:
                undefined = {byte: left for byte, of in undefined.items() if (left := of - {part})}
    found = None if content is None else blame(content, read, len(taken), len(taken))
    if found is None:
        assert not elements(read) & undefined.keys()
    else:
        assert set(range(*read.span)) & touched
        assert found.order < len(taken)


@given(parts, parts)
def test_a_failure_never_makes_the_hull_smaller(first: WrittenPart, second: WrittenPart) -> None:
    """The first request to fail stays to blame."""
    before = after_failure(None, first, culprit(1)).hull
    after = after_failure(after_failure(None, first, culprit(1)), second, culprit(2)).hull
    if before is None:
        return
    assert after is not None
    assert after.low <= before.low <= before.high <= after.high
    assert after.culprit == culprit(1)


@given(parts, st.integers(0, SIZE), st.integers(0, SIZE))
def test_what_covers_has_every_byte(part: WrittenPart, low: int, high: int) -> None:
    """The model has each byte."""
    if low < high and covers(part, low, high):
        assert set(range(low, high)) <= elements(part.layout)


@given(layouts(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_what_never_started_is_missed_by_who_was_queued_behind(
    layout: Layout, order: int, received_ns: int, until_ns: int
) -> None:
    """Only requests that were received after it, and before its answer, miss it."""
    content = after_hearing(after_absence(None, WrittenPart(layout), culprit(2)), 2, until_ns)
    assert content is not None
    found = blame(content, layout, order, received_ns)
    behind = order > 2 and received_ns <= until_ns
    low, high = layout.span
    assert (found is not None) == (behind and low < high)


@given(st.lists(st.tuples(st.integers(0, 9), layouts()), max_size=8), layouts(), st.integers(0, 9), st.integers(0, 9))
def test_nobody_misses_what_was_told_before_it_came(
    absent: list[tuple[int, Layout]], read: Layout, order: int, received_ns: int
) -> None:
    """Each write that did not start has readers of its own: others are not refused for two of them together."""
    content: Content | None = None
    for place, (heard_ns, layout) in enumerate(absent):
        content = after_absence(content, WrittenPart(layout), culprit(place))
        content = after_hearing(content, place, heard_ns)
    low, high = read.span
    missed = [
        place
        for place, (heard_ns, layout) in enumerate(absent)
        if place < order and received_ns <= heard_ns and max(low, layout.span[0]) < min(high, layout.span[1])
    ]
    found = None if content is None else blame(content, read, order, received_ns)
    assert (None if found is None else found.order) == (missed[0] if missed else None)


@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_what_was_heard_of_all_is_missed_by_nobody_new(count: int, random: Random) -> None:
    """However many did not start, and in whatever order that is found and heard: some are remembered together."""
    layout = Layout.contiguous("uint8", (8,), 0)
    steps = [(place, heard) for place in range(count) for heard in (False, True)]
    random.shuffle(steps)
    content: Content | None = None
    found: set[int] = set()
    for place, _ in steps:
        if place in found:
            content = after_hearing(content, place, 5)
        else:
            content = after_absence(content, WrittenPart(layout), culprit(place))
            found.add(place)
    assert content is None or blame(content, layout, 10**6, 6) is None


@given(st.lists(st.tuples(st.booleans(), layouts()), max_size=6), st.randoms(use_true_random=False))
def test_what_a_later_writer_did_not_start_is_not_made_good_by_an_earlier_one(
    taken: list[tuple[bool, Layout]], random: Random
) -> None:
    """Requests settle in another order than they came: one is late while an earlier one still runs."""
    settled = list(enumerate(taken))
    random.shuffle(settled)
    content: Content | None = None
    for order, (starts, layout) in settled:
        if not starts:
            content = after_absence(content, WrittenPart(layout), culprit(order))
        elif content is not None:
            content = after_write(content, WrittenPart(layout), order)
    for order, (starts, layout) in enumerate(taken):
        good = {byte for later, layout in taken[order + 1 :] if later for byte in elements(layout)}
        for byte in set() if starts else elements(layout) - good:
            found = None if content is None else blame(content, Layout("uint8", (1, 1), (1, 1), byte), len(taken), 0)
            assert found is not None


@given(layouts(), st.integers(0, 5))
def test_a_failure_does_not_concern_who_came_before(layout: Layout, order: int) -> None:
    """They have read what was there."""
    content = after_failure(None, WrittenPart(layout), culprit(3))
    low, high = layout.span
    assert (blame(content, layout, order, 0) is not None) == (order > 3 and low < high)
