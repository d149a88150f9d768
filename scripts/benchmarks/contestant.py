"""The interface of a contestant: the base, the runtime, or a peer.

A contestant keeps its files in one directory, which is also how a client in another process finds it. Modules of
contestants import late whatever costs time or memory; the clock stops for none of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

BATCH: Final = 32
"""Texts that the model is given at a time, by every contestant: as many as `examples/embed.py` takes."""
BATCH_WAIT_S: Final = 0.005
"""How long the first text of a batch may wait for others, by every contestant that puts them together."""

Embed = Callable[[Iterable[str]], Iterator[object]]
"""Yields the vector of each text, in order; takes texts as it can use them."""


@dataclass(frozen=True)
class Client:
    """A blocking client. Plain functions, so that no other code runs between the clock and the contestant."""

    empty: Callable[[], object]
    """Make an empty call and return once it is answered."""
    submit: Callable[[bytes], Any]
    """Send an echo and return the argument for `take`."""
    take: Callable[[Any], object]
    """Wait for an echo's answer, in the order of sending."""


@dataclass(frozen=True)
class AsyncClient:
    """A client in the running event loop."""

    empty: Callable[[], Awaitable[object]]
    echo: Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True)
class Recovery:
    """How a contestant loses worker 0 and has it again."""

    pid: Callable[[], int]
    """Return the worker's process, once it is there."""
    empty: Callable[[], object] | None
    """Make an empty call of this worker and return once it is answered; None if a lost worker stays lost."""
    hold: Callable[[str], Callable[[], object]]
    """Start a request that opens the fifo of this path for writing, then sleeps; return a function that waits for its
    answer."""
    lost: type[Exception] | tuple[type[Exception], ...]
    """The caller's error of a request that was on the worker."""


Empty = Callable[[], object]
"""Makes an empty call and returns once it is answered."""

Signals = dict[str, Callable[[], AbstractContextManager[Empty]]]
"""Contexts that switch a signal on, by its name; "off" for none."""


class SilenceError(Exception):
    """A caller heard nothing within `SILENCE_S`, and would wait for ever or for a timeout of its own."""


SILENCE_S: Final = 5.0
"""How long a caller waits for word of a worker that was killed."""


@dataclass(frozen=True)
class Arrays:
    """How a contestant moves arrays of bytes; None for each move that it lacks."""

    put: Callable[[Any, Any], object] | None = None
    """Copy the first array to device 0; the second is the base's."""
    take: Callable[[Any, Any], object] | None = None
    """Copy an array of the same size from device 0 into the second array."""
    hand_on: Callable[[int], object] | None = None
    """Have device 0 make an array of so many bytes, and device 1 read it."""
    with_ref: tuple[Callable[[], object], Callable[[], object]] | None = None
    """Make a call with a number; make the same call with an array that is on the device."""


STREAM_PARTS: Final = 2000
"""Parts of a stream over HTTP; each is sent as soon as it is made."""


@dataclass(frozen=True)
class Serving:
    """A server that answers HTTP on loopback."""

    port: int
    request: bytes
    """A whole request, which asks for as little as there is."""
    stream: bytes = b""
    """A whole request for a stream of `STREAM_PARTS` numbers; empty if the server has none."""
    more_us: float = 0.0
    """Time to add to each call, for a server that does less work."""
    pool_call: Callable[[], object] | None = None
    """Makes the same call without HTTP, and returns once it is answered; None if there is no such way."""
    worker_pid: Callable[[], int] | None = None
    """Returns the process that answers; None if it is never killed."""
    standby_pid: Callable[[], int | None] | None = None
    """Returns the process that is ready to take its place, None while there is none."""


