"""The time after a promotion: what waits for its end, and when that comes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp.supervisor.device.settling import LOOK_S, SETTLE_S, Settling


class Timers:
    """Takes the loop's place, and the clock's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, SimpleNamespace]] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    @property
    def own_s(self) -> float:
        """The time."""
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        """Keep a call."""
        timer = SimpleNamespace(call=call)
        timer.cancel = lambda: setattr(timer, "call", None)
        self._due.append((self.now_s + delay_s, timer))
        return timer

    def run_until(self, at_s: float) -> None:
        """Let time pass."""
        while due := sorted((each for each in self._due if each[0] <= at_s), key=lambda each: each[0]):
            self._due.remove(due[0])
            self.now_s = due[0][0]
            if due[0][1].call is not None:
                due[0][1].call()
        self.now_s = at_s


class Promoted:
    """A device's promoted process, with so many requests to answer; its board may be one that is not believed."""

    def __init__(self) -> None:
        self.queue_depth = 10
        self.believed = True
        self.live_board = SimpleNamespace(read=lambda: self if self.believed else None)


class Scene:
    """A promotion, and what was done in its order."""

    def __init__(self) -> None:
        self.timers: Final = Timers()
        self.done: list[str] = []
        self.worker: Final = Promoted()
        self.roles: Any = SimpleNamespace(active=self.worker)
        loop: Any = self.timers
        roles: Any = self.roles
        self.settling: Final[Any] = Settling(loop, roles, lambda: self.done.append("settled"))


@pytest.fixture
def scene() -> Scene:
    """A promotion has just begun, and something waits for its end."""
    made = Scene()
    assert not made.settling.lasts
    made.settling.begin()
    made.settling.afterwards(lambda: made.done.append("kill"))
    made.timers.run_until(LOOK_S * 0.9)
    made.settling.begin()  # the same one
    return made


def test_it_ends_when_the_promoted_process_has_nothing_to_do(scene: Scene) -> None:
    """What waits is done first, once; then a standby may be started."""
    scene.timers.run_until(LOOK_S * 3.5)
    assert scene.settling.lasts
    assert scene.done == []
    scene.worker.queue_depth = 0
    scene.timers.run_until(LOOK_S * 4.5)
    assert not scene.settling.lasts
    scene.timers.run_until(10)
    assert scene.done == ["kill", "settled"]


def test_it_ends_in_any_case(scene: Scene) -> None:
    """A load that goes on keeps nothing waiting for longer than a second."""
    scene.timers.run_until(SETTLE_S * 0.99)
    assert scene.settling.lasts
    scene.timers.run_until(SETTLE_S + LOOK_S * 1.1)
    assert not scene.settling.lasts
    assert scene.done == ["kill", "settled"]


@pytest.mark.parametrize("how", ["gone", "disbelieved", "told"])
def test_it_ends_when_there_is_nobody_to_be_spared(scene: Scene, how: str) -> None:
    """The promoted process has ended, its board tells nothing, or somebody knows that it ends."""
    if how == "gone":
        scene.roles.active = None
    elif how == "disbelieved":
        scene.worker.believed = False
    else:
        scene.settling.end()
        assert not scene.settling.lasts
    scene.timers.run_until(LOOK_S * 1.1)
    assert scene.done == ["kill", "settled"]
    scene.settling.end()
    scene.settling.begin()
    assert scene.settling.lasts
    assert scene.done == ["kill", "settled"]
