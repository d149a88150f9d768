from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, WorldInfo, WorldState
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded
from atomr_mp.serve.figures import PoolFigures
from atomr_mp.serve.health import HealthVerdict, PoolHealth

ENDED: Final = IncarnationEnded(
    0, 1, planned=False, error=ErrorInfo.of(errors.WorkerLost("gone")), started=[], known_since_ns=0
)


def info(index: int = 0, *, admitted: bool = True) -> DeviceInfo:
    """Return a device."""
    state = DeviceState.READY if admitted else DeviceState.REBUILDING
    return DeviceInfo(index, f"host:{index}", state, 1, "", admitted, 7, 0, "")


class FakePool:
    """A pool whose devices answer as the test wants."""

    def __init__(self, answer: Exception | None = None, *, running: int = 0, count: int = 1) -> None:
        self.devices = [info(index) for index in range(count)]
        self.worlds: list[Any] = []
        self.methods = ["Probe.echo"]
        self.lost: errors.PoolLost | None = None
        self.answer = answer
        self.asked = 0
        self.listeners: list[Callable[[Any], object]] = []
        self._running = running
        self.still: set[int] = set()

    def on_event(self, listener: Callable[[Any], object]) -> None:
        """Keep a listener."""
        self.listeners.append(listener)

    def device(self, _index: int) -> FakePool:
        """Return something that can be asked."""
        return self

    def request(self, _library: str, _request: object, _deadline_s: float) -> Coroutine[Any, Any, None]:
        """Answer, or not."""
        self.asked += 1

        async def answering() -> None:
            await asyncio.sleep(0)
            if self.answer is not None:
                raise self.answer

        return answering()

    def figures(self) -> Any:
        """Return what the supervisor would tell."""
        told = [
            SimpleNamespace(
                device=each, running=self._running, standstill="stopped" if each.index in self.still else ""
            )
            for each in self.devices
        ]
        return SimpleNamespace(workers=told, unwritable="")


class FakeSource:
    """Has a pool, or none."""

    def __init__(self, pool: FakePool | None) -> None:
        self._pool = pool
        self.listeners: list[Callable[[Any], object]] = []

    @property
    def pool(self) -> Any:
        """The pool."""
        if self._pool is None:
            raise errors.PoolUnreachable("there is none")
        return self._pool

    def begin(self) -> None:
        """Tell the listeners."""
        for listener in self.listeners:
            listener(self._pool)


async def ready(pool: FakePool | None, change: Callable[[PoolHealth, FakePool], object] | None = None) -> bool:
    """Return the verdict on a pool in which all was asked once, and something has changed since."""
    source = FakeSource(pool)
    health = PoolHealth(source, PoolFigures(source))
    if pool is not None:
        source.begin()
        assert (await health.verdict()).ready is (pool.answer is None or pool._running > 0 or pool.lost is not None)
        pool.asked = 0
        if change is not None:
            change(health, pool)
    return (await health.verdict()).ready


def test_a_recent_answer_is_enough() -> None:
    """Nothing is asked while calls are answered."""
    pool = FakePool()
    assert asyncio.run(ready(pool))
    assert pool.asked == 0


@pytest.mark.parametrize("event", [DeviceChanged(info(admitted=False)), ENDED])
def test_an_end_that_the_supervisor_tells_counts_at_once(event: Any) -> None:
    """The device is asked again, however lately it has answered."""

    def end(_health: PoolHealth, pool: FakePool) -> None:
        pool.answer = errors.WorkerLost("gone")
        for listener in pool.listeners:
            listener(event)

    assert not asyncio.run(ready(FakePool(), end))


def test_a_device_at_work_is_ready_and_not_asked() -> None:
    """Whether for us or for others; one that is full, too."""

    def work(health: PoolHealth, pool: FakePool) -> None:
        pool.answer = errors.DeadlineExceeded("late")
        health.in_flight[0] += 1
        pool.listeners[0](ENDED)

    pool = FakePool()
    assert asyncio.run(ready(pool, work))
    assert pool.asked == 0
    assert asyncio.run(ready(FakePool(errors.DeadlineExceeded("late"), running=1)))

    def fill(_health: PoolHealth, pool: FakePool) -> None:
        pool.answer = errors.Overloaded("full")
        pool.listeners[0](ENDED)

    assert asyncio.run(ready(FakePool(), fill))


def test_it_is_not_ready_without_pool_or_device_or_at_its_end() -> None:
    """And says so whatever has answered before."""
    assert not asyncio.run(ready(None))

    def lose(_health: PoolHealth, pool: FakePool) -> None:
        pool.lost = errors.PoolLost("gone")

    def stop(_health: PoolHealth, pool: FakePool) -> None:
        pool.devices = [info(admitted=False)]

    def drain(health: PoolHealth, _pool: FakePool) -> None:
        health.draining = True

    for change in (lose, stop, drain):
        assert not asyncio.run(ready(FakePool(), change))


def test_many_questions_at_once_are_one() -> None:
    """Of however many balancers."""

    async def ask() -> int:
        pool = FakePool(count=2)
        source = FakeSource(pool)
        health = PoolHealth(source, PoolFigures(source))
        verdicts = await asyncio.gather(*(health.verdict() for _ in range(20)))
        assert all(verdict.ready for verdict in verdicts)
        return pool.asked

    assert asyncio.run(ask()) == 2


@pytest.mark.parametrize(("still", "expected"), [({0}, True), ({0, 1}, False)])
def test_a_device_that_stands_still_does_not_count(still: set[int], *, expected: bool) -> None:
    """However lately it has answered, and whatever runs there; another one is enough."""

    async def ask() -> HealthVerdict:
        pool = FakePool(running=1, count=2)
        pool.still = still
        source = FakeSource(pool)
        health = PoolHealth(source, PoolFigures(source))
        source.begin()
        health.note(0)
        health.in_flight[1] += 1
        return await health.verdict()

    verdict = asyncio.run(ask())
    assert verdict.ready is expected
    assert expected or verdict.reason == "no device takes calls: 0 is ready (stopped), 1 is ready (stopped)"


def test_a_world_whose_member_stands_still_does_not_count() -> None:
    """Its calls wait; an actor of no world is enough, though."""

    async def ask(method: str) -> HealthVerdict:
        pool = FakePool(count=2)
        world = WorldInfo(0, "tp", [0, 1], ["Mlp"], WorldState.READY, 1, [1, 1])
        pool.worlds = [SimpleNamespace(info=world, state=world.state, devices=world.devices, actors=world.actors)]
        pool.methods, pool.still = [method], {1}
        source = FakeSource(pool)
        health = PoolHealth(source, PoolFigures(source))
        source.begin()
        return await health.verdict()

    assert asyncio.run(ask("Probe.echo")).ready
    verdict = asyncio.run(ask("Mlp.forward"))
    assert verdict.reason == "no world takes calls: tp is ready (the process of its device 1 stands still)"
