"""The table of a device's life, walked in a model of what can happen to one process.

The model is small enough to be explored completely, so what holds in it holds on every walk.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.supervision import lifecycle
from atomr_mp.supervision.intensity import Granted, History, Refused, ask, succeeded
from atomr_mp.supervision.lifecycle import Action, LifecycleEvent, State, UnexpectedEventError, step
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervision.standby import SETTLED_S, Turns, delay_s, failures_after

ROOT: Final = Path(__file__).parents[3]
ALIVE: Final = {
    State.STARTING,
    State.READY,
    State.POISONED,
    State.HUNG,
    State.LOST,
    State.DRAINING,
    State.RETIRING,
    State.STOPPING,
}
"""States in which there is a process."""


LASTING: Final = {State.READY, State.STOPPED, State.QUARANTINED}
"""States that nothing has to lead out of."""


class Standby(StrEnum):
    """How the process is that stands by."""

    NONE = auto()
    STARTING = auto()
    READY = auto()
    LEAVING = auto()
    """Ordered to leave, or killed: its exit is awaited."""


WAITING: Final = {Standby.STARTING, Standby.READY}
"""When it may take over, now or later."""


@dataclass(frozen=True)
class Device:
    """One device as the supervisor drives it: what is true in the world, beside the table's state."""

    hot: bool = True
    """There are to be standbys."""

    state: State = State.STOPPED
    started: bool = False
    """START or DRAIN came."""
    stopping: bool = False
    """STOP came."""
    alive: bool = False
    """From SPAWN to EXITED."""
    ended: bool = True
    """END was done for the last incarnation."""
    connected: bool = False
    """The control channel has not ended."""
    may_report_ready: bool = False
    published: bool = False
    held: bool = False
    killed: bool = False
    planned: bool = False
    """DRAIN or STOP came since the last SPAWN: this end was asked for."""
    asked: bool = False
    """A verdict is due: at once, or when clients have said what they know of the end."""
    start_timer: bool = False
    drain_timer: bool = False
    backoff_timer: bool = False
    standby: Standby = Standby.NONE
    standby_due: bool = False
    """One is to be started, some time."""
    predecessor: bool = False
    """A process lives whose place a standby has taken."""
    call: bool = False
    """A standby that is ready was called; whether it takes over, the policy decides now."""
    ready_at_once: bool = False
    """The incarnation taken for the active one is ready."""

    def possible(self) -> list[LifecycleEvent]:
        """Return what can happen now."""
        if self.ready_at_once:
            return [LifecycleEvent.READY]
        events = [LifecycleEvent.STOP]
        if self.asked:
            events += [
                LifecycleEvent.RESTART_GRANTED,
                LifecycleEvent.RESTART_REFUSED,
                LifecycleEvent.CIRCUIT_OPENED,
                LifecycleEvent.QUARANTINE,
            ]
        if not self.stopping or self.state is not State.STOPPED:
            events.append(LifecycleEvent.DRAIN)
        if self.state is State.STARTING:
            events.append(LifecycleEvent.OUTDATED)
        if not self.stopping and (not self.started or self.state is State.TRIPPED):
            events.append(LifecycleEvent.START)
        if self.alive:
            events.append(LifecycleEvent.EXITED)
        if self.connected:
            # A worker may report more than once before it is gone, but is ready at most once, and first.
            events += [LifecycleEvent.FAULT, LifecycleEvent.POISONED, LifecycleEvent.END_OF_FILE]
            if self.may_report_ready:
                events.append(LifecycleEvent.READY)
        timers = {
            LifecycleEvent.START_TIMEOUT: self.start_timer,
            LifecycleEvent.DRAIN_TIMEOUT: self.drain_timer,
            LifecycleEvent.BACKOFF_OVER: self.backoff_timer,
            LifecycleEvent.KILL_TIMEOUT: self.killed,
            LifecycleEvent.HUNG: self.state is State.READY,
            LifecycleEvent.BOARD_DAMAGED: self.state is State.READY,
            LifecycleEvent.SERVED: self.state is State.READY,
            LifecycleEvent.RELEASED: self.state is State.QUARANTINED,
        }
        return events + [event for event, armed in timers.items() if armed] + self._possible_to_others()

    def _possible_to_others(self) -> list[LifecycleEvent]:
        """Return what can happen now to the processes beside the active one."""
        possible = {
            LifecycleEvent.TAKE_OVER: self.call,
            LifecycleEvent.STANDBY_READY: self.standby is Standby.STARTING,
            LifecycleEvent.STANDBY_LOST: self.standby is not Standby.NONE,
            LifecycleEvent.STANDBY_DUE: self.standby_due and self.standby is Standby.NONE and not self.predecessor,
            LifecycleEvent.PREDECESSOR_EXITED: self.predecessor,
        }
        return [event for event, can in possible.items() if can]

    def after(self, event: LifecycleEvent) -> Device:
        """Return the device after `event`, having checked every promise that the step could break."""
        device = replace(self, **{"call": False, **BY_EVENT[event]})  # it is taken at once, or not at all
        if event is LifecycleEvent.DRAIN and self.state is State.STARTING:
            device = replace(device, planned=self.planned)  # the start is what was asked for
        to = step(self.state, event)
        device = replace(device, state=to.state)
        for action in to.actions:
            device = device._act(action, event)
        if device.state not in {State.REBUILDING, State.TRIPPED}:
            device = replace(device, backoff_timer=False, asked=False)
        device._check()
        self._check_step(device, event, to.actions)
        return device

    def _act(self, action: Action, event: LifecycleEvent) -> Device:
        match action:
            case Action.SPAWN:
                assert not self.alive, "two incarnations at a time"
                assert self.ended, "the last incarnation was not ended"
                assert not self.stopping, "a process for a pool that stops"
                if self.standby in WAITING:
                    taken = {"standby": Standby.NONE, "ready_at_once": self.standby is Standby.READY}
                    return replace(self, **BY_ACTION[action] | taken)
            case Action.PUBLISH:
                assert event in {LifecycleEvent.READY, LifecycleEvent.TAKE_OVER}
                assert not self.published, "published twice"
                assert not self.killed, "published after it was killed"
            case Action.HOLD:
                assert self.published, "clients are told to hold what they were never told"
                assert not self.held, "held twice"
            case Action.DRAIN | Action.KILL:
                assert self.alive, "a kill after the exit might hit another process"
            case Action.END:
                assert event is LifecycleEvent.EXITED or (event is LifecycleEvent.KILL_TIMEOUT and self.killed), (
                    "its process goes on"
                )
                assert not self.ended, "ended twice"
                assert self.held or not self.published, "ended while clients still send"
            case Action.ASK_RESTART | Action.ARM_BACKOFF:
                assert self.ended
            case _:
                return self._act_on_others(action, event)
        return replace(self, **BY_ACTION.get(action, {}))

    def _act_on_others(self, action: Action, event: LifecycleEvent) -> Device:
        """Do what concerns the standby and the predecessor."""
        changes = BY_ACTION.get(action, {})
        match action:
            case Action.WANT_STANDBY:
                changes = {"standby_due": self.hot}
            case Action.SPAWN_STANDBY:
                assert self.state is State.READY, "it takes what a worker that starts needs"
                assert self.standby is Standby.NONE, "two standbys at a time"
                assert not self.predecessor, "its memory is not free yet"
                assert not self.stopping, "a process for a pool that stops"
            case Action.ANNOUNCE:
                assert self.standby is Standby.READY
            case Action.CALL_STANDBY:
                changes = {"call": self.standby is Standby.READY}
            case Action.PROMOTE:
                assert self.standby is Standby.READY
                assert self.alive, "an incarnation that has ended leaves no predecessor"
                assert not self.predecessor, "two predecessors at a time"
                assert self.held, "clients were not told to send no more to the predecessor"
                assert self.killed or self.drain_timer, "the predecessor may stay for ever"
            case Action.END_PREDECESSOR:
                assert event is LifecycleEvent.PREDECESSOR_EXITED, "ended before its process did"
            case Action.DISMISS if self.standby is not Standby.NONE:
                changes = {"standby": Standby.LEAVING}
            case _:
                pass
        return replace(self, **changes)

    def _check(self) -> None:
        assert not self.stopping or self.standby not in WAITING, "a standby is left behind"
        assert self.alive + (self.standby is not Standby.NONE) + self.predecessor <= 2, "a third process"
        assert self.alive == (self.state in ALIVE)
        assert self.alive != self.ended, "an exit that ended nothing"
        assert self.state is not State.STARTING or not self.killed
        assert (self.state is State.READY) == (self.alive and self.published and not self.held)
        assert self.state in LASTING or self.leads_out(), f"waits for ever: {self}"

    def _check_step(self, to: Device, event: LifecycleEvent, actions: tuple[Action, ...]) -> None:
        if event is LifecycleEvent.TAKE_OVER:
            assert to.state is State.READY, "a standby that may take over is of use at once"
            assert not to.killed
        elif event is LifecycleEvent.EXITED:
            assert to.asked != self.planned, "ends are judged if nobody asked for them, and only then"
        elif event is LifecycleEvent.KILL_TIMEOUT:
            assert to.state is (State.STOPPED if self.stopping else State.QUARANTINED), "a start beside what is stuck"
        elif (self.killed or (self.state is State.RETIRING and event in FAILED)) and not to.planned:
            assert to.state is self.state, "a killed worker, or one that retires, is waited for as that"
        elif event in FAILED and not to.planned:
            assert to.state is FAILED[event]
        if event in {
            LifecycleEvent.FAULT,
            LifecycleEvent.POISONED,
            LifecycleEvent.HUNG,
            LifecycleEvent.START_TIMEOUT,
            LifecycleEvent.DRAIN_TIMEOUT,
        }:
            assert to.killed or to.predecessor, "a worker that failed, or took too long, is not relied on to leave"
        if event is LifecycleEvent.STOP and self.alive and not (self.killed or self.stopping):
            assert {Action.DRAIN, Action.KILL} & set(actions), "the worker is not told"
        if event is LifecycleEvent.DRAIN:
            self._check_restart(to, actions)
        if Action.PUBLISH in actions:
            assert Action.RESET_BACKOFF in actions, "ready is a success"

    def _check_restart(self, to: Device, actions: tuple[Action, ...]) -> None:
        starts = self.state is State.STARTING
        if starts:
            assert to.state is State.STARTING, "an order for a new process ends the one that comes"
        if starts or Action.SPAWN in actions:
            assert Action.RESET_INTENSITY in actions, "an operator's restart forgets the past"

    def leads_out(self) -> bool:
        """Return whether something is under way that will be an event, without anybody's doing."""
        return self.killed or self.asked or self.start_timer or self.drain_timer or self.backoff_timer


