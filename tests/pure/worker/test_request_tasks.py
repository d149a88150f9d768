"""The end of an asynchronous stream, on an event loop that the test drives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from atomr_mp import errors
from atomr_mp.protocol.messages import data
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.off_loop.tasks import _RequestTask

FAR_NS = 2**62


class Loop:
    """The running event loop in place of an actor's."""

    device = SimpleNamespace(thread_context=contextlib.nullcontext)

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Start a task."""
        return asyncio.get_running_loop().create_task(coroutine)

    def later(self, _delay_s: float, act: Any) -> asyncio.TimerHandle:
        """Call a function after the test."""
        return asyncio.get_running_loop().call_later(1000, act)

    async def await_device(self) -> None:
        """Return, since there is no device."""


class Owner:
    """Takes a request that rests or has ended."""

    def __init__(self) -> None:
        self.rested, self.ended = asyncio.Event(), asyncio.Event()

    def give(self, _request: object, *, ended: bool) -> None:
        """Take it."""
        (self.ended if ended else self.rested).set()


def test_an_interruption_that_comes_while_a_generator_is_closed_spares_its_finally() -> None:
    """A turn saw the end at its beginning; the interruption that the worker has asked for with it comes later."""
    noted: list[str] = []

    closing, interrupted = asyncio.Event(), asyncio.Event()

    async def tell() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closing.set()
            await interrupted.wait()
            noted.append("closed")

    async def close() -> StreamRequest:
        method = SimpleNamespace(
            name="A.tell", watched=0, took=lambda _ns: None, resumes=None, steps=None, function=tell
        )
        call = data.StreamCall(1, "A.tell", FAR_NS, 0, b"", 4, FAR_NS, FAR_NS, FAR_NS)
        stream = StreamRequest(
            cast("Any", SimpleNamespace(session=SimpleNamespace(place=None))), call, cast("Any", method)
        )
        stream.arguments = ()
        owner = Owner()
        task = _RequestTask(cast("Any", Loop()), stream, owner.give)
        await asyncio.wait_for(owner.rested.wait(), 10)  # the first turn ends with the first part
        stream.next, stream.closing = None, errors.Cancelled("closed", maybe_executed=True)
        task.go_on()
        await asyncio.wait_for(closing.wait(), 10)
        task.interrupt()
        interrupted.set()
        await asyncio.wait_for(owner.ended.wait(), 10)
        return stream

    async def closed() -> StreamRequest:
        try:
            return await close()
        finally:
            interrupted.set()  # else the loop would wait for the generator for ever, and hide the error

    assert asyncio.run(closed()).error is not None
    assert noted == ["closed"]
