"""How a device is carried through its table: one fact at a time, each to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.supervision.lifecycle import TRANSITIONS, Action, LifecycleEvent, State, UnexpectedEventError
from atomr_mp.supervisor.device.life import Act, DeviceLife, HalfDoneActionError


class Stage:
    """A life whose actions are written down, and do besides what a test has them do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        """Actions, and the reported states, in their order."""
        self.does: dict[Action, Act] = {}
        self.life = DeviceLife(0, tell=self._tell, changed=lambda: None)
        self.life.carry_out({each: self._act(each) for each in Action})

    def _act(self, action: Action) -> Act:
        def act() -> LifecycleEvent | None:
            self.done.append(action)
            return self.does.get(action, lambda: None)()

        return act

    def _tell(self) -> None:
        self.done.append(f"told {self.life.state}")

    def ready(self) -> Stage:
        """Return it with a worker that takes calls."""
        self.life.feed(LifecycleEvent.START)
        self.life.feed(LifecycleEvent.READY)
        self.done.clear()
        return self


def test_an_event_that_an_action_brings_up_waits_for_the_end_of_the_step() -> None:
    """A worker whose exit is seen while it is being killed is ended after all that the kill asks for."""
    stage = Stage().ready()
    stage.does[Action.KILL] = lambda: stage.life.feed(LifecycleEvent.EXITED)
    stage.does[Action.ASK_RESTART] = lambda: LifecycleEvent.RESTART_REFUSED
    stage.life.feed(LifecycleEvent.END_OF_FILE)
    assert stage.done == [
        *("hold", "kill", "call_standby", "told lost"),
        *("end", "ask_restart", "dismiss", "told stopped"),
    ]


def test_a_standby_that_reports_while_it_is_called_takes_over_once() -> None:
    """Its report is read in the middle of the step that calls it, and is the next fact."""
    stage = Stage().ready()

    def call() -> LifecycleEvent | None:
        if "called" not in seen:
            seen.append("called")
            stage.life.feed(LifecycleEvent.STANDBY_READY)
            return None
        return LifecycleEvent.TAKE_OVER

    seen = list[str]()
    stage.does[Action.CALL_STANDBY] = call
    stage.life.feed(LifecycleEvent.POISONED)
    assert stage.done == [
        *("hold", "kill", "call_standby", "told poisoned"),
        *("call_standby", "promote", "publish", "reset_backoff", "want_standby"),
    ]
    assert stage.life.state is State.READY


def test_a_promotion_waits_for_no_message() -> None:
    """The states that a chain of steps passes through are not reported."""
    stage = Stage().ready()
    stage.does[Action.CALL_STANDBY] = lambda: LifecycleEvent.TAKE_OVER
    stage.life.feed(LifecycleEvent.END_OF_FILE)
    assert stage.done == ["hold", "kill", "call_standby", "promote", "publish", "reset_backoff", "want_standby"]


def test_facts_are_handled_in_the_order_in_which_they_came() -> None:
    """Those that came up within another one too; each looks at what holds at its turn."""
    stage, seen = Stage(), list[tuple[str, State]]()

    def look(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, stage.life.state))

    def first() -> None:
        stage.life.take(look("second"))
        stage.life.feed(LifecycleEvent.START)
        stage.life.take(look("third"))
        look("first")()

    stage.life.take(first)
    assert seen == [("first", State.STOPPED), ("second", State.STOPPED), ("third", State.STARTING)]


def test_a_step_that_no_fact_has_asked_for_is_an_error() -> None:
    """So is one within another: an action must return the event to which it leads."""
    stage = Stage()
    with pytest.raises(AssertionError, match="past the queue"):
        stage.life.step(LifecycleEvent.START)
    stage.does[Action.SPAWN] = lambda: stage.life.step(LifecycleEvent.READY)
    with pytest.raises(HalfDoneActionError) as raised:
        stage.life.feed(LifecycleEvent.START)
    assert "within a step" in str(raised.value.__cause__)


def test_an_event_without_a_meaning_is_an_error_and_does_not_block_the_next() -> None:
    """It changes nothing."""
    stage = Stage()
    assert not stage.life.expects(LifecycleEvent.READY)
    with pytest.raises(UnexpectedEventError):
        stage.life.feed(LifecycleEvent.READY)
    stage.life.feed(LifecycleEvent.START)
    assert stage.life.state is State.STARTING


@given(data=st.data())
def test_no_step_ever_begins_within_another(data: st.DataObject) -> None:
    """Whatever its actions bring up: the actions of each row are carried out one after the other, with none between."""
    stage, rows = Stage(), list[tuple[Action, ...]]()

    def wild() -> None:
        possible = [event for state, event in TRANSITIONS if state is stage.life.state]
        event = data.draw(st.sampled_from(possible))
        rows.append(TRANSITIONS[stage.life.state, event].actions)
        stage.life.step(event)

    def act() -> None:
        for _ in range(data.draw(st.integers(0, 1)) if len(rows) < 10 else 0):
            stage.life.take(wild)

    stage.does = dict.fromkeys(Action, act)
    for _ in range(data.draw(st.integers(1, 5))):
        stage.life.take(wild)
    assert [each for each in stage.done if each in set(Action)] == [action for row in rows for action in row]
