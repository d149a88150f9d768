"""Whatever value or exception actor code hands over, by any way, its own caller gets an error, and no process ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests.actors.odd_values import VALUES
from tests.support import ACTORS, DEADLINE_S, Ledger, parts_of

ODD: Final = f"{ACTORS}/odd_values.py"
WAYS: Final = (
    *(("give", way) for way in ("return", "raise")),
    *(("give_on_thread", way) for way in ("return", "raise")),
    *(("awaits", way) for way in ("return", "raise")),
    *(("batch", way) for way in ("results", "all", "raise", "raise all", "key")),
    *(("batch_on_loop", way) for way in ("return", "raise")),
    *(("stream", way) for way in ("yield", "raise", "return")),
    *(("async_stream", way) for way in ("yield", "raise")),
    *(("steps", way) for way in ("send", "end", "fail", "raise", "return")),
)
PLAIN_ONLY: Final = frozenset({"awaits", "batch_on_loop", "async_stream"})
STREAMS: Final = frozenset({"stream", "async_stream", "steps"})
ENDS_ALL: Final = frozenset({"raise", "return"})
"""Ways that end all streams of a step: it is none of theirs alone that has failed."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool, whose workers have to live through all of it."""
    worlds = {"w": {"devices": [0, 1], "actors": ["Worldly"]}}
    with Ledger() as ledger, ledger.start(f"{ODD}:Plain", f"{ODD}:Worldly", gpus=2, worlds=worlds) as started:
        started.world("w").wait_ready(DEADLINE_S)
        yield started


@pytest.mark.parametrize(("method", "way"), WAYS)
@pytest.mark.parametrize("actor", ["Plain", "Worldly"])
def test_any_value_is_its_own_caller_s_affair(pool: atomr_mp.Pool, actor: str, method: str, way: str) -> None:
    """Each value in turn: a result, or a typed error of that caller alone; other streams and calls go on."""
    if actor == "Worldly" and method in PLAIN_ONLY:
        pytest.skip("no method of a world's actor is of this kind")
    target: Any = pool if actor == "Plain" else pool.world("w")
    pids = [device.pid for device in pool.devices]
    other = _other(target, actor) if method == "steps" and way not in ENDS_ALL else None
    for name in VALUES:
        error = _error_of(target, f"{actor}.{method}", name, way)
        assert error is None or isinstance(error, errors.RequestError), name
        assert not isinstance(error, _NOT_ITS_OWN), (name, error)
        assert target.call(f"{actor}.pid", **_place(actor)).result(DEADLINE_S) == pids[0]
        if other is not None:
            assert [next(other) for _ in range(30)] == [1] * 30, name
    if other is not None:
        other.close()
    assert [device.pid for device in pool.devices] == pids
    assert actor == "Plain" or target.epoch == 1


def test_keys_that_cannot_be_compared_have_batches_of_their_own(pool: atomr_mp.Pool) -> None:
    """Calls whose keys wait together, and fail when they are compared, or hashed again, are all answered."""
    replies = [pool.call("Plain.batch", name, "key", device=0) for name in ("an unequal", "hashed once") * 20]
    for reply in replies:
        with pytest.raises(errors.ActorFailed):  # what these batches return cannot be sent
            reply.result(DEADLINE_S)


_NOT_ITS_OWN: Final = (
    errors.WorkerLost | errors.CollectiveAborted | errors.InternalError | errors.DeadlineExceeded | errors.PoolLost
)


def _other(target: Any, actor: str) -> Any:
    stream: Any = target.stream(f"{actor}.steps", ["", "other"], ahead=8, **_place(actor))
    assert next(stream) == 1
    return stream


def _error_of(target: Any, method: str, name: str, way: str) -> BaseException | None:
    actor, _, plain_name = method.partition(".")
    limits = {"deadline_s": DEADLINE_S, **_place(actor)}
    if plain_name in STREAMS:
        arguments: tuple[Any, ...] = ([name, way],) if plain_name == "steps" else (name, way)
        return parts_of(target.stream(method, *arguments, **limits))[1]
    error: BaseException | None = target.call(method, name, way, **limits).exception(DEADLINE_S)
    return error


def _place(actor: str) -> dict[str, int]:
    return {"device": 0} if actor == "Plain" else {}
