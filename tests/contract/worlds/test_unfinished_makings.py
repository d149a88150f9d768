"""A world whose making is interrupted, late, or overtaken by its end is closed: no handle of it is left."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests import made_worlds
from tests.interrupted import Interrupted
from tests.support import DEADLINE_S, local_client, settled

books, pool = made_worlds.books, made_worlds.pool


def _is_clean(pool: atomr_mp.Pool) -> None:
    gc.collect()  # the tracebacks of interrupts
    assert settled(lambda: not pool.status().worlds), pool.status().worlds
    with pool.world([0, 1]) as world:
        world.barrier().result(DEADLINE_S)


@pytest.mark.parametrize("ends", [KeyboardInterrupt, None])
@pytest.mark.parametrize("has_come", [True, False])
def test_a_world_without_a_handle_is_closed(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException] | None, *, has_come: bool
) -> None:
    """Interrupted or late, before the answer comes or after that; as often as a client likes."""
    session: Any = local_client(pool)._session
    wait_until = session.wait_until

    def left(condition: Any, timeout_s: float) -> bool:
        monkeypatch.setattr(session, "wait_until", wait_until)
        if has_come:
            assert wait_until(condition, timeout_s)
        if ends is not None:
            raise ends
        return False

    for _ in range(20):
        monkeypatch.setattr(session, "wait_until", left)
        with pytest.raises(ends or errors.DeadlineExceeded):
            pool.world([0, 1])
    _is_clean(pool)


def test_an_interrupt_at_any_line_leaves_no_world(pool: atomr_mp.Pool) -> None:
    """Before each line of its making, its use and its end."""

    def use() -> None:
        with contextlib.closing(pool.world([0, 1])):
            pass

    use()
    line = 1
    while Interrupted(line).by(use):
        line += 5
    assert line > 100, "hardly anything was interrupted"
    _is_clean(pool)


def test_a_world_that_ends_before_its_maker_looks_is_unavailable(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end and its making are read together: the error has a type."""
    session: Any = local_client(pool)._session
    wait_until = session.wait_until

    def both(condition: Any, timeout_s: float) -> bool:
        monkeypatch.setattr(session, "wait_until", wait_until)
        assert wait_until(condition, timeout_s)
        for number in [number for number, each in session.worlds.by_number.items() if each.made]:
            del session.worlds.by_number[number]
        return True

    monkeypatch.setattr(session, "wait_until", both)
    with pytest.raises(errors.DeviceUnavailable, match="has ended"):
        pool.world([0, 1])


def test_a_closed_world_is_not_ready(pool: atomr_mp.Pool) -> None:
    """Whether or not the supervisor has said so yet."""
    for _ in range(5):
        world = pool.world([0, 1])
        world.close()
        assert world.state in {"ending", "ended"}
        with pytest.raises(errors.DeviceUnavailable, match="closed"):
            world.wait_ready(DEADLINE_S)
