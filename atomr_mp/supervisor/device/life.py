"""Carries a device through its lifecycle table: one fact after the other, each to its end.

Theory of operation. The loop, a worker or an operator tells a fact: a process has ended, a timer has run out, a restart
is wanted. A fact is a callable. `Life.take` puts it into a queue and handles the queue in order; a fact that comes up
while another is handled waits for its turn. So no fact ever sees the device between two actions of a step.

A fact is judged when its turn has come, and calls `step` with an event of the table. `step` carries out the
actions of the row. The last action of a row may lead on: it returns the next event, which is stepped before anything
else happens (`ASK_RESTART` returns the verdict, `CALL_STANDBY` returns `TAKE_OVER`). Clients are told the state in
which such a chain ends, and not those it has passed through: a standby's promotion waits for no message.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.supervision.lifecycle import TRANSITIONS, Action, LifecycleEvent, State, step

_LOG: Final = logging.getLogger("atomr_mp.supervisor")


class HalfDoneActionError(BaseException):
    """An action of a device has failed in its middle: how much of it is done is unknown, and the pool has to end.

    It passes by whatever contains the faults of single messages, which catches `Exception`.
    """


Act = Callable[[], LifecycleEvent | None]
"""Carries out an action; returns the event that it leads to at once, None if to none."""


@checks.owned(by_maker=True)
class DeviceLife:
    """A device's state, and the queue of its events.

    Args:
        index: The device's index.
        tell: Tells the clients of the device; called at the end of a chain of steps that has changed the state and has
            not published it, and by whoever changes something else that clients are shown.
        changed: Called after each such chain.
    """

    def __init__(self, index: int, *, tell: Callable[[], None], changed: Callable[[], None]) -> None:
        self.reason = "not started yet"
        """The reason for the device's state, for a person; written by whoever causes the state."""
        self._index = index
        self._act: Mapping[Action, Act] = {}
        self.tell: Final = tell
        self._changed = changed
        self._state = State.STOPPED
        self._facts: deque[Callable[[], None]] = deque()
        self._handles = False
        """A fact is being handled."""
        self._steps = False
        """A step is being carried out."""

    @property
    def state(self) -> State:
        """The state of the active incarnation, or of the device where there is none."""
        return self._state

    def carry_out(self, act: Mapping[Action, Act]) -> None:
        """Set the function that carries out each action; to be called once, before the first fact."""
        self._act = act

    def take(self, fact: Callable[[], None]) -> None:
        """Handle a fact: now, or after earlier facts."""
        self._facts.append(fact)
        if self._handles:
            return
        self._handles = True
        try:
            while self._facts:
                self._facts.popleft()()
        finally:
            self._handles = False

    def feed(self, event: LifecycleEvent) -> None:
        """Take an event as a fact. Its meaning must not depend on anything that may change before its turn."""
        self.take(functools.partial(self.step, event))

    def expects(self, event: LifecycleEvent) -> bool:
        """Return whether an event has a meaning now."""
        return (self._state, event) in TRANSITIONS

    def step(self, event: LifecycleEvent) -> None:
        """Step through the table, and through the events that its actions lead to. Only a fact may call this.

        Raises:
            UnexpectedEventError: The event has no meaning in this state.
        """
        assert self._handles, "an event came past the queue"
        assert not self._steps, "a step within a step"
        self._steps = True
        changed = published = False
        following: LifecycleEvent | None = event
        try:
            while following is not None:
                before = self._state
                self._state, actions = step(before, following)
                if self._state is not before:
                    changed, published = True, Action.PUBLISH in actions
                    _LOG.debug("device %d: %s -> %s on %s", self._index, before, self._state, following)
                following = None
                for action in actions:
                    assert following is None, "an action after one that leads on"
                    following = self.act(action)
        finally:
            self._steps = False
        if changed and not published:
            self.tell()
        if changed:
            self._changed()

    def act(self, action: Action) -> LifecycleEvent | None:
        """Carry an action out, as part of a fact; return the event that it leads to."""
        try:
            return self._act[action]()
        except errors.AtomrError:
            raise
        except Exception as fault:
            raise HalfDoneActionError from fault
