from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("httptools")


from atomr_mp.serve.front_end import connection
from atomr_mp.serve.http.exchange import Budget, Exchange
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import Counters
from tests.support import DEADLINE_S

PIECES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /call/A.b HTTP/1.1\r\n",
        b"host: localhost\r\n",
        b"content-length: 3\r\n",
        b"transfer-encoding: chunked\r\n",
        b"\r\n",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"x: " + b"a" * 300,
    ]
)
"""Of requests, so that some are nearly right."""


REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """A client that reads everything."""

    def __init__(self, uid: int = 0) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self._uid = uid

    def write(self, data: Any) -> None:
        """Keep it."""
        self.written += bytes(data)

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed

    def pause_reading(self) -> None:
        """Go on."""

    def resume_reading(self) -> None:
        """Go on."""

    def is_reading(self) -> bool:
        """Return that it goes on."""
        return True

    def can_write_eof(self) -> bool:
        """Return that it can."""
        return True

    def write_eof(self) -> None:
        """Note it; this client closes its end at once."""
        self.closed = True

    def get_write_buffer_size(self) -> int:
        """Return how much waits."""
        return 0

    def getsockopt(self, *_arguments: int) -> bytes:
        """Return the credentials of the other end of a unix socket."""
        return connection._CREDENTIALS.pack(1, self._uid, 0)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self if name == "socket" else default

    def getpeername(self) -> str:
        """Return no address, as of a unix socket."""
        return ""

    getsockname = getpeername
    family = socket.AF_UNIX


def connected(application: Any, transport: FakeTransport, limits: Limits, **more: Any) -> Any:
    """Return a connection that has just been made, in the running loop."""
    others: set[Any] = {object() for _ in range(more.pop("open", 0))}
    settings = connection.Settings(application, limits, Counters(), others, set(), UnreadAnswers(limits), **more)
    tested = connection.HttpConnection(settings)
    tested.connection_made(transport)
    return tested


def answered(
    transport: FakeTransport, data: list[bytes], limits: Limits, *, silent: bool = False, **more: Any
) -> list[Any]:
    """Give a connection bytes; return the requests that the application has got.

    Args:
        transport: The connection's.
        data: The bytes, piece by piece.
        limits: The connection's.
        silent: Whether the application answers nothing but what it can read to its end.
        **more: Further settings, and how many others are `open`.
    """
    got: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        got.append(scope)
        while silent and (message := await receive()).get("more_body", True):
            if message["type"] == "http.disconnect":
                return
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main() -> None:
        tested = connected(application, transport, limits, **more)
        tasks = tested._settings.tasks
        for each in data:
            if transport.closed:
                break
            tested.data_received(each)
            await asyncio.sleep(0)
        while tasks:
            await asyncio.gather(*tasks)
        tested.connection_lost(None)

    asyncio.run(main())
    return got


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=400)), max_size=8))
def test_any_bytes_are_requests_or_a_typed_error(data: list[bytes]) -> None:
    """Whatever comes, each answer is the application's or has the form of every error; after that one it is closed."""
    transport = FakeTransport()
    got = answered(transport, data, Limits(header_bytes=256))
    first, *answers = transport.written.split(b"HTTP/1.1 ")
    assert not first
    refused = [answer for answer in answers if not answer.startswith((b"200", b"100"))]
    assert len(refused) <= 1
    assert len(answers) - len(refused) >= len(got)
    for answer in refused:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] in {"bad_request", "headers_too_large"}
        assert transport.closed


