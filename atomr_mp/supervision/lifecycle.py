"""A device's life as a table: (state, event) to the next state and what is to be done. Pure.

The supervisor turns what it sees into events, calls `step`, and carries the actions out in their order.
Besides, it keeps to this:

- A worker's messages and the end of its control channel are fed before its exit, and none of them after it.
- A timer belongs to what it waits for, and is cancelled with it: that of the start by `PUBLISH` or `END`, that
  of the drain by `END`, that of the back-off by leaving `rebuilding`.
- The answer to `ASK_RESTART` is the next event.
- After `STOP` nothing starts a stopped device again.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.session import DeviceState

State = DeviceState


class Event(StrEnum):
    """What can happen to a device."""

    START = auto()
    """The pool starts the device, for the first time."""
    READY = auto()
    """The worker reports that its actors are set up and its data socket is bound."""
    FAULT = auto()
    """The worker reports that it cannot go on, though its context is well, and leaves; or it broke protocol."""
    POISONED = auto()
    """The worker reports that its context is poisoned, and leaves."""
    END_OF_FILE = auto()
    """The control channel was closed: a fast hint of the worker's death."""
    EXITED = auto()
    """The process has ended (its pidfd says so, which is the authority), or could not be made."""
    START_TIMEOUT = auto()
    """The worker did not become ready in time."""
    DRAIN = auto()
    """The worker is to be replaced: an operator's restart, or a planned recycle of a ready one."""
    DRAIN_TIMEOUT = auto()
    """The worker did not finish in time what it holds."""
    STOP = auto()
    """The pool stops."""
    RESTART_GRANTED = auto()
    """Directive and restart intensity allow another incarnation, after a delay."""
    RESTART_REFUSED = auto()
    """They do not: the circuit is open."""
    BACKOFF_OVER = auto()
    """The delay has passed."""


class Action(StrEnum):
    """What the supervisor is to do."""

    SPAWN = auto()
    """Start a process under the next generation, and the timer of its start."""
    PUBLISH = auto()
    """Tell the clients the incarnation's endpoint: calls may be sent."""
    HOLD = auto()
    """Tell the clients to send nothing more to this incarnation."""
    DRAIN = auto()
    """Tell the worker to finish what it holds and leave; start the timer of the drain anew."""
    KILL = auto()
    """Send SIGKILL to the worker's process group."""
    END = auto()
    """The incarnation is over: what was on it fails, or moves to the next."""
    ASK_RESTART = auto()
    """Ask directive and restart intensity for their verdict on this end."""
    ARM_BACKOFF = auto()
    """Start the timer of the delay that was granted."""
    RESET_BACKOFF = auto()
    """The next unplanned end is the first of its series; those before it still count in the window."""
    RESET_INTENSITY = auto()
    """Forget all ends: an operator closes the circuit."""


class Step(NamedTuple):
    """The next state and what is to be done, in this order."""

    state: State
    actions: tuple[Action, ...] = ()


class UnexpectedEventError(Exception):
    """The event has no meaning in this state: the supervisor is at fault, or a worker broke the protocol.

    Where a worker's message caused it, the supervisor feeds `Event.FAULT` in its place.
    """

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event} has no meaning while a device is {state}")
        self.state = state
        self.event = event