FAILED: Final = {
    LifecycleEvent.POISONED: State.POISONED,
    LifecycleEvent.HUNG: State.HUNG,
    LifecycleEvent.FAULT: State.LOST,
    LifecycleEvent.END_OF_FILE: State.LOST,
    LifecycleEvent.START_TIMEOUT: State.LOST,
}
"""What a worker that was not asked to end is waited for as, by how it failed."""

BY_EVENT: Final[dict[LifecycleEvent, dict[str, Any]]] = {
    LifecycleEvent.START: {"started": True},
    LifecycleEvent.READY: {"may_report_ready": False, "ready_at_once": False},
    LifecycleEvent.FAULT: {"may_report_ready": False},
    LifecycleEvent.POISONED: {"may_report_ready": False},
    LifecycleEvent.HUNG: {},
    LifecycleEvent.BOARD_DAMAGED: {},
    LifecycleEvent.SERVED: {},
    LifecycleEvent.END_OF_FILE: {"connected": False},
    LifecycleEvent.EXITED: {"alive": False, "connected": False},
    LifecycleEvent.KILL_TIMEOUT: {"alive": False, "connected": False},
    LifecycleEvent.START_TIMEOUT: {"start_timer": False},
    LifecycleEvent.DRAIN: {"started": True, "planned": True},
    LifecycleEvent.OUTDATED: {"planned": True},
    LifecycleEvent.DRAIN_TIMEOUT: {"drain_timer": False},
    LifecycleEvent.STOP: {"stopping": True, "planned": True},
    LifecycleEvent.RESTART_GRANTED: {"asked": False},
    LifecycleEvent.RESTART_REFUSED: {"asked": False},
    LifecycleEvent.CIRCUIT_OPENED: {"asked": False},
    LifecycleEvent.QUARANTINE: {"asked": False},
    LifecycleEvent.RELEASED: {},
    LifecycleEvent.BACKOFF_OVER: {"backoff_timer": False},
    LifecycleEvent.STANDBY_DUE: {"standby_due": False},
    LifecycleEvent.STANDBY_READY: {"standby": Standby.READY},
    LifecycleEvent.STANDBY_LOST: {"standby": Standby.NONE},
    LifecycleEvent.TAKE_OVER: {},
    LifecycleEvent.PREDECESSOR_EXITED: {"predecessor": False},
}
"""What an event changes in the world."""

