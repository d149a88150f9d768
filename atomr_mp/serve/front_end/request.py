"""One request of a connection and its answer: ASGI's functions, and the shortcut of `exchange.Direct`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from atomr_mp.serve.http.exchange import DIRECT, REFUSAL, Message, Scope
from atomr_mp.serve.problems import CLOSE, Header, Problem, lines_of

JOIN_BELOW_BYTES: Final = 64 * 2**10
"""A shorter body is copied behind its headers: a second write would cost more and wake the client twice."""

PAUSE_ABOVE_BYTES: Final = 64 * 2**10
"""Bytes of a body that are kept before its reader asks for them."""

STATUS_LINE: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_DISCONNECT: Final[Message] = {"type": "http.disconnect"}


class RequestConnection(Protocol):
    """What a request needs of its connection."""

    leaving: set[Callable[[], object]]
    gone: bool
    write_paused: bool

    def write(self, data: bytes, /) -> None:
        """Write bytes of an answer."""

    def answered(self, request: HttpRequest, /) -> None:
        """Learn that a request's answer is complete."""

    def pause_reading(self) -> None:
        """Take no more bytes for now."""

    def resume_reading(self) -> None:
        """Take bytes again."""

    async def readable(self, waiting_bytes: int, /) -> None:
        """Return when the client has read enough for more, or has left."""

    def crowd(self) -> Problem | None:
        """Return why no call may run now, None if one may."""


class HttpRequest:
    """A request and its answer. Used by the loop, and by the task that answers it.

    Args:
        connection: The client's.
        scope: ASGI's scope; gets its extensions here.
        given: The request's headers by name. Of a repeated header it has the last.
        keep_alive: Whether the connection goes on after the answer.
        expects_continue: Whether the client waits for "100 Continue" before it sends the body.
    """

    __slots__ = (
        "_body", "_chunked", "_connection", "_expects_continue", "_left_bytes", "_told_end", "_wakes", "complete",
        "given", "keep_alive", "leaving", "refusal", "scope", "started", "whole",
    )  # fmt: skip

    def __init__(
        self,
        connection: RequestConnection,
        scope: Scope,
        given: dict[bytes, bytes],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._connection: Final = connection
        self.scope: Final = scope
        self.given: Final = given
        self.leaving: Final = connection.leaving
        self.keep_alive = keep_alive
        """Whether the connection goes on after the answer."""
        self._expects_continue = expects_continue
        self._body: bytearray | bytes = b""
        """What has come of the body and was not taken."""
        self.whole = False
        """Whether the body has come."""
        self.started = False
        """Whether the answer has begun."""
        self.complete = False
        """Whether the answer is complete."""
        self.refusal: Problem | None = None
        """Why the connection has refused the rest of the request; then it has the answer, and the task has none."""
        self._told_end = False
        """Whether the task knows that the body has come."""
        self._wakes: asyncio.Future[None] | None = None
        self._chunked = False
        self._left_bytes = 0
        """Bytes of the answer's body that its Content-Length still promises."""
        scope["extensions"] = {DIRECT: self}

    # --- from the connection ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""
        if self.complete or self.refusal:
            return
        if self._body:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        else:
            self._body = data
        if len(self._body) > PAUSE_ABOVE_BYTES:
            self._connection.pause_reading()
        if self._wakes is not None:
            self.wake()

    def end(self) -> None:
        """Take the body's end."""
        self.whole = True
        if self._wakes is not None:
            self.wake()

    def refuse(self, problem: Problem) -> None:
        """Have the task end without an answer: the connection gives it."""
        self.refusal = problem
        self.wake()

    def wake(self) -> None:
        """Wake the task if it waits for the body, or for the client's end."""
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)

    # --- the shortcut ----------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self.refusal is not None or self._connection.gone

    def crowd(self) -> Problem | None:
        """Return why no call may run now: answers that clients do not read take too much memory."""
        return self._connection.crowd()

    async def readable(self, waiting_bytes: int) -> None:
        """Return when the client has read enough for more, or has left."""
        await self._connection.readable(waiting_bytes)

    def body(self) -> bytes | None:
        """Take the whole body; None if it has not come yet, or must be asked for."""
        if not self.whole or self.refusal or self._connection.gone:
            return None
        found, self._body = self._body, b""
        return bytes(found)

    def answer(self, status: int, lines: bytes, body: bytes, *, closes: bool) -> bool:
        """Write a whole answer; return False without writing if the client does not read."""
        connection = self._connection
        if self.refusal or connection.gone:
            return True  # nobody wants it
        if connection.write_paused or self.started:
            return False
        if closes:
            self.keep_alive = False
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        if len(body) < JOIN_BELOW_BYTES:
            connection.write(b"".join((STATUS_LINE[status], _date.line(), lines, end, body)))
        else:
            connection.write(b"".join((STATUS_LINE[status], _date.line(), lines, end)))
            connection.write(body)
        self.started = self.complete = True
        connection.answered(self)
        return True

    # --- ASGI ------------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return a part of the body, or the client's end; wait for either."""
        if self._expects_continue and not self.started and not self.gone:
            self._expects_continue = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.complete or self.gone):
            if self._body or (self.whole and not self._told_end):
                body, self._body, self._told_end = bytes(self._body), b"", self.whole
                return {"type": "http.request", "body": body, "more_body": not self.whole}
            self._connection.resume_reading()
            self._wakes = asyncio.get_running_loop().create_future()
            await self._wakes
        return _DISCONNECT if self.refusal is None else {**_DISCONNECT, REFUSAL: self.refusal}

    async def send(self, message: Message) -> None:
        """Write a part of the answer; wait while the client does not read."""
        connection, body = self._connection, message.get("body", b"")
        if connection.write_paused:
            await connection.readable(len(body))
        if self.gone or self.complete:
            return
        if not self.started:
            self.started = True
            self._begin(message["status"], list(message.get("headers", ())))
            return
        more = message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            self._left_bytes = 0
        elif self._chunked:
            last = b"" if more else b"0\r\n\r\n"
            if body or last:
                connection.write(b"%x\r\n%b\r\n%b" % (len(body), body, last) if body else last)
        else:
            if len(body) > self._left_bytes >= 0:
                raise RuntimeError("an answer is longer than its Content-Length")
            self._left_bytes -= len(body)
            connection.write(body)
        if not more:
            if self._left_bytes > 0:
                raise RuntimeError("an answer is shorter than its Content-Length")
            self.complete = True
            connection.answered(self)

    def _begin(self, status: int, headers: list[Header]) -> None:
        length = next((value for name, value in headers if name == b"content-length"), None)
        if CLOSE in headers:
            self.keep_alive = False
        if length is not None:
            self._left_bytes = int(length)
        elif self.scope["http_version"] == "1.1":
            self._chunked = self.scope["method"] != "HEAD"
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            self._left_bytes = -1  # the end of the connection is the end of the body
            self.keep_alive = False
        if not self.keep_alive and CLOSE not in headers:
            headers.append(CLOSE)
        self._connection.write(head_of(status, headers))


def head_of(status: int, headers: Sequence[Header]) -> bytes:
    """Return an answer's status line and headers, with the date."""
    return b"".join((STATUS_LINE[status], _date.line(), lines_of(headers), b"\r\n"))


class _Date:
    """The header with the date, written once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """Return the header, with its line end."""
        now = int(time.time())
        if now != self._second:
            self._second, self._line = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._line


_date: Final = _Date()
