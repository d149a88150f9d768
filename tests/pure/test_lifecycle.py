"""The table of a device's life, walked in a model of what can happen to one process.

The model is small enough to be explored completely, so what holds in it holds on every walk.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.supervision import lifecycle
from atomr_mp.supervision.intensity import Granted, History, Intensity, Refused, ask, succeeded
from atomr_mp.supervision.lifecycle import Action, Event, State, UnexpectedEventError, step

ROOT: Final = Path(__file__).parents[2]
ALIVE: Final = {
    State.STARTING,
    State.READY,
    State.POISONED,
    State.LOST,
    State.DRAINING,
    State.STOPPING,
}
"""States in which there is a process."""


@dataclass(frozen=True)
class Device:
    """One device as the supervisor drives it: what is true in the world, beside the table's state."""

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
    """A verdict is due."""
    start_timer: bool = False
    drain_timer: bool = False
    backoff_timer: bool = False

    def possible(self) -> list[Event]:
        """Return what can happen now."""
        if self.asked:
            return [Event.RESTART_GRANTED, Event.RESTART_REFUSED]
        events = [Event.STOP]
        if not self.stopping or self.state is not State.STOPPED:
            events.append(Event.DRAIN)
        if not self.started and not self.stopping:
            events.append(Event.START)
        if self.alive:
            events.append(Event.EXITED)
        if self.connected:
            # A worker may report more than once before it is gone, but is ready at most once, and first.
            events += [Event.FAULT, Event.POISONED, Event.END_OF_FILE]
            if self.may_report_ready:
                events.append(Event.READY)
        timers = {
            Event.START_TIMEOUT: self.start_timer,
            Event.DRAIN_TIMEOUT: self.drain_timer,
            Event.BACKOFF_OVER: self.backoff_timer,
        }
        return events + [event for event, armed in timers.items() if armed]

    def after(self, event: Event) -> Device:
        """Return the device after `event`, having checked every promise that the step could break."""
        device = replace(self, **BY_EVENT[event])
        to = step(self.state, event)
        device = replace(device, state=to.state)
        for action in to.actions:
            device = device._act(action, event)
        if device.state is not State.REBUILDING:
            device = replace(device, backoff_timer=False)
        device._check()
        self._check_step(device, event, to.actions)
        return device

    def _act(self, action: Action, event: Event) -> Device:
        match action:
            case Action.SPAWN:
                assert not self.alive, "two incarnations at a time"
                assert self.ended, "the last incarnation was not ended"
                assert not self.stopping, "a process for a pool that stops"
            case Action.PUBLISH:
                assert event is Event.READY
                assert not self.published, "published twice"
                assert not self.killed, "published after it was killed"
            case Action.HOLD:
                assert self.published, "clients are told to hold what they were never told"
                assert not self.held, "held twice"
            case Action.DRAIN | Action.KILL:
                assert self.alive, "a kill after the exit might hit another process"
            case Action.END:
                assert event is Event.EXITED, "ended before its process did"
                assert not self.ended, "ended twice"
                assert self.held or not self.published, "ended while clients still send"
            case Action.ASK_RESTART | Action.ARM_BACKOFF:
                assert self.ended
            case _:
                pass
        return replace(self, **BY_ACTION.get(action, {}))

    def _check(self) -> None:
        assert self.alive == (self.state in ALIVE)
        assert self.alive != self.ended, "an exit that ended nothing"
        assert self.state is not State.STARTING or not self.killed
        assert (self.state is State.READY) == (self.alive and self.published and not self.held)
        assert self.state in {State.READY, State.STOPPED} or self.leads_out(), f"waits for ever: {self}"

    def _check_step(self, to: Device, event: Event, actions: tuple[Action, ...]) -> None:
        if event is Event.EXITED:
            assert to.asked != self.planned, "ends are judged if nobody asked for them, and only then"
        elif self.killed and not to.planned:
            assert to.state is self.state, "a killed worker is waited for as what it was killed for"
        elif event is Event.POISONED and not to.planned:
            assert to.state is State.POISONED
        elif event in {Event.FAULT, Event.END_OF_FILE, Event.START_TIMEOUT} and not to.planned:
            assert to.state is State.LOST
        if event in {Event.FAULT, Event.POISONED, Event.START_TIMEOUT, Event.DRAIN_TIMEOUT}:
            assert to.killed, "a worker that failed, or took too long, is not relied on to leave"
        if event is Event.STOP and self.alive and not (self.killed or self.stopping):
            assert {Action.DRAIN, Action.KILL} & set(actions), "the worker is not told"
        if event is Event.DRAIN and Action.SPAWN in actions:
            assert Action.RESET_INTENSITY in actions, "an operator's restart forgets the past"
        if Action.PUBLISH in actions:
            assert Action.RESET_BACKOFF in actions, "ready is a success"

    def leads_out(self) -> bool:
        """Return whether something is under way that will be an event, without anybody's doing."""
        return self.killed or self.asked or self.start_timer or self.drain_timer or self.backoff_timer


