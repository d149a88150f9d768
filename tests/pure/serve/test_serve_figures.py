from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.serve import figures
from atomr_mp.serve.figures import PoolFigures
from tests.support import DEADLINE_S


class FakePool:
    """A pool whose supervisor answers when it may."""

    def __init__(self) -> None:
        self.lost: errors.PoolLost | None = None
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    def figures(self) -> Any:
        """Return what a test can tell apart."""
        self.asked += 1
        assert self.may_answer.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return f"status {self.asked}"


class FakeSource:
    """Has a pool, or none."""

    def __init__(self) -> None:
        self.found: FakePool | None = FakePool()
        self.listeners: list[Any] = []

    @property
    def pool(self) -> Any:
        """The pool."""
        if self.found is None:
            raise errors.PoolUnreachable("there is none")
        return self.found

    def begin(self) -> None:
        """Do nothing."""


def _figures_of(source: FakeSource) -> Any:
    """Return what is tested; statuses are words here."""
    return PoolFigures(source)


async def at_once(asked: PoolFigures) -> Any:
    """Return the figures that need no waiting."""
    coming = asyncio.ensure_future(asked.status())
    await asyncio.sleep(0)
    assert coming.done()
    return coming.result()


def test_the_supervisor_is_asked_once_for_all_who_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time, and for a while after it; then again."""
    monkeypatch.setattr(figures, "ASK_S", DEADLINE_S)
    monkeypatch.setattr(figures, "FRESH_S", DEADLINE_S)

    async def scrape() -> None:
        source = FakeSource()
        pool, asked = source.pool, _figures_of(source)
        assert set(await asyncio.gather(*(asked.status() for _ in range(50)))) == {"status 1"}
        assert await at_once(asked) == "status 1"
        assert pool.asked == 1
        monkeypatch.setattr(figures, "FRESH_S", 0.0)
        assert await asked.status() == "status 2"
        pool.error = errors.PoolLost("gone")
        assert await asked.status() is None
        source.found = None
        assert await at_once(asked) is None
        source.found = FakePool()
        source.found.lost = errors.PoolLost("gone")
        assert await at_once(asked) is None
        assert source.found.asked == 0

    asyncio.run(scrape())


def test_nobody_waits_for_a_supervisor_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first, and for so long only; it is asked once meanwhile, and another pool at once."""
    monkeypatch.setattr(figures, "ASK_S", 0.05)

    async def scrape() -> None:
        source = FakeSource()
        pool, asked = source.pool, _figures_of(source)
        pool.may_answer.clear()
        assert await asked.status() is None
        monkeypatch.setattr(figures, "ASK_S", 0.0)
        for _ in range(50):
            assert await at_once(asked) is None
        assert pool.asked == 1
        monkeypatch.setattr(figures, "ASK_S", DEADLINE_S)
        source.found = FakePool()
        assert await asked.status() == "status 1"
        source.found = pool
        pool.may_answer.set()
        assert await asked.status() == "status 2"

    asyncio.run(scrape())


def test_what_is_told_never_goes_back_between_front_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though their questions overlap, answers are never older than those that came before the question."""
    monkeypatch.setattr(figures, "ASK_S", DEADLINE_S)
    monkeypatch.setattr(figures, "AGAIN_S", 0.0)

    class Counting(FakePool):
        """A pool whose answers are numbers; one may be on its way for a while."""

        def figures(self) -> Any:
            """Return how often it was asked."""
            self.asked += 1
            found = self.asked
            threading.Event().wait(random.random() / 500)
            return found

    async def scrape() -> None:
        source, told = FakeSource(), [0]
        source.found = Counting()
        several = [_figures_of(source) for _ in range(3)]

        async def ask(number: int) -> None:
            for _ in range(20):
                await asyncio.sleep(random.random() / 300)
                before = max(told)
                found = await several[number % 3].present()
                assert found >= before
                told.append(found)

        await asyncio.gather(*map(ask, range(6)))
        assert source.pool.asked <= 6 * 20

    asyncio.run(scrape())


def test_the_present_state_is_told_while_a_supervisor_hangs_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question waits no longer than for the first answer, and another pool is asked at once."""
    monkeypatch.setattr(figures, "ASK_S", 0.05)
    monkeypatch.setattr(figures, "AGAIN_S", 0.0)

    async def scrape() -> None:
        source = FakeSource()
        pool, asked = source.pool, _figures_of(source)
        pool.may_answer.clear()
        assert await asked.present() is None
        assert await asked.present() is None
        assert pool.asked == 1
        monkeypatch.setattr(figures, "ASK_S", DEADLINE_S)
        source.found = FakePool()
        assert await asked.present() == "status 1"
        assert await asked.present() == "status 2"
        pool.may_answer.set()

    asyncio.run(scrape())
