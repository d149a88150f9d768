"""The streams as a method with steps sees them: `@method(batch=Steps(...))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

A = TypeVar("A")
P = TypeVar("P")


class StreamSink(Protocol):
    """Takes a live stream's parts and its end."""

    def keep(self, part: Any, /) -> None:
        """Take a part."""

    def end(self, result: Any, /) -> None:
        """Take the result."""

    def fail(self, error: BaseException | type[BaseException], /) -> None:
        """Take the error."""


class LiveStream(Generic[A, P]):
    """One of the streams of a step. Use it only inside the method, on its thread.

    Attributes:
        id: Its number, unique among the streams of its actor; in a world the same on all ranks.
        arguments: Its caller's arguments.
        sent: The parts that it sent in a worker that has ended, if the method is `resumable`; it goes on after them.
        ready: Whether its reader has room for more parts. That is advice: parts sent beyond it are held.
        over: Whether the method has ended it.
    """

    __slots__ = ("_sink", "arguments", "id", "over", "ready", "sent")

    def __init__(self, number: int, arguments: A, sink: StreamSink, sent: Sequence[P] = ()) -> None:
        self.id: Final = number
        self.arguments: Final = arguments
        self.sent: Final = sent
        self.ready = True
        self.over = False
        self._sink = sink

    def send(self, part: P) -> None:
        """Send a part: at the end of the step.

        Parts without room at the reader are held, up to 1,024 parts and 16 MiB; beyond that this stream ends with
        `Overloaded`.

        Raises:
            RuntimeError: The method has ended the stream.
        """
        if self.over:
            raise self._ended()
        self._sink.keep(part)

    def end(self, result: Any = None) -> None:
        """End the stream once its parts have left; it is not in later steps.

        Raises:
            RuntimeError: The method has ended the stream.
        """
        if self.over:
            raise self._ended()
        self.over = True
        self._sink.end(result)

    def fail(self, error: BaseException | type[BaseException]) -> None:
        """End this stream alone with an error, as `raise error` would; it is not in later steps.

        Raises:
            RuntimeError: The method has ended the stream.
        """
        if self.over:
            raise self._ended()
        self.over = True
        self._sink.fail(error)

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"stream {self.id} has been ended by this method")


class Live(Generic[A, P]):
    """The streams of a step: `Live[Arguments, Part]`. Iterating yields all live streams, including new ones.

    Attributes:
        new: Streams that begin with this step.
        gone: Streams that are no longer live though the method has not ended them: they were cancelled, were late, lost
            their client, or failed by an exception of an earlier step. Each is in `gone` of one step.
    """

    def __init__(
        self, streams: Mapping[int, LiveStream[A, P]], new: list[LiveStream[A, P]], gone: list[LiveStream[A, P]]
    ) -> None:
        self._streams = streams
        self.new = new
        self.gone = gone

    @property
    def ready(self) -> list[LiveStream[A, P]]:
        """Live streams whose readers have room for more parts."""
        return [each for each in self._streams.values() if each.ready and not each.over]

    def __getitem__(self, number: int) -> LiveStream[A, P]:
        """Return a live stream by its id.

        Raises:
            KeyError: There is no such stream.
        """
        return self._streams[number]

    def __contains__(self, number: object) -> bool:
        return number in self._streams

    def __iter__(self) -> Iterator[LiveStream[A, P]]:
        return iter(list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)