BY_ACTION: Final[dict[Action, dict[str, Any]]] = {
    Action.SPAWN: {
        "alive": True,
        "ended": False,
        "connected": True,
        "may_report_ready": True,
        "published": False,
        "held": False,
        "planned": False,
        "start_timer": True,
    },
    Action.PUBLISH: {"published": True, "start_timer": False},
    Action.HOLD: {"held": True},
    Action.DRAIN: {"drain_timer": True},
    Action.KILL: {"killed": True},
    Action.END: {"ended": True, "killed": False, "start_timer": False, "drain_timer": False},
    Action.ASK_RESTART: {"asked": True},
    Action.ARM_BACKOFF: {"backoff_timer": True},
    Action.SPAWN_STANDBY: {"standby": Standby.STARTING},
    Action.PROMOTE: {
        "standby": Standby.NONE,
        "predecessor": True,
        "connected": True,
        "may_report_ready": False,
        "published": False,
        "held": False,
        "killed": False,
        "planned": False,
        "start_timer": False,
        "drain_timer": False,
    },
}
"""What an action changes in it; the others change the policy's history."""


def explore() -> dict[Device, set[tuple[LifecycleEvent, Device]]]:
    """Return every device that any walk can lead to, with what can happen to it."""
    found: dict[Device, set[tuple[LifecycleEvent, Device]]] = {}
    new = deque([Device(), Device(hot=False)])
    while new:
        device = new.popleft()
        if device not in found:
            found[device] = {(event, device.after(event)) for event in device.possible()}
            new.extend(to for _, to in found[device])
    return found


