"""A library whose requests the data decide: whether there is a result, and how large it is."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pytest

import atomr_mp_workers.libraries
from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.arguments import reads, writes
from atomr_mp.protocol.libraries import base, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.device.base import Event, Stream, Work, WorkerDevice
from atomr_mp_workers.libraries.base import Library, LibraryContext, array
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.request import Elsewhere, Later, Next, current_holder
from tests.actor_libraries import have
from tests.pure.worker.test_dispatch import DEADLINE_S, NEVER_NS, TOKEN, Worker, outcomes

NAME: Final = "deciding"


class Invert(LibraryRequest, frozen=True):
    """Compute 1 / x, and how many elements of x are 0."""

    name: ClassVar = "invert"
    types: ClassVar = {"T": base.REAL}
    undefined: ClassVar = "An element is 0."
    x: Annotated[Operand, reads("n")]
    out: Annotated[Operand, writes("n")]
    zeros: Annotated[Operand, writes("_")]


class Normalize(LibraryRequest, frozen=True):
    """Divide x by its largest element, which is found first."""

    name: ClassVar = "normalize"
    captured: ClassVar = False
    types: ClassVar = {"T": base.REAL}
    undefined: ClassVar = "The largest element is 0."
    x: Annotated[Operand, reads("n")]
    out: Annotated[Operand | None, writes("n")] = None


class Nonzero(LibraryRequest, frozen=True):
    """Return a ref to the elements of x that are not 0, and a ref to their indices."""

    name: ClassVar = "nonzero"
    captured: ClassVar = False
    answers: ClassVar = True
    x: Annotated[Operand, reads("n")]


class Measure(LibraryRequest, frozen=True):
    """Divide x by its sum, which is found elsewhere than on the loop."""

    name: ClassVar = "measure"
    captured: ClassVar = False
    types: ClassVar = {"T": base.REAL}
    x: Annotated[Operand, reads("n")]
    out: Annotated[Operand | None, writes("n")] = None


class Deciding(Library):
    """Does them with NumPy."""

    names = "out"
    """What it says is undefined."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self.log: Final[list[str]] = []
        """The parts that were done."""
        self.holders: Final[list[Holder]] = []
        """Who holds what was found."""
        self.found: list[list[float]] = []
        self.begun: Final = threading.Semaphore(0)
        """Work elsewhere that has begun."""
        self.go: Final = threading.Semaphore(0)
        """Work elsewhere that may end."""
        self.fails: Exception | None = None

    def measure(self, request: Measure) -> Elsewhere:
        """Find the sum when it may; divide by it."""
        x, out = array(request.x), array(request.out)

        def work() -> Any:
            self.begun.release()
            assert self.go.acquire(timeout=DEADLINE_S), "nobody has let it go"
            if self.fails is not None:
                raise self.fails
            return x.sum()

        def then(total: Any) -> None:
            self.log.append("then")
            out[...] = x / total

        return Elsewhere(work, then)

    def invert(self, request: Invert) -> Later:
        """Invert x; what is left undefined is only the output of the division."""
        names = self.names
        x, out, zeros = array(request.x), array(request.out), array(request.zeros)
        with np.errstate(divide="ignore"):
            out[...] = 1 / x
        zeros[...] = (x == 0).sum()

        def read() -> None:
            if zeros[0]:
                raise errors.NumericalError("x is 0", row=int(np.argmin(abs(x))), undefined=names)

        return Later(read)

    def normalize(self, request: Normalize) -> Next:
        """Find the largest element; divide by it."""
        x, out = array(request.x), array(request.out)
        self.log.append("largest")
        largest = x.max()

        def divide() -> None:
            self.log.append("divide")
            if not largest:
                raise errors.NumericalError("the largest element is 0", undefined="out")
            out[...] = x / largest

        return Next(divide)

    def nonzero(self, request: Nonzero) -> Next:
        """Count; then find the indices; then take the elements."""
        x = array(request.x)
        self.log.append("count")
        count = int((x != 0).sum())

        def find() -> Next:
            self.log.append("find")
            store, holder = self.context.store, self.context.holder()
            self.holders.append(holder)
            found = store.buffers.allocate(holder, "int64", (count,))
            found.array[...] = np.flatnonzero(x)

            def take() -> Any:
                self.log.append("take")
                taken = store.buffers.allocate(holder, "float32", (count,))
                taken.array[...] = x[found.array]
                self.found = [taken.array.tolist(), found.array.tolist()]
                return [taken, found]

            return Next(take)

        return Next(find)


class DeferringStream(Stream):
    """A stream whose work goes on when the call has returned, as CUDA's: until the test ends it.

    Args:
        device: Makes events.
    """

    defers = True

    def __init__(self, device: WorkerDevice) -> None:
        super().__init__("deferring")
        self._make_event = device.make_event
        self.pending: deque[Work] = deque()
        self._recorded: set[Event] = set()

    def takes(self, after: Sequence[Event]) -> bool:
        """Return whether it can wait for these: for what is on it to its last part."""
        return all(event in self._recorded or event.done for event in after)

    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:  # noqa: ARG002 - it works in order
        """Do work at once, and keep its end back."""
        work.call()
        if not work.goes_on and work.event is not None:
            self._recorded.add(work.event)
        self.pending.append(work)
        return False

    def go(self) -> None:
        """Let the oldest part end."""
        self.pending.popleft().finished()

    def go_all(self) -> None:
        """Let end what is on it."""
        for _ in range(len(self.pending)):
            self.go()

    def close(self) -> None:
        """Do nothing: no thread waits."""


class DecidingWorker(Worker):
    """A worker that has this library.

    Args:
        patch: Makes the library known.
        where: Its stream: "loop", "thread", or "deferring".
    """

    def __init__(self, patch: pytest.MonkeyPatch, where: str = "loop") -> None:
        super().__init__()
        patch.setattr(atomr_mp_workers.libraries, "LIBRARIES", (NAME, "blas", "program"))
        own = {each.name: each for each in base.requests_in(sys.modules[__name__])}
        patch.setattr(
            atomr_mp_workers.libraries, "requests_of", lambda name: own if name == NAME else requests_of(name)
        )
        self.context: Final = self.libraries._context
        self.context.__dict__["holder"] = current_holder
        self.context.__dict__["wake"] = self.libraries._preparer._wake = self.completions.wake
        self.libraries._elsewhere._wake = self.completions.wake
        self.stream = DeferringStream(self.device)
        host = self.device.make_stream(NAME, inline_bytes=2**63 if where == "loop" else -1)
        self.library = Deciding(self.context, self.stream if where == "deferring" else host)
        have(self.libraries, NAME, self.library)

    def request(self, peer: Peer, request: LibraryRequest, library: str = NAME) -> int:
        """Have a request arrive; return its id."""
        self._ids += 1
        body, _, placed = values.encode(request)
        call = data.Call(self._ids, f"{library}.{request.name}", NEVER_NS, 0, body, refs=len(placed))
        self.dispatcher.take(self.envelope.open(peer, data.Calls(TOKEN, [call]), []))
        return self._ids

    def until_ended(self, peer: Peer, *ids: int) -> dict[int, errors.AtomrError | None]:
        """Take back what has ended until these requests are answered; return all outcomes."""
        while not set(ids) <= set(outcomes(peer)):
            self.take_back()
        return outcomes(peer)

    def array(self, peer: Peer, values: Any) -> Any:
        """Return an array of a client."""
        content = np.asarray(values, "float32")
        array = self.store.buffers.allocate(peer.session.holder, "float32", content.shape)
        array.array[...] = content
        self.store.lease(peer.session.holder, array)
        return array
