"""Requests of asynchronous methods: each is a task on its actor's event loop.

With the worker loop's turn, unless stated.

A coroutine's task is a request from its start to its end. An asynchronous generator's task lives as long as the stream,
and works turn by turn: between turns it waits to be resumed, and occupies nothing but its memory. Ending a request
cancels its task: at its current `await` if it works, else at its next turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.exceptions import forget_frames
from atomr_mp_workers import own_process, tracing
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.requests.kinds.stream import BEYOND_NS, GO_ON, StreamRequest
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.event_loop import EventLoop, regardless, stepwise
from atomr_mp_workers.requests.off_loop.runner import ActorRunner
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.request import Request, Run, TaskCell, in_task


class RequestTasks(ActorRunner):
    """Runs requests of one actor on its event loop.

    Args:
        loop: The event loop.
        count: How many requests run at a time.
        completions: The queue of ended requests.
    """

    def __init__(self, loop: EventLoop, count: int, completions: Completions) -> None:
        super().__init__(count)
        self._loop: Final = loop
        self._completions = completions
        self._running: dict[tuple[Peer, int], Request] = {}
        """Requests that work. Belongs to the worker's loop."""
        self._tasks: dict[Request, _RequestTask] = {}
        """Tasks of all requests that have begun and not ended. Belongs to the event loop's thread, like all below."""
        self._done: list[Run] = []
        """Requests that have ended, or rest, and were not handed over."""

    def run(self, request: Run) -> None:
        """Have a request begin, or go on."""
        assert isinstance(request, Request)
        self.ahead += 1
        self._running[request.peer, request.id] = request
        self._loop.post(lambda: self._go_on(request))

    def came_back(self, request: Run) -> None:
        """Take back a request that has ended, or rests."""
        assert isinstance(request, Request)
        self.ahead -= 1
        del self._running[request.peer, request.id]

    def interrupt(self, request: Request) -> bool:
        """Cancel the task of a request that works; the request ends with its `closing`."""
        self._loop.post(lambda: self._interrupt(request))
        return True

    def running_of(self, peer: Peer, ids: Iterable[int] | None = None) -> Iterable[Request]:
        """Return the requests of a connection that work: all, or those with these numbers."""
        if ids is None:
            return [request for (owner, _), request in self._running.items() if owner is peer]
        found = (self._running.get((peer, number)) for number in ids)
        return [request for request in found if request is not None]

    # --- on the event loop's thread -----------------------------------------------------------------------------------

    def _take(self, request: Request, *, ended: bool) -> None:
        """Take a request that has ended or rests; hand it over together with the others of this turn of the loop."""
        if ended:
            del self._tasks[request]
        if not self._done:
            self._loop.soon(self._hand_over)
        self._done.append(request)

    def _hand_over(self) -> None:
        done, self._done = self._done, []
        for request in done:
            if request.event is not None and request.next is None:
                request.event.end()
        self._completions.add_all(done)

    def _go_on(self, request: Request) -> None:
        task = self._tasks.get(request)
        if task is None:
            self._tasks[request] = _RequestTask(self._loop, request, self._take)
            self._loop.beat_while(lambda: bool(self._tasks))
        else:
            task.go_on()

    def _interrupt(self, request: Request) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.interrupt()


