"""The present uses of a buffer: any number of readers, or one writer, or views that a client has open. Pure.

Requests never wait for each other here: the uses that must end first are returned as events, for a stream to wait for.
A client that copies a buffer reads it (`PassingRead`), and writers wait for that as for a request. Views are different:
the end of a client's view is unknown, so a request that conflicts with it is refused. One thread only.
"""

from __future__ import annotations

from typing import Final

from atomr_mp import errors
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.memory.content import Content


class PassingRead:
    """A client's read of one or several buffers, outside this process: later writers wait for it, for a time.

    Args:
        event: Ends with it, or when its time is over.
        nbytes: Bytes that the client reads.
        pid: The client's process.
    """

    __slots__ = ("event", "nbytes", "overdue", "pid", "until_ns")

    def __init__(self, event: Event, nbytes: int, pid: int) -> None:
        self.event: Final = event
        self.nbytes: Final = nbytes
        self.pid: Final = pid
        self.until_ns: int | None = None
        """When its time is over; None as long as its turn has not come."""
        self.overdue = False
        """Whether its time is over, so that writers are refused and wait no longer."""

    def conflict(self) -> errors.BorrowConflict:
        """Return the error of a writer when the time is over."""
        return errors.BorrowConflict(
            f"the request writes a buffer that process {self.pid} has been reading for longer than it may "
            f"({time_for_ns(self.nbytes) / 1e9:.3g} s): it is stopped, or its request on another device takes long"
        )


def time_for_ns(nbytes: int) -> int:
    """Return how long writers wait for a client that reads so many bytes."""
    return READ_NS + READ_NS * nbytes // 2**30


READ_NS: Final = 1_000_000_000
"""How long writers wait for a client's read, and how much longer for each GiB."""


class Borrows:
    """The borrows of one buffer."""

    __slots__ = ("_passing", "_readers", "_views", "_writers", "content", "open_writers")

    def __init__(self) -> None:
        # An event does not stand for earlier ones: a dropped request's event ends before the events that it waited for.
        self._writers: list[Event] = []
        """Ends of the requests that write."""
        self._readers: list[Event] = []
        """Ends of the requests that read."""
        self._passing: tuple[PassingRead, ...] = ()
        """Clients' reads."""
        self._views: dict[tuple[int, int], bool] = {}
        """Clients' views by (session, id), and whether each may write."""
        self.content: Content | None = None
        """State of the content, if it is not all well."""
        self.open_writers: list[int] = []
        """Places in the order of borrows of writers that run elsewhere or wait, and have not been answered."""

    def before(self, *, write: bool) -> tuple[Event, ...]:
        """Return the events that a new request has to wait for.

        Raises:
            BorrowConflict: A client has a view open that excludes it, or has been reading for too long.
        """
        if not (self._writers or self._readers or self._views or self._passing):  # the usual case
            return ()
        self._check_views(write=write)
        held: tuple[Event, ...] = ()
        if write and self._passing:
            for read in self._passing:
                if read.overdue:
                    raise read.conflict()
            held = tuple([read.event for read in self._passing])
        self._writers = [event for event in self._writers if not event.done]
        self._readers = [event for event in self._readers if not event.done]
        return (*self._writers, *self._readers, *held) if write else tuple(self._writers)

    def add(self, event: Event, *, write: bool) -> None:
        """Note a request that uses the buffer until `event`."""
        (self._writers if write else self._readers).append(event)

    def open_view(self, session: int, view: int, *, write: bool) -> None:
        """Note a client's view.

        Raises:
            BorrowConflict: Another view excludes it.
            InvalidRequest: There is a view of this id.
        """
        self._check_views(write=write)
        if (session, view) in self._views:
            raise errors.InvalidRequest(f"there is a borrow {view} already")
        self._views[session, view] = write

    def open_read(self, read: PassingRead) -> None:
        """Note a client's read; one that has to wait for earlier writers waits as a request does.

        Raises:
            BorrowConflict: A client's view excludes it.
        """
        self._check_views(write=False)
        self._passing = (*self._passing, read)

    def close_read(self, read: PassingRead) -> None:
        """Forget a client's read."""
        self._passing = tuple([each for each in self._passing if each is not read])

    def close_view(self, session: int, view: int) -> None:
        """Forget a client's view, if there is one."""
        self._views.pop((session, view), None)

    def _check_views(self, *, write: bool) -> None:
        if not self._views:
            return
        written = any(self._views.values())
        if write or written:
            how = "writes" if write else "reads"
            kind = "a writable view" if written else f"{len(self._views)} open view{'s'[: len(self._views) > 1]}"
            raise errors.BorrowConflict(
                f"the request {how} a buffer, and a client has {kind} of it; the view must be released first"
            )
