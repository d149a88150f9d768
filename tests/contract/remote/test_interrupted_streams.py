"""Ctrl-C wherever it may strike in the reader of a stream: no connection, epoch or part is lost by it, near or far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import atomr_mp
from tests import remote as served
from tests.interrupted import Interrupted
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, client_of, settled
from tests.worlds import on_host

UPTO: Final = 2

pytestmark = on_host


@pytest.fixture(scope="module")
def serving() -> Iterator[served.Served]:
    """A pool with a world, behind a relay."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Streaming"]}}
    with Ledger() as ledger:
        streaming = f"{ACTORS}/streaming_worldly.py:Streaming", f"{ACTORS}/streaming.py:Streamer"
        found = served.serve(ledger, *streaming, PROBE, gpus=2, worlds=worlds)
        with found.pool:
            found.pool.world("tp").wait_ready(DEADLINE_S)
            yield found


@pytest.fixture(params=["near", "far"])
def pool(serving: served.Served, request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
    """A client on this machine, or one behind the relay, with no history."""
    with client_of(serving.pool) if request.param == "near" else serving.client() as own:
        yield own


def _read(pool: atomr_mp.Pool) -> None:
    assert list(pool.world("tp").stream("Streaming.count", "a", UPTO, ahead=1)) == [3 * each for each in range(UPTO)]


def _leave(pool: atomr_mp.Pool) -> None:
    with pool.world("tp").stream("Streaming.count", "b", 100, ahead=1) as stream:
        assert next(stream) == 0


def _late(pool: atomr_mp.Pool) -> None:
    with pytest.raises(atomr_mp.errors.DeadlineExceeded):
        pool.world("tp").stream("Streaming.count", "c", 1000, ahead=1, deadline_s=0.002).result(DEADLINE_S)


def _read_plain(pool: atomr_mp.Pool) -> None:
    assert list(pool.stream("Streamer.count", UPTO, ahead=1)) == list(range(UPTO))


@pytest.mark.parametrize("use", [_read, _leave, _late, _read_plain], ids=lambda use: use.__name__.strip("_"))
def test_what_is_interrupted_leaves_the_world_whole(
    serving: served.Served, pool: atomr_mp.Pool, use: Callable[[atomr_mp.Pool], None]
) -> None:
    """Before each line in turn: the world's epoch goes on, and another stream has all of its parts."""
    use(pool)  # what is made but once
    epoch, line = serving.pool.world("tp").epoch, 1
    while Interrupted(line).by(lambda: use(pool)):
        if not line % 8:
            _read(pool)
        line += 1
    assert line > 100, "hardly anything was interrupted"
    _read(pool)
    assert serving.pool.world("tp").epoch == epoch


def test_a_stream_that_is_interrupted_is_read_on(serving: served.Served, pool: atomr_mp.Pool) -> None:
    """Each interrupt while a part is taken: the stream's credit is not lost, so it comes to its end."""
    line, interrupted = 1, True
    while interrupted:
        stream: Any = pool.world("tp").stream("Streaming.numbers", 4, ahead=1)
        interrupted = Interrupted(line).by(lambda: next(stream))  # noqa: B023 - called at once
        parts = list(stream)
        assert parts[-1] == 9, (line, parts)
        assert len(parts) >= 3, (line, parts)
        line += 1
    assert line > 50, "hardly anything was interrupted"
    assert settled(lambda: all(worker.queue_depth == 0 for worker in serving.pool.status().devices))