@pytest.fixture(scope="module")
def explored() -> dict[Device, set[tuple[LifecycleEvent, Device]]]:
    """Everything that can happen, promises checked on the way."""
    return explore()


def test_every_walk_keeps_the_promises(explored: dict[Device, set[tuple[LifecycleEvent, Device]]]) -> None:
    """One process at a time, one end each, nothing sent to the dead, no waiting for ever: see `Device._act`."""
    assert {device.state for device in explored} == set(State)


def test_every_row_has_a_walk_that_needs_it(explored: dict[Device, set[tuple[LifecycleEvent, Device]]]) -> None:
    """The table holds what can happen and nothing else."""
    used = {(device.state, event) for device, outcomes in explored.items() for event, _ in outcomes}
    assert used == set(lifecycle.TRANSITIONS)


def test_a_stop_ends_in_stopped_once_the_process_has_ended(
    explored: dict[Device, set[tuple[LifecycleEvent, Device]]],
) -> None:
    """Whatever happens in between, nothing is started after a stop."""
    for device in explored:
        if not device.ready_at_once:
            stopped = device.after(LifecycleEvent.STOP)
            if stopped.alive:
                assert stopped.state is State.STOPPING
                stopped = stopped.after(LifecycleEvent.EXITED)
            assert stopped.state is State.STOPPED
        if device.stopping:
            assert device.state in {State.STOPPING, State.STOPPED}


def test_every_state_has_a_way_back_to_ready_unless_the_pool_stops(
    explored: dict[Device, set[tuple[LifecycleEvent, Device]]],
) -> None:
    """No state is a trap: `restart DEVICE` leads out of all of them."""
    for device in explored:
        if not device.stopping and not device.ready_at_once:
            renewed = device.after(LifecycleEvent.DRAIN)
            if renewed.state is State.DRAINING:
                renewed = renewed.after(LifecycleEvent.EXITED)
            assert renewed.after(LifecycleEvent.READY).state is State.READY


def test_what_leads_to_the_next_event_at_once_is_a_rows_last_action() -> None:
    """Whoever carries the actions out may feed the answer from within: the step is complete by then."""
    for to in lifecycle.TRANSITIONS.values():
        leading = {Action.ASK_RESTART, Action.ARM_BACKOFF, Action.SPAWN, Action.CALL_STANDBY, Action.WANT_STANDBY}
        assert not leading & set(to.actions[:-1])


def test_a_pair_outside_the_table_is_an_error_that_names_it() -> None:
    """What has no meaning is refused, not guessed."""
    outside = {(state, event) for state in State for event in LifecycleEvent} - set(lifecycle.TRANSITIONS)
    assert outside
    for state, event in outside:
        with pytest.raises(UnexpectedEventError, match=f"{event} .* {state}") as caught:
            step(state, event)
        assert (caught.value.state, caught.value.event) == (state, event)


