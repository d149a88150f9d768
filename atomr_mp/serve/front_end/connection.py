"""A client's connection: HTTP/1.1 as httptools parses it, with bounds on headers, slow clients and unread answers.

Requests of one connection are answered in their order. A request that is refused is the connection's last: what came
before it is answered first, and what the client still sends is read and dropped for a while, so that it can read the
refusal. An `Upgrade` is ignored, as RFC 9110 lets a server do: the request is what it is without it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import select
import socket
import struct
import sys
import termios
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import httptools

from atomr_mp.serve.front_end.request import HttpRequest, head_of
from atomr_mp.serve.front_end.timer import LazyTimer
from atomr_mp.serve.http.exchange import Receive, Scope, Send
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import CONNECTIONS, REFUSED, Counters
from atomr_mp.serve.problems import CLOSE, Header, Problem, body_of, retry_after

_LOG: Final = logging.getLogger("atomr_mp.serve")

MOST_WAITING: Final = 64
"""Requests that one connection may send before the first of them is answered: each takes some kilobytes."""

ABSENT_LOOK_S: Final = 0.25
"""How often it is looked whether a client has left while nothing of it is read, since its requests wait for answers."""

LINGER_S: Final = 5.0
"""How long a refused client may send nothing before its connection is closed; nginx's `lingering_timeout`."""

LINGER_MOST_S: Final = 30.0
"""How long a refused client may go on sending; nginx's `lingering_time`."""

STALL_LOOKS: Final = 8
"""Looks within `stall_s` whether a client reads. One that stops is given up an eighth of that later at most."""

CHUNK_LINE_BYTES: Final = 20
"""Bytes around a chunk that are no extension: its length and line ends."""

BESIDE_HEADER_BYTES: Final = 4
"""Bytes of a header's line beside its name and value."""

UNKNOWN_ROUTE: Final = "other"
"""Counts answers to what no application was asked for."""

JSON: Final = (b"content-type", b"application/json")

OF_OTHER_VERSIONS: Final = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})
"""What the parser says of versions that it does not know, and of the first line of a client of HTTP/2."""

_OTHER_VERSION: Final = Problem(505, "http_version_not_supported", "this server speaks HTTP/1.1")

VERSIONS: Final = frozenset({"1.1", "1.0"})

_NO_HOST: Final = Problem(400, "bad_request", "a request of HTTP/1.1 has the header `Host` once")
"""See RFC 9112, 3.2."""

HAS_EAGER_TASKS: Final = sys.version_info >= (3, 12)

_NO_REQUEST: Final = Problem(400, "bad_request", "these bytes are not an HTTP request")

_NO_TRAILERS: Final[Any] = deque(maxlen=0)
"""Takes headers, and keeps none."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Pid, user and group of a unix socket's other end, see unix(7)."""

Asgi = Callable[[Scope, Receive, Send], Any]


class Settings(NamedTuple):
    """What all connections of a front end share."""

    application: Asgi
    limits: Limits
    counters: Counters
    connections: set[HttpConnection]
    """Open connections."""
    tasks: set[asyncio.Task[None]]
    """The requests that are being answered."""
    unread: UnreadAnswers
    own_user_only: bool = False
    """Whether a unix socket's client must be a process of this user or of root."""
    scheme: str = "http"