BY_EVENT: Final[dict[Event, dict[str, Any]]] = {
    Event.START: {"started": True},
    Event.READY: {"may_report_ready": False},
    Event.FAULT: {"may_report_ready": False},
    Event.POISONED: {"may_report_ready": False},
    Event.END_OF_FILE: {"connected": False},
    Event.EXITED: {"alive": False, "connected": False},
    Event.START_TIMEOUT: {"start_timer": False},
    Event.DRAIN: {"started": True, "planned": True},
    Event.DRAIN_TIMEOUT: {"drain_timer": False},
    Event.STOP: {"stopping": True, "planned": True},
    Event.RESTART_GRANTED: {"asked": False},
    Event.RESTART_REFUSED: {"asked": False},
    Event.BACKOFF_OVER: {"backoff_timer": False},
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
}
"""What an action changes in it; the others change the policy's history."""


def explore() -> dict[Device, set[tuple[Event, Device]]]:
    """Return every device that any walk can lead to, with what can happen to it."""
    found: dict[Device, set[tuple[Event, Device]]] = {}
    new = deque([Device()])
    while new:
        device = new.popleft()
        if device not in found:
            found[device] = {(event, device.after(event)) for event in device.possible()}
            new.extend(to for _, to in found[device])
    return found


@pytest.fixture(scope="module")
def explored() -> dict[Device, set[tuple[Event, Device]]]:
    """Everything that can happen, promises checked on the way."""
    return explore()


def test_every_walk_keeps_the_promises(explored: dict[Device, set[tuple[Event, Device]]]) -> None:
    """One process at a time, one end each, nothing sent to the dead, no waiting for ever: see `Device._act`."""
    assert {device.state for device in explored} == set(State)


def test_every_row_has_a_walk_that_needs_it(explored: dict[Device, set[tuple[Event, Device]]]) -> None:
    """The table holds what can happen and nothing else."""
    used = {(device.state, event) for device, outcomes in explored.items() for event, _ in outcomes}
    assert used == set(lifecycle.TRANSITIONS)


def test_a_stop_ends_in_stopped_once_the_process_has_ended(
    explored: dict[Device, set[tuple[Event, Device]]],
) -> None:
    """Whatever happens in between, nothing is started after a stop."""
    for device in explored:
        if not device.asked:
            stopped = device.after(Event.STOP)
            if stopped.alive:
                assert stopped.state is State.STOPPING
                stopped = stopped.after(Event.EXITED)
            assert stopped.state is State.STOPPED
        if device.stopping:
            assert device.state in {State.STOPPING, State.STOPPED}


