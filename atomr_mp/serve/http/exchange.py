"""One request and its answer over ASGI: headers, a body within its limits, and a client that may leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import set_done
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import SMALL_BYTES, UnreadAnswers
from atomr_mp.serve.problems import CLOSE, ClientLeft, Header, Problem, lines_of, retry_after
from atomr_mp.serve.served_request import ServedRequest, Watcher

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DIRECT: Final = "atomr_mp.direct"
"""Name of the ASGI extension by which our own server offers a `Direct`."""

REFUSAL: Final = "atomr_mp.refusal"
"""Key, in `http.disconnect` of our own server, of the `Problem` with which the connection has answered the request."""

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")

ONCE: Final = (
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"inference-header-content-length",
    b"x-deadline-s",
    b"x-first-s",
    b"x-between-s",
    b"x-priority",
    b"x-request-id",
)
"""Headers that a request may have only once."""


class Budget:
    """Bounds the bytes of bodies that a process holds at a time.

    What has come is counted, not what is announced. When there is no room, the body that has made no progress for
    longest gives its room to the others: a client that sends slowly, or has stopped, keeps nobody out.

    Args:
        most: Most bytes.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self.held = 0
        self._coming: Final[dict[BodyRoom, None]] = {}
        """Bodies that are not complete and hold room; the one with the oldest progress first."""

    def room(self, refuse: Callable[[], None]) -> BodyRoom:
        """Return the room of a body, empty as yet.

        Args:
            refuse: Called at most once, to have the body refused; the room has been taken from it then.
        """
        return BodyRoom(self, refuse)

    def hold(self, count: int) -> None:
        """Take room for a body that has come as a whole, to be given back by `let_go`.

        Raises:
            Problem: 429; there is no room, and no other body that could give way.
        """
        if self.held + count > self._most:
            self._make_room(count)
        self.held += count

    def let_go(self, count: int) -> None:
        """Give the room of a whole body back."""
        self.held -= count

    def take(self, room: BodyRoom, count: int) -> None:
        """Take more room for a body; see `BodyRoom.take`."""
        self._coming.pop(room, None)
        try:
            self.hold(count)
        except Problem:
            room.close()
            raise
        room.held += count
        self._coming[room] = None

    def _make_room(self, count: int) -> None:
        while self.held + count > self._most:
            if not self._coming:
                raise self.crowded()
            stalled = next(iter(self._coming))
            stalled.close()
            stalled.refuse()

    def settle(self, room: BodyRoom) -> None:
        """Keep a body's room whatever comes: the body is complete."""
        self._coming.pop(room, None)

    def give_back(self, room: BodyRoom) -> None:
        """Give a body's room back."""
        self._coming.pop(room, None)
        self.held -= room.held
        room.held = 0

    def crowded(self) -> Problem:
        """Return the refusal of a body for which there is no room."""
        return Problem(
            429,
            "overloaded",
            f"the bodies of requests take {self.held} of {self._most} bytes here; try again",
            headers=(retry_after(0),),
            close=True,
        )


class BodyRoom:
    """The room that one body takes in a budget.

    Args:
        budget: The budget.
        refuse: See `Budget.room`.
    """

    __slots__ = ("_budget", "held", "refuse")

    def __init__(self, budget: Budget, refuse: Callable[[], None]) -> None:
        self._budget: Final = budget
        self.refuse: Final = refuse
        self.held = 0

    def take(self, count: int) -> None:
        """Take room for bytes that have come.

        Raises:
            Problem: 429; there is no room, and no other body that could give way.
        """
        self._budget.take(self, count)

    def settle(self) -> None:
        """Keep the room until it is closed: the body is complete."""
        self._budget.settle(self)

    def close(self) -> None:
        """Give the room back; may be called twice."""
        self._budget.give_back(self)


class Direct(Protocol):
    """Our own server's shortcut beside ASGI's `receive` and `send`: fewer steps, and one write."""

    leaving: set[Callable[[], object]]
    """Called when the client has left."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    def crowd(self) -> Problem | None:
        """Return why no call may run now: clients leave too much unread. None if one may."""

    given: dict[bytes, bytes]
    """The request's headers by name."""

    def body(self) -> bytes | None:
        """Take the whole body; None if it has not come yet and must be received."""

    def answer(self, status: int, lines: bytes, body: bytes, *, closes: bool) -> bool:
        """Write a whole answer; False if it does not, since the client does not read.

        Args:
            status: Its status.
            lines: The lines of its headers, which are not checked, but for the date and `connection`.
            body: Its body.
            closes: Whether the connection ends with it.
        """

    async def readable(self, waiting_bytes: int) -> None:
        """Return when the client has read enough for more, or has left.

        Args:
            waiting_bytes: Bytes of the answer that waits; they are counted as unread.
        """


