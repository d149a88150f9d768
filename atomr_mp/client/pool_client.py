"""A client as pools, devices, maps and refs use it: `Client` on this machine, `RemoteClient` on another. Types only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from atomr_mp import errors
from atomr_mp.client.lanes.homes import Homes
from atomr_mp.client.memory.ref_memory import RefMemory
from atomr_mp.client.reply import ItemsReply, Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.devices import DeviceInfo, MethodInfo, Resumes
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded

if TYPE_CHECKING:
    import numpy as np

    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.client.programs import ProgramRun


class PoolMemory(RefMemory, Protocol):
    """The memory that a client's refs share."""

    def put(self, array: np.ndarray[Any, Any], dtype: str, device: int) -> GpuRef:
        """Return a new buffer with a copy of an array."""

    def host_array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
        """Return a new array in memory that workers can reach."""

    def claim(self, shared: bytes) -> GpuRef:
        """Claim a buffer that another client has shared."""


class PoolClient(Protocol):
    """A session with a pool. Thread-safe."""

    @property
    def pool(self) -> str:
        """The pool's name."""

    @property
    def epoch(self) -> bytes:
        """The life of the pool; each start begins another."""

    @property
    def supervisor_pid(self) -> int:
        """The pool's supervisor, on its machine."""

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        """The devices, as last reported."""

    @property
    def methods(self) -> Mapping[str, MethodInfo]:
        """The pool's requests by "Actor.method"; empty while it starts."""

    @property
    def homes(self) -> Homes:
        """The devices of those actors that not all have."""

    @property
    def listeners(self) -> list[Callable[[DeviceChanged | IncarnationEnded], object]]:
        """Called with every lifecycle event."""

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the session has ended, None if it has not."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the client's, so that the client is of no use here."""

    @property
    def unanswered(self) -> int:
        """Number of this client's requests that are unanswered, or wait in this process."""

    @property
    def window(self) -> Window:
        """The limit of unanswered requests per device."""

    @property
    def memory(self) -> PoolMemory:
        """The memory that this client's refs share."""

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has."""

    def read_session(self) -> None:
        """Take in what the pool has reported, without waiting."""

    def read_session_if_old(self) -> None:
        """Do so unless it was done in the last millisecond."""

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Take in events until `condition()` holds; False if it does not in time, PoolLost if the session ends."""

    def submit(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        deadline_s: float,
        priority: int = 0,
        blocking: bool = False,
        replays: int = 0,
        wait: bool | None = None,
        program: ProgramRun | None = None,
        backlog: bool = False,
    ) -> Reply:
        """Send a request; `Client.submit` describes the arguments and errors."""

    def submit_items(
        self, method: str, items: Sequence[Sequence[Any]], /, *, deadline_s: float, priority: int = 0
    ) -> ItemsReply:
        """Send many requests as one, see `Client.submit_items`; any error but Overloaded: send each by itself."""

    def stream(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        first_s: float,
        between_s: float,
        deadline_s: float,
        priority: int,
        ahead: int,
        ahead_bytes: int,
        resumes: Resumes,
    ) -> ReplyStream:
        """Open a stream; `pool.Pool.stream` describes the arguments."""

    def close(self) -> None:
        """End the session; unanswered requests end with `PoolLost`. May be called twice."""