class HttpConnection(asyncio.Protocol):
    """A connection. It answers errors before a request is whole itself, in the form of all errors.

    Args:
        settings: What all connections share.
    """

    def __init__(self, settings: Settings) -> None:  # noqa: PLR0915 - the state of a connection
        self._settings: Final = settings
        self._limits: Final = settings.limits
        self._loop: Final = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # until the connection is made
        self._facts: dict[str, Any] = {}
        """What the scopes of all requests have in common."""
        self._reading: Final = LazyTimer(self._loop, self._is_late)
        """Runs while the client is to send: headers, a body, or a next request."""
        self._writing: Final = LazyTimer(self._loop, self._look_whether_read)
        """Runs while the client is to read."""
        self._absent: Final = LazyTimer(self._loop, self._look_whether_left)
        """Runs while requests wait for the answers before theirs."""
        self._reads: asyncio.Future[None] | None = None
        """Set once the client has read enough."""
        self._url = b""  # empty before the method of a request has come, and once the request is whole
        self._headers: list[Header] = []
        self._expects_continue = False
        self._coming: HttpRequest | None = None
        """The request whose body comes."""
        self._answering: HttpRequest | None = None
        self._unstarted: HttpRequest | None = None
        """The request that is answered as soon as the bytes at hand are parsed: its body may be among them."""
        self._waiting: Final[deque[HttpRequest]] = deque()
        """Requests that wait for the answers before theirs."""
        self._begun = False
        """Whether a request's line or headers have come in part."""
        self._head_bytes = 0
        """Bytes of pieces that belong to a request's line and headers."""
        self._piece_bytes = 0
        """Bytes of the latest piece."""
        self._possible_bytes = 0
        """Bytes of the pieces since a request has begun, which its line and headers cannot exceed."""
        self._aside_bytes = 0
        """Bytes of a body's transfer beside its content: lengths of chunks, their extensions, trailers."""
        self._has_content = False
        """Whether the latest bytes had content of a body."""
        self._answered_s = 0.0
        """When a request was answered whose body is still coming."""
        self._deaf = False
        """Whether what comes is dropped: the last request has come, or one was refused."""
        self._refusal = b""
        """The last answer, once a request is refused."""
        self._closes_s = 0.0
        """When a connection that lingers is closed at the latest."""
        self._written_bytes = 0
        self._last_write_bytes = 0
        """Bytes of the last write, which the transport holds as a whole until all of it has gone."""
        self._held_bytes = 0
        """Bytes of answers that wait to be written until the client reads."""
        self._read_bytes = 0
        """Bytes that the client had read when that was looked at last."""
        self._has_read_s = 0.0
        """When that was found to have grown."""
        self.leaving: set[Callable[[], object]] = set()
        """Called when the client has left."""
        self.gone = False
        """Whether the client has left."""
        self.write_paused = False
        """Whether the client does not read as fast as it is answered."""

    # --- asyncio's protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, or refuse it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        settings = self._settings
        settings.connections.add(self)
        settings.counters.own[CONNECTIONS] += 1
        self._facts = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": settings.scheme,
            "root_path": "",
            "client": _address(transport, "peername"),
            "server": _address(transport, "sockname"),
        }
        self._reading.begin(self._limits.header_s)
        if settings.own_user_only and not _is_own_user(transport):
            self._refuse(Problem(403, "forbidden", "this socket is for the user who runs the server"))
        elif len(settings.connections) > self._limits.connections:
            self._refuse(
                Problem(
                    429,
                    "overloaded",
                    f"{self._limits.connections} connections are open; try again",
                    headers=(retry_after(0),),
                ),
                lingers=False,  # one more descriptor for each refused client would have no bound
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Drop the client: its connection is lost."""
        settings = self._settings
        settings.connections.discard(self)
        settings.unread.discard(self)
        settings.counters.own[CONNECTIONS] -= 1
        self._reading.close()
        self._writing.close()
        self._absent.close()
        self.gone = True
        self._waiting.clear()
        if self._answering is not None:
            self._answering.wake()
        self._resolve_reads()
        for leave in list(self.leaving):
            leave()

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse headers that are too long."""
        if self._deaf:
            self._linger()
            return
        self._piece_bytes = piece_bytes = len(data)
        self._possible_bytes += piece_bytes
        if self._coming is None:
            self._head_bytes += piece_bytes
        else:
            self._aside_bytes += piece_bytes
        self._feed(data)
        self._bound()
        if self._unstarted is not None:
            request, self._unstarted = self._unstarted, None
            self._run_now(request)

    def pause_writing(self) -> None:
        """Count what the client does not read, and give it some time."""
        self.write_paused = True
        self._settings.unread.add(self)
        self._read_bytes, self._has_read_s = self._has_read_bytes(), self._loop.time()
        self._writing.begin(self._limits.stall_s / STALL_LOOKS)

    def resume_writing(self) -> None:
        """Resume writing: the client reads."""
        self.write_paused = False
        self._settings.unread.discard(self)
        self._writing.stop()
        self._resolve_reads()

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Parse bytes; a request with an `Upgrade` is parsed again without it."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
                continue
            except httptools.HttpParserCallbackError as error:
                # Our own code has raised; the parser has printed nothing and is in no state to go on.
                _LOG.error("a request could not be taken in", exc_info=error.__context__ or error)
                self._refuse(Problem(500, "internal_error", "internal error of the server"))
            except httptools.HttpParserError as error:
                if not self._deaf:
                    self._refuse(_OTHER_VERSION if str(error) in OF_OTHER_VERSIONS else _NO_REQUEST)
            return

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Return the request that has just come without its `Upgrade`, and what follows it, for a new parser.

        The parser takes such a request for the last one, and does not read its body.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            self._refuse(Problem(400, "bad_request", "this server is no proxy"))
            return b""
        lines = [b"%s %s HTTP/%s" % (method, self._url, version.encode())]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() != b"upgrade")  # noqa: PLW2901
            if name != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        self._parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", rest])

    def _bound(self) -> None:
        """Bound the bytes and the time of a request that has come in part."""
        if self._deaf:
            return
        if self._coming is not None:
            self._aside_bytes = max(0, self._aside_bytes)  # bytes that came with the headers were never added
            if self._aside_bytes > self._limits.header_bytes:
                self._refuse(self._too_large())
            elif self._coming.complete and self._loop.time() > self._answered_s + LINGER_MOST_S:
                self._transport.close()  # it drips a body that nobody reads
            elif self._has_content or not self._reading.runs:
                self._has_content = False
                self._reading.begin(self._limits.body_s)
        elif self._head_bytes > self._limits.header_bytes:  # empty lines before a request count, too
            self._refuse(self._too_large())
        elif self._begun and not self._reading.runs:
            self._reading.begin(self._limits.header_s)

    def _too_large(self) -> Problem:
        most = self._limits.header_bytes
        return Problem(431, "headers_too_large", f"the request's line and headers have more than {most} bytes")

    # --- the parser's callbacks ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._begun:
            self._begun = True
            self._possible_bytes = self._piece_bytes
            self._reading.stop()  # it was idle; the time for headers begins if they do not come at once
        self._url, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        name, value = name.lower(), value.rstrip(b" \t")  # RFC 9110, 5.5: no part of the value
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Hand the request to the application, or refuse it."""
        if self._deaf or self._parser.should_upgrade():
            return
        headers, self._headers = self._headers, _NO_TRAILERS  # lines after the body are no headers, and are not kept
        parser, given = self._parser, dict(headers)
        version = parser.get_http_version()
        problem = self._problem(headers, given, version)
        self._begun, self._head_bytes, self._aside_bytes = False, 0, 0
        self._reading.stop()
        if problem is not None:
            self._refuse(problem)
            return
        try:
            address: Any = httptools.parse_url(self._url)
        except httptools.HttpParserInvalidURLError:
            self._refuse(Problem(400, "bad_request", "the request's address is not one"))
            return
        if address.host is not None and not _fits_host(address, headers):
            self._refuse(Problem(400, "bad_request", "the request's address names another host than its Host header"))
            return
        raw_path: bytes = address.path or b"/"
        path = raw_path.decode("latin-1")
        scope: Scope = {
            **self._facts,
            "method": parser.get_method().decode("latin-1"),
            "http_version": version,
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": address.query or b"",
            "headers": headers,
        }
        keep_alive = version == "1.1" and parser.should_keep_alive()
        request = self._coming = HttpRequest(
            self, scope, given, keep_alive=keep_alive, expects_continue=self._expects_continue
        )
        if self._answering is None:
            self._answering = self._unstarted = request
        else:
            self._waiting.append(request)
            self._transport.pause_reading()
            if not self._absent.runs:
                self._absent.begin(ABSENT_LOOK_S)

    def _problem(self, headers: list[Header], given: dict[bytes, bytes], version: str) -> Problem | None:
        """Return why a request is refused by its line and headers; None if it is not.

        Args:
            headers: Its headers.
            given: The same by name.
            version: "1.1", or another.
        """
        most = self._limits.header_bytes
        if self._possible_bytes > most:  # a body, or another request, may have come as well
            own_bytes = sum(len(name) + len(value) + BESIDE_HEADER_BYTES for name, value in headers)
            if len(self._url) + own_bytes > most:
                return self._too_large()
        if version not in VERSIONS:
            return _OTHER_VERSION
        if b"transfer-encoding" in given:
            coding = b"".join(value for name, value in headers if name == b"transfer-encoding")
            if coding.lower() != b"chunked":  # also chunked twice, which a proxy may have unwrapped once
                return Problem(501, "not_implemented", "a body is sent with Content-Length, or chunked, and no more")
        is_hostless = version == "1.1" and b"host" not in given
        if is_hostless or (len(given) != len(headers) and [name for name, _ in headers].count(b"host") > 1):
            return _NO_HOST
        if len(self._waiting) >= MOST_WAITING:
            crowd = f"{MOST_WAITING} requests wait on this connection for an earlier answer; open more connections"
            return Problem(429, "overloaded", crowd, headers=(retry_after(0),))
        return None

    def on_chunk_header(self) -> None:
        """Allow for the length of a chunk."""
        self._aside_bytes -= CHUNK_LINE_BYTES

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._aside_bytes -= len(body)
        self._has_content = True
        if self._coming is not None:
            self._coming.feed(body)

    def on_message_complete(self) -> None:
        """End a request."""
        request = self._coming
        if self._deaf or request is None:
            return
        self._coming, self._url = None, b""
        self._reading.stop()
        request.end()
        if not request.keep_alive:
            self._deaf = True  # nothing after it is a request
        elif request.complete:
            self._reading.begin(self._limits.idle_s)

    # --- requests --------------------------------------------------------------------------------------------------

    def _start(self, request: HttpRequest) -> None:
        """Answer a request that has waited for an earlier answer, in a later turn of the loop: others may follow it."""
        self._answering = request
        self._settings.tasks.add(self._loop.create_task(self._run(request)))

    def _run_now(self, request: HttpRequest) -> None:
        """Answer a request, as far as that goes without waiting: a turn of the loop costs more than some answers."""
        running = self._run(request)
        if HAS_EAGER_TASKS:
            task = asyncio.Task(running, loop=self._loop, eager_start=True)  # type: ignore[call-arg] # since 3.12
        else:
            task = self._loop.create_task(running)
        if not task.done():
            self._settings.tasks.add(task)

    async def _run(self, request: HttpRequest) -> None:
        """Run the application.

        A callback at the task's end would cost a turn of the loop, with a look at all descriptors.
        """
        try:
            await self._settings.application(request.scope, request.receive, request.send)
            if not request.complete and not request.gone:
                _LOG.error("the application has returned without an answer")
                self._transport.close()
        except GeneratorExit:  # the loop has ended
            raise
        except BaseException:  # noqa: BLE001 - the top of a request: the server goes on, whatever middleware raises
            _LOG.exception("the application has raised")
            self._transport.close()  # an answer that has begun ends without its end
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._settings.tasks.discard(task)

    def answered(self, request: HttpRequest) -> None:
        """Go on with the next request, or wait for one: an answer is complete."""
        if request is not self._answering or self._transport.is_closing():
            return
        self._answering = None
        if not request.keep_alive:
            self._deaf = True
            self._refusal = b""  # of bytes behind the last request
            self._waiting.clear()
            self._end(lingers=not request.whole)
        elif self._waiting:
            self._start(self._waiting.popleft())
        elif self._refusal:
            self._end(lingers=True)
        elif self._coming is not None:
            self._answered_s = self._loop.time()
        elif not self._begun:
            self._reading.begin(self._limits.idle_s)
        if not self._waiting:
            self._transport.resume_reading()

    def end_in_order(self) -> None:
        """Close the connection once what it has asked for is answered: the server ends."""
        if self._answering is None:
            self._transport.close()
            return
        for request in (self._answering, *self._waiting):
            request.keep_alive = False

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # --- refusals --------------------------------------------------------------------------------------------------

    def _refuse(self, problem: Problem, *, lingers: bool = True) -> None:
        """Answer with an error and close the connection; only close it if the request's answer has begun.

        Earlier whole requests are answered first.
        """
        request, self._coming = self._coming, None
        has_body = not self._asks_head(request)
        self._deaf, self._begun = True, False
        self._reading.stop()
        self._settings.counters.own[REFUSED] += 1
        body = body_of(problem, "", debug=False)
        length = (b"content-length", b"%d" % len(body))
        self._refusal = head_of(problem.status, (JSON, length, *problem.headers, CLOSE))
        if has_body:
            self._refusal += body
        if request is not None:
            if request.started:
                self._transport.close()
                return
            request.refuse(problem)
            if request is self._answering:
                self._answering = None  # its task counts the answer
            else:
                self._waiting.remove(request)
                request = None
        if request is None:
            self._settings.counters.count(UNKNOWN_ROUTE, problem.status)
        if self._answering is None:
            self._end(lingers=lingers)

    def _asks_head(self, request: HttpRequest | None) -> bool:
        """Return whether what is refused is a HEAD, whose answer has no body whatever it says.

        Args:
            request: The request whose body comes; None if its headers have not come yet.
        """
        if request is not None:
            return bool(request.scope["method"] == "HEAD")
        return bool(self._url) and self._parser.get_method() == b"HEAD"

    def _end(self, *, lingers: bool) -> None:
        """Write the refusal, if there is one, and close the connection, at once or when the client has read it.

        A connection that is closed while bytes come is reset, and then the client may never read its answer.
        """
        if self._refusal:
            self.write(self._refusal)
            self._refusal = b""
        if not lingers:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._closes_s = self._loop.time() + LINGER_MOST_S
        self._transport.resume_reading()
        self._linger()

    def _linger(self) -> None:
        """Wait for more bytes to drop, or for the client's end."""
        if self._closes_s:
            left_s = self._closes_s - self._loop.time()
            if left_s > 0:
                self._reading.begin(min(LINGER_S, left_s))
            else:
                self._transport.close()

    def _is_late(self) -> None:
        """Refuse, or only close: the client has not sent what it was to send."""
        limits = self._limits
        if self._closes_s:
            self._transport.close()
        elif not self._transport.is_reading():
            self._reading.begin(limits.body_s)  # it cannot send while this end does not read
        elif self._coming is not None:
            self._refuse(Problem(408, "request_timeout", f"nothing more of the body came within {limits.body_s:g} s"))
        elif self._begun:
            self._refuse(Problem(408, "request_timeout", f"the headers did not come within {limits.header_s:g} s"))
        elif self._answering is None:
            self._transport.close()  # a proxy's spare connection

    # --- answers ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write bytes of an answer; they wait in the transport if the client does not read."""
        self._written_bytes += len(data)
        self._last_write_bytes = len(data)
        self._transport.write(data)

    async def readable(self, waiting_bytes: int) -> None:
        """Return when the client has read enough for more, or has left.

        Args:
            waiting_bytes: How many bytes wait to be written; they are counted as unread.
        """
        self._held_bytes += waiting_bytes
        try:
            while self.write_paused and not self.gone:
                if self._reads is None:
                    self._reads = self._loop.create_future()
                await asyncio.shield(self._reads)
        finally:
            self._held_bytes -= waiting_bytes

    def _resolve_reads(self) -> None:
        if self._reads is not None:
            self._reads.set_result(None)
            self._reads = None

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        waiting = self._transport.get_write_buffer_size()
        return self._held_bytes + (max(waiting, self._last_write_bytes) if waiting else 0)

    def crowd(self) -> Problem | None:
        """Return why no call may run now, None if one may."""
        unread = self._settings.unread
        return unread.crowd(self) if unread.readers else None

    def _look_whether_read(self) -> None:
        """Give the client up if it has read nothing for too long; else look again."""
        has_read, now_s = self._has_read_bytes(), self._loop.time()
        if has_read > self._read_bytes:
            self._read_bytes, self._has_read_s = has_read, now_s
        if now_s < self._has_read_s + self._limits.stall_s:
            self._writing.begin(self._limits.stall_s / STALL_LOOKS)
        else:
            self._settings.counters.own[REFUSED] += 1
            self._transport.abort()  # `close` would wait until all is read

    def _has_read_bytes(self) -> int:
        """Return how many bytes have left this machine's buffers."""
        return self._written_bytes - self._transport.get_write_buffer_size() - _in_kernel(self._transport)

    def _look_whether_left(self) -> None:
        """Drop a client that has left, or has closed its sending side, as if its end had been read."""
        if not self._waiting or self._transport.is_closing():
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if poll.poll(0):
            self._transport.abort()
        else:
            self._absent.begin(ABSENT_LOOK_S)

    def pause_reading(self) -> None:
        """Take no more bytes for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        if not self._waiting:
            self._transport.resume_reading()


def _fits_host(address: Any, headers: list[Header]) -> bool:
    """Return whether an address that names a host names that of the `Host` header."""
    host: bytes = address.host if address.port is None else b"%s:%d" % (address.host, address.port)
    return [value.lower() for name, value in headers if name == b"host"] == [host.lower()]


def _in_kernel(transport: asyncio.Transport) -> int:
    """Return how many bytes the kernel has and the other end has not acknowledged, see tcp(7) and unix(7)."""
    ours: Any = transport.get_extra_info("socket")
    try:
        return int(struct.unpack("i", fcntl.ioctl(ours.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (OSError, AttributeError):
        return 0


def _address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Return an address as ASGI has it; None of a unix socket."""
    found: Any = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


def _is_own_user(transport: asyncio.BaseTransport) -> bool:
    """Return whether the other end of a unix socket is a process of this user or of root."""
    ours: Any = transport.get_extra_info("socket")
    _, user, _ = _CREDENTIALS.unpack(ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in {0, os.geteuid()}