class Exchange(ServedRequest):
    """One request over HTTP and its answer. Used by one task.

    Args:
        scope: ASGI's scope.
        receive: ASGI's function.
        send: ASGI's function.
        limits: Limits of the client's requests.
        budget: The budget that the body's room is taken from.
        unread: What the answer's room is taken from.
    """

    __slots__ = (
        "_budget", "_direct", "_receive", "_repeats", "_room", "_send", "_unread", "_whole_bytes", "answered", "cors",
        "headers", "limits", "scope", "values",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: Limits, budget: Budget, unread: UnreadAnswers
    ) -> None:
        self.scope: Final = scope
        self._receive: Final = receive
        self._send: Final = send
        self._budget: Final = budget
        self._unread: Final = unread
        self._room: BodyRoom | None = None
        self._whole_bytes = 0
        """Bytes that a body which came as a whole holds of the budget."""
        extensions = scope.get("extensions")
        # Removed from the scope, which it refers to: a cycle for each request would need the garbage collector.
        self._direct: Final[Direct | None] = extensions.pop(DIRECT, None) if extensions else None
        self.limits: Final = limits
        root: str = scope.get("root_path") or ""
        path: str = scope["path"]
        given_headers: Sequence[Header] = scope["headers"]
        self.headers: Final[dict[bytes, bytes]] = dict(given_headers) if self._direct is None else self._direct.given
        self._repeats: Final = len(given_headers) != len(self.headers)
        super().__init__(
            scope["method"],
            path[len(root) :] if root and path.startswith(root) else path,
            self.headers.get(b"x-request-id"),
        )
        self.cors: tuple[Header, ...] = ()
        """Headers of the answer for a web page of another origin."""
        self.answered = False
        """Whether the answer is complete."""
        self.values: tuple[str, ...] = ()
        """What the path has in the places that its route leaves open."""

    # --- the request -----------------------------------------------------------------------------------------------

    def check_headers(self) -> None:
        """Refuse a request that has a decisive header twice: a proxy may have looked at the other one.

        Raises:
            Problem: 400.
        """
        if not self._repeats:
            return
        names = [name for name, _ in self.scope["headers"]]
        for name in ONCE:
            if names.count(name) > 1:
                raise Problem(
                    400, "bad_request", f"the header {name.decode().title()} is there more than once", close=True
                )

    def content_length(self) -> int | None:
        """Return the length of the body, None if the client does not tell it.

        Raises:
            Problem: 400; the header is not a length.
        """
        given = self.headers.get(b"content-length")
        if given is None:
            return None
        if not given.isdigit() or len(given) > 18:
            raise Problem(400, "bad_request", "Content-Length is not a number of bytes", close=True)
        return int(given)

    def check_room(self) -> None:
        """Refuse a call while clients leave too much of their answers unread.

        Raises:
            Problem: 429.
        """
        if self._direct is not None and (problem := self._direct.crowd()) is not None:
            raise errors.unraised(problem)

    async def body(self, most_bytes: int) -> bytes:
        """Read the body. The connection bounds the time in which nothing of it comes.

        Raises:
            Problem: 413, the body is longer; 429, there is no room for it now.
            ClientLeft: The client left before the body was complete.
        """
        length = self.content_length()
        if length is not None and length > most_bytes:
            raise too_large(most_bytes)
        whole = None if self._direct is None else self._direct.body()
        if whole is None:
            return await self._parts(most_bytes)
        if len(whole) > most_bytes:
            raise too_large(most_bytes)
        if whole:
            self._budget.hold(len(whole))
            self._whole_bytes = self.read_bytes = len(whole)
        return whole

    async def _parts(self, most_bytes: int) -> bytes:
        """Read a body that comes in parts."""
        parts = bytearray()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                room = self._room = self._budget.room(lambda: limit.reschedule(loop.time()))
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft(message.get(REFUSAL))
                    part: bytes = message.get("body", b"")
                    if len(parts) + len(part) > most_bytes:
                        raise too_large(most_bytes)
                    if part:
                        room.take(len(part))
                        parts += part
                        self.read_bytes = len(parts)
                    if not message.get("more_body"):
                        room.settle()
                        return bytes(parts)
        except TimeoutError:
            raise self._budget.crowded() from None

    def close(self) -> None:
        """Give the body's room back."""
        if self._room is not None:
            self._room.close()
            self._room = None
        elif self._whole_bytes:
            self._budget.let_go(self._whole_bytes)
            self._whole_bytes = 0

    # --- the client ------------------------------------------------------------------------------------------------

    def watcher(self, left: asyncio.Future[None]) -> Watcher:
        """Return the object that resolves a future once the client has left."""
        return _TaskWatcher(self, left) if self._direct is None else _ConnectionWatcher(self._direct, left)

    async def left(self) -> None:
        """Return when the client has left. The body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # --- the answer ------------------------------------------------------------------------------------------------

    def making(self, nbytes: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context that waits for room for an answer, which is to be made and sent in the block.

        Args:
            nbytes: About how many bytes it will have.

        Raises:
            ClientLeft: The client has left while the answer waited, where the context is entered.
        """
        return _NO_WAIT if nbytes <= SMALL_BYTES else self._making(nbytes)

    @contextlib.asynccontextmanager
    async def _making(self, nbytes: int) -> AsyncIterator[None]:
        left = asyncio.get_running_loop().create_future()
        watcher = self.watcher(left)
        watcher.start()
        try:
            await self._unread.take(nbytes, left)
        finally:
            watcher.stop()
        try:
            yield
        finally:
            self._unread.give_back(nbytes)

    async def answer(self, status: int, body: bytes, content_type: Header = JSON, *more: Header) -> None:
        """Send a whole answer."""
        length = b"%d" % len(body)
        if self.method == "HEAD":
            body = b""
        self.sent_bytes = len(body)
        if self._direct is not None:
            name, value = content_type
            pieces = (name, b": ", value, b"\r\ncontent-length: ", length, b"\r\nx-request-id: ", self.id.encode())
            lines = b"".join((*pieces, COMMON_LINES))
            closes = False
            if more or self.cors:
                closes = CLOSE in more
                lines += lines_of([header for header in (*more, *self.cors) if header != CLOSE])
            while not self._direct.answer(status, lines, body, closes=closes):
                await self._direct.readable(len(body))
            self.status, self.answered = status, True
            return
        await self.begin(status, content_type, (b"content-length", length), *more)
        self.answered = True
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, *headers: Header) -> None:
        """Send an answer's status and headers."""
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"x-request-id", self.id.encode()), *self.cors, *COMMON],
            }
        )

    async def send(self, part: bytes) -> None:
        """Send a part of a stream; wait while the client does not read."""
        self.sent_bytes += len(part)
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"") -> None:
        """Send the last part of a stream."""
        self.sent_bytes += len(part)
        self.answered = True
        await self._send({"type": "http.response.body", "body": part})


