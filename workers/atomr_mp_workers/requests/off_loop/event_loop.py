"""An actor's own event loop, in a thread of its own: for engines whose interface is asynchronous."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import selectors
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, MutableSequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from atomr_mp_workers import own_process
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.kinds.thread_state import ThreadState

BEAT_S: Final = 0.25
"""How often a loop with requests shows that it turns; the shortest hang that is detected takes a second."""

WAITERS: Final = 4
"""Threads that wait for the device on behalf of requests that have begun work there; these end about in order."""

LEAVE_S: Final = 5.0
"""How long cancelled tasks may take when the worker leaves; tasks left then end with the process."""

_LOG: Final = logging.getLogger("atomr_mp.worker")


class EventLoop:
    """An event loop and its thread.

    Args:
        name: The actor's name.
        device: The device that the thread works on.
        turned: Words of the board: when each loop has last turned, by number.
        number: Its number among the actors' loops.
    """

    def __init__(self, name: str, device: WorkerDevice, turned: MutableSequence[int], number: int) -> None:
        self.number: Final = number
        self._name: Final = name
        self._turned: Final = turned
        self.device: Final = device
        self._loop: Final = asyncio.SelectorEventLoop(_OwnSelector())
        self._posted: deque[Callable[[], object]] = deque()
        self._is_posted = False
        """Whether the loop will look at posted calls."""
        self._plain: Final = contextvars.Context()
        """Context of calls that belong to no request."""
        self._waiters: Final = ThreadPoolExecutor(WAITERS, f"{name}-device")
        """Threads that wait for the device. The actor's own executor may be busy."""
        self._busy: Callable[[], bool] = _never
        self._beats = False
        self._is_over = False
        # A daemon: a loop that is blocked for ever must not keep a worker alive that was told to leave.
        self._thread: Final = threading.Thread(target=self._serve, name=f"{name}-loop", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> int | None:
        """Number of its thread."""
        return self._thread.ident

    def post(self, act: Callable[[], object]) -> None:
        """Have a function called on the loop's thread, in order and soon. Any thread."""
        self._posted.append(act)
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(self._take_posted, context=self._plain)
        elif not self._is_posted:
            self._is_posted = True
            self._loop.call_soon_threadsafe(self._take_posted, context=self._plain)

    def soon(self, act: Callable[[], object]) -> None:
        """Have a function called once all tasks that can run have run. On the loop's thread."""
        self._loop.call_soon(act, context=self._plain)

    def later(self, delay_s: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        """Have a function called after a time, unless it is cancelled. On the loop's thread."""
        return self._loop.call_later(delay_s, act, context=self._plain)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task with a context of its own. On the loop's thread."""
        return self._loop.create_task(coroutine, context=contextvars.Context())

    def beat_while(self, busy: Callable[[], bool]) -> None:
        """Show on the board that the loop turns, from now on as long as it is busy. On its thread."""
        self._busy = busy
        if not self._beats:
            self._beats = True
            self._beat()

    def complete(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine of the actor to its end, on its stream of the device, and wait. Another thread.

        Raises:
            BaseException: The coroutine has raised it.
        """
        raised: list[BaseException] = []
        ended = threading.Event()

        async def run() -> None:
            try:
                await stepwise(coroutine, self.device)
                await self.await_device()
            except BaseException as error:  # noqa: BLE001 - raised to whoever waits
                raised.append(error)
            finally:
                ended.set()

        self.post(lambda: self.start(run()))
        ended.wait()
        if raised:
            raise raised[0]

    async def await_device(self) -> None:
        """Wait until the device has done the work that this thread began, even if the task is cancelled meanwhile.

        Raises:
            Exception: The device has failed.
        """
        wait = self.device.thread_work()
        if wait is not None:
            await regardless(self._loop.run_in_executor(self._waiters, wait))

    def close(self) -> None:
        """Cancel tasks, close generators that were left, and stop; wait `LEAVE_S` at most. Another thread."""

        async def leave() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                _, left = await asyncio.wait(tasks, timeout=LEAVE_S)
                for task in left:
                    _LOG.warning("a task of %s does not end though it was cancelled: %r", self._name, task)
            await self._loop.shutdown_asyncgens()
            self._is_over = True
            self._loop.stop()

        self.post(lambda: self.start(leave()))
        self._thread.join(2 * LEAVE_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_over:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001 - a callback or a task of the actor's may raise SystemExit
                _LOG.exception("the event loop of %s goes on after what ended it", self._name)

    def _take_posted(self) -> None:
        self._is_posted = False
        posted = self._posted
        while posted:
            posted.popleft()()

    def _beat(self) -> None:
        self._turned[self.number % len(self._turned)] = time.monotonic_ns()
        self._beats = self._busy()
        if self._beats:
            self.later(BEAT_S, self._beat)


class _OwnSelector(selectors.EpollSelector):
    """Ends a forked child in which the actor's code has come back to the loop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        own_process.check()
        return super().select(timeout)


def _never() -> bool:
    return False


@types.coroutine
def stepwise(coroutine: Coroutine[Any, Any, object], device: WorkerDevice) -> Generator[Any, Any, None]:
    """Run a coroutine, and hide the thread state that it sets from tasks that run while it awaits."""
    state = ThreadState()
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        own_process.check()  # another task of the actor's may have forked
        with device.thread_context():
            state.enter()
            try:
                awaited = step(given)
            except StopIteration:
                return
            finally:
                own_process.check()
                state.leave()
                # An exception that was thrown in has this frame in its traceback. If the frame referred to it, or to a
                # task that has raised it, they would keep each other and the request's arguments until a collection.
                given = None
        try:
            given = yield awaited
            step = coroutine.send
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            step, given = coroutine.throw, error
        finally:
            awaited = None


async def regardless(future: asyncio.Future[Any]) -> None:
    """Wait for a future even if the task is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.cancelled():
                return
    future.result()