@pytest.mark.parametrize(("uid", "admitted"), [(0, True), (os.geteuid(), True), (4242, False)])
def test_a_unix_socket_answers_its_user_and_root(uid: int, admitted: bool) -> None:  # noqa: FBT001
    """The kernel says who is at the other end."""
    transport = FakeTransport(uid)
    got = answered(transport, [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"], Limits(), own_user_only=True)
    assert bool(got) == admitted
    assert transport.written.startswith(b"HTTP/1.1 200" if admitted else b"HTTP/1.1 403")


def test_one_connection_too_many_is_told_when_to_come_back() -> None:
    """Before anything of it is read."""
    transport = FakeTransport()
    assert not answered(transport, [b"GET / HTTP/1.1\r\n\r\n"], Limits(connections=3), open=3)
    assert transport.written.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 1\r\n" in transport.written
    assert transport.closed


class WatchedTransport(FakeTransport):
    """A client that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def write(self, data: Any) -> None:
        """Keep it."""
        super().write(data)
        self._changed.set()

    def close(self) -> None:
        """Note it."""
        super().close()
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.parametrize("between", [b"", b"\r\n"])
def test_a_connection_without_a_request_is_closed(between: bytes) -> None:
    """Also one that says something now and then which is no request; never one whose request is being answered."""

    async def main() -> None:
        transport, may_answer, asked = WatchedTransport(), asyncio.Event(), asyncio.Event()

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            asked.set()
            await may_answer.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

        tested = connected(application, transport, Limits(idle_s=0.05))
        may_answer.set()
        tested.data_received(REQUEST)
        await transport.until(lambda: b"ok" in transport.written)
        may_answer.clear()
        asked.clear()
        if not transport.closed:  # or this machine has stood still meanwhile
            tested.data_received(REQUEST)
            await asked.wait()
            await asyncio.sleep(0.1)  # longer than it may be idle
            assert not transport.closed
            may_answer.set()
            await transport.until(lambda: transport.written.count(b"ok") == 2)
        if between:
            tested.data_received(between)
        await transport.until(lambda: transport.closed)
        tested.connection_lost(None)

    asyncio.run(main())


CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"0\r\n", b"x: " + b"a" * 100 + b"\r\n"),
        (b"0\r\nx: ", b"a" * 100),
        (b"3;x=", b"a" * 100),
        (b"3\r\nabc\r\n", b"1;" + b"a" * 100),
    ],
)
def test_what_comes_beside_a_body_is_bounded(head: bytes, more: bytes) -> None:
    """Trailers and extensions of chunks: without end, they would be kept or read for as long as a body may take."""
    transport = FakeTransport()
    got = answered(transport, [CHUNKED + head, *[more] * 20], Limits(header_bytes=1000))
    assert transport.closed
    assert len(got) == 1
    assert transport.written.count(b"HTTP/1.1 ") == 1  # its answer was complete before: there is no second one
    assert len(got[0]["headers"]) == 2


def test_space_around_a_value_is_no_part_of_it() -> None:
    """RFC 9110, 5.5; an address in absolute form that names the same host is another spelling of its path."""
    spaced = b"GET http://localhost/a HTTP/1.1\r\nhost:  localhost \t\r\nx-request-id: 1 \r\n\r\n"
    got = answered(FakeTransport(), [spaced], Limits())
    assert [(scope["path"], scope["headers"]) for scope in got] == [
        ("/a", [(b"host", b"localhost"), (b"x-request-id", b"1")])
    ]


def test_a_trailer_is_no_header() -> None:
    """Or it would be looked at in the place of what a proxy has checked."""
    transport = FakeTransport()
    whole = CHUNKED + b"3\r\nabc\r\n0\r\nhost: elsewhere\r\nauthorization: Bearer x\r\n\r\n"
    got = answered(transport, [whole, REQUEST], Limits())
    assert [[name for name, _ in scope["headers"]] for scope in got] == [[b"host", b"transfer-encoding"], [b"host"]]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (REQUEST * 1000, b"429"),
        (b"CONNECT a.example:80 HTTP/1.1\r\n\r\n", b"400"),
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 2000, b"431"),
    ],
)
def test_what_came_before_something_wrong_is_answered_first(more: bytes, status: bytes) -> None:
    """In order, and the connection is closed then; a connection keeps only so many requests."""

    async def main() -> None:
        transport, may_answer = WatchedTransport(), asyncio.Event()
        asked = 0

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            nonlocal asked
            asked += 1
            await may_answer.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

        tested = connected(application, transport, Limits(header_bytes=1000))
        tested.data_received(REQUEST)
        tested.data_received(more)
        await asyncio.sleep(0)
        assert (transport.written, transport.closed, asked) == (b"", False, 1)
        may_answer.set()
        await transport.until(lambda: transport.closed)
        told = [answer[:3] for answer in transport.written.split(b"HTTP/1.1 ")[1:]]
        assert told == [b"200"] * asked + [status]
        assert asked == (1 + connection.MOST_WAITING if status == b"429" else 1)
        tested.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/1.2", b"505"),
        (b"GET / HTTP/0.9", b"505"),
        (b"GET / HTTP/2.0", b"505"),
        (b"GET / HTTP/3.0", b"505"),
        (b"PRI * HTTP/2.0", b"505"),
        (b"GET / HTTP/1.10", b"400"),
        (b"GET / HTTP/one", b"400"),
    ],
)
def test_another_version_is_told_as_such(line: bytes, status: bytes) -> None:
    """With 505; what is no version is no request."""
    transport = FakeTransport()
    assert not answered(transport, [line + b"\r\n\r\nSM\r\n\r\n"], Limits())  # as HTTP/2 begins
    assert transport.written[9:12] == status


HEAD = b"HEAD / HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nbad trailer\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nx\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\n",
        HEAD + b"bad header\r\n\r\n",
        HEAD + b"x: " + b"x" * 2000,
    ],
)
def test_the_refusal_of_a_head_has_no_body(sent: bytes) -> None:
    """Its client reads none, and would take it for the next answer."""
    transport = FakeTransport()
    for each in ([sent], [sent[at : at + 1] for at in range(len(sent))]):
        transport = FakeTransport()
        answered(transport, each, Limits(header_bytes=1000), silent=True)
        head, _, body = transport.written.partition(b"\r\n\r\n")
        assert head[9:10] in {b"4", b"5"}
        assert b"content-length: " in head
        assert body == b""


UPGRADES = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    b"Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n",
    b"upgrade: h2c\r\n",
    b"",
)

BODIES = st.sampled_from([b"", b"abc", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"0\r\n\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return a request's bytes and its body."""
    body, upgrade = draw(BODIES), draw(st.sampled_from(UPGRADES))
    if draw(st.booleans()):
        chunked = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        framing, sent = b"transfer-encoding: chunked\r\n", chunked + b"0\r\n\r\n"
    else:
        framing, sent = b"content-length: %d\r\n" % len(body), body
    return b"POST /a%20b?c=d HTTP/1.1\r\nhost: localhost\r\n" + upgrade + framing + b"\r\n" + sent, body


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 600), max_size=6))
def test_a_request_is_what_it_is_without_an_upgrade(sent: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    """Bodies are honoured and end where they end, however the bytes are cut: nothing of a body becomes a request."""
    stream = b"".join(each for each, _ in sent)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    got: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        parts = b""
        while True:
            message = await receive()
            parts += message["body"]
            if not message["more_body"]:
                break
        got.append((scope["path"], scope["query_string"], parts))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main() -> None:
        transport = FakeTransport()
        tested = connected(application, transport, Limits())
        for begin, end in itertools.pairwise(places):
            tested.data_received(stream[begin:end])
            await asyncio.sleep(0)
        while tested._settings.tasks:
            await asyncio.gather(*tested._settings.tasks)
        assert transport.written.count(b"HTTP/1.1 200") == len(sent)
        assert not transport.closed
        tested.connection_lost(None)

    asyncio.run(main())
    assert got == [("/a b", b"c=d", body) for _, body in sent]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", b"505"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
        (CHUNKED.replace(b"ed\r\n", b"ed\t\r\ntransfer-encoding: chunked\r\n") + b"0\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n", b"431"),
        (b"\r\n" * 600, b"431"),
        (b"GET http://other/ HTTP/1.1\r\nhost: a\r\n\r\n", b"400"),
    ],
)
def test_a_request_with_two_meanings_is_refused(request_bytes: bytes, status: bytes) -> None:
    """A proxy before this server may have taken it for the other one."""
    transport = FakeTransport()
    assert not answered(transport, [request_bytes], Limits(header_bytes=1000))
    assert transport.written.startswith(b"HTTP/1.1 " + status), transport.written[:80]
    assert transport.closed


