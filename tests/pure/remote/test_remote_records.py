"""What the supervisor knows of remote calls: whatever the order of ends, nothing that has started is called new."""

from __future__ import annotations

from hypothesis import given, strategies

from atomr_mp.supervision import remote_records
from atomr_mp.supervision.remote_records import RemoteRecord

WORKERS = [(0, 1), (1, 1), (0, 2)]


@given(
    strategies.lists(
        strategies.one_of(
            strategies.tuples(strategies.just("discarded"), strategies.sampled_from(WORKERS)),
            strategies.tuples(strategies.just("closed"), strategies.sampled_from(WORKERS)),
            strategies.tuples(strategies.just("worker_ended"), strategies.sampled_from(WORKERS)),
        )
    )
)
def test_all_workers_have_spoken_before_anything_is_known(events: list[tuple[str, tuple[int, int]]]) -> None:
    """By word or by their end; what is quiet is known."""
    record = RemoteRecord()
    record.local = 7
    record.ended(7, WORKERS)
    discarded, closed = set(), set()
    for kind, worker in events:
        if kind == "worker_ended":
            record.worker_ended(worker)
        elif kind == "closed":
            record.closed(7, worker)
        else:
            record.discarded(7, worker)
        discarded.add(worker)
        if kind != "discarded":
            closed.add(worker)
        assert record.is_known is (discarded == set(WORKERS))
        assert record.is_quiet is (closed == set(WORKERS))
        assert record.is_known or not record.is_quiet


@given(strategies.lists(strategies.tuples(strategies.sets(strategies.integers(1, 50)), strategies.integers(0, 10))))
def test_what_has_started_is_listed_or_before_the_horizon(boards: list[tuple[set[int], int]]) -> None:
    """Over any number of workers and gateways."""
    record = RemoteRecord()
    for started, horizon in boards:
        record.add(started, horizon, 100)
    every = set().union(*(started for started, _ in boards))
    fates = record.fates(range(1, 30))
    assert set(fates.started) == every & set(range(1, 30))
    assert fates.known_since_ns == max((horizon for _, horizon in boards), default=0)
    assert set(record.fates(range(1, 10)).started) == every & set(range(1, 10))


def test_what_is_kept_is_bounded() -> None:
    """What is forgotten may have started, for all that is known."""
    record = RemoteRecord()
    record.add(range(remote_records.MOST_STARTED + 1), 5, 99)
    assert record.fates(range(10)) == ([], 99)
