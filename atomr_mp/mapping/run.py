"""Many items through one method: spread over all devices, in order, sent again where that is allowed.

The shell around `schedule.Job`, and the engine of `Pool.map`. A `journal.Journal` beside it records outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, TypeVar, TypeVarTuple

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.callers import calling_loop
from atomr_mp.client.lanes.retry_policy import NEVER
from atomr_mp.client.reply import ItemsReply
from atomr_mp.mapping.item_target import ItemTarget
from atomr_mp.mapping.kept_error import KeptError
from atomr_mp.mapping.schedule import Depth, Failure, Job, RecordedResult, Unreadable
from atomr_mp.protocol.words import counted

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.reply import Reply
    from atomr_mp.mapping.journal import Journal

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

__all__ = ["Failure", "Mapper", "Progress"]

FEED_S: Final = 0.001
"""How long a turn takes items from the caller's iterable before it sends them; the iterable may be slow."""

FEED_ITEMS: Final = 64
"""How many items a turn takes before it sends them: as many as travel in one message."""

RETRY_S: Final = 0.005
"""Shortest wait before an item is sent again that found a worker's queue full of other clients' requests."""


class Progress(NamedTuple):
    """The progress of a map, in items."""

    done: int
    """Items that have an outcome, failures included."""
    failed: int
    in_flight: int
    resubmitted: int
    """How often an item was sent again."""
    restarts: int
    """Unplanned ends of workers since the map began."""
    recorded: int = 0
    """Items whose outcome was in the journal."""


