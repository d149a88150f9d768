"""A device's life as a table: (state, event) to the next state and the actions. Pure.

The supervisor turns what it sees into events, calls `step`, and carries the actions out in their order.
Besides, it keeps to this:

- A worker's messages and the end of its control channel are fed before its exit, and none of them after it.
- A timer belongs to what it waits for, and is cancelled with it: that of the start by `PUBLISH` or `END`, that
  of the drain by `END`, that of the back-off, or of a verdict that waits, by leaving `rebuilding` or `tripped`.
- The answer to `ASK_RESTART` is the next event, unless it waits for what clients will say of the end; `TAKE_OVER` and
  `READY` are the next event where `CALL_STANDBY` and `SPAWN` lead to them.
- After `STOP` nothing starts a stopped device again.

A device has up to three processes: the *active* incarnation, which the states are about; a *standby*, which has done
all that comes before it is ready, and waits; and a *predecessor*, whose place a standby has taken, and whose exit is
awaited. A standby that was told to leave, or has failed, is none any more: its exit is awaited too (`STANDBY_LOST`).
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.supervision.state_table import mermaid

State = DeviceState


class LifecycleEvent(StrEnum):
    """The events of a device."""

    START = auto()
    """The device is started: for the first time, or since it was no fault of its own that had stopped it."""
    READY = auto()
    """The worker reports that its actors are set up and its data socket is bound."""
    FAULT = auto()
    """The worker reports that it cannot go on, though its context is well, and leaves; or it broke protocol."""
    POISONED = auto()
    """The worker reports that its context is poisoned, and leaves."""
    HUNG = auto()
    """The watchdog has found that a request of the worker makes no progress."""
    END_OF_FILE = auto()
    """The control channel was closed, or the process has begun to end: a fast hint of the worker's death."""
    EXITED = auto()
    """The process has ended (its pidfd says so, which is the authority), or could not be made."""
    START_TIMEOUT = auto()
    """The worker did not become ready in time."""
    DRAIN = auto()
    """The worker is to be replaced: an operator's restart, or a planned recycle of a ready one."""
    OUTDATED = auto()
    """The worker that starts runs code or settings that no longer hold, and another is to start in its place."""
    BOARD_DAMAGED = auto()
    """A ready worker's board cannot be believed: something in it writes where it must not. It is replaced after it has
    finished what it holds, and its end counts."""
    DRAIN_TIMEOUT = auto()
    """The worker did not finish in time what it holds."""
    KILL_TIMEOUT = auto()
    """The worker was killed and has not ended in time: it is stuck in the kernel. It is waited for, but for nothing."""
    STOP = auto()
    """The pool stops."""
    RESTART_GRANTED = auto()
    """Directive and restart intensity allow another incarnation, after a delay."""
    RESTART_REFUSED = auto()
    """They do not, and never will by themselves."""
    CIRCUIT_OPENED = auto()
    """There were too many ends: another incarnation is tried, but later, and clients are refused until then."""
    SERVED = auto()
    """The incarnation that was tried has served for long enough: the circuit closes."""
    QUARANTINE = auto()
    """Nothing may be started on the device: a killed process has not ended, or the GPU needs a reset."""
    RELEASED = auto()
    """Nothing stands in the way now; whether the device is well, the next start shows."""
    BACKOFF_OVER = auto()
    """The delay has passed."""
    STANDBY_DUE = auto()
    """A standby may be started: it is this device's turn, and the time since the last failure is long enough."""
    STANDBY_READY = auto()
    """The standby reports that its actors are set up and its data socket is bound."""
    STANDBY_LOST = auto()
    """The standby's process has ended, or does not although it was killed, or could not be made."""
    TAKE_OVER = auto()
    """There is a standby that is ready, and it may take the active incarnation's place."""
    PREDECESSOR_EXITED = auto()
    """The process has ended whose place a standby has taken; or it does not, in the time that a killed one has."""


