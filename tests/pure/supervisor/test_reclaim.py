from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.supervision.reclaim import Due, Reclaims, Worker

WORKERS = st.tuples(st.integers(0, 1), st.integers(1, 2))
NUMBERS = st.integers(1, 3)
A, B, C = (0, 1), (1, 1), (0, 2)
"""Workers by device and generation: the third stands by for the first."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ended"), NUMBERS, st.frozensets(WORKERS), st.booleans()),
        st.tuples(st.just("acknowledged"), NUMBERS, WORKERS),
        st.tuples(st.just("worker ended"), WORKERS),
        st.tuples(st.just("client gone"), NUMBERS),
    ),
    max_size=40,
)


def test_memory_is_given_back_after_the_last_worker_and_the_client() -> None:
    """Whichever comes last."""
    reclaims = Reclaims()
    assert reclaims.ended(7, [A, B], gone=False) == []
    assert reclaims.acknowledged(7, A) == []
    assert reclaims.client_gone(7) == []
    assert reclaims.acknowledged(7, B) == [Due(7, [A, B])]
    assert reclaims.ended(8, [A], gone=False) == []
    assert reclaims.acknowledged(8, A) == []
    assert reclaims.client_gone(8) == [Due(8, [A])]
    assert len(reclaims) == 0


def test_a_client_that_says_bye_is_not_waited_for() -> None:
    """Only its workers are."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [A], gone=True) == []
    assert reclaims.acknowledged(1, A) == [Due(1, [A])]


def test_a_standby_is_waited_for_like_its_worker() -> None:
    """It is of the same device, and another process."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [A, C], gone=True) == []
    assert reclaims.acknowledged(1, A) == []
    assert reclaims.acknowledged(1, C) == [Due(1, [A, C])]


def test_a_worker_that_ends_is_not_waited_for_and_not_told() -> None:
    """Its memory went with it; what other workers have stays theirs to give back."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [A, B], gone=True) == []
    assert reclaims.acknowledged(1, B) == []
    assert reclaims.worker_ended(A) == [Due(1, [B])]


def test_nothing_is_waited_for_where_no_worker_lives() -> None:
    """Not even the client: the memory has gone."""
    reclaims = Reclaims()
    assert reclaims.ended(1, [], gone=False) == [Due(1, [])]
    assert reclaims.ended(2, [A], gone=False) == []
    assert reclaims.ended(3, [A], gone=False) == []
    assert reclaims.worker_ended(A) == [Due(2, []), Due(3, [])]


def test_words_of_other_sessions_are_passed_over() -> None:
    """They may cross the session's end."""
    reclaims = Reclaims()
    assert reclaims.acknowledged(1, A) == []
    assert reclaims.client_gone(1) == []
    assert reclaims.worker_ended(A) == []


@given(STEPS)
def test_in_any_order_each_session_is_due_once_and_never_too_early(steps: list[tuple[object, ...]]) -> None:
    """Compared with what was said so far, as plainly as it can be written down."""
    reclaims = Reclaims()
    told: dict[int, set[Worker]] = {}
    working: dict[int, set[Worker]] = {}
    gone: dict[int, bool] = {}
    for step in steps:
        match step:
            case ("ended", int(number), frozenset(workers), bool(is_gone)):
                if number in told:  # a session ends once
                    continue
                told[number], working[number], gone[number] = set(workers), set(workers), is_gone
                due = reclaims.ended(number, workers, gone=is_gone)
            case ("acknowledged", int(number), (int(device), int(generation))):
                working.get(number, set()).discard((device, generation))
                due = reclaims.acknowledged(number, (device, generation))
            case ("worker ended", (int(device), int(generation))):
                for each in (*told.values(), *working.values()):
                    each.discard((device, generation))
                due = reclaims.worker_ended((device, generation))
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
