"""Whatever happens at the same moment, closing a part of a client ends it, and ends at all."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from atomr_mp.client.hand_over import HandOver
from atomr_mp.client.lanes import event_loop
from atomr_mp.client.lanes.event_loop import EventLoopLane
from tests.support import DEADLINE_S


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_is_closed_while_it_is_being_started(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """The first use of a pool may come as another thread closes the pool, or when no thread can be started."""
    hand_over = HandOver[int]("handed over", lambda _: None)
    raised: list[BaseException] = []
    starts, made = threading.Thread.start, list[threading.Thread]()

    def close() -> None:
        try:
            hand_over.close()
        except BaseException as error:  # noqa: BLE001 - shown below
            raised.append(error)

    closing = threading.Thread(target=close)

    def start(thread: threading.Thread) -> None:
        made.append(thread)
        starts(closing)
        if not hand_over._deciding.locked():
            closing.join(DEADLINE_S)  # it need not wait for this thread: let it see what is half done
        if fails:
            raise RuntimeError("can't start new thread")
        starts(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    if fails:
        with pytest.raises(RuntimeError, match="can't start"):
            hand_over.start()
    else:
        hand_over.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert not raised
    hand_over.start()
    (thread,) = made
    assert not thread.is_alive()


def test_closing_does_not_wait_for_a_loop_that_has_just_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has taken the order to close its connections, and ends without having done it."""
    closed: list[threading.Thread] = []

    class Lane(EventLoopLane):
        def __init__(self, loop: Any) -> None:
            self._loop = loop

        def _close(self) -> None:
            closed.append(threading.current_thread())

    class Loop:
        def __init__(self) -> None:
            self.orders: list[object] = []

        def is_running(self) -> bool:
            return len(self.orders) < 2

        def call_soon_threadsafe(self, *order: object) -> None:
            self.orders.append(order)

    monkeypatch.setattr(event_loop, "CLOSE_S", 100 * DEADLINE_S)
    lane = Lane(cast("asyncio.AbstractEventLoop", Loop()))
    closing = threading.Thread(target=lane.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert closed == [closing]