TRANSITIONS: Final[dict[tuple[State, Event], Step]] = {
    # stopped: no process, and none is to come unless somebody asks for it.
    (State.STOPPED, Event.START): Step(State.STARTING, (Action.SPAWN,)),
    (State.STOPPED, Event.DRAIN): Step(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.STOPPED, Event.STOP): Step(State.STOPPED),
    # starting: a process that clients do not know yet.
    (State.STARTING, Event.READY): Step(State.READY, (Action.PUBLISH, Action.RESET_BACKOFF)),
    (State.STARTING, Event.FAULT): Step(State.LOST, (Action.KILL,)),
    (State.STARTING, Event.POISONED): Step(State.POISONED, (Action.KILL,)),
    (State.STARTING, Event.END_OF_FILE): Step(State.LOST, (Action.KILL,)),
    (State.STARTING, Event.START_TIMEOUT): Step(State.LOST, (Action.KILL,)),
    (State.STARTING, Event.EXITED): Step(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    # Nothing is on it, so there is nothing to finish.
    (State.STARTING, Event.DRAIN): Step(State.DRAINING, (Action.KILL,)),
    (State.STARTING, Event.STOP): Step(State.STOPPING, (Action.KILL,)),
    # ready: published, until HOLD.
    (State.READY, Event.FAULT): Step(State.LOST, (Action.HOLD, Action.KILL)),
    (State.READY, Event.POISONED): Step(State.POISONED, (Action.HOLD, Action.KILL)),
    (State.READY, Event.END_OF_FILE): Step(State.LOST, (Action.HOLD, Action.KILL)),
    (State.READY, Event.EXITED): Step(State.REBUILDING, (Action.HOLD, Action.END, Action.ASK_RESTART)),
    (State.READY, Event.DRAIN): Step(State.DRAINING, (Action.HOLD, Action.DRAIN)),
    (State.READY, Event.STOP): Step(State.STOPPING, (Action.HOLD, Action.DRAIN)),
    # poisoned and lost: killed, its exit is awaited. What it still says, or was late for, changes nothing.
    (State.POISONED, Event.FAULT): Step(State.POISONED),
    (State.POISONED, Event.POISONED): Step(State.POISONED),
    (State.POISONED, Event.END_OF_FILE): Step(State.POISONED),
    (State.POISONED, Event.START_TIMEOUT): Step(State.POISONED),
    (State.POISONED, Event.EXITED): Step(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    # Whoever asks for a new process gets one, so this end counts as planned.
    (State.POISONED, Event.DRAIN): Step(State.DRAINING),
    (State.POISONED, Event.STOP): Step(State.STOPPING),
    # It became ready just when its time was over.
    (State.LOST, Event.READY): Step(State.LOST),
    (State.LOST, Event.FAULT): Step(State.LOST),
    (State.LOST, Event.POISONED): Step(State.LOST),
    (State.LOST, Event.END_OF_FILE): Step(State.LOST),
    (State.LOST, Event.START_TIMEOUT): Step(State.LOST),
    (State.LOST, Event.EXITED): Step(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    (State.LOST, Event.DRAIN): Step(State.DRAINING),
    (State.LOST, Event.STOP): Step(State.STOPPING),
    # draining: told to finish, or killed; either way the next incarnation is wanted and this end not counted.
    (State.DRAINING, Event.READY): Step(State.DRAINING),  # crossed the kill of a starting one
    # A worker that reports these should leave by itself; that it does is no longer to be relied on.
    (State.DRAINING, Event.FAULT): Step(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, Event.POISONED): Step(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, Event.END_OF_FILE): Step(State.DRAINING),  # so a worker looks that has finished
    (State.DRAINING, Event.START_TIMEOUT): Step(State.DRAINING),
    (State.DRAINING, Event.DRAIN): Step(State.DRAINING),
    (State.DRAINING, Event.DRAIN_TIMEOUT): Step(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, Event.EXITED): Step(State.STARTING, (Action.END, Action.SPAWN)),
    # Said again for the timer's sake: a stop takes as long as a drain may, whatever went before it.
    (State.DRAINING, Event.STOP): Step(State.STOPPING, (Action.DRAIN,)),
    # stopping: as draining, but nothing comes after it, whatever is asked for.
    (State.STOPPING, Event.READY): Step(State.STOPPING),
    (State.STOPPING, Event.FAULT): Step(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, Event.POISONED): Step(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, Event.END_OF_FILE): Step(State.STOPPING),
    (State.STOPPING, Event.START_TIMEOUT): Step(State.STOPPING),
    (State.STOPPING, Event.DRAIN): Step(State.STOPPING),
    (State.STOPPING, Event.DRAIN_TIMEOUT): Step(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, Event.STOP): Step(State.STOPPING),
    (State.STOPPING, Event.EXITED): Step(State.STOPPED, (Action.END,)),
    # rebuilding: no process; a verdict is awaited, then the end of the back-off.
    (State.REBUILDING, Event.RESTART_GRANTED): Step(State.REBUILDING, (Action.ARM_BACKOFF,)),
    (State.REBUILDING, Event.RESTART_REFUSED): Step(State.STOPPED),
    (State.REBUILDING, Event.BACKOFF_OVER): Step(State.STARTING, (Action.SPAWN,)),
    (State.REBUILDING, Event.DRAIN): Step(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.REBUILDING, Event.STOP): Step(State.STOPPED),
}


def step(state: State, event: Event) -> Step:
    """Return where `event` leads from `state`.

    Raises:
        UnexpectedEventError: The pair is not in the table.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedEventError(state, event) from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram; rows that change nothing are left out."""
    arrows: dict[tuple[State, Step], list[Event]] = {}
    for (state, event), to in TRANSITIONS.items():
        if to != Step(state):
            arrows.setdefault((state, to), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {State.STOPPED}"]
    for (state, to), events in arrows.items():
        label = ", ".join(events)
        if to.actions:
            label += " / " + ", ".join(to.actions)
        lines.append(f"    {state} --> {to.state}: {label}")
    return "\n".join(lines) + "\n"
