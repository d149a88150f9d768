"""What clients are told of a pool's devices and the actors on them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import U16, U32, ErrorInfo, Message, Name, Text
from atomr_mp.protocol.messages.data import MAX_ITEMS


class DeviceState(StrEnum):
    """What a client may know of a device's life; the supervisor's table has the same states."""

    STARTING = "starting"
    READY = "ready"
    POISONED = "poisoned"
    HUNG = "hung"
    LOST = "lost"
    DRAINING = "draining"
    RETIRING = "retiring"
    STOPPING = "stopping"
    REBUILDING = "rebuilding"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"
    TRIPPED = "tripped"


class Circuit(StrEnum):
    """Whether a device that has ended too often is started again."""

    CLOSED = "closed"
    """It is, within its restart intensity."""
    OPEN = "open"
    """It has no process: one is tried later, or never (`DeviceInfo.retry_at`)."""
    HALF_OPEN = "half_open"
    """One process is being tried. It closes the circuit by serving for a while, and opens it again by ending."""


OUT_OF_USE: Final = frozenset({DeviceState.STOPPED, DeviceState.QUARANTINED, DeviceState.TRIPPED})
"""States that nothing leads out of by itself, or not soon."""


class Resend(StrEnum):
    """Which requests of a method that is not idempotent a client sends again when their worker has ended."""

    NEVER = "never"
    UNSTARTED = "unstarted"
    """Those that certainly did not start."""


class Resumes(StrEnum):
    """How a stream goes on elsewhere that has sent parts when its worker ended."""

    NEVER = "never"
    START = "start"
    """From the number of parts that were sent."""
    SENT = "sent"
    """With the parts themselves."""


class MethodInfo(Message, frozen=True):
    """A request that an actor answers."""

    name: Name
    parameters: list[Name]
    idempotent: bool
    deadline_s: float | None
    doc: Text
    batch_items: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most requests that it runs at a time; 0 if it takes them one by one."""
    call_items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """Most items that a call of it may have; 0 if none: there is a call for each."""
    resend: Resend = Resend.NEVER
    schema: Text = ""
    """JSON: `arguments`, the JSON Schema of an object with the arguments by name; `result`, that of the result;
    `$defs`; and `openai`, where it answers in that form. Empty if there is none, or only a very long one."""
    streams: bool = False
    """It is answered by parts: opened by `Streams`, and never by `Calls`."""
    resumes: Resumes = Resumes.NEVER


class ActorInfo(Message, frozen=True):
    """An actor that every device of the pool runs."""

    name: Name
    methods: list[MethodInfo]


class StandbyInfo(Message, frozen=True):
    """A process that is to be a device's next incarnation: to be connected to, and sent nothing."""

    generation: U32
    """The generation that it will have."""
    endpoint: str
    """ZeroMQ address of its data socket."""


class DeviceInfo(Message, frozen=True):
    """A device as the supervisor sees it; sent whole whenever anything in it changes."""

    index: U16
    name: Name
    state: DeviceState
    generation: U32
    """The current incarnation, 0 before the first."""
    endpoint: str
    """ZeroMQ address of the current incarnation, empty unless `admitted`."""
    admitted: bool
    """The worker has acknowledged this session: calls may be sent."""
    worker_pid: U32 | None
    """None while the device has no process; `pid` raises then."""
    restarts: U32
    """Unplanned ends so far."""
    reason: Text
    """Why the device is in this state, for a person; empty when ready."""
    error: ErrorInfo | None = None
    """How its last incarnation ended, if the device is stopped because of it."""
    uuid: Text = ""
    """The GPU's, "GPU-…" or "MIG-…"; empty on the host backend."""
    standby: StandbyInfo | None = None
    """What stands ready to take the current incarnation's place, if it has acknowledged this session."""
    circuit: Circuit = Circuit.CLOSED
    """Whether the device is started again after it has ended too often."""
    retry_at: float = 0.0
    """When the next process is tried while the circuit is open, in seconds since the epoch; 0 if none is."""

    def retry_after_s(self, now: float) -> float:
        """Return how long it is until the next process is tried, from `now` (since the epoch); 0 if none is."""
        return max(0.001, self.retry_at - now) if self.retry_at else 0.0

    @property
    def pid(self) -> int:
        """The worker's pid.

        Raises:
            DeviceUnavailable: The device has no process now. There is no number in its place: 0 would mean the caller's
                own process group to `os.kill`.
        """
        if self.worker_pid is None:
            why = f" ({self.reason})" if self.reason else ""
            raise errors.DeviceUnavailable(
                f"device {self.index} is {self.state.value} and has no process, so it has no pid{why}; "
                "`Pool.wait_ready` waits for its next one",
                maybe_executed=False,
                device=self.index,
            )
        return self.worker_pid
