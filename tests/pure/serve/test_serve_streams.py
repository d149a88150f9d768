from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.serve import method_figures, streams
from atomr_mp.serve.http.events import COMMENT, OpenHttpStreams, event
from atomr_mp.serve.http.exchange import Budget, Exchange
from atomr_mp.serve.http.limits import DEFAULT_LIMITS
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import STREAMS, Counters
from atomr_mp.serve.problems import ClientLeft, Problem
from atomr_mp.serve.streams import EVENTS, JOIN_BYTES, LINES, HttpStream, form_of


class FakeStream:
    """A stream whose parts come when a test says so."""

    device = 0
    generation = 1

    def __init__(self) -> None:
        self.parts: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False
        self.ran_at: tuple[tuple[int, int], ...] = ()

    async def __anext__(self) -> Any:
        found = await self.parts.get()
        if isinstance(found, Exception):
            raise found
        return found

    def next_kept(self) -> tuple[Any] | None:
        """Return what comes at once, unless it is an error."""
        if self.parts.empty():
            return None
        found = self.parts.get_nowait()
        if isinstance(found, Exception):
            raise found
        return (found,)

    def close(self) -> None:
        """End whoever waits, as the real one does."""
        if not self.closed:
            self.closed = True
            self.parts.put_nowait(errors.Cancelled("closed", maybe_executed=True))


class Client:
    """A client that reads an answer, and leaves when a test says so."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.leaves = asyncio.Event()
        self.arrived = asyncio.Event()
        scope = {"method": "POST", "path": "/", "headers": []}
        self.exchange = Exchange(
            scope, self.receive, self.send, DEFAULT_LIMITS, Budget(1000), UnreadAnswers(DEFAULT_LIMITS)
        )
        self.stream = FakeStream()
        self.open = OpenHttpStreams(10)
        self.counters = Counters()
        health: Any = SimpleNamespace(note=lambda _device: None)
        stream: Any = self.stream
        self.parts = HttpStream(self.exchange, stream, self.open, health, self.counters)

    async def receive(self) -> dict[str, Any]:
        """Leave."""
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Read."""
        self.sent.append(message.get("body", message["type"]))
        self.arrived.set()

    async def until(self, expected: Any) -> None:
        """Wait until something has arrived."""
        while expected not in self.sent:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 10)


def counted(client: Client) -> set[tuple[str, int]]:
    """Return the kinds of a client's figures, with how many parts or first parts they count."""
    found = client.counters.methods.all()
    return {(each.kind, each.total if each.kind == method_figures.PARTS else sum(each.buckets)) for each in found}


def test_the_status_does_not_wait_for_ever_and_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would give up an answer that does not begin, and close one that is silent."""
    monkeypatch.setattr(streams, "STATUS_S", 0.02)
    monkeypatch.setattr(streams, "COMMENT_EVERY_S", 0.02)

    async def read() -> None:
        client = Client()
        async with client.parts as parts:
            beginning = asyncio.ensure_future(parts.begin(EVENTS.headers, EVENTS.comment))
            await client.until("http.response.start")
            await client.until(COMMENT)
            assert not beginning.done()
            client.stream.parts.put_nowait(None)  # a part may be nothing, too
            assert await beginning == (None,)
            assert counted(client) == {("first", 1), ("parts", 1)}  # at once, and not at the stream's end
            client.stream.parts.put_nowait(StopAsyncIteration())
            assert await parts.next() is None
            assert client.counters.own[STREAMS] == 1
        assert client.counters.own[STREAMS] == client.open.count == 0

    asyncio.run(read())


def test_an_error_in_time_is_raised_before_the_status() -> None:
    """So that it has a status of its own."""

    async def read() -> None:
        client = Client()
        client.stream.parts.put_nowait(errors.WorkerLost("gone"))
        async with client.parts as parts:
            with pytest.raises(errors.WorkerLost):
                await parts.begin(EVENTS.headers, EVENTS.comment)
        assert client.sent == []

    asyncio.run(read())


def test_parts_that_are_there_go_together_and_none_is_held_back() -> None:
    """One write for all that has arrived, up to a limit; also where the next thing is an error."""

    async def main() -> None:
        client = Client()
        async with client.parts as parts:
            sending = asyncio.ensure_future(parts.send(("a",), str.encode))
            await client.until(b"a")
            for part in ("b", "c", "d" * JOIN_BYTES, "e"):
                client.stream.parts.put_nowait(part)
            await client.until(b"e")
            assert counted(client) == {("first", 1), ("parts", 4)}
            client.stream.parts.put_nowait("f")
            client.stream.parts.put_nowait(errors.ActorFailed("no more"))
            with pytest.raises(errors.ActorFailed):
                await sending
        assert client.sent == [b"a", b"bc" + b"d" * JOIN_BYTES, b"e", b"f"]

    asyncio.run(main())


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_who_leaves_and_who_ends_are_told_apart(leaves: bool, begun: bool) -> None:  # noqa: FBT001
    """A client that has left is not reported; the server's end is the stream's error, or that of any call before."""
    wanted: type[Exception] = ClientLeft if leaves else Problem if begun else errors.Cancelled

    async def read() -> None:
        client = Client()
        async with client.parts as parts:
            if begun:
                await client.exchange.begin(200)
            waiting = asyncio.ensure_future(parts.next())
            await asyncio.sleep(0)
            if leaves:
                client.leaves.set()
            else:
                client.open.end()
            with pytest.raises(wanted):
                await waiting
        assert client.stream.closed
        with contextlib.nullcontext() if leaves else pytest.raises(Problem):
            client.open.check()

    asyncio.run(read())


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (b"", EVENTS),
        (b"*/*", EVENTS),
        (b"text/event-stream;q=1", EVENTS),
        (b"text/html, application/jsonl", LINES),
        (b"application/jsonl;q=0, */*", EVENTS),
        (b"text/event-stream;q=0, */*", LINES),
        (b"application/jsonl;q=0.1, text/event-stream", EVENTS),
        (b"application/x-ndjson, */*;q=0.1", LINES),
    ],
)
def test_a_client_says_how_it_wants_a_stream(accept: bytes, form: streams.Form) -> None:
    """Events, if it does not."""
    assert form_of(accept) is form


@pytest.mark.parametrize("accept", [b"application/json", b"*/*;q=0", b"application/jsonl; q=0.0, text/*;q=0"])
def test_a_form_that_there_is_not_is_refused(accept: bytes) -> None:
    """With 406."""
    with pytest.raises(Problem) as caught:
        form_of(accept)
    assert caught.value.status == 406


def test_events_and_lines_have_their_form() -> None:
    """As clients parse them."""
    assert event(b"1") == b"data: 1\n\n"
    assert EVENTS.last(b"{}", "end") == b"event: end\ndata: {}\n\n"
    assert LINES.part(b"1") == b'{"part":1}\n'
    assert LINES.last(b"{}", "error") == b'{"error":{}}\n'