class _ConnectionWatcher:
    """Learns from the connection itself that a client has left.

    Args:
        direct: The connection's.
        left: Resolved once the client has left.
    """

    __slots__ = ("_direct", "_left")

    def __init__(self, direct: Direct, left: asyncio.Future[None]) -> None:
        self._direct = direct
        self._left = left

    def start(self, _after_s: float = 0.0) -> None:
        """Begin at once, since that costs next to nothing."""
        self._direct.leaving.add(self._leave)
        if self._direct.gone:
            self._leave()

    def stop(self) -> None:
        """End."""
        self._direct.leaving.discard(self._leave)

    def _leave(self) -> None:
        set_done(self._left)


class _TaskWatcher:
    """Watches a client in a task of its own by ASGI's `receive`, with any server.

    Args:
        exchange: The client's.
        left: Resolved once the client has left.
    """

    __slots__ = ("_exchange", "_left", "_task", "_timer")

    def __init__(self, exchange: Exchange, left: asyncio.Future[None]) -> None:
        self._exchange = exchange
        self._left = left
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, after_s: float = 0.0) -> None:
        """Begin after some seconds."""
        if after_s:
            self._timer = asyncio.get_running_loop().call_later(after_s, self.start)
        else:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """End, whether or not it has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        await self._exchange.left()
        set_done(self._left)


_NO_WAIT: Final = contextlib.nullcontext()

COMMON: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
COMMON_LINES: Final = b"\r\n" + lines_of(COMMON)


def too_large(most_bytes: int) -> Problem:
    """Return the refusal of a body that is too large."""
    return Problem(
        413,
        "too_large",
        f"the body has more than the {most_bytes} bytes that one of its kind may have",
        facts={"limit_bytes": most_bytes},
        close=True,
    )