class Action(StrEnum):
    """The supervisor's actions."""

    SPAWN = auto()
    """Make the standby the active incarnation, if there is one; else start a process under the next generation. Start
    the timer of its start, or feed `READY` if it is ready already."""
    PUBLISH = auto()
    """Tell the clients the incarnation's endpoint: calls may be sent."""
    HOLD = auto()
    """Tell the clients to send nothing more to this incarnation."""
    DRAIN = auto()
    """Tell the worker to finish what it holds and leave; start the timer of the drain anew."""
    KILL = auto()
    """Send SIGKILL to the worker's process group; a poisoned one may be given time until a standby has taken over."""
    END = auto()
    """The incarnation is over: what was on it fails, or moves to the next."""
    ASK_RESTART = auto()
    """Ask directive and restart intensity for their verdict on this end, unless the device is to be quarantined."""
    ARM_BACKOFF = auto()
    """Start the timer of the delay that was granted."""
    RESET_BACKOFF = auto()
    """The next unplanned end is the first of its series; those before it still count in the window."""
    RESET_INTENSITY = auto()
    """Forget all ends: an operator closes the circuit."""
    WANT_STANDBY = auto()
    """Start a standby, if the pool has them: not before its predecessor has ended, whose memory it
    needs."""
    SPAWN_STANDBY = auto()
    """Start a process under the next generation, to wait."""
    ANNOUNCE = auto()
    """Tell the clients the standby's endpoint: they connect, and send nothing."""
    CALL_STANDBY = auto()
    """Feed `TAKE_OVER` if a standby is ready, and directive and restart intensity allow it, or an operator asked.
    Else tell a worker that finishes what it holds that its end is waited for."""
    PROMOTE = auto()
    """The active incarnation becomes the predecessor, the standby the active one: it begins to take calls."""
    END_PREDECESSOR = auto()
    """The predecessor is over: what was on it fails, or moves to the next."""
    DISMISS = auto()
    """Tell the standby to leave, if there is one; end what was forked ahead."""


class Move(NamedTuple):
    """The next state, and the actions in order."""

    state: State
    actions: tuple[Action, ...] = ()


class UnexpectedEventError(Exception):
    """The event has no meaning in this state: the supervisor is at fault, or a worker broke the protocol.

    Where a worker's message caused it, the supervisor feeds `LifecycleEvent.FAULT` in its place.
    """

    def __init__(self, state: State, event: LifecycleEvent) -> None:
        super().__init__(f"{event} has no meaning while a device is {state}")
        self.state = state
        self.event = event


_TAKEN_OVER: Final = Move(State.READY, (Action.PROMOTE, Action.PUBLISH, Action.RESET_BACKOFF, Action.WANT_STANDBY))

_UNKILLABLE: Final = Move(State.QUARANTINED, (Action.END, Action.DISMISS))