def http_request(path: str, body: bytes, token: str = "") -> bytes:
    """Return the bytes of a request with JSON."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(frozen=True)
class SharedGpu:
    """One GPU, or what stands for it on the host, with several workers that run a small model."""

    call: Callable[[int | None], Awaitable[object]]
    """Calls the model on a worker by its number, or on any, in the running event loop."""
    pid: Callable[[int], int]
    """Returns a worker's process."""
    is_whole: Callable[[], bool]
    """Whether every worker takes calls, and has a standby that is ready."""


class Contestant(ABC):
    """One way to have calls answered by other processes. Use it with `with`.

    Args:
        directory: For its files; exists, is empty at `start`, and is removed by others.
    """

    name: str
    """Its name in `contestants`."""
    package: str
    """The statement that imports it."""
    used: str
    """The statement that imports what every application needs of it: where a package loads late, that is more."""
    bears_kills: bool = False
    """Whether its server is measured while its workers are killed."""
    joinable: bool = True
    """Whether `connect` works in other processes than that of `start`."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def prepare(self) -> None:
        """Import what the application imports; not part of any launch."""
        exec(self.used, {})

    @abstractmethod
    def start(self, workers: int) -> None:
        """Start workers, and return once each has answered a call."""

    def launch(self, workers: int) -> None:
        """Do the same as `start`, where launches are compared; the base's workers import NumPy, as the runtime's do."""
        self.start(workers)

    @abstractmethod
    def connect(self) -> Client:
        """Return a client, of the worker 0 if there are several.

        If it is `joinable`, also in another process than that of `start`, on a contestant with the same directory.
        """

    def connect_async(self) -> AsyncClient | None:
        """Return a client for the running event loop, or None if there is no such thing."""
        return None

    @abstractmethod
    def processes(self) -> dict[str, list[int]]:
        """Return the pids of its "worker" 0 and of what else it has started, its "supervisor", the principal first."""

    def recovery(self) -> Recovery | None:
        """Return how to lose a worker and have it again; None if the contestant does not notice."""
        return None

    def failover(self, standby: str, *, torch: bool) -> Recovery | None:
        """Start one worker with this behind it, in place of the started one; None if there is no such thing.

        Args:
            standby: "none", "warm" or "hot".
            torch: The worker is to have imported torch.
        """
        assert standby or torch
        return None

    def unwarmed(self, backend: str, losses: int) -> Mapping[str, Mapping[str, float]]:
        """Return how long busy clients have no answer after losses of a worker with a hot standby; {} if it has none.

        Args:
            backend: "host" for the CPU, "cuda" for a GPU.
            losses: How many of each kind.

        Returns:
            By kind of loss the "p50", "p90" and "max", in milliseconds.
        """
        assert backend
        assert losses
        return {}

    def arrays(self) -> Arrays | None:
        """Return how arrays are moved, or None if they are not."""
        return None

    def signals(self) -> Signals | None:
        """Start what is needed, and return how calls are made with metrics or spans on, or None if there are none."""
        return None

    def streaming(self, standby: str) -> Any:
        """Return a pool with the streaming actors, and this behind its worker; None if it has no streams."""
        del standby

    def serving(self) -> Serving | None:
        """Start a server for HTTP with one worker, or None if there is no such thing."""
        return None

    def served_embedding(self, backend: str) -> Embed | None:
        """Do the same as `embedding` over HTTP; the base has its texts embedded by the pool itself."""
        assert backend
        return None

    def embedding(self, backend: str) -> Embed | None:
        """Start the model in one worker; return what has texts embedded, or None if there is no such thing.

        Args:
            backend: "host" for the CPU, "cuda" for a GPU.
        """
        assert backend
        return None

    def shared_gpu(self, workers: int, backend: str) -> SharedGpu | None:
        """Start so many workers on one GPU, or return None if there is no such thing.

        Args:
            workers: How many.
            backend: "host" for the CPU, "cuda" for a GPU.
        """
        assert workers
        assert backend
        return None

    @abstractmethod
    def stop(self) -> None:
        """Close clients, end what `start` has started, and wait for its end. May be called twice."""
