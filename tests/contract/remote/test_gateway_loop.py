"""The gateway's event loop: direct readers beside asyncio's own callbacks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from atomr_mp.gateway.loop import GatewayLoop

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Give two connected sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def run(main: object) -> object:
    """Run a coroutine in such a loop."""
    with asyncio.Runner(loop_factory=GatewayLoop) as runner:
        return runner.run(main)  # type: ignore[arg-type]


def test_a_reader_is_called_until_it_is_removed(pair: Pair) -> None:
    """It may remove itself, and is called again once it is added again."""
    ours, theirs = pair

    async def main() -> list[bytes]:
        loop, found = asyncio.get_running_loop(), []
        come = asyncio.Event()

        def read(size: int) -> None:
            found.append(ours.recv(size))
            come.set()
            loop.remove_reader(ours.fileno())

        loop.add_reader(ours.fileno(), read, 1)
        theirs.send(b"ab")
        await asyncio.wait_for(come.wait(), 10)
        assert not loop.remove_reader(ours.fileno())
        come.clear()
        loop.add_reader(ours.fileno(), read, 1)
        await asyncio.wait_for(come.wait(), 10)
        return found

    assert run(main()) == [b"a", b"b"]


def test_a_reader_removed_by_an_earlier_one_is_not_called() -> None:
    """Both descriptors were ready in the same turn."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        first, second = os.eventfd(1), os.eventfd(1)
        called = []

        def read(me: int, other: int) -> None:
            called.append(me)
            loop.remove_reader(me)
            loop.remove_reader(other)

        loop.add_reader(first, read, first, second)
        loop.add_reader(second, read, second, first)
        await asyncio.sleep(0)  # a turn of the loop, which looks at both
        await asyncio.sleep(0)
        os.close(first)
        os.close(second)
        return len(called)

    assert run(main()) == 1


def test_what_a_reader_raises_is_reported_and_others_go_on(pair: Pair) -> None:
    """A broken reader does not end the loop."""
    ours, theirs = pair

    async def main() -> list[object]:
        loop, reported = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
        come = asyncio.Event()
        broken = os.eventfd(1)

        def fail() -> None:
            loop.remove_reader(broken)
            raise LookupError

        loop.add_reader(broken, fail)
        loop.add_reader(ours.fileno(), come.set)
        theirs.send(b"a")
        await asyncio.wait_for(come.wait(), 10)
        loop.remove_reader(ours.fileno())
        os.close(broken)
        return reported

    reported = run(main())
    assert isinstance(reported, list)
    assert [type(error) for error in reported] == [LookupError]


def test_asyncio_itself_works_beside_readers(pair: Pair) -> None:
    """Threads wake the loop, its own streams are read, and timers fall due, while a reader is called all the time."""
    ours, theirs = pair

    async def main() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        busy = os.eventfd(1)
        loop.add_reader(busy, lambda: None)  # it stays readable
        try:
            found = await asyncio.wait_for(asyncio.to_thread(lambda: 7), 10)
            reader, writer = await asyncio.open_connection(sock=ours)
            theirs.send(b"content")
            content = await asyncio.wait_for(reader.readexactly(7), 10)
            writer.close()
            await asyncio.sleep(0.01)  # a timer is what is tested
        finally:
            loop.remove_reader(busy)
            os.close(busy)
        return found, content

    assert run(main()) == (7, b"content")
