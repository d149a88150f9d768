"""Messages to clients about a pool's devices and the actors on them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_DEVICES, U16, U32, U64, ErrorInfo, Message, Name, Text
from atomr_mp.protocol.messages.data import MAX_ITEMS
from atomr_mp.protocol.words import place_of


class DeviceState(StrEnum):
    """The states of a device, as clients see them; the supervisor's table has the same."""

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
    """State of the circuit that keeps a device from being started again after too many ends."""

    CLOSED = "closed"
    """It is, within its restart intensity."""
    OPEN = "open"
    """It has no process: one is tried later, or never (`DeviceInfo.retry_at`)."""
    HALF_OPEN = "half_open"
    """One process is being tried. It closes the circuit by serving for a while, and opens it again by ending."""


OUT_OF_USE: Final = frozenset({DeviceState.STOPPED, DeviceState.QUARANTINED, DeviceState.TRIPPED})
"""States that a device does not leave by itself, or not soon."""


class Resend(StrEnum):
    """The requests that a client sends again when their worker has ended, if their method is not idempotent."""

    NEVER = "never"
    UNSTARTED = "unstarted"
    """Requests that certainly did not start."""


class Resumes(StrEnum):
    """The way in which a stream goes on elsewhere if it had sent parts when its worker ended."""

    NEVER = "never"
    START = "start"
    """From the number of parts that were sent."""
    SENT = "sent"
    """With the parts themselves."""


class MethodInfo(Message, frozen=True):
    """A method that an actor answers."""

    name: Name
    """The part after the dot in `Actor.method`."""
    parameters: list[Name]
    """Names, by position."""
    idempotent: bool
    """Running it twice does no harm."""
    deadline_s: float | None
    """The author's default deadline."""
    doc: Text
    """First line of its docstring."""
    batch_items: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most requests that it runs at a time, or most rows; 0 if it takes them one by one. Callers may send single items
    in either case."""
    call_items: Annotated[int, msgspec.Meta(ge=0, le=MAX_ITEMS)] = 0
    """Most items that a call of it may have, see `Calls`; 0 if none."""
    resend: Resend = Resend.NEVER
    """The calls that a client sends again by itself when their worker has ended, if the method is not idempotent: those
    that certainly did not start, or none."""
    schema: Text = ""
    """JSON: an object with `arguments`, the JSON Schema of an object with the arguments by name; `result`, that of the
    result, or of a part of one that streams; `$defs`; and `openai`, where the method answers in one of OpenAI's forms.
    An array is `{"type": "array", "format": "ndarray"}`, with `dtype` where that is known. Empty if there is none."""
    streams: bool = False
    """Answered by parts: opened by `Streams`, and refused in `Calls`."""
    resumes: Resumes = Resumes.NEVER
    """How its stream goes on after its incarnation has ended: by `StreamCall.start`, or by `sent` too."""
    writes: bool = False
    """It writes memory of refs among its arguments. If it is lost with its connection, do not resend earlier calls that
    use the same memory."""
    batches_rows: bool = False
    """Its batches are of rows: a call has from 1 to `batch_items` of them, the first length of each of its arrays and
    lists."""
    batch_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long a call waits for others of its batch at most, in seconds, while the method runs none."""


class ActorInfo(Message, frozen=True):
    """An actor of the pool."""

    name: Name
    methods: list[MethodInfo]
    """Empty if none of its devices has been ready yet, so that its methods are not known."""
    devices: Annotated[list[U16], msgspec.Meta(max_length=MAX_DEVICES)] = msgspec.field(default_factory=list)
    """The devices that have it, in order; empty for all. Calls go to these alone."""


class StandbyInfo(Message, frozen=True):
    """A second process of the device, which waits to take the worker's place.

    Connect to it beforehand, and send nothing: it answers handshakes, and reads no calls before it is promoted. Send
    calls once a `DeviceChanged` names its generation as the device's and it is `admitted`. When neither the device nor
    its `standby` has this generation, close the connection.
    """

    generation: U32
    """Its own, and the device's after the takeover; higher than the current one."""
    endpoint: str
    """ZeroMQ address of its data socket."""


