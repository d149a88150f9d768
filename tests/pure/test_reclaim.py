from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.supervision.reclaim import Due, Reclaims

DEVICES = st.integers(0, 3)
NUMBERS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ended"), NUMBERS, st.frozensets(DEVICES), st.booleans()),
        st.tuples(st.just("acknowledged"), NUMBERS, DEVICES),
        st.tuples(st.just("device ended"), DEVICES),
        st.tuples(st.just("client gone"), NUMBERS),
    ),
    max_size=40,
)


def test_memory_is_given_back_after_the_last_worker_and_the_client() -> None:
    """Whichever comes last."""
    reclaims = Reclaims()
    assert reclaims.ended(7, [0, 1], gone=False) == []
    assert reclaims.acknowledged(7, 0) == []
    assert reclaims.client_gone(7) == []
    assert reclaims.acknowledged(7, 1) == [Due(7, [0, 1])]
    assert reclaims.ended(8, [0], gone=False) == []
    assert reclaims.acknowledged(8, 0) == []
    assert reclaims.client_gone(8) == [Due(8, [0])]
    assert len(reclaims) == 0


def test_a_client_that_says_bye_is_not_waited_for() -> None:
    """Only its workers are."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [2], gone=True) == []
    assert reclaims.acknowledged(1, 2) == [Due(1, [2])]


def test_a_worker_that_ends_is_not_waited_for_and_not_told() -> None:
    """Its memory went with it; what other workers have stays theirs to give back."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [0, 1], gone=True) == []
    assert reclaims.acknowledged(1, 1) == []
    assert reclaims.device_ended(0) == [Due(1, [1])]


def test_nothing_is_waited_for_where_no_worker_lives() -> None:
    """Not even the client: there is no memory any more."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [], gone=False) == [Due(1, [])]
    assert reclaims.ended(2, [0], gone=False) == []
    assert reclaims.ended(3, [0], gone=False) == []
    assert reclaims.device_ended(0) == [Due(2, []), Due(3, [])]


def test_words_of_other_sessions_are_passed_over() -> None:
    """They may cross the session's end."""
    reclaims = Reclaims()
    assert reclaims.acknowledged(1, 0) == []
    assert reclaims.client_gone(1) == []
    assert reclaims.device_ended(0) == []


@given(STEPS)
def test_in_any_order_each_session_is_due_once_and_never_too_early(steps: list[tuple[object, ...]]) -> None:
    """Compared with what was said so far, as plainly as it can be written down."""
    reclaims = Reclaims()
    told: dict[int, set[int]] = {}
    working: dict[int, set[int]] = {}
    gone: dict[int, bool] = {}
    for step in steps:
        match step:
            case ("ended", int(number), frozenset(devices), bool(is_gone)):
                if number in told:  # a session ends once
                    continue
                told[number], working[number], gone[number] = set(devices), set(devices), is_gone
                due = reclaims.ended(number, devices, gone=is_gone)
            case ("acknowledged", int(number), int(device)):
                working.get(number, set()).discard(device)
                due = reclaims.acknowledged(number, device)
            case ("device ended", int(device)):
                for each in (*told.values(), *working.values()):
                    each.discard(device)
                due = reclaims.device_ended(device)
            case ("client gone", int(number)):
                if number in gone:
                    gone[number] = True
                due = reclaims.client_gone(number)
            case _:
                raise AssertionError(step)
        expected = [number for number in told if not working[number] and (gone[number] or not told[number])]
        assert sorted(due) == sorted(Due(number, sorted(told[number])) for number in expected)
        for number in expected:
            del told[number], working[number], gone[number]
        assert len(reclaims) == len(told)
