"""The leases, borrows and slabs that a client has to give back to an incarnation.

A holder has a `Lease` or a `ViewBorrow`. When that is collected, or released, its id waits in the incarnation's
`Releases` until the client sends something there; for the end of a borrow a thread does so at once (`borrows`).
Finalisers run on any thread, in the middle of anything, under any lock: they only append to a deque.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from atomr_mp.protocol import token
from atomr_mp.protocol.messages import data

_LOG: Final = logging.getLogger("atomr_mp.client")

MAX_UNHEARD: Final = 64
"""Most messages with nothing but releases that are sent to a silent worker; further releases travel with the next call.
So they never fill the connection, however long the worker is busy."""


class NotOpenError(Exception):
    """Memory has to be opened first, which blocks."""


class LeaseKind(IntEnum):
    """The kind of thing that an id names."""

    LEASE = 0
    BORROW = 1
    SLAB = 2


class Releases:
    """The releases that wait for one incarnation. Those for an ended incarnation are never sent.

    Args:
        current: The incarnation's token.
        all_read: Takes (device, generation) when the incarnation has ended and there is no lease of its results.
    """

    def __init__(self, current: bytes, all_read: deque[tuple[int, int]] | None = None) -> None:
        self.token: Final = current
        _, self.device, self.generation = token.unpack(current)
        self.pending: deque[tuple[LeaseKind, int] | _BorrowEnd] = deque()
        """Any thread may append to it at any time."""
        self.borrows: dict[int, tuple[weakref.ref[ViewBorrow], _BorrowEnd]] = {}
        """What hears of the end of each borrow that was not released, by number."""
        self.ending: deque[tuple[Callable[[], object], object]] = deque()
        """Memory of ended views that this process's GPU may still use: a wait for it, and the release."""
        self.serial = 0
        """Serial of the last message that was sent; any request that is sent from now on has to wait for it."""
        self.unacknowledged: deque[data.Release] = deque()
        """Messages that were sent and not acknowledged yet, the oldest first."""
        self.acknowledged = 0
        """The worker has taken in all messages up to this serial."""
        self.read: dict[int, int] = {}
        """Number of the worker's last message that was read, by the number of the connection."""
        self.over = False
        """Whether the incarnation has ended."""
        self._unread: UnreadResults | None = UnreadResults(self.device, self.generation, all_read)
        self.unheard = 0
        """Messages with releases alone that were sent since the worker's last message."""

    def leases(self, buffers: Iterable[int]) -> dict[int, Lease]:
        """Return the leases that came with an answer, by buffer."""
        leases: dict[int, Lease] = {}
        unread = self._unread
        if unread is not None:
            unread.leased = True
        for buffer in buffers:
            lease = leases.get(buffer)
            if lease is None:
                leases[buffer] = Lease(self, buffer, unread)
            elif lease.hold is not None:
                lease.hold.count += 1
        return leases

    def keep_results(self) -> None:
        """Record that the supervisor keeps memory for results, which it is to be given back even if there are none."""
        if self._unread is not None:
            self._unread.leased = True

    def end(self, *, awaited: bool) -> None:
        """Record that the incarnation has ended.

        Args:
            awaited: Whether a lane still has to take in answers of it. Otherwise all have come.
        """
        self.over = True
        self.borrows.clear()  # nobody is to be told of their ends; what would tell it refers back to this
        if self._unread is not None:
            self._unread.over = True
        if not awaited:
            self._unread = None

    @property
    def is_unheard(self) -> bool:
        """Whether so many messages had no answer that releases have to wait for a call."""
        return self.unheard >= MAX_UNHEARD

    def give_back(self, buffers: Iterable[int]) -> None:
        """Give unwanted leases back."""
        self.pending.extend((LeaseKind.LEASE, buffer) for buffer in buffers)

    def expect_end(self, borrow: ViewBorrow, number: int, ended: Callable[[object], object] | None) -> None:
        """Give a borrow back once it is collected, and call `ended` then; see `ViewBorrow`."""
        told = weakref.ref(borrow, ended)
        end = _BorrowEnd(borrow, self.pending.append)  # later, so it is called earlier
        end.number = number
        self.borrows[number] = told, end

    def end_later(self, wait: Callable[[], object], keep: object) -> None:
        """Give back the memory of a view, once `wait` has returned."""
        self.ending.append((wait, keep))

    def message(self) -> data.Release | None:
        """Return the next message, None if nothing is pending. One thread at a time; then `sent`.

        Waits for this process's own work on device memory whose views have ended.
        """
        while self.ending:
            wait, keep = self.ending.popleft()
            try:
                wait()
            except Exception:  # noqa: BLE001 - a context that has met a fault runs nothing any more
                _LOG.exception("views of device memory have ended, and this process's work there cannot be waited for")
            del keep  # `pending` looks whether the array has gone
        ids: tuple[list[int], list[int], list[int]] = ([], [], [])
        for _ in range(data.MAX_RELEASED):
            try:
                due = self.pending.popleft()
            except IndexError:
                break
            if isinstance(due, _BorrowEnd):
                self.borrows.pop(due.number, None)
                due = LeaseKind.BORROW, due.number
            kind, number = due
            ids[kind].append(number)
        if not any(ids):
            return None
        return data.Release(self.token, self.serial + 1, *ids)

    def sent(self, message: data.Release) -> None:
        """Record that a message is on its way."""
        self.serial = message.serial
        self.unacknowledged.append(message)
        self._forget_acknowledged()

    def to_repeat(self) -> list[data.Release]:
        """Return the messages that were sent on a lost connection and may never have arrived."""
        self._forget_acknowledged()
        return list(self.unacknowledged)

    def _forget_acknowledged(self) -> None:
        while self.unacknowledged and self.unacknowledged[0].serial <= self.acknowledged:
            self.unacknowledged.popleft()


