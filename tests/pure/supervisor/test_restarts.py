"""When a device is stopped that has ended too often: not before clients have said which request has ended it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages.suspects import RequestKey, Suspect
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervision.suspicion import REPORT_S, Cause, Death
from atomr_mp.supervisor.device.life import Act, DeviceLife
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.sessions.suspects import Suspects
from tests.pure.supervisor.test_settling import Timers

POISON: Final = RequestKey("Actor.run", bytes(16))
BESIDE: Final = Death(2)
ALONE: Final = Death(1, alone=True)


class Scene:
    """A device's life, its restarts and the pool's docket; processes are numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **policy: Any) -> None:
        self.timers: Final = Timers()
        self.timers.now_s = 1000.0
        for module in ("device.restarts", "sessions.suspects"):
            monkeypatch.setattr(f"atomr_mp.supervisor.{module}.time.monotonic", self.timers.monotonic)
        self.told: list[str] = []
        """States that clients were sent, and when, in seconds from the start."""
        self.notes: list[str] = []
        self.roles: Any = SimpleNamespace(generation=0, active=None)
        self.quarantine: Any = SimpleNamespace(reason="")
        self.life: Final = DeviceLife(0, tell=self._tell, changed=self._changed)
        plans: Any = SimpleNamespace(held=SimpleNamespace(settings=PoolSettings(**policy)))
        roles: Any = self.roles
        quarantine: Any = self.quarantine
        log: Any = SimpleNamespace(note=lambda event, *_, **__: self.notes.append(event))
        loop: Any = self.timers
        self.restarts: Restarts = Restarts(
            self.life,
            roles,
            plans,
            log,
            loop,
            quarantine,
            reports_due_s=lambda: self.suspects.reports_due_s,
        )
        device: Any = SimpleNamespace(restarts=self.restarts)
        self.suspects: Final = Suspects(2, loop, [device], lambda *_: None)
        acts: dict[Action, Act] = {each: lambda: None for each in Action}
        acts[Action.SPAWN] = self._spawn
        acts[Action.ASK_RESTART] = self.restarts.ask
        acts[Action.ARM_BACKOFF] = self.restarts.arm_backoff
        acts[Action.RESET_BACKOFF] = self.restarts.succeeded
        acts[Action.RESET_INTENSITY] = self.restarts.forget
        self.life.carry_out(acts)
        self.life.feed(LifecycleEvent.START)
        self.ready()

    @property
    def state(self) -> str:
        """The device's state."""
        return self.life.state

    def _spawn(self) -> None:
        self.restarts.tried()
        self.roles.generation += 1

    def _tell(self) -> None:
        self.told.append(self.life.state)

    def _changed(self) -> None:
        if self.life.state not in {State.REBUILDING, State.TRIPPED}:
            self.restarts.left_backoff()

    def ready(self) -> None:
        """The worker takes calls."""
        self.life.feed(LifecycleEvent.READY)
        self.told.clear()

    def end(self, death: Death) -> None:
        """The worker ends, some time after the last."""
        self.timers.run_until(self.timers.now_s + 0.1)
        self.suspects.ended((0, self.roles.generation), death)
        self.restarts.ended(errors.WorkerLost("its worker exited", maybe_executed=True))
        self.life.feed(LifecycleEvent.EXITED)

    def report(self, generation: int, *requests: RequestKey) -> None:
        """A client says what ran when a worker ended."""
        self.suspects.hear(1, Suspect(1, 0, generation, list(requests)))


@pytest.mark.parametrize("give_up", [False, True])
def test_a_device_is_not_stopped_by_an_end_that_is_forgiven_next(
    monkeypatch: pytest.MonkeyPatch, *, give_up: bool
) -> None:
    """The report comes after the process has ended: clients never hear that the device is out of use."""
    scene = Scene(monkeypatch, max_restarts=1, give_up=give_up)
    scene.end(BESIDE)
    scene.report(1, POISON, RequestKey("Actor.run", bytes(range(16))))
    scene.ready()
    scene.end(ALONE)
    assert scene.state == "rebuilding"
    scene.report(2, POISON)
    assert scene.told == ["rebuilding", "starting"]
    assert scene.state == "starting"
    assert "circuit_open" not in scene.notes
    scene.ready()
    scene.end(Death(0))  # the first that counts
    assert scene.state == "starting"


