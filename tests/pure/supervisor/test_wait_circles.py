"""Parts that wait for each other over several devices: found if there are some, and one of each circle is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages.control import BlockedPart, NamedPart
from atomr_mp.supervision.wait_circles import WaitCircles

PARTS = [NamedPart(world, session, gang) for world, session in ((1, 4), (2, 5)) for gang in range(4)]


def has_circle(waits: dict[tuple[int, int], list[tuple[NamedPart, NamedPart]]]) -> bool:
    """Whether following what waits for what leads back to where it began, for one of all parts."""
    reached = {part: {part} for part in PARTS}
    for _ in PARTS:
        for waiting, before in (pair for pairs in waits.values() for pair in pairs):
            reached[waiting] = reached[waiting] | {each for each in reached[before] if each != waiting}
    return any(waiting in reached[before] for pairs in waits.values() for waiting, before in pairs)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(PARTS)), max_size=5)),
        max_size=12,
    )
)
def test_whatever_processes_say_no_circle_is_left_and_no_more_is_refused_than_has_to_be(
    said: list[tuple[int, list[tuple[NamedPart, NamedPart]]]],
) -> None:
    """A refused part waits on the process that has to refuse it, and no longer counts."""
    circles, model = WaitCircles(), dict[tuple[int, int], list[tuple[NamedPart, NamedPart]]]()
    for device, pairs in said:
        worker = device, 7
        model[worker] = list(pairs)
        refused = circles.heard(worker, [BlockedPart(*pair) for pair in pairs])
        assert bool(refused) == has_circle(model)
        for where, part in refused:
            assert any(waiting == part for waiting, _ in model[where])
        gone = {part for _, part in refused}
        model = {each: [pair for pair in waits if pair[0] not in gone] for each, waits in model.items()}
        assert not has_circle(model)


def test_the_calls_of_a_circle_are_refused_in_turn() -> None:
    """No client is always the one that has to come again."""
    one, other = NamedPart(1, 4, 9), NamedPart(2, 5, 3)
    circles, refused = WaitCircles(), []
    for _ in range(4):
        assert circles.heard((1, 1), []) == circles.heard((0, 1), [BlockedPart(one, other)]) == []
        refused += circles.heard((1, 1), [BlockedPart(other, one)])
    assert [part for _, part in refused] == [one, other, one, other]


def test_what_a_process_has_said_ends_with_it() -> None:
    """Its successor waits for nothing yet."""
    one, other = NamedPart(1, 4, 9), NamedPart(2, 5, 3)
    circles = WaitCircles()
    assert circles.heard((0, 1), [BlockedPart(one, other)]) == []
    circles.ended((0, 1))
    assert circles.heard((1, 1), [BlockedPart(other, one)]) == []
    assert circles.heard((0, 2), []) == []
