"""Calls with items: many requests for a batched method that a client has sent as one.

Such a call is `Many` until it is known which of its items may share a batch. From then on each `Part` of it is a
request like any other, but that it stands for several items, and is answered with what each of them has come to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atomr_mp import errors
from atomr_mp.protocol import data, values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp_workers.request import Request, unsendable

if TYPE_CHECKING:
    from atomr_mp_workers.loading import Method
    from atomr_mp_workers.peers import Peer


class Many(Request):
    """A call with items that has been received.

    Attributes:
        unanswered: How many of its items are.
    """

    def __init__(self, peer: Peer, call: data.Call, method: Method, received_ns: int = 0) -> None:
        super().__init__(peer, call, method, received_ns)
        self.sent = call
        self.items = self.unanswered = call.items


class Part(Request):
    """Some items of a call, which may share a batch.

    Args:
        many: The call.
        places: Which of its items they are.
        rows: The arguments of each.
    """

    def __init__(self, many: Many, places: list[int], rows: list[tuple[Any, ...]]) -> None:
        self._dropped = False
        super().__init__(many.peer, many.sent, many.method, many.received_ns)
        self.many: Many = many
        self.places = places
        self.rows = rows
        self.items = len(places)
        self.body = b""
        self.payload_bytes = 0  # they count as long as any of the call's are unanswered
        self.decoded = True
        self.raised_by: dict[int, BaseException] = {}
        """What some of the items have come to that have no result; by place."""
        self.failed: dict[int, ErrorInfo] = {}
        """The same, as their callers are told it."""
        self.answers: list[tuple[list[int], values.Encoded]] = []
        """The results of which items, ready to be sent; nil for those without."""

    @property
    def dropped(self) -> bool:
        """Whether it was answered before it started, by itself or with its call."""
        return self._dropped or self.many.dropped

    @dropped.setter
    def dropped(self, dropped: bool) -> None:
        self._dropped = dropped

    def split(self, items: int) -> tuple[Part, Part]:
        """Return two in place of this one, the first of so many items."""
        places, rows = self.places, self.rows
        return Part(self.many, places[:items], rows[:items]), Part(self.many, places[items:], rows[items:])

    def take_all(self, results: Any, moved: Callable[[Any], Any]) -> None:
        """Take the result, or the error, of each item.

        Args:
            results: As the method has returned them: a sequence, or an array with a row for each.
            moved: Sees to it that what is in a result is held by the call's session.
        """
        if is_rows(results):
            self._encode(self.places, results)
            return
        taken: list[Any] = []
        for place, result in zip(self.places, results, strict=True):
            taken.append(None)
            if isinstance(result, BaseException):
                self.raised_by[place] = result
                continue
            try:
                taken[-1] = moved(result)
            except BaseException as error:  # noqa: BLE001 - a result may have code of its own, or there is no room
                self.raised_by[place] = error
        self._encode(self.places, taken)

    def _encode(self, places: list[int], results: Any) -> None:
        """Encode results, in as many answers as they need."""
        try:
            self.answers.append((places, values.encode(results, self.peer.session.place)))
        except errors.InvalidRequest as refused:  # one of them cannot be sent, or they are too much for one answer
            half = len(places) // 2
            if half:
                self._encode(places[:half], results[:half])
                self._encode(places[half:], results[half:])
            else:
                self.raised_by[places[0]] = unsendable(refused)
                self._encode(places, [None])
        except errors.RequestError as error:  # there is no room for them
            self.error = error


def is_rows(results: object) -> bool:
    """Whether this is an array of NumPy's with a row for each item."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(results, numpy.ndarray) and results.ndim > 0
