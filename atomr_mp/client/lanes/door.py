"""The client, as its lanes use it. Types only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from atomr_mp import errors
from atomr_mp.client.lanes.homes import Homes
from atomr_mp.client.lanes.retry_policy import KnownSuspicions
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.client.reply import Reply
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.transport.data import Login
from atomr_mp.wire.courier import Courier

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement
    from atomr_mp.client.memory.loans import LentBorrow
    from atomr_mp.client.memory.memory import RefLoan
    from atomr_mp.client.memory.refs import GpuRef


class LaneMemory(Protocol):
    """The client's shared memory, as a lane sees it."""

    def attach(
        self, placed: Sequence[object], device: int | None
    ) -> tuple[Sequence[object], Sequence[Placement], int, int | None, Sequence[GpuRef]]:
        """Check a call's arguments; see `ClientMemory.attach`."""

    def lend(self, foreign: Sequence[GpuRef], device: int, deadline_s: float) -> Sequence[LentBorrow]:
        """Lend a device other devices' refs. Blocks."""

    def loans(self, foreign: Sequence[GpuRef]) -> Sequence[RefLoan]:
        """Return the requests by which a call may use refs of other devices."""

    def unreached(self, foreign: Iterable[GpuRef], device: int) -> Sequence[GpuRef]:
        """Return those of other devices' refs whose memory a device has not been given yet."""

    def reach(self, ref: GpuRef, device: int) -> None:
        """Let a device reach another device's memory. Blocks."""

    def answered(self, copies: Iterable[Placement], worker: Releases, *, executed: bool) -> None:
        """Record that the call with these arguments was answered."""

    def abandoned(self, copies: Iterable[Placement], until_ns: int) -> None:
        """Record that the answer of the call with these arguments will not be read. The call may start until then."""

    def sent_again(self, copies: Iterable[Placement]) -> None:
        """Record that the call with these arguments is sent again, though the worker that has it lives."""

    def returned(self, ids: Iterable[int]) -> None:
        """Record that a worker no longer uses these arguments."""

    def resolver(self, leases: Mapping[int, Lease], *, opens: bool = True) -> Callable[[Any], object]:
        """Return a function that makes refs and arrays from the content of an answer with these leases.

        Without `opens` it raises `NotOpenError` where memory has to be opened first.
        """


class LaneClient(Protocol):
    """A client, as its lanes see it."""

    session_polled_ns: int
    """The session was last polled at this time or later; CLOCK_MONOTONIC."""

    @property
    def epoch(self) -> bytes:
        """The pool's epoch."""

    @property
    def max_waiting(self) -> int:
        """Most calls that may wait for room in a lane."""

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the session has ended, None if it has not."""

    @property
    def login(self) -> Login:
        """The login of the lanes' connections."""

    @property
    def sent_room(self) -> SentRoom:
        """Parts of streams that are kept."""

    @property
    def courier(self) -> Courier:
        """Sends the bytes that connections could not send at once."""

    @property
    def session_descriptor(self) -> int:
        """Readable when the supervisor has sent a message."""

    @property
    def workers_live(self) -> bool:
        """Whether the workers of a lost pool go on."""

    @property
    def suspicions(self) -> KnownSuspicions:
        """The verdicts on requests."""

    @property
    def methods(self) -> Mapping[str, MethodInfo]:
        """The pool's requests by "Actor.method"."""

    @property
    def homes(self) -> Homes:
        """The devices of those actors that not all have."""

    @property
    def max_replays(self) -> int:
        """How often a lost request is sent again."""

    @property
    def memory(self) -> LaneMemory:
        """The client's shared memory."""

    def place(self, array: Any) -> Placement | None:
        """Copy an argument into memory that workers can read; None if it has to travel otherwise."""

    def releases(self, device: int, generation: int) -> Releases:
        """Return the releases due to an incarnation."""

    def give_back(self, releases: Releases, *, freed: bool = False) -> None:
        """Send due releases to an incarnation, if possible."""

    def out_of_memory(self, releases: Releases) -> None:
        """Record that an incarnation has run out of memory."""

    def report(self, device: int, generation: int, requests: list[RequestKey]) -> int:
        """Report to the supervisor the requests that ran when an incarnation ended; return the number of its answer."""

    def acquit(self, reply: Reply) -> None:
        """Report a request as acquitted, if it has run alone and its worker lives."""

    def tell_reach(self, device: int, generation: int, failures: int) -> None:
        """Report attempts to connect to a living worker to the supervisor."""

    def new_request_id(self) -> int:
        """Return an id that no other request of the session has."""

    def new_lane_number(self) -> int:
        """Return a number that no other connection of the session has."""

    def read_session(self) -> None:
        """Take in the supervisor's messages."""