class LifeUnderIntensity(RuleBasedStateMachine):
    """A device, its restart policy and a clock, in any order of events."""

    policy = PoolSettings(max_restarts=2, within_s=10.0, backoff_initial_s=1.0, backoff_max_s=4.0)

    def __init__(self) -> None:
        super().__init__()
        self.device = Device()
        self.history = History.EMPTY
        self.now_s = 0.0
        self.generation = 0
        self.granted_s: list[float] = []
        """Times of restarts since an operator last closed the circuit."""
        self.due_s = 0.0
        """When the back-off is over."""

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        """Let something happen, and the policy answer if it is asked."""
        possible = self.device.possible()
        if LifecycleEvent.BACKOFF_OVER in possible and self.now_s < self.due_s:
            possible.remove(LifecycleEvent.BACKOFF_OVER)
        self.feed(data.draw(st.sampled_from(possible)))
        if self.device.asked:
            self.history, verdict = ask(self.policy, self.history, self.now_s)
            match verdict:
                case Granted(delay_s):
                    self.granted_s.append(self.now_s)
                    self.due_s = self.now_s + delay_s
                    self.feed(LifecycleEvent.RESTART_GRANTED)
                case Refused():
                    self.feed(LifecycleEvent.RESTART_REFUSED)

    @precondition(lambda self: self.device.state is State.READY)
    @rule()
    def crash(self) -> None:
        """End as a crash does, which a random choice of events seldom comes to."""
        self.feed(LifecycleEvent.END_OF_FILE)

    def feed(self, event: LifecycleEvent) -> None:
        """Take one step, as the supervisor does."""
        actions = step(self.device.state, event).actions
        self.device = self.device.after(event)
        for action in actions:
            match action:
                case Action.SPAWN:
                    self.generation += 1
                case Action.RESET_BACKOFF:
                    self.history = succeeded(self.history)
                case Action.RESET_INTENSITY:
                    self.history = History.EMPTY
                    self.granted_s = []
                case _:
                    pass

    @invariant()
    def intensity_is_never_passed(self) -> None:
        """No window holds more restarts than are allowed."""
        for first, last in zip(self.granted_s, self.granted_s[self.policy.max_restarts :], strict=False):
            assert last - first > self.policy.within_s

    @invariant()
    def generations_count_from_one(self) -> None:
        """A living incarnation has a generation."""
        assert not self.device.alive or self.generation >= 1


TestLifeUnderIntensity = LifeUnderIntensity.TestCase


@given(data=st.data())
def test_generations_only_grow(data: st.DataObject) -> None:
    """Each process has one of its own, higher than all before it; so has each one that is made the active one."""
    device, last, active, standby = Device(), 0, 0, 0
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        event = data.draw(st.sampled_from(device.possible()))
        before, actions = device, step(device.state, event).actions
        device = device.after(event)
        for action in actions:
            former = active
            if action is Action.SPAWN_STANDBY:
                last = standby = last + 1
            elif action is Action.PROMOTE or (action is Action.SPAWN and before.standby in WAITING):
                active = standby
            elif action is Action.SPAWN:
                last = active = last + 1
            assert active == former or active > former
        if device.standby in WAITING:
            assert standby > active, "a standby is of a later generation than the one before it"


def test_no_more_than_the_limit_start_at_a_time_and_all_come_to_it() -> None:
    """In the order in which they have asked, and each once."""
    turns, started = Turns(2), list[int]()
    for device in (0, 1, 2, 3, 2):
        turns.ask(device, lambda device=device: started.append(device))  # type: ignore[misc]
    assert started == [0, 1]
    turns.done(3)
    turns.done(0)
    turns.done(0)
    assert started == [0, 1, 2]
    turns.done(1)
    assert started == [0, 1, 2]
    turns.ask(1, lambda: started.append(1))
    assert started == [0, 1, 2, 1]


def test_a_standby_that_cannot_start_is_given_up() -> None:
    """After a delay that grows; one that was ready for long begins a new row."""
    policy = PoolSettings(backoff_initial_s=1.0, backoff_factor=2.0)
    assert [delay_s(policy, failures) for failures in range(5)] == [0.0, 1.0, 2.0, None, None]
    assert delay_s(PoolSettings(backoff_initial_s=1.0, backoff_max_s=1.5), 2) == 1.5
    assert failures_after(2, None) == failures_after(2, SETTLED_S - 0.1) == 3
    assert failures_after(2, SETTLED_S) == 1


def test_the_diagram_shows_every_row_that_does_something() -> None:
    """What is drawn is the table."""
    drawn = set()
    for line in lifecycle.diagram().splitlines()[2:]:
        match = re.fullmatch(r"    (\w+) --> (\w+): ([\w, ]+?)(?: / ([\w, ]+))?", line)
        assert match, line
        state, to, events, actions = match.groups()
        for event in events.split(", "):
            drawn.add((state, event, to, tuple(actions.split(", ")) if actions else ()))
    table = {(state, event, *to) for (state, event), to in lifecycle.TRANSITIONS.items()}
    assert drawn == {row for row in table if row[0] != row[2] or row[3]}
    assert lifecycle.diagram() == lifecycle.diagram()
