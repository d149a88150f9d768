"""What clients send on a connection of the HTTP server: it is read as RFC 9112 says, however it is cut into pieces."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final, Self

from atomr_mp.serve.front_end import connection
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import Counters
from fuzzing import http_model
from fuzzing.target import Target, damage

HEAD_BYTES: Final = 4000
"""Limit of headers; a shorter stream is never refused for its length."""

METHODS: Final = (b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS")

TARGETS_: Final = (b"/", b"/call/A.b", b"/a/b?c=d&e", b"*", b"http://host/a", b"/%20")

HEADERS: Final = (
    *(b"Host: host", b"Connection: close", b"connection: keep-alive", b"Connection: keep-alive, Upgrade", b"X-A:"),
    *(b"Upgrade: h2c", b"Expect: 100-continue", b"X: \t a b\t ", b"Accept: */*"),
)

BODIES: Final = (b"", b"abc", b"GET /smuggled HTTP/1.1\r\nHost: host\r\n\r\n", b"0\r\n\r\n", b"\r\n", bytes(40))

PIECES: Final = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b"\0",
        b":",
        b";",
        b"\x0b",
        b"\x85",
        b"\xff",
        b",",
        b'"',
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"transfer-encoding: gzip, chunked\r\n"),
    *(b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n", b"Transfer-Encoding: xchunked\r\n"),
    *(b"Content-Length: 3\r\n", b"content-length: 0\r\n", b"Content-Length: +3\r\n", b"Content-Length: 0x3\r\n"),
    *(b"Content-Length: 3, 3\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Length:\r\n", b" folded\r\n"),
    *(
        b"0\r\n\r\n",
        b"3\r\nabc\r\n",
        b"3;a=b\r\nabc\r\n",
        b'3;a="b\r\n',
        b"3 \r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"-1\r\n",
    ),
    *(b"ffffffffffffffffff\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\nbad\r\n\r\n", b"00000000000000003\r\nabc\r\n"),
    *(b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"CONNECT a:1 "),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\n", b"RTSP/1.0"),
)


class HttpStream(Target):
    """Two bytes that say how a stream is cut and how it is answered, and the stream."""

    name = "http-stream"

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._mistakes: Final = _Mistakes()
        self._loop.set_exception_handler(lambda _, context: self._mistakes.seen.append(str(context)))

    def __enter__(self) -> Self:
        logging.getLogger("atomr_mp.serve").addHandler(self._mistakes)
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the loop."""
        logging.getLogger("atomr_mp.serve").removeHandler(self._mistakes)
        self._loop.close()

    def make(self, rng: random.Random) -> bytes:
        """Return some requests."""
        return rng.randbytes(2) + b"".join(_request(rng) for _ in range(rng.choice((1, 1, 2, 3))))

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a stream with pieces of others, or with other line ends or bytes."""
        control, stream = data[:2], data[2:]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randint(0, len(stream))
            line = stream.rfind(b"\n", 0, at) + 1
            match rng.randrange(6):
                case 0:
                    stream = stream[:at] + rng.choice(PIECES) + stream[at + rng.choice((0, 0, 1, 2)) :]
                case 1:  # a line more
                    stream = stream[:line] + rng.choice(PIECES) + stream[line:]
                case 2:  # a line less, or twice
                    end = stream.find(b"\n", at) + 1 or len(stream)
                    stream = stream[:line] + rng.choice((b"", 2 * stream[line:end])) + stream[end:]
                case 3:
                    old = rng.choice((b"\r\n", b": ", b" ", b"3", b"chunked", b"HTTP/1.1"))
                    stream = stream[:line] + stream[line:].replace(old, rng.choice(PIECES), 1)
                case 4:
                    stream = damage(rng, stream)
                case _:
                    control = rng.randbytes(2)
        return control + stream

    def check(self, data: bytes) -> None:
        """Have a connection take a stream, and compare what it has run with what the stream is."""
        control, stream = data[:2].ljust(2, b"\0"), data[2:]
        expected = http_model.read(stream)
        client = Client(random.Random(control[0]), reads=control[1] % 4 != 0)
        self._mistakes.seen.clear()
        self._loop.run_until_complete(client.send(stream))
        assert not self._mistakes.seen, self._mistakes.seen
        compare(client, expected, short=len(stream) < HEAD_BYTES)


class _Mistakes(logging.Handler):
    """Keeps what the server says of mistakes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.seen.append(f"{record.getMessage()} {record.exc_info}")