def test_every_state_has_a_way_back_to_ready_unless_the_pool_stops(
    explored: dict[Device, set[tuple[Event, Device]]],
) -> None:
    """No state is a trap: `restart DEVICE` leads out of all of them."""
    for device in explored:
        if not device.stopping and not device.asked:
            renewed = device.after(Event.DRAIN)
            if renewed.state is State.DRAINING:
                renewed = renewed.after(Event.EXITED)
            assert renewed.after(Event.READY).state is State.READY


def test_what_leads_to_the_next_event_at_once_is_a_rows_last_action() -> None:
    """Whoever carries the actions out may feed the answer from within: the step is complete by then."""
    for to in lifecycle.TRANSITIONS.values():
        assert not {Action.ASK_RESTART, Action.ARM_BACKOFF} & set(to.actions[:-1])


def test_a_pair_outside_the_table_is_an_error_that_names_it() -> None:
    """What has no meaning is refused, not guessed."""
    outside = {(state, event) for state in State for event in Event} - set(lifecycle.TRANSITIONS)
    assert outside
    for state, event in outside:
        with pytest.raises(UnexpectedEventError, match=f"{event} .* {state}") as caught:
            step(state, event)
        assert (caught.value.state, caught.value.event) == (state, event)


class LifeUnderIntensity(RuleBasedStateMachine):
    """A device, its restart policy and a clock, in any order of events."""

    policy = Intensity(max_restarts=2, within_s=10.0, backoff_initial_s=1.0, backoff_max_s=4.0)

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
        if Event.BACKOFF_OVER in possible and self.now_s < self.due_s:
            possible.remove(Event.BACKOFF_OVER)
        self.feed(data.draw(st.sampled_from(possible)))
        if self.device.asked:
            self.history, verdict = ask(self.policy, self.history, self.now_s)
            match verdict:
                case Granted(delay_s):
                    self.granted_s.append(self.now_s)
                    self.due_s = self.now_s + delay_s
                    self.feed(Event.RESTART_GRANTED)
                case Refused():
                    self.feed(Event.RESTART_REFUSED)

    @precondition(lambda self: self.device.state is State.READY)
    @rule()
    def crash(self) -> None:
        """End as a crash does, which a random choice of events seldom comes to."""
        self.feed(Event.END_OF_FILE)

    def feed(self, event: Event) -> None:
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
    """Every SPAWN follows an END: counted together, they name each incarnation once."""
    device, spawned, ended = Device(), 0, 0
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        event = data.draw(st.sampled_from(device.possible()))
        actions = step(device.state, event).actions
        device = device.after(event)
        spawned += actions.count(Action.SPAWN)
        ended += actions.count(Action.END)
        assert spawned - ended == device.alive


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


def diagram(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/diagram."""
    command = [sys.executable, str(ROOT / "scripts" / "diagram"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_documented_diagram_is_the_tables() -> None:
    """`scripts/diagram` was run after the last change."""
    result = diagram("--check")
    assert result.returncode == 0, result.stderr


def test_a_diagram_that_differs_is_found_and_redrawn(tmp_path: Path) -> None:
    """The check fails on another diagram, and writing repairs it without touching the rest."""
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- lifecycle:begin -->\nold\n<!-- lifecycle:end -->\nafter\n", encoding="utf-8")
    assert diagram("--check", str(file)).returncode == 1
    assert diagram(str(file)).returncode == 0
    assert diagram("--check", str(file)).returncode == 0
    text = file.read_text(encoding="utf-8")
    assert text.startswith("before\n<!--")
    assert text.endswith("-->\nafter\n")
    assert lifecycle.diagram() in text
    file.write_text("no markers\n", encoding="utf-8")
    assert diagram(str(file)).returncode == 1
    assert file.read_text(encoding="utf-8") == "no markers\n"


def test_the_documentation_describes_every_state_event_and_action() -> None:
    """Each has its row in the tables of docs/failure-model.md."""
    page = (ROOT / "docs" / "failure-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(rows) == sorted([*State, *Event, *Action])