@pytest.mark.parametrize("death", [Death(0), BESIDE, Death(1, cause=Cause.SUPERVISOR)])
def test_a_device_is_stopped_at_once_by_an_end_that_no_report_can_forgive(
    monkeypatch: pytest.MonkeyPatch, death: Death
) -> None:
    """A request is condemned only by an end at which nothing else ran."""
    scene = Scene(monkeypatch, max_restarts=0)
    scene.end(death)
    assert scene.told == ["tripped"]


@pytest.mark.parametrize("requests", [[], [POISON]])
def test_a_device_is_stopped_as_soon_as_a_report_forgives_nothing(
    monkeypatch: pytest.MonkeyPatch, requests: list[RequestKey]
) -> None:
    """There was nothing to tell, or the request is only suspected: all waiting has ended."""
    scene = Scene(monkeypatch, max_restarts=0)
    scene.end(ALONE)
    scene.report(1, *requests)
    assert scene.told == ["rebuilding", "tripped"]
    assert scene.notes.count("circuit_open") == 1
    scene.timers.run_until(scene.timers.now_s + REPORT_S)
    assert scene.notes.count("circuit_open") == 1


def test_a_report_that_never_comes_is_waited_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may have died; one that comes later is as good as ever."""
    scene = Scene(monkeypatch, max_restarts=1, give_up=True)
    scene.end(Death(1))
    scene.report(1, POISON)
    scene.ready()
    scene.end(ALONE)
    scene.timers.run_until(scene.timers.now_s + REPORT_S * 0.9)
    assert scene.state == "rebuilding"
    scene.timers.run_until(scene.timers.now_s + REPORT_S * 0.2)
    assert scene.state == "stopped"
    scene.report(2, POISON)
    assert scene.state == "starting"


@pytest.mark.parametrize(
    ("event", "state"), [(LifecycleEvent.STOP, State.STOPPED), (LifecycleEvent.DRAIN, State.STARTING)]
)
def test_whoever_stops_or_restarts_a_device_waits_for_no_report(
    monkeypatch: pytest.MonkeyPatch, event: LifecycleEvent, state: State
) -> None:
    """And the verdict that was due is given no more."""
    scene = Scene(monkeypatch, max_restarts=0)
    scene.end(ALONE)
    scene.life.feed(event)
    assert scene.state == state
    scene.report(1, POISON)
    scene.timers.run_until(scene.timers.now_s + REPORT_S)
    assert scene.state == state
    assert "circuit_open" not in scene.notes


def test_a_gpu_that_needs_a_reset_meanwhile_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is about what holds when it is given."""
    scene = Scene(monkeypatch, max_restarts=0)
    scene.end(ALONE)
    scene.quarantine.reason = "it needs a reset"
    scene.report(1, POISON)
    assert scene.state == "quarantined"


def test_an_end_that_is_forgiven_before_its_process_has_ended_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its standby was refused meanwhile."""
    scene = Scene(monkeypatch, max_restarts=1)
    scene.end(Death(1))
    scene.report(1, POISON)
    scene.ready()
    scene.timers.run_until(scene.timers.now_s + 0.1)
    lost = errors.WorkerLost("it exits", maybe_executed=True)
    parting = SimpleNamespace(is_wanted=False, fault=lost)
    worker: Any = SimpleNamespace(generation=2, parting=parting)
    scene.suspects.ended((0, 2), ALONE)
    assert not scene.restarts.allow_take_over(worker)
    scene.report(2, POISON)
    scene.restarts.ended(lost)
    scene.life.feed(LifecycleEvent.EXITED)
    scene.ready()
    scene.end(Death(0))
    assert scene.state == "starting", "an end that was forgiven counts"
    scene.ready()
    scene.end(Death(0))
    assert scene.state == "tripped"