class _RequestTask:
    """A request on the event loop's thread; `give` takes it, and whether it has `ended`, after each of its turns."""

    def __init__(self, loop: EventLoop, request: Request, give: Callable[..., None]) -> None:
        self._give = give
        self._loop = loop
        self._request: Final = request
        self._cell: Final = TaskCell(request)
        self._generator: AsyncGenerator[Any, None] | None = None
        self._is_cancellable = False
        """Whether its method runs, and may be cancelled."""
        self._next_turn: asyncio.Future[None] | None = None
        self._task: Final = loop.start(self._live())

    def go_on(self) -> None:
        """Let a stream take its next turn."""
        assert self._next_turn is not None
        self._next_turn.set_result(None)

    def interrupt(self) -> None:
        """Cancel the method if it runs; before it runs, the request checks whether it has to end."""
        if self._is_cancellable:
            self._is_cancellable = False
            self._task.cancel()

    async def _live(self) -> None:
        """Work until the request has ended."""
        in_task.set(self._cell)
        request, goes_on = self._request, True
        while goes_on:
            entered = None
            if request.span is not None and tracing.tracer is not None:
                entered = tracing.tracer.enter(request.span)
            await stepwise(self._turn(), self._loop.device)
            if entered is not None and tracing.tracer is not None:
                tracing.tracer.leave(entered)
            goes_on = request.goes_on
            if goes_on:
                self._next_turn = asyncio.get_running_loop().create_future()
            else:
                self._cell.closing = request.closing
                self._cell.run = None  # tasks that the method has left behind work for no request
            self._give(request, ended=not goes_on)
            if goes_on:
                assert self._next_turn is not None
                await regardless(self._next_turn)

    async def _turn(self) -> None:
        """Run the request like `Run.call`, on an event loop; never raises."""
        request = self._request
        request.next = None
        if request.recorded is not None:
            request.recorded.begin()
        limit = self._limit()
        try:
            if hooks.hook is not None:
                hooks.hook("enqueue", request.method.name)
            self._is_cancellable = True
            await self.work()
        except asyncio.CancelledError as raised:
            if request.closing is None:
                request.fail(raised)
            else:
                request.error = request.closing
                forget_frames(raised)
        except BaseException as raised:  # noqa: BLE001 - what user code raises is an answer, not the worker's end
            request.fail(raised)
        self._is_cancellable = False
        limit.cancel()
        try:
            await self._loop.await_device()  # it uses the request's memory until then
        except BaseException as raised:  # noqa: BLE001 - of the device, which has not done what it was given
            request.fail(raised)
        if request.recorded is not None:  # perhaps only since it has begun
            request.recorded.end()

    async def work(self) -> None:
        """Call the method, and await it; or take steps of its generator."""
        request = self._request
        if isinstance(request, StreamRequest):
            await self._steps(request)
        elif request.closing is not None:
            request.error, request.kept_out = request.closing, True
        else:
            result = await request.method.function(*request.arguments)
            own_process.check()
            request.take(result)

    async def _steps(self, stream: StreamRequest) -> None:
        """Take a turn of steps. See `StreamRequest.take`."""
        generator = self._generator
        if generator is None:
            generator = self._generator = stream.method.function(*stream.all_arguments())
        begun_ns, until_ns = time.monotonic_ns(), 0
        if not stream.credit and stream.closing is None:
            stream.next = GO_ON
            return
        while stream.closing is None:
            try:
                part = await anext(generator)
            except StopAsyncIteration:
                own_process.check()
                stream.conclude(None)
                return
            own_process.check()
            stream.keep(part)
            now_ns = time.monotonic_ns()
            until_ns = until_ns or now_ns + BEYOND_NS
            if stream.error is None and stream.is_turn_over(now_ns - begun_ns, now_ns, until_ns):
                stream.next = GO_ON
                return
            begun_ns = now_ns
        self._is_cancellable = False  # an interruption for the same end may be on its way: `finally` may await
        await generator.aclose()
        stream.error = stream.closing

    def _limit(self) -> asyncio.TimerHandle:
        """Return the timer that interrupts the request at its deadline."""
        request, now_ns = self._request, time.monotonic_ns()
        until_ns = request.turn_deadline_ns(now_ns)

        def end() -> None:
            if request.closing is None:
                request.closing = errors.DeadlineExceeded(
                    f"the deadline passed while {request.method.name} ran", maybe_executed=True
                )
            self.interrupt()

        return self._loop.later(max(0.0, (until_ns - now_ns) / 1e9), end)
