"""What a process puts off: it is done in order, not while the driver is left alone, and soon if somebody waits."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from atomr_mp_workers.device.background import Background
from tests.support import DEADLINE_S


class Held:
    """Something that can be dropped."""


def test_what_is_submitted_is_done_in_order_on_another_thread() -> None:
    """Also work submitted before the start, and by finalisers."""
    background, done = Background(), list[tuple[str, str]]()
    background.submit(lambda: done.append(("first", threading.current_thread().name)))
    held = Held()
    weakref.finalize(held, background.submit, lambda: done.append(("finaliser", threading.current_thread().name)))
    del held
    gc.collect()
    assert done == []
    background.start()
    background.start()
    background.submit(lambda: done.append(("last", threading.current_thread().name)))
    background.finish()
    assert done == [("first", "background"), ("finaliser", "background"), ("last", "background")]


def test_while_it_rests_it_begins_nothing_unless_somebody_has_to_have_it_done() -> None:
    """An allocation that found no memory, for one."""
    background, done = Background(), threading.Event()
    background.start()
    background.rest(60)
    background.submit(done.set)
    assert not done.wait(0.05)  # a time, since nothing tells that nothing happens
    background.finish()
    assert done.is_set()


def test_it_goes_on_when_it_has_rested() -> None:
    """By itself."""
    background, done = Background(), threading.Event()
    background.start()
    background.rest(0.01)
    background.submit(done.set)
    assert done.wait(DEADLINE_S)


def test_what_fails_is_logged_and_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The next is done, and what was done is dropped."""
    background, held = Background(), [Held()]
    gone = weakref.ref(held[0])

    def fail() -> None:
        raise RuntimeError("the context is lost")

    background.start()
    background.submit(fail)
    background.submit(held.clear)
    background.finish()
    assert gone() is None
    assert "the context is lost" in caplog.text