class UnreadResults:
    """Shared by all leases of an incarnation. When the last lease has gone, no result of it remains to be read.

    Args:
        device: The device.
        generation: The incarnation.
        all_read: Called with both then, if the incarnation has ended.
    """

    __slots__ = ("_all_read", "_incarnation", "leased", "over")

    def __init__(self, device: int, generation: int, all_read: deque[tuple[int, int]] | None) -> None:
        self._incarnation: Final = device, generation
        self._all_read: Final = all_read
        self.over = False
        self.leased = False

    def __del__(self) -> None:
        if self.over and self.leased and self._all_read is not None:
            self._all_read.append(self._incarnation)


class Hold:
    """The core of a lease, given back when the last reference to it has gone. Requests under way refer to it too."""

    __slots__ = ("buffer", "count", "releases")

    def __init__(self, releases: Releases, buffer: int) -> None:
        self.releases: Final = releases
        self.buffer: Final = buffer
        self.count = 1
        """Number of leases that the worker counts for it."""

    def __del__(self) -> None:
        for _ in range(self.count):
            self.releases.pending.append((LeaseKind.LEASE, self.buffer))


class Lease:
    """This client's hold on a buffer. Given back when it is collected or released, after its last request.

    Args:
        releases: The releases of the incarnation that made the buffer.
        buffer: The buffer's id.
        unread: Kept as long as this may be the lease of a result.
    """

    __slots__ = ("__weakref__", "buffer", "hold", "mapping", "releases", "unread")

    def __init__(self, releases: Releases, buffer: int, unread: UnreadResults | None = None) -> None:
        self.releases: Final = releases
        self.unread: Final = unread
        self.buffer: Final = buffer
        self.hold: Hold | None = Hold(releases, buffer)
        """For requests to keep; None once it is released."""
        self.mapping: object = None
        """The slab in which a result by value was read; it stays mapped while the result may be read again."""

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self.hold is None

    def release(self) -> None:
        """Give it back. May be called twice."""
        self.hold = None


class _BorrowEnd(weakref.ref["ViewBorrow"]):
    """Takes the place of a borrow that was collected."""

    __slots__ = ("number",)

    number: int


class ViewBorrow:
    """A view's claim on a buffer, as the worker sees it. Ends when it is collected or released.

    It has no finaliser in Python: an interrupt could end that before it has done anything, and nobody would hear of
    the end. Weak references call functions in C, which Python does not interrupt.

    Args:
        releases: Of the incarnation that made the buffer.
        number: The client's number for it.
        ended: Called with any argument once it is collected, in the middle of anything; a function in C.
    """

    __slots__ = ("__weakref__", "number", "releases")

    def __init__(self, releases: Releases, number: int, ended: Callable[[object], object] | None = None) -> None:
        self.releases: Final = releases
        self.number: Final = number
        releases.expect_end(self, number, ended)

    def release(self, give_back: Callable[[Releases], object] | None = None) -> None:
        """End it. May be called twice.

        Args:
            give_back: Sends due releases at once.
        """
        if self.number in self.releases.borrows:
            self.releases.pending.append((LeaseKind.BORROW, self.number))
            if give_back is not None:
                give_back(self.releases)
            # Last: if this is interrupted, it ends once more when it is collected, which does no harm.
            self.releases.borrows.pop(self.number, None)
