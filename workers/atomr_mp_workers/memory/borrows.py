"""The present uses of a buffer: any number of readers, or one writer, or views that a client has open. Pure.

Requests never wait for each other here: the uses that must end first are returned as events, for a stream to wait for.
Views are different: the end of a client's view is unknown, so a request that conflicts with it is refused. One thread
only.
"""

from __future__ import annotations

from atomr_mp import errors
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.memory.content import Content


class Borrows:
    """The borrows of one buffer."""

    __slots__ = ("_readers", "_views", "_writers", "content", "open_writers")

    def __init__(self) -> None:
        # An event does not stand for earlier ones: a dropped request's event ends before the events that it waited for.
        self._writers: list[Event] = []
        """Ends of the requests that write."""
        self._readers: list[Event] = []
        """Ends of the requests that read."""
        self._views: dict[tuple[int, int], bool] = {}
        """Clients' views by (session, id), and whether each may write."""
        self.content: Content | None = None
        """State of the content, if it is not all well."""
        self.open_writers: list[int] = []
        """Places in the order of borrows of writers that run elsewhere or wait, and have not been answered."""

    def before(self, *, write: bool) -> tuple[Event, ...]:
        """Return the events that a new request has to wait for.

        Raises:
            BorrowConflict: A client has a view open that excludes it.
        """
        if not (self._writers or self._readers or self._views):  # the usual case
            return ()
        self._check_views(write=write)
        self._writers = [event for event in self._writers if not event.done]
        self._readers = [event for event in self._readers if not event.done]
        return (*self._writers, *self._readers) if write else tuple(self._writers)

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