class SlowTransport(WatchedTransport):
    """A client that has read no more than the test asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def get_write_buffer_size(self) -> int:
        """Return how much waits."""
        return len(self.written) - self.read

    def abort(self) -> None:
        """Note it."""
        self.close()


def test_a_client_that_reads_slowly_is_kept_and_one_that_does_not_read_is_not() -> None:
    """A stall is no progress at all, for as long as the limit says."""

    async def main() -> None:
        transport = SlowTransport()
        tested = connected(None, transport, Limits(stall_s=0.05))
        tested.write(b"x" * 1000)
        tested.pause_writing()
        looks: list[float] = []

        def look() -> Any:
            looks.append(tested._loop.time())
            transport.read += len(looks) <= 20  # a byte at each of twenty looks
            return tested._written_bytes - transport.get_write_buffer_size()

        tested._has_read_bytes = look
        await transport.until(lambda: transport.closed)
        assert looks[-1] >= looks[19] + 0.05  # it was given the time
        assert looks[-2] < looks[19] + 0.05  # and not looked at once more
        assert looks[19] > looks[0] + 2 * 0.05
        tested.connection_lost(None)

    asyncio.run(main())


def test_answers_that_nobody_reads_bound_further_calls() -> None:
    """First of the connection that does not read, then of all; a client that reads all is not counted."""
    limits = Limits(unread_connection_bytes=100, unread_bytes=250)

    async def main() -> None:
        transports = [SlowTransport() for _ in range(4)]
        unread = UnreadAnswers(limits)
        tested = []
        for transport in transports:
            settings = connection.Settings(None, limits, Counters(), set(), set(), unread)  # type: ignore[arg-type]
            tested.append(connection.HttpConnection(settings))
            tested[-1].connection_made(transport)
        for each, nbytes in zip(tested, (101, 90, 0, 500), strict=True):
            each.write(b"x" * nbytes)
        for each in tested[:2]:
            each.pause_writing()
        assert [each.crowd() is None for each in tested] == [False, True, True, True]
        tested[1].write(b"x" * 60)  # together more than all may
        assert [each.crowd() is None for each in tested] == [False, False, False, False]
        tested[0].resume_writing()
        assert [each.crowd() is None for each in tested] == [True, False, True, True]
        tested[1].connection_lost(None)
        assert tested[2].crowd() is None
        for each in (tested[0], *tested[2:]):
            each.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["whole", "parts"])
def test_a_client_that_leaves_while_answers_wait_ends_its_requests(answer: str) -> None:
    """Requests behind the first end too: the front end would try to write their answers for ever."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send, Limits(), Budget(1000), UnreadAnswers(Limits()))
        if answer == "whole":
            await exchange.answer(200, b"x" * 1000)
        else:
            await exchange.begin(200)
            await exchange.send(b"x" * 1000)
            await exchange.end()

    async def main() -> None:
        transport = SlowTransport()
        tested = connected(app, transport, Limits())
        tested.pause_writing()
        tested.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        (waiting,) = tested._settings.tasks
        tested.connection_lost(None)
        async with asyncio.timeout(DEADLINE_S):
            await waiting

    asyncio.run(main())
