"""A client's connection: uvicorn's protocol, with bounds on headers, slow clients and the number of connections."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from atomr_mp.serve.http.exchange import DIRECT
from atomr_mp.serve.http.limits import DEFAULT_LIMITS, Limits
from atomr_mp.serve.http.problems import CLOSE, Header, Problem, body_of
from atomr_mp.serve.metrics import CONNECTIONS, REFUSED, Counters

JOIN_BELOW_BYTES: Final = 64 * 2**10
"""A shorter body is copied behind its headers: a second write would cost more and wake the client twice."""

MOST_WAITING: Final = 64
"""Requests that one connection may send before the first of them is answered: each takes some kilobytes."""

_NO_TRAILERS: Final[Any] = deque(maxlen=0)
"""Takes headers, and keeps none."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Pid, user and group of a unix socket's other end, see unix(7)."""


class HttpConnection(HttpToolsProtocol):
    """A connection. It answers errors before a request is whole itself, in the form of all errors.

    uvicorn's own protocol bounds neither the headers, nor how long a client takes to send them, nor how long it leaves
    an answer unread. With it, any byte between two requests keeps a connection open for ever.
    """

    limits: ClassVar[Limits] = DEFAULT_LIMITS
    counters: ClassVar[Counters]
    own_user_only: ClassVar[bool] = False

    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    """Runs on while requests come: setting a new timer for each costs more than a look at its end."""
    _answered_s = 0.0
    """When the last answer was complete, by the loop's clock."""
    _head_bytes = 0
    """Bytes since the last request's headers were complete, without its body."""
    _chunk_bytes = 0
    """Bytes of the last piece that came."""
    _came_bytes = 0
    """Bytes since the piece in which the last request began, thus at least those of its headers."""
    _aside_bytes = 0
    """Bytes of a body's transfer since its last content: lengths of chunks, their extensions, trailers."""
    _in_head = True
    """Whether the next bytes belong to a request's line or headers."""
    _begun = False
    """Whether a request's line or headers have come in part."""
    _closing = False
    """Whether a request was refused, so that further bytes are not read."""
    _refusal = b""
    """The last answer, once a request is refused."""
    gone = False
    """Whether the client has left."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the client, or refuse it."""
        super().connection_made(transport)
        self.leaving: set[Callable[[], object]] = set()
        """Called when the client has left."""
        self.counters.own[CONNECTIONS] += 1
        self._head_timer = self.loop.call_later(self.limits.header_s, self._head_is_late)
        if self.own_user_only and not _is_own_user(transport):
            self._refuse(Problem(403, "forbidden", "this socket is for the user who runs the server"))
        elif len(self.connections) > self.limits.connections:
            self._refuse(
                Problem(429, "overloaded", f"{self.limits.connections} connections are open; try again"), retry=True
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the client: its connection is lost."""
        self.counters.own[CONNECTIONS] -= 1
        self._stop_head_timer()
        self._stop_body_timer()
        self._stop_stall_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        self.gone = True
        for leave in list(self.leaving):
            leave()

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse headers that are too long."""
        if self._closing:
            return
        self._chunk_bytes = len(data)
        self._came_bytes += len(data)
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._aside_bytes += len(data)
        super().data_received(data)
        self._bound()

    def _bound(self) -> None:
        """Bound the bytes and the time of a request that has begun to come."""
        if self._closing:
            return
        if not self._in_head and self._body_timer is None:
            self._body_timer = self.loop.call_later(self.limits.body_s, self._body_is_late)
        if self._aside_bytes > self.limits.header_bytes:
            self._refuse(self._too_large())
        elif self._begun:
            if self._head_bytes > self.limits.header_bytes:
                self._refuse(self._too_large())
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(self.limits.header_s, self._head_is_late)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._begun = True
        self._came_bytes = self._chunk_bytes

    def on_headers_complete(self) -> None:
        """Hand the request to the application."""
        most = self.limits.header_bytes
        self._begun = False
        self._head_bytes = 0
        self._stop_head_timer()
        if self._closing:
            return
        if self._came_bytes > most and len(self.url) + _bytes_of(self.headers) > most:
            self._refuse(self._too_large())
            return
        if len(self.pipeline) >= MOST_WAITING:
            crowd = f"{MOST_WAITING} requests wait on this connection for an earlier answer; open more connections"
            self._refuse(Problem(429, "overloaded", crowd), retry=True)
            return
        former = self.cycle
        scope: Any = self.scope  # an extension may be any object of the server's
        super().on_headers_complete()  # raises if the address is invalid
        self._in_head = False
        # Lines after the body are not headers of the request, and are not kept.
        self.headers = _NO_TRAILERS
        if self.cycle is not former:
            scope["extensions"] = {DIRECT: DirectCycle(self, self.cycle)}  # its task has not begun yet

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._aside_bytes = 0
        if not self._closing:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._in_head = True
        self._aside_bytes = 0
        self._stop_body_timer()
        if not self._closing:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        if self._closing:
            self._end()
            return
        self._answered_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.limits.idle_s, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self._idle_timer = None
        if self._begun or not self.cycle.response_complete:
            return  # the end of the request is awaited, and sets the timer again
        left_s = self._answered_s + self.limits.idle_s - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_whether_idle)
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.tasks.add(self.loop.create_task(self._run(cycle, app)))

    async def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the application.

        A callback at the task's end would cost a turn of the loop, with a look at all descriptors.
        """
        try:
            await cycle.run_asgi(app)
        finally:
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def send_400_response(self, _msg: str) -> None:
        """Answer bytes that are not HTTP."""
        if not self._closing:
            self._refuse(Problem(400, "bad_request", "these bytes are not an HTTP request"))

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_s, self._has_stalled)

    def resume_writing(self) -> None:
        """Resume writing: the client reads again."""
        self._stop_stall_timer()
        super().resume_writing()

    def _has_stalled(self) -> None:
        self._stall_timer = None
        self.counters.own[REFUSED] += 1
        self.transport.abort()  # `close` would wait until all is read

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._begun:
            self._refuse(Problem(408, "request_timeout", f"the headers did not come within {self.limits.header_s:g} s"))
        else:
            self.transport.close()  # it has not even begun: a proxy's spare connection

    def _body_is_late(self) -> None:
        self._body_timer = None
        self._refuse(Problem(408, "request_timeout", f"the body did not come within {self.limits.body_s:g} s"))

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _too_large(self) -> Problem:
        limit = self.limits.header_bytes
        return Problem(431, "headers_too_large", f"the request's line and headers have more than {limit} bytes")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _refuse(self, problem: Problem, *, retry: bool = False) -> None:
        """Answer with an error and close the connection; only close it if the request's answer has begun.

        Earlier whole requests are answered first.
        """
        self._closing = True
        self._stop_head_timer()
        self._stop_body_timer()
        self.counters.own[REFUSED] += 1
        body = body_of(problem, "", debug=False)
        self._refusal = b"%scontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n%s" % (
            STATUS_LINE[problem.status],
            len(body),
            b"retry-after: 1\r\n" if retry else b"",
            body,
        )
        cycle: Any = self.cycle  # None before the first request, against its annotation
        if not self._in_head:  # a request whose body is still coming
            if cycle.response_started or self.pipeline:
                self.transport.close()
            else:
                self._end()
        elif cycle is None or cycle.response_complete:
            self._end()

    def _end(self) -> None:
        """Send the refusal, and close."""
        self.transport.write(self._refusal)
        self.transport.close()


class DirectCycle:
    """A request's body and its whole answer without ASGI's messages; see `exchange.Direct`.

    Args:
        connection: The client's.
        cycle: uvicorn's cycle of the request.
    """

    __slots__ = ("_connection", "_cycle", "leaving")

    def __init__(self, connection: HttpConnection, cycle: RequestResponseCycle) -> None:
        self._connection: Final = connection
        self._cycle: Final = cycle
        self.leaving: Final = connection.leaving

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._connection.gone

    def body(self) -> bytes | None:
        """Take the whole body; None if it has not come yet, or must be asked for."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        found, cycle.body = bytes(cycle.body), bytearray()
        return found

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Write a whole answer; return False without writing if the client does not read, or uvicorn has more to do.

        The headers are not checked: the front end has made them all, without line ends.
        """
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.response_started or cycle.access_log:
            return False
        if cycle.disconnected or self._connection.gone:
            return True  # nobody wants it
        if CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers = (*headers, CLOSE)
        head = [STATUS_LINE[status], _own_headers.lines(cycle.default_headers)]
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n")
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        if len(body) < JOIN_BELOW_BYTES:
            head.append(body)
            cycle.transport.write(b"".join(head))
        else:
            cycle.transport.write(b"".join(head))
            cycle.transport.write(body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class _WrittenHeaders:
    """The server's own headers in bytes, made once a second, since the date is among them."""

    def __init__(self) -> None:
        self._of: Sequence[Header] = ()
        self._lines = b""

    def lines(self, headers: Sequence[Header]) -> bytes:
        """Return the headers in bytes; uvicorn keeps the same list as long as they are the same."""
        if self._of is not headers:
            self._of, self._lines = headers, b"".join([b"%s: %s\r\n" % header for header in headers])
        return self._lines


_own_headers: Final = _WrittenHeaders()


def _bytes_of(headers: Sequence[Header]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _is_own_user(transport: asyncio.BaseTransport) -> bool:
    """Return whether the other end of a unix socket is a process of this user or of root."""
    ours: Any = transport.get_extra_info("socket")
    _, user, _ = _CREDENTIALS.unpack(ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in {0, os.geteuid()}
