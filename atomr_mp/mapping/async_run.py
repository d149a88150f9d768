"""Many items through one method in the caller's own event loop; the engine of `Pool.amap`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.mapping.kept_error import KeptError
from atomr_mp.mapping.run import FEED_ITEMS, RETRY_S, is_tried_later
from atomr_mp.mapping.schedule import MAX_DEPTH, WINDOW_FACTOR, Failure
from atomr_mp.protocol.words import counted

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply
    from atomr_mp.mapping.item_target import ItemTarget
    from atomr_mp.protocol.messages.devices import MethodInfo


async def outcomes_of(
    known: Callable[[], Coroutine[Any, Any, MethodInfo]],
    run: Callable[[MethodInfo], AsyncMapRun],
    items: Iterable[Any] | AsyncIterable[Any],
) -> AsyncIterator[Any]:
    """Yield each item's outcome of a map that is made once its method is known.

    Args:
        known: Returns the method's description.
        run: Makes the map.
        items: The items.
    """
    async with contextlib.aclosing(run(await known()).outcomes(items)) as outcomes:
        async for outcome in outcomes:
            yield outcome


class _Item:
    """An item that was taken and has not come out."""

    __slots__ = ("argument", "attempts", "done", "error", "index", "reply", "until")

    def __init__(self, index: int, argument: Any) -> None:
        self.index = index
        self.argument = argument
        self.attempts = 0
        self.reply: Reply | None = None
        self.error: errors.AtomrError | None = None
        self.done = False
        self.until = math.inf
        """When to send an item again that found no room, by the loop's clock."""


class AsyncMapRun:
    """One map at work in an event loop.

    Args:
        target: The target of the items.
        ordered: Results come out in the items' order.
        in_flight: How many items are under way at a time; None for `depth` or more for each device.
        depth: How many per device at least.
        return_failures: Failures come out like results.
    """

    def __init__(
        self,
        target: ItemTarget,
        *,
        ordered: bool,
        in_flight: int | None,
        depth: int,
        return_failures: bool,
    ) -> None:
        self._target = target
        self._ordered = ordered
        self._return_failures = return_failures
        most = in_flight or max(MAX_DEPTH, depth) * max(1, target.takers)
        self._under_way: Final = asyncio.Semaphore(most)
        self._taken: Final = asyncio.Semaphore(WINDOW_FACTOR * most)
        """Places for items that were taken and have not come out: if one item is slow, the others wait here."""
        self._items: Final[deque[_Item]] = deque()
        """Items that have not come out; in the order of the input, or of their ends."""
        self._left = 0
        """Items that were taken and have not come out."""
        self._flying: Final[dict[Reply, _Item]] = {}
        self._exhausted = False
        self._abandoned = False
        """Whether sending has stopped."""
        self._source_error: Final = KeptError()
        self._news: Final = asyncio.Event()

    async def outcomes(self, items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
        """Yield each item's outcome."""
        feeding = asyncio.create_task(self._feed(items))
        try:
            while (item := await self._next()) is not None:
                yield self._outcome(item)
            self._source_error.raise_kept()
        finally:
            self._abandoned = True
            feeding.cancel()
            for reply in list(self._flying):
                reply.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding

    async def _next(self) -> _Item | None:
        """Return the next item to come out, None if there will be none."""
        while True:
            if self._items and self._items[0].done:
                self._left -= 1
                self._taken.release()
                return self._items.popleft()
            if self._exhausted and not self._left:
                return None
            self._news.clear()
            await self._news.wait()

    def _outcome(self, item: _Item) -> Any:
        error = item.error
        if error is None:
            assert item.reply is not None
            try:
                return item.reply.result()
            except errors.AtomrError as unread:
                error = errors.unraised(unread)
        if self._return_failures:
            return Failure(item.index, error, item.attempts)
        error.add_note(f"It is what item {item.index} of this map ended with, sent {counted(item.attempts, 'time')}.")
        raise errors.unraised(error)

    async def _feed(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Take items from the source, and send them, as there is room."""
        count = 0
        try:
            if isinstance(items, AsyncIterable):
                async for argument in items:
                    await self._take(count, argument)
                    count += 1
            else:
                for argument in items:
                    await self._take(count, argument)
                    count += 1
                    if count % FEED_ITEMS == 0:
                        await asyncio.sleep(0)  # lets the loop serve others while there is room for many items
        except Exception as error:  # noqa: BLE001 - the caller's own; it comes out behind what was taken before
            self._source_error.keep(error)
        self._exhausted = True
        self._news.set()

    async def _take(self, index: int, argument: Any) -> None:
        await self._taken.acquire()
        await self._under_way.acquire()
        item = _Item(index, argument)
        self._left += 1
        if self._ordered:
            self._items.append(item)
        self._send(item)

    def _send(self, item: _Item) -> None:
        try:
            reply = self._target.send(item.argument)
        except errors.AtomrError as error:
            self._ended(item, error)
            return
        item.attempts += 1
        item.reply = reply
        self._flying[reply] = item
        reply.add_done_callback(self._landed)

    def _landed(self, reply: Reply) -> None:
        item = self._flying.pop(reply, None)
        if item is not None:
            self._ended(item, reply.exception())

    def _ended(self, item: _Item, error: errors.AtomrError | None) -> None:
        """Record an item's outcome; send an item later that found no room."""
        if isinstance(error, errors.Overloaded) or (error is not None and is_tried_later(error)):
            loop = asyncio.get_running_loop()
            again_at = loop.time() + max(RETRY_S, error.retry_after_s)
            item.until = min(item.until, loop.time() + self._target.deadline_s)
            if again_at < item.until:
                loop.call_at(again_at, self._send_again, item)
                return
        item.error, item.done = error, True
        item.argument = None
        self._under_way.release()
        if not self._ordered:
            self._items.append(item)
        self._news.set()

    def _send_again(self, item: _Item) -> None:
        if not self._abandoned:
            self._send(item)