TRANSITIONS: Final[dict[tuple[State, LifecycleEvent], Move]] = {
    # stopped: no active process, and none is to come unless somebody asks for it.
    (State.STOPPED, LifecycleEvent.START): Move(State.STARTING, (Action.SPAWN,)),
    (State.STOPPED, LifecycleEvent.DRAIN): Move(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.STOPPED, LifecycleEvent.STOP): Move(State.STOPPED),
    (State.STOPPED, LifecycleEvent.STANDBY_DUE): Move(State.STOPPED),
    (State.STOPPED, LifecycleEvent.STANDBY_LOST): Move(State.STOPPED),
    (State.STOPPED, LifecycleEvent.PREDECESSOR_EXITED): Move(State.STOPPED, (Action.END_PREDECESSOR,)),
    # starting: a process that clients do not know yet.
    (State.STARTING, LifecycleEvent.READY): Move(
        State.READY, (Action.PUBLISH, Action.RESET_BACKOFF, Action.WANT_STANDBY)
    ),
    (State.STARTING, LifecycleEvent.FAULT): Move(State.LOST, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.POISONED): Move(State.POISONED, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.END_OF_FILE): Move(State.LOST, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.START_TIMEOUT): Move(State.LOST, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    # Whoever wants a new process gets this one.
    (State.STARTING, LifecycleEvent.DRAIN): Move(State.STARTING, (Action.RESET_INTENSITY,)),
    # Nothing is on it, so there is nothing to finish.
    (State.STARTING, LifecycleEvent.OUTDATED): Move(State.DRAINING, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.STOP): Move(State.STOPPING, (Action.KILL,)),
    (State.STARTING, LifecycleEvent.STANDBY_DUE): Move(State.STARTING),
    (State.STARTING, LifecycleEvent.STANDBY_LOST): Move(State.STARTING),
    (State.STARTING, LifecycleEvent.PREDECESSOR_EXITED): Move(State.STARTING, (Action.END_PREDECESSOR,)),
    # ready: published, until HOLD.
    (State.READY, LifecycleEvent.FAULT): Move(State.LOST, (Action.HOLD, Action.KILL, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.POISONED): Move(State.POISONED, (Action.HOLD, Action.KILL, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.HUNG): Move(State.HUNG, (Action.HOLD, Action.KILL, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.END_OF_FILE): Move(State.LOST, (Action.HOLD, Action.KILL, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.HOLD, Action.END, Action.ASK_RESTART)),
    (State.READY, LifecycleEvent.DRAIN): Move(State.DRAINING, (Action.HOLD, Action.DRAIN, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.BOARD_DAMAGED): Move(State.RETIRING, (Action.HOLD, Action.DRAIN, Action.CALL_STANDBY)),
    (State.READY, LifecycleEvent.SERVED): Move(State.READY, (Action.RESET_INTENSITY, Action.WANT_STANDBY)),
    (State.READY, LifecycleEvent.STOP): Move(State.STOPPING, (Action.HOLD, Action.DRAIN, Action.DISMISS)),
    (State.READY, LifecycleEvent.STANDBY_DUE): Move(State.READY, (Action.SPAWN_STANDBY,)),
    (State.READY, LifecycleEvent.STANDBY_READY): Move(State.READY, (Action.ANNOUNCE,)),
    (State.READY, LifecycleEvent.STANDBY_LOST): Move(State.READY, (Action.WANT_STANDBY,)),
    (State.READY, LifecycleEvent.PREDECESSOR_EXITED): Move(State.READY, (Action.END_PREDECESSOR, Action.WANT_STANDBY)),
    # poisoned, hung and lost: killed, its exit is awaited. What it still says, or was late for, changes nothing.
    (State.POISONED, LifecycleEvent.FAULT): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.POISONED): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.END_OF_FILE): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.START_TIMEOUT): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    (State.POISONED, LifecycleEvent.KILL_TIMEOUT): _UNKILLABLE,
    # Whoever asks for a new process gets one, so this end counts as planned.
    (State.POISONED, LifecycleEvent.DRAIN): Move(State.DRAINING),
    (State.POISONED, LifecycleEvent.STOP): Move(State.STOPPING, (Action.DISMISS,)),
    (State.POISONED, LifecycleEvent.STANDBY_DUE): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.STANDBY_READY): Move(State.POISONED, (Action.CALL_STANDBY,)),
    (State.POISONED, LifecycleEvent.STANDBY_LOST): Move(State.POISONED),
    (State.POISONED, LifecycleEvent.TAKE_OVER): _TAKEN_OVER,
    (State.POISONED, LifecycleEvent.PREDECESSOR_EXITED): Move(State.POISONED, (Action.END_PREDECESSOR,)),
    (State.HUNG, LifecycleEvent.FAULT): Move(State.HUNG),
    (State.HUNG, LifecycleEvent.POISONED): Move(State.HUNG),
    (State.HUNG, LifecycleEvent.END_OF_FILE): Move(State.HUNG),
    (State.HUNG, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    (State.HUNG, LifecycleEvent.KILL_TIMEOUT): _UNKILLABLE,
    (State.HUNG, LifecycleEvent.DRAIN): Move(State.DRAINING),
    (State.HUNG, LifecycleEvent.STOP): Move(State.STOPPING, (Action.DISMISS,)),
    (State.HUNG, LifecycleEvent.STANDBY_DUE): Move(State.HUNG),
    (State.HUNG, LifecycleEvent.STANDBY_READY): Move(State.HUNG, (Action.CALL_STANDBY,)),
    (State.HUNG, LifecycleEvent.STANDBY_LOST): Move(State.HUNG),
    (State.HUNG, LifecycleEvent.TAKE_OVER): _TAKEN_OVER,
    (State.HUNG, LifecycleEvent.PREDECESSOR_EXITED): Move(State.HUNG, (Action.END_PREDECESSOR,)),
    # It became ready just when its time was over.
    (State.LOST, LifecycleEvent.READY): Move(State.LOST),
    (State.LOST, LifecycleEvent.FAULT): Move(State.LOST),
    (State.LOST, LifecycleEvent.POISONED): Move(State.LOST),
    (State.LOST, LifecycleEvent.END_OF_FILE): Move(State.LOST),
    (State.LOST, LifecycleEvent.START_TIMEOUT): Move(State.LOST),
    (State.LOST, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    (State.LOST, LifecycleEvent.KILL_TIMEOUT): _UNKILLABLE,
    (State.LOST, LifecycleEvent.DRAIN): Move(State.DRAINING),
    (State.LOST, LifecycleEvent.STOP): Move(State.STOPPING, (Action.DISMISS,)),
    (State.LOST, LifecycleEvent.STANDBY_DUE): Move(State.LOST),
    (State.LOST, LifecycleEvent.STANDBY_READY): Move(State.LOST, (Action.CALL_STANDBY,)),
    (State.LOST, LifecycleEvent.STANDBY_LOST): Move(State.LOST),
    (State.LOST, LifecycleEvent.TAKE_OVER): _TAKEN_OVER,
    (State.LOST, LifecycleEvent.PREDECESSOR_EXITED): Move(State.LOST, (Action.END_PREDECESSOR,)),
    # draining: told to finish, or killed; either way the next incarnation is wanted and this end not counted.
    (State.DRAINING, LifecycleEvent.READY): Move(State.DRAINING),  # crossed the kill of a starting one
    # A worker that reports these should leave by itself; that it does is no longer to be relied on.
    (State.DRAINING, LifecycleEvent.FAULT): Move(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, LifecycleEvent.POISONED): Move(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, LifecycleEvent.END_OF_FILE): Move(State.DRAINING),  # so a worker looks that has finished
    (State.DRAINING, LifecycleEvent.START_TIMEOUT): Move(State.DRAINING),
    (State.DRAINING, LifecycleEvent.DRAIN): Move(State.DRAINING),
    (State.DRAINING, LifecycleEvent.DRAIN_TIMEOUT): Move(State.DRAINING, (Action.KILL,)),
    (State.DRAINING, LifecycleEvent.EXITED): Move(State.STARTING, (Action.END, Action.SPAWN)),
    (State.DRAINING, LifecycleEvent.KILL_TIMEOUT): _UNKILLABLE,
    # Said again for the timer's sake: a stop takes as long as a drain may, whatever went before it.
    (State.DRAINING, LifecycleEvent.STOP): Move(State.STOPPING, (Action.DRAIN, Action.DISMISS)),
    (State.DRAINING, LifecycleEvent.STANDBY_DUE): Move(State.DRAINING),
    (State.DRAINING, LifecycleEvent.STANDBY_READY): Move(State.DRAINING, (Action.CALL_STANDBY,)),
    (State.DRAINING, LifecycleEvent.STANDBY_LOST): Move(State.DRAINING, (Action.CALL_STANDBY,)),
    (State.DRAINING, LifecycleEvent.TAKE_OVER): _TAKEN_OVER,
    (State.DRAINING, LifecycleEvent.PREDECESSOR_EXITED): Move(State.DRAINING, (Action.END_PREDECESSOR,)),
    # retiring: as draining, but nobody has asked for it, and its end counts.
    # A worker that reports these should leave by itself, as a draining one.
    (State.RETIRING, LifecycleEvent.FAULT): Move(State.RETIRING, (Action.KILL,)),
    (State.RETIRING, LifecycleEvent.POISONED): Move(State.RETIRING, (Action.KILL,)),
    (State.RETIRING, LifecycleEvent.END_OF_FILE): Move(State.RETIRING),
    (State.RETIRING, LifecycleEvent.DRAIN_TIMEOUT): Move(State.RETIRING, (Action.KILL,)),
    (State.RETIRING, LifecycleEvent.EXITED): Move(State.REBUILDING, (Action.END, Action.ASK_RESTART)),
    (State.RETIRING, LifecycleEvent.KILL_TIMEOUT): _UNKILLABLE,
    (State.RETIRING, LifecycleEvent.DRAIN): Move(State.DRAINING),
    (State.RETIRING, LifecycleEvent.STOP): Move(State.STOPPING, (Action.DRAIN, Action.DISMISS)),
    (State.RETIRING, LifecycleEvent.STANDBY_DUE): Move(State.RETIRING),
    (State.RETIRING, LifecycleEvent.STANDBY_READY): Move(State.RETIRING, (Action.CALL_STANDBY,)),
    (State.RETIRING, LifecycleEvent.STANDBY_LOST): Move(State.RETIRING, (Action.CALL_STANDBY,)),
    (State.RETIRING, LifecycleEvent.TAKE_OVER): _TAKEN_OVER,
    (State.RETIRING, LifecycleEvent.PREDECESSOR_EXITED): Move(State.RETIRING, (Action.END_PREDECESSOR,)),
    # stopping: as draining, but nothing comes after it, whatever is asked for.
    (State.STOPPING, LifecycleEvent.READY): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.FAULT): Move(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, LifecycleEvent.POISONED): Move(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, LifecycleEvent.END_OF_FILE): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.START_TIMEOUT): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.DRAIN): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.DRAIN_TIMEOUT): Move(State.STOPPING, (Action.KILL,)),
    (State.STOPPING, LifecycleEvent.STOP): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.EXITED): Move(State.STOPPED, (Action.END,)),
    (State.STOPPING, LifecycleEvent.KILL_TIMEOUT): Move(State.STOPPED, (Action.END,)),
    (State.STOPPING, LifecycleEvent.STANDBY_DUE): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.STANDBY_LOST): Move(State.STOPPING),
    (State.STOPPING, LifecycleEvent.PREDECESSOR_EXITED): Move(State.STOPPING, (Action.END_PREDECESSOR,)),
    # rebuilding: no active process; a verdict is awaited, then the end of the back-off.
    (State.REBUILDING, LifecycleEvent.RESTART_GRANTED): Move(State.REBUILDING, (Action.ARM_BACKOFF,)),
    (State.REBUILDING, LifecycleEvent.RESTART_REFUSED): Move(State.STOPPED, (Action.DISMISS,)),
    (State.REBUILDING, LifecycleEvent.CIRCUIT_OPENED): Move(State.TRIPPED, (Action.DISMISS, Action.ARM_BACKOFF)),
    (State.REBUILDING, LifecycleEvent.QUARANTINE): Move(State.QUARANTINED, (Action.DISMISS,)),
    (State.REBUILDING, LifecycleEvent.BACKOFF_OVER): Move(State.STARTING, (Action.SPAWN,)),
    (State.REBUILDING, LifecycleEvent.DRAIN): Move(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.REBUILDING, LifecycleEvent.STOP): Move(State.STOPPED, (Action.DISMISS,)),
    (State.REBUILDING, LifecycleEvent.STANDBY_DUE): Move(State.REBUILDING),
    (State.REBUILDING, LifecycleEvent.STANDBY_READY): Move(State.REBUILDING),  # taken when the back-off is over
    (State.REBUILDING, LifecycleEvent.STANDBY_LOST): Move(State.REBUILDING),
    (State.REBUILDING, LifecycleEvent.PREDECESSOR_EXITED): Move(State.REBUILDING, (Action.END_PREDECESSOR,)),
    # tripped: no active process, and clients are refused; one process is tried when the delay has passed.
    (State.TRIPPED, LifecycleEvent.BACKOFF_OVER): Move(State.STARTING, (Action.SPAWN,)),
    (State.TRIPPED, LifecycleEvent.START): Move(State.STARTING, (Action.SPAWN,)),
    (State.TRIPPED, LifecycleEvent.DRAIN): Move(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.TRIPPED, LifecycleEvent.STOP): Move(State.STOPPED),
    (State.TRIPPED, LifecycleEvent.STANDBY_DUE): Move(State.TRIPPED),
    (State.TRIPPED, LifecycleEvent.STANDBY_LOST): Move(State.TRIPPED),
    (State.TRIPPED, LifecycleEvent.PREDECESSOR_EXITED): Move(State.TRIPPED, (Action.END_PREDECESSOR,)),
    # quarantined: no active process, and none is to come before what is in the way has gone.
    (State.QUARANTINED, LifecycleEvent.RELEASED): Move(State.STARTING, (Action.SPAWN,)),
    (State.QUARANTINED, LifecycleEvent.DRAIN): Move(State.STARTING, (Action.RESET_INTENSITY, Action.SPAWN)),
    (State.QUARANTINED, LifecycleEvent.STOP): Move(State.STOPPED),
    (State.QUARANTINED, LifecycleEvent.STANDBY_DUE): Move(State.QUARANTINED),
    (State.QUARANTINED, LifecycleEvent.STANDBY_LOST): Move(State.QUARANTINED),
    (State.QUARANTINED, LifecycleEvent.PREDECESSOR_EXITED): Move(State.QUARANTINED, (Action.END_PREDECESSOR,)),
}


def step(state: State, event: LifecycleEvent) -> Move:
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
    return mermaid(TRANSITIONS, State.STOPPED)