class Mapper:
    """The maps of one client; they run in the threads of those who read their results.

    Args:
        client: Through which the items go.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._idle: list[asyncio.AbstractEventLoop] = []
        """Event loops of ended maps; each keeps its connections for the next map."""
        self._closed = False

    def map(
        self,
        method: str,
        items: Iterable[Any],
        *,
        idempotent: bool,
        in_flight: int | None,
        depth: Depth,
        call_items: int,
        attempts: int,
        deadline_s: float,
        priority: int,
        on_progress: Callable[[Progress], object] | None,
        return_failures: bool,
        journal: Journal | None,
    ) -> Iterator[Any]:
        """Yield the result of every item, see `Pool.map`."""
        # A private event loop: calls made in one of its turns travel together, and answers of all devices wake it.
        check_may_block()
        target = ItemTarget(self._client, method, deadline_s, priority)
        with self._loop() as loop:
            shell = MapRun if journal is None else functools.partial(_RunWithJournal, journal)
            run = shell(
                loop,
                iter(items),
                Job(
                    idempotent=idempotent,
                    attempts=attempts,
                    in_flight=in_flight,
                    devices=target.takers,
                    depth=depth,
                ),
                target,
                call_items,
            )
            try:
                yield from run.outcomes(on_progress, return_failures=return_failures)
            finally:
                run.abandon()
                if journal is not None:
                    journal.close()

    @contextlib.contextmanager
    def _loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        """Lend an event loop that no other map uses."""
        loop, held = None, interrupts.hold()
        try:
            try:
                loop = self._idle.pop() if self._idle else asyncio.SelectorEventLoop(_Selector())
            finally:
                if held:
                    interrupts.let_go(held)
            yield loop
        finally:
            if loop is not None:
                if self._closed:
                    loop.close()
                else:
                    self._idle.append(loop)

    def depth(self, least: int, most: int) -> Depth:
        """Return how many items per device may be in flight; more than the window would only be refused."""
        window = self._client.window.requests
        return Depth(max(1, min(least, window)), min(most, window))

    def close(self) -> None:
        """Close the idle loops, after the client's end; a map that runs closes its own."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _Selector(selectors.DefaultSelector):
    """Lets interrupts through while an event loop waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return interrupts.wait(super().select, timeout)


class _Sent(NamedTuple):
    """Items that are sent and not answered."""

    indices: Sequence[int]
    at: float
    left: set[int]
    """Items without an outcome."""


class MapRun:
    """One map at work: a job, and the loop in which its calls are made."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        items: Iterator[Any],
        job: Job[RecordedResult],
        target: ItemTarget,
        call_items: int,
    ) -> None:
        self._loop = loop
        self._source = items
        self._schedule = job
        self._target = target
        self._call_items = call_items
        """Most items sent as one call; 0 if each is sent by itself."""
        self._items: dict[int, Any] = {}
        """Items that were taken from the source and have no outcome; they may have to be sent again."""
        self._flying: dict[Reply, _Sent] = {}
        self._landed: deque[Reply] = deque()
        self._turning = False
        """Whether a turn is due in the loop."""
        self._error: Final = KeptError()
        """The error that a turn has raised; the loop would only log it."""
        self._source_error: Final = KeptError()
        self._restarts = target.restarts
        self._abandoned = False

    def outcomes(self, on_progress: Callable[[Progress], object] | None, *, return_failures: bool) -> Iterator[Any]:
        """Yield results, and raise or yield failures, in order."""
        job = self._schedule
        while True:
            self._turn_soon()
            self._run()
            if on_progress is not None:
                on_progress(self._progress())
            while (outcome := job.pop()) is not None:
                index, found = outcome
                if not isinstance(found, Failure):
                    yield found.value
                elif return_failures:
                    yield found
                else:
                    found.error.add_note(
                        f"It is what item {index} of this map ended with, sent {counted(found.attempts, 'time')}."
                    )
                    raise errors.unraised(found.error)
            if job.over:
                break
        self._source_error.raise_kept()
        self._over()

    @interrupts.defer_interrupts
    def abandon(self) -> None:
        """Cancel the sent items whose results are not needed."""
        self._abandoned = True  # a turn may still be due
        flying, self._flying = list(self._flying), {}
        # The garbage collector may close a generator anywhere, even in another task's event loop.
        if not flying or self._loop.is_closed() or calling_loop() is not None:
            return

        def cancel() -> None:
            for reply in flying:
                reply.cancel()

        self._loop.call_soon(cancel)
        self._loop.call_soon(self._loop.stop)
        _run_beside(self._loop)

    @interrupts.defer_interrupts
    def _run(self) -> None:
        """Run the loop until something can come out, or everything has."""
        if self._loop.is_closed():
            raise errors.PoolLost("this client was closed")
        check_may_block()
        _run_beside(self._loop)
        self._error.raise_kept()

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Receive answers, and send items that may be sent."""
        self._turning = False
        if self._abandoned:
            return
        try:
            self._take_in()
            self._feed()
        except BaseException as error:  # noqa: BLE001 - carried to whoever runs the loop
            self._error.keep(error)
        if self._error or self._schedule.ready or self._schedule.over:
            # Later than the sending that this turn has left to the loop.
            self._loop.call_soon(self._loop.stop)

    def _on_reply(self, reply: Reply) -> None:
        if reply in self._flying:
            self._landed.append(reply)
            self._turn_soon()

    def _take_in(self) -> None:
        now = time.monotonic()
        while self._landed:
            reply = self._landed.popleft()
            if reply not in self._flying:
                continue  # each of its parts was counted
            sent = self._flying[reply]
            if isinstance(reply, ItemsReply):
                self._take_together(reply, sent, now - sent.at)
                continue
            del self._flying[reply]
            (index,) = sent.indices
            error = reply.exception()
            if error is not None:
                self._take_error(index, error)
                continue
            try:
                result = reply.result()  # read now: a large result is lost with its worker
            except errors.AtomrError as unread:
                self._take_unread(index, unread)
            else:
                self._succeeded(index, self._kept(index, result), now - sent.at)

    def _take_together(self, reply: ItemsReply, sent: _Sent, took_s: float) -> None:
        """Record the outcomes of items that were sent as one."""
        done = reply.is_over  # read first: reading a part may bring more parts, which are then counted by themselves
        while reply.parts:
            part = reply.parts.popleft()
            results: Sequence[Any] = ()
            unread: errors.AtomrError | None = None
            if len(part.failed) < len(part.places):
                try:
                    results = reply.results(part)
                except errors.AtomrError as error:
                    unread = errors.unraised(error)
            for at, place in enumerate(part.places):
                index = sent.indices[place]
                sent.left.discard(index)
                if place in part.failed:
                    self._take_error(index, copy.copy(part.failed[place]))
                elif isinstance(unread, errors.ActorFailed):  # one of the items is the cause
                    self._schedule.apart(index)
                elif unread is not None:
                    self._take_unread(index, copy.copy(unread))
                else:
                    self._succeeded(index, self._kept(index, results[at]), took_s)
        if done:
            del self._flying[reply]
            self._take_rest(sent, reply.exception())

    def _take_rest(self, sent: _Sent, error: errors.AtomrError | None) -> None:
        """Record the outcomes of a call's items that no part of its answer was about."""
        for index in sorted(sent.left):
            assert error is not None  # without an error, the last part would have told of them
            if isinstance(error, _REFUSED) and not error.maybe_executed:
                self._schedule.apart(index)
            else:
                self._take_error(index, copy.copy(error))

    def _succeeded(self, index: int, outcome: RecordedResult, took_s: float) -> None:
        self._schedule.answered(index, outcome, took_s)
        del self._items[index]

    def _take_unread(self, index: int, error: errors.AtomrError) -> None:
        """Record that an item's result cannot be read, as after the end of its worker."""
        if isinstance(error, errors.RequestError):
            error.maybe_executed = True
        self._take_failure(index, error)

    def _take_error(self, index: int, error: errors.AtomrError) -> None:
        if isinstance(error, errors.Overloaded) or is_tried_later(error):  # other clients fill the worker's queue
            self._postpone(index, error.retry_after_s)
        else:
            self._take_failure(index, error)

    def _postpone(self, index: int, retry_after_s: float) -> None:
        """Send an item later: after another of this map is answered, or after a time if none is in flight."""
        if self._schedule.postponed(index):
            self._loop.call_later(max(RETRY_S, retry_after_s), self._retry)

    def _take_failure(self, index: int, error: errors.AtomrError) -> None:
        if not self._schedule.failed(index, error):
            self._failed(index)
            del self._items[index]

    def _kept(self, _index: int, result: Any) -> RecordedResult:
        """Return the stand-in for an item's result, which was read."""
        return RecordedResult(result)

    def _failed(self, index: int) -> None:
        """Record that an item has failed for good."""

    def _retry(self) -> None:
        self._schedule.retry()
        self._turn_soon()

    def _feed(self) -> None:
        job = self._schedule
        job.devices = self._target.takers
        now = time.monotonic()
        together: list[int] = []
        for _ in range(FEED_ITEMS):
            index = job.take()
            if index is None:
                break
            if index not in self._items and not self._pull(index):
                continue
            if self._call_items and job.together(index):
                together.append(index)
            else:
                self._submit(index, now)
            if time.monotonic() - now > FEED_S:
                self._turn_soon()
                break
        else:
            self._turn_soon()
        self._submit_all(together, now)

    def _submit_all(self, indices: list[int], now: float) -> None:
        """Send items in as few calls as possible, but some to each device."""
        if not indices:
            return
        calls = max(-(-len(indices) // self._call_items), min(self._schedule.devices, len(indices)))
        for number in range(calls):
            some = indices[number * len(indices) // calls : (number + 1) * len(indices) // calls]
            if len(some) == 1 or not self._submit_together(some, now):
                for index in some:
                    self._submit(index, now)

    def _submit_together(self, indices: Sequence[int], now: float) -> bool:
        """Send items as one call; return False if that is impossible."""
        try:
            reply = self._target.send_together([self._items[index] for index in indices])
        except errors.Overloaded as error:
            for index in indices:
                self._refused(index, error)
            return True
        except errors.AtomrError:  # each is told why when it is sent by itself
            return False
        self._flying[reply] = _Sent(indices, now, set(indices))
        reply.add_done_callback(self._on_reply)
        return True

    def _pull(self, index: int) -> bool:
        """Take a new item from the source; False if there is none."""
        try:
            item = interrupts.wait(_outside, next, self._source)
        except StopIteration:
            self._schedule.exhausted()
            return False
        except Exception as error:  # noqa: BLE001 - the caller's own; it comes out behind what was taken before
            self._source_error.keep(error)
            self._schedule.exhausted()
            return False
        if isinstance(item, Unreadable):
            self._schedule.unsendable(index, item.error)
            return False
        self._items[index] = item
        return True

    def _over(self) -> None:
        """End the loop: all items have come out."""

    def _submit(self, index: int, now: float) -> None:
        try:
            reply = self._target.send(self._items[index], replays=NEVER, wait=False)  # the job decides on replays
        except errors.Overloaded as error:
            self._refused(index, error)
        except errors.AtomrError as error:
            if is_tried_later(error):
                self._postpone(index, error.retry_after_s)
                return
            self._schedule.unsendable(index, error)
            self._failed(index)
            del self._items[index]
        else:
            self._flying[reply] = _Sent((index,), now, {index})
            reply.add_done_callback(self._on_reply)

    def _refused(self, index: int, error: errors.Overloaded) -> None:
        """Keep an item that found a device's window full until an answer comes, if one can."""
        if not self._schedule.refused(index, copy.copy(error), waits=bool(self._flying)):
            self._failed(index)
            del self._items[index]

    def _progress(self) -> Progress:
        job = self._schedule
        restarts = self._target.restarts - self._restarts
        return Progress(job.done, job.failures, job.in_flight, job.resubmitted, restarts)


class _RunWithJournal(MapRun):
    """A map that passes over items with an outcome in the journal, and records the others."""

    def __init__(self, journal: Journal, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._journal = journal
        self._recorded = 0
        self._stopped: errors.AtomrError | None = None
        """The error that ends this run; the items left are for another run."""

    def _pull(self, index: int) -> bool:
        if not super()._pull(index):
            return False
        try:
            outcome = self._journal.outcome(index, self._items[index])
        except errors.InvalidRequest as error:  # every run would end with it
            self._schedule.unsendable(index, error)
            del self._items[index]
            return False
        if outcome is None:
            return True
        self._recorded += 1
        self._schedule.recorded(index, outcome)
        del self._items[index]
        return False

    def _take_in(self) -> None:
        super()._take_in()
        self._journal.sync()
        if self._stopped is not None:
            raise errors.unraised(self._stopped)

    def _kept(self, index: int, result: Any) -> RecordedResult:
        return self._journal.done(index, result)

    def _submit(self, index: int, now: float) -> None:
        self._journal.sending(index)
        super()._submit(index, now)
        if self._stopped is not None:
            raise errors.unraised(self._stopped)

    def _failed(self, index: int) -> None:
        failure = self._schedule.failure(index)
        if not isinstance(failure.error, _NOT_THE_ITEM_S):
            self._journal.failed(failure)
            return
        if not getattr(failure.error, "maybe_executed", True):
            self._journal.unsent(index)
        self._stopped = failure.error

    def _over(self) -> None:
        self._journal.ended(self._schedule.done)

    def _progress(self) -> Progress:
        return super()._progress()._replace(recorded=self._recorded)


_NOT_THE_ITEM_S: Final = (errors.PoolLost, errors.DeviceUnavailable, errors.Overloaded, errors.Cancelled)
"""Errors that say nothing about the item."""


_REFUSED: Final = (errors.InvalidRequest, errors.ActorFailed, errors.Overloaded)
"""Errors that one of the items sent as one call may have caused."""


def is_tried_later(error: errors.AtomrError) -> TypeGuard[errors.DeviceUnavailable]:
    """Return whether an item was refused because no device takes work, while one of them will be tried again."""
    return isinstance(error, errors.DeviceUnavailable) and error.retry_after_s > 0 and not error.maybe_executed


def check_may_block() -> None:
    """Check that the caller may block.

    Raises:
        WouldBlock: It is a coroutine.
    """
    if calling_loop() is not None:
        raise errors.WouldBlock(
            "map would block the event loop: use `async for result in pool.amap(...)`; or read it in a thread, by "
            "`await asyncio.to_thread(list, pool.map(...))`"
        )


def _run_beside(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop, also in a notebook's cell, under which the kernel's own loop stands still."""
    _outside(loop.run_forever)


def _outside(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function as if no event loop ran in this thread: one that runs another, or that is the user's."""
    outer = asyncio._get_running_loop()  # noqa: SLF001 - exported for authors of loops, as the other one is
    if outer is None:
        return function(*arguments)
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        return function(*arguments)
    finally:
        asyncio._set_running_loop(outer)  # noqa: SLF001
