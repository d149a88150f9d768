"""What a call returns at once: its answer to come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol import values

if TYPE_CHECKING:
    from atomr_mp.lane import Lane, Link


class Reply:
    """The answer to one request: a result or an error, once.

    A reply of a call that was made in a running event loop belongs to that loop: `await` it there. Any other may be
    waited for with `result` by any thread, or awaited from any loop.
    """

    __slots__ = (
        "_body",
        "_callbacks",
        "_error",
        "_frames",
        "_lane",
        "_link",
        "_payload",
        "_sent_generation",
        "_sent_ns",
        "deadline_ns",
        "done",
        "id",
        "method",
    )

    def __init__(self, lane: Lane, request_id: int, method: str, deadline_ns: int, body: bytes) -> None:
        self._lane = lane
        self._link: Link | None = None
        self._body = body
        self._payload: list[values.Buffer] = []
        self._frames: list[memoryview] = []
        self._error: errors.AtomrError | None = None
        self._callbacks: list[Callable[[Reply], object]] | None = None
        self._sent_generation = 0
        self._sent_ns = 0
        self.id: Final = request_id
        self.method: Final = method
        """ "Actor.method"."""
        self.deadline_ns: Final = deadline_ns
        """CLOCK_MONOTONIC."""
        self.done = False
        """Whether there is an answer."""

    def __repr__(self) -> str:
        if not self.done:
            state = f"pending on device {self._link.device}" if self._link else "pending"
        else:
            state = repr(self._error) if self._error else "done"
        return f"<Reply {self.id} of {self.method}: {state}>"

    @property
    def device(self) -> int:
        """Index of the device that the request went to, -1 if none."""
        return self._link.device if self._link else -1

    @property
    def generation(self) -> int:
        """The incarnation that the request was sent to, 0 while it waits for one."""
        return self._sent_generation

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer and return the result. Arrays in it are the caller's own.

        Args:
            timeout_s: How long to wait; None until the request's deadline, which always ends it.

        Raises:
            TimeoutError: No answer within `timeout_s`; the request goes on.
            RuntimeError: Called in the event loop to which the reply belongs; await it.
            AtomrError: What the request ended with.
        """
        if not self.done:
            self._lane.wait(self, timeout_s)
        if self._error is not None:
            raise self._error
        return decode(self._body, self._frames)

    def exception(self, timeout_s: float | None = None) -> errors.AtomrError | None:
        """Wait for the answer and return the error, or None if there is a result."""
        if not self.done:
            self._lane.wait(self, timeout_s)
        return self._error

    def cancel(self) -> None:
        """Ask that the request does not start; if it has started already, this changes nothing.

        The reply then ends with `Cancelled`, or with whatever the request ended with.
        """
        if not self.done:
            self._lane.cancel(self)

    def add_done_callback(self, callback: Callable[[Reply], object]) -> None:
        """Call `callback(reply)` once there is an answer; at once if there is one.

        Callbacks run on whichever thread receives the answer (in the event loop for its own replies) and must be
        short. With nobody waiting, a background thread receives.
        """
        if not self._lane.add_callback(self, callback):
            callback(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            loop = asyncio.get_running_loop()
            answered = loop.create_future()
            self.add_done_callback(
                lambda _: (
                    _set_done(answered)
                    if self._lane.belongs_to(loop)
                    else loop.call_soon_threadsafe(_set_done, answered)
                )
            )
            try:
                yield from answered
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    # --- for the lane, with its lock held --------------------------------------------------------------------------

    def _finish(
        self, error: errors.AtomrError | None, body: bytes = b"", frames: list[memoryview] | None = None
    ) -> None:
        if self.done:
            return
        self._payload = []
        self._error = error
        self._body = body
        self._frames = frames or []
        self.done = True


def decode(body: bytes, frames: list[memoryview]) -> Any:
    """Return the result in a reply's body."""
    # A decoder is for one thread at a time.
    try:
        decoder: values.Decoder[Any] = _local.decoder
    except AttributeError:
        decoder = _local.decoder = values.Decoder()
    return decoder.decode(body, frames)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_local = threading.local()