class DeviceInfo(Message, frozen=True):
    """A device as the supervisor sees it; sent whole whenever anything in it changes."""

    index: U16
    name: Name
    """For a person."""
    state: DeviceState
    """Send calls in `ready`, if `admitted`. Hold them in `starting`, `poisoned`, `hung`, `lost`, `draining`, `retiring`
    and `rebuilding`: the device comes back. Refuse them in `tripped`, until `retry_at`, and in `stopping`, `stopped`
    and `quarantined`."""
    generation: U32
    """0 before the first incarnation."""
    endpoint: str
    """ZeroMQ address of the current incarnation, empty unless `admitted`."""
    admitted: bool
    """The worker has acknowledged this session: calls may be sent."""
    worker_pid: U32 | None
    """None while the device has no process; `pid` raises then."""
    restarts: U32
    """Unplanned ends so far."""
    reason: Text
    """Why it is in this state, for a person."""
    error: ErrorInfo | None = None
    """The error of its last incarnation, if the device is stopped because of it."""
    uuid: Text = ""
    """The GPU's, `GPU-…` or `MIG-…`."""
    standby: StandbyInfo | None = None
    """The next incarnation, once it is ready and has acknowledged this session."""
    circuit: Circuit = Circuit.CLOSED
    """`open`: it has ended too often; `half_open`: one process is on trial."""
    retry_at: float = 0.0
    """When the next start is tried while the circuit is open, in seconds since the epoch; 0 if none is tried."""
    gpu: U16 = 0
    """Position of its GPU among the pool's; on the host backend of what stands for one."""
    worker: U16 = 0
    """Number of its worker among those of its GPU."""
    workers_per_gpu: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] = 1
    """How many devices its GPU has. The `index` is `gpu` times this, and `worker`."""

    @property
    def place(self) -> str:
        """Its GPU and worker in words, if its GPU has several; else nothing."""
        return place_of(self.gpu, self.worker, self.workers_per_gpu)

    @property
    def title(self) -> str:
        """Its index in words, "device 3", with its GPU and worker if its GPU has several."""
        return f"device {self.index} ({self.place})" if self.place else f"device {self.index}"

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


class WorldState(StrEnum):
    """The states of a world."""

    WAITING = "waiting"
    """No process is inside of an epoch, and some member has no incarnation that can join."""
    FORMING = "forming"
    """All members were asked to join an epoch, and some have not done so yet."""
    READY = "ready"
    """All members have joined, and clients know it: calls are admitted."""
    CLOSING = "closing"
    """A member is to be replaced as planned: what has begun anywhere runs to its end, and nothing else begins."""
    ABORTING = "aborting"
    """The epoch is over, and somebody is still inside."""
    ENDING = "ending"
    """The world is closed, and what has begun anywhere runs to its end."""
    ENDED = "ended"
    """The world is closed. Somebody may still be inside."""


class WorldInfo(Message, frozen=True):
    """A world: actors over several devices, whose methods are called on all of them as one."""

    number: U32
    """Names it in calls."""
    name: Name
    devices: Annotated[list[U16], msgspec.Meta(max_length=MAX_DEVICES)]
    """Its devices, by rank."""
    actors: list[Name]
    """Its actors: they are called through the world alone."""
    state: WorldState = WorldState.WAITING
    """Send calls in `ready`. Refuse them in `ending` and `ended`; hold them in all other states."""
    epoch: U64 = 0
    """The latest epoch."""
    generations: Annotated[list[U32], msgspec.Meta(max_length=MAX_DEVICES)] = msgspec.field(default_factory=list)
    """In `ready`, the incarnations of its members, by rank: calls go to these."""
    reason: Text = ""
    """Why it is not ready, or why its latest epoch has ended."""
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_DEVICES)] = -1
    """The rank where that came from, -1 if from none."""
    made: bool = False
    """Whether a session has made it: only that session hears of it and may use it, for collectives on refs."""
