"""Runs requests of one actor elsewhere than on the worker's loop: on its threads, or on its event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from atomr_mp import errors
from atomr_mp_workers.requests.fair_queue import FairQueue
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.peers import WEIGHT, Peer
from atomr_mp_workers.requests.request import Request, Run, passes


class WaitingBatches(Protocol):
    """The waiting batches of a method."""

    def is_due(self) -> bool:
        """Whether there may be a batch now."""


class WaitingRequests(Protocol):
    """Requests that wait for a place to run; see `FairQueue`."""

    @property
    def levels(self) -> Mapping[Any, Any]:
        """Those of several owners or priorities, among whom the times of runs are divided."""

    def __len__(self) -> int: ...

    def add(self, item: Request, owner: Hashable, priority: int = 0, /) -> None:
        """Let a request wait."""

    def put_back(self, item: Request, owner: Hashable, priority: int = 0, /) -> None:
        """Let a request that was just taken wait again, before the others of its owner."""

    def take(self, is_ready: Callable[[Request], bool], /) -> Request | None:
        """Return the next request that is ready, None if there is none."""

    def items(self) -> Iterable[Request]:
        """Return all of them."""

    def heads(self) -> Iterable[Request]:
        """Yield the requests that may be next."""

    def charge(self, owner: Hashable, cost: int, /) -> None:
        """Charge an owner for a run."""


class ActorRunner(ABC):
    """Runs requests of one actor, or of one world; they begin in order. With the loop's turn.

    Args:
        count: How many requests run at a time.
        waiting: Where they wait; by default sessions take turns.
    """

    in_step: ClassVar[bool] = False
    """Whether requests begin in an order that other processes share: one that waits may do so for another process."""

    def __init__(self, count: int, waiting: WaitingRequests | None = None) -> None:
        self.count: Final = count
        self.waiting: Final[WaitingRequests] = waiting if waiting is not None else FairQueue(WEIGHT, passes)
        """Requests that have not started, and streams that go on; the next one starts when there is room."""
        self.ahead = 0
        """Number of runs that it was given and that have not come back."""
        self.batched: Final[list[WaitingBatches]] = []
        """The actor's methods whose requests are put together."""
        self.owes_batch = False
        """Whether a batch is next, if there is one, since a single request ran last."""

    def put(self, stream: StreamRequest) -> None:
        """Let a stream that has begun wait for its next turn."""
        self.waiting.add(stream, stream.owner, stream.priority)

    @property
    def is_plain(self) -> bool:
        """Whether any request may run in any free place."""
        return True

    def has_room(self, request: Request) -> bool:  # noqa: ARG002 - where all places are alike there is
        """Return whether this request may run in a free place."""
        return True

    @property
    def is_settled(self) -> bool:
        """Whether nothing will begin here, that other processes may wait for, while a suspect waits."""
        return True

    @abstractmethod
    def run(self, request: Run) -> None:
        """Run a request that has begun; it reports `finished` at its end."""

    @abstractmethod
    def came_back(self, request: Run) -> None:
        """Take a run back, which leaves a free place."""

    def passed_over(self, request: Request) -> None:  # noqa: B027 - most need not know
        """Take in that a request was answered instead of run, after it was next."""

    def together(self, request: Request) -> Sequence[Request]:
        """Return the requests that run as one with a request that was taken; by default it alone."""
        return (request,)

    def granted(self, stream: StreamRequest) -> None:  # noqa: B027 - only streams of worlds are told so
        """Take in that the reader of a stream of a world has room for another part."""

    def end_stream(self, stream: StreamRequest, error: errors.AtomrError) -> None:  # noqa: B027 - as above
        """Have a stream of a world end on all ranks, and here with this error."""

    def left_behind(self, why: str) -> errors.AtomrError:
        """Return the error of a stream of a world that is not read while its epoch ends as planned; takes why."""
        raise NotImplementedError(why)

    def interrupt(self, request: Request) -> bool:  # noqa: ARG002 - what runs on a thread goes on
        """Have a running request end early; return whether that can be done."""
        return False

    def running_of(self, peer: Peer, ids: Iterable[int] | None = None) -> Iterable[Request]:  # noqa: ARG002 - as above
        """Return the running requests of a connection that can be interrupted: all of them, or those of the ids."""
        return ()