class Client(asyncio.Transport):
    """A connection's transport and application, and what they see.

    Args:
        rng: Cuts the stream.
        reads: Whether the application reads bodies before it answers.
    """

    def __init__(self, rng: random.Random, *, reads: bool) -> None:
        super().__init__()
        self._rng: Final = rng
        self.reads: Final = reads
        self._takes = True
        self.closed = False
        self.written = bytearray()
        self.run: list[list[Any]] = []
        """For each request that was run: method, target, body so far, and whether it is whole."""

    async def send(self, stream: bytes) -> None:
        """Send a stream in pieces, as long as the connection takes them."""
        limits = Limits(header_bytes=HEAD_BYTES)
        tasks: set[asyncio.Task[None]] = set()
        shared = connection.Settings(self._answer, limits, Counters(), set(), tasks, UnreadAnswers(limits))
        tested = connection.HttpConnection(shared)
        tested.connection_made(self)
        at = 0
        whole = self._rng.random() < 0.3
        try:
            while at < len(stream) and not self.closed:
                for _ in range(200):
                    if self._takes or self.closed:
                        break
                    await asyncio.sleep(0)
                else:
                    raise AssertionError("the connection takes nothing more")
                count = len(stream) if whole else self._rng.choice((1, 1, 2, 3, 7, 20, 100, HEAD_BYTES - 100))
                tested.data_received(stream[at : at + count])
                at += count
                if self._rng.random() < 0.5:
                    await asyncio.sleep(0)
            for _ in range(10 * (len(self.run) + connection.MOST_WAITING + 1)):
                if not tasks:
                    break
                await asyncio.sleep(0)
            self.ended_by_server = self.closed
        finally:
            tested.connection_lost(None)
            while tasks:
                await asyncio.gather(*tasks)

    ended_by_server = False

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        seen: list[Any] = [scope["method"].encode(), target, b"", False]
        self.run.append(seen)
        while self.reads and not seen[3]:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            seen[2] += message["body"]
            seen[3] = not message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    # --- asyncio's transport ---------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Keep it."""
        assert not self.closed, "something is written to a closed connection"
        self.written += data

    def close(self) -> None:
        """Note it."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.closed

    def pause_reading(self) -> None:
        """Note it."""
        self._takes = False

    def resume_reading(self) -> None:
        """Note it."""
        self._takes = True

    def is_reading(self) -> bool:
        """Return whether more is taken."""
        return self._takes

    def can_write_eof(self) -> bool:
        """Return that it cannot: the connection lingers then."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how much waits: nothing."""
        return 0

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        """Return nothing."""
        return default


def compare(client: Client, expected: http_model.Reading, *, short: bool) -> None:
    """Compare the requests that were run and answered with those of a stream.

    Args:
        client: The client that has sent it.
        expected: The stream as the model reads it.
        short: Whether nothing of it may be refused for its length.

    Raises:
        AssertionError: More was run than was sent, or something else, or less than must be.
    """
    requests = expected.requests
    assert len(client.run) <= len(requests), f"{client.run[len(requests) :]} was run, and never sent"
    for (method, target, body, whole), each in zip(client.run, requests, strict=False):
        assert each.head_bytes <= HEAD_BYTES, f"{each.head_bytes} bytes of a line and headers were taken"
        assert method == each.method
        assert target == each.target or not each.plain
        if client.reads:
            assert each.body.startswith(body) if not whole else (each.whole and body == each.body), (body, each)
    statuses = answers(bytes(client.written), requests)
    refusals = [status for status in statuses if status != 200]
    assert len(refusals) <= 1
    assert not refusals or statuses[-1] == refusals[0]
    must = 0  # how many are certainly run and answered
    for each in requests:
        if not (each.plain and each.whole and short):
            break
        must += 1
    assert len(statuses) - len(refusals) >= must, f"{statuses} for {requests}"
    if must == len(requests):
        wrong = expected.end is http_model.End.WRONG
        assert wrong == bool(refusals) or expected.end is http_model.End.PART, (statuses, requests)


def answers(written: bytes, requests: list[http_model.Expected]) -> list[int]:
    """Return the statuses of answers.

    Raises:
        AssertionError: The bytes are no answers to these requests.
    """
    found: list[int] = []
    while written:
        head, end, rest = written.partition(b"\r\n\r\n")
        assert end
        assert head.startswith(b"HTTP/1.1 "), written[:60]
        status = int(head[9:12])
        if status == 100:
            written = rest
            continue
        lengths = [
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        ]
        assert len(lengths) == 1, head
        asked = requests[len(found)] if len(found) < len(requests) else None
        if asked is not None and asked.method == b"HEAD" and (asked.plain or status == 200):
            size = 0
        else:  # what is no request may have seemed to be a HEAD
            size = lengths[0] if rest or (asked is not None and asked.method != b"HEAD") else 0
        assert len(rest) >= size, rest
        written = rest[size:]
        found.append(status)
    return found


def _request(rng: random.Random) -> bytes:
    """Return a request with a body in one of the ways to send it."""
    lines = [b"%s %s HTTP/1.%d" % (rng.choice(METHODS), rng.choice(TARGETS_), rng.random() < 0.9)]
    lines += [b"Host: host", *rng.sample(HEADERS, rng.choice((0, 0, 1, 2)))]
    if rng.random() < 0.1:
        lines.append(
            b"X-Long: " + b"x" * rng.choice((HEAD_BYTES // 2, HEAD_BYTES - 300, HEAD_BYTES + 300, 2 * HEAD_BYTES))
        )
    body, sent = rng.choice(BODIES), b""
    match rng.randrange(3):
        case 0:
            lines.append(b"Content-Length: %d" % len(body))
            sent = body
        case 1:
            lines.append(rng.choice((b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked")))
            cut = rng.randint(0, len(body))
            extension = rng.choice((b"", b"", b";a=b", b';a="b;c"'))
            sent = b"".join(
                b"%x%s\r\n%s\r\n" % (len(each), extension, each) for each in (body[:cut], body[cut:]) if each
            )
            sent += rng.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"00;a\r\n\r\n"))
        case _:
            pass
    return b"\r\n".join((*lines, b"", sent))
