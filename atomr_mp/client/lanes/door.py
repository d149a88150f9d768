"""What lanes ask of their client. Types only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from atomr_mp.client.lanes.retry_policy import KnownSuspicions
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.messages.suspects import RequestKey
from atomr_mp.transport.data import Login
from atomr_mp.wire.courier import Courier

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement


class LaneMemory(Protocol):
    """The client's shared memory, as a lane sees it."""

    def attach(
        self, placed: Sequence[object], device: int | None
    ) -> tuple[Sequence[object], Sequence[Placement], int, int | None]:
        """Check a call's arguments; return what it keeps, its copies, how many refs it has, and its device."""

    def answered(self, copies: Iterable[Placement], worker: Releases, *, executed: bool) -> None:
        """A call with these arguments was answered."""

    def abandoned(self, copies: Iterable[Placement], until_ns: int) -> None:
        """Nobody will read the answer of a call with these arguments, which may start until then."""

    def sent_again(self, copies: Iterable[Placement]) -> None:
        """A call with these arguments is sent again, though the worker lives that has it already."""

    def returned(self, ids: Iterable[int]) -> None:
        """A worker uses these arguments no more."""

    def resolver(self, leases: Mapping[int, Lease]) -> Callable[[Any], object]:
        """Return a function that makes refs and arrays from the content of an answer with these leases."""


class LaneClient(Protocol):
    """A client, as its lanes see it."""

    session_polled_ns: int
    """When the session was last seen to have been read, CLOCK_MONOTONIC; never too late."""

    @property
    def max_waiting(self) -> int:
        """How many calls may wait for room in a lane."""

    @property
    def login(self) -> Login:
        """What admits the lanes' connections."""

    @property
    def courier(self) -> Courier:
        """Moves on what connections owe."""

    @property
    def session_descriptor(self) -> int:
        """Readable when the supervisor has said something."""

    @property
    def workers_live(self) -> bool:
        """Whether the workers of a lost pool go on."""

    @property
    def suspicions(self) -> KnownSuspicions:
        """What is held of requests."""

    @property
    def methods(self) -> Mapping[str, MethodInfo]:
        """The pool's requests by "Actor.method"."""

    @property
    def max_replays(self) -> int:
        """How often a request is sent again by itself."""

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
        """An incarnation has no memory left."""

    def report(self, device: int, generation: int, requests: list[RequestKey]) -> int:
        """Tell the supervisor what ran when an incarnation ended; return the number of its answer."""

    def keep_sent(self, nbytes: int) -> bool:
        """Keep so much more of what streams have received; False if that would be too much in all."""

    def acquit(self, reply: Reply) -> None:
        """Tell the supervisor that a request has run alone, and its worker lives, if that is how it has ended."""

    def tell_reach(self, device: int, generation: int, failures: int) -> None:
        """Tell the supervisor how attempts to connect to a worker that lives fare."""

    def new_lane_number(self) -> int:
        """Return a number for a connection that no other connection of the session has."""

    def read_session(self) -> None:
        """Take in what the supervisor has said."""
