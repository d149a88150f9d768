"""Calls with items: many requests for a batched method that a client has sent as one.

A call is an `ItemsRequest` until its items are sorted into batches. From then on each `ItemsSlice` is a request like
any other, except that it stands for several items and is answered with the outcome of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import foreign, values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.exceptions import is_a
from atomr_mp.protocol.messages import data
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.raised import explain, unsendable
from atomr_mp_workers.requests.request import Request, encode


class ItemsRequest(Request):
    """A call with items that has been received.

    Attributes:
        unanswered: Number of unanswered items.
    """

    def __init__(self, peer: Peer, call: data.Call, method: Method, received_ns: int = 0) -> None:
        super().__init__(peer, call, method, received_ns)
        self.items = self.unanswered = call.items
        self.sent = msgspec.structs.replace(call, body=b"")
        self.rows: list[tuple[Any, ...]] = []
        """The arguments of each item, once they are decoded."""


class ItemsSlice(Request):
    """Some items of a call, which may share a batch.

    Args:
        many: The call.
        places: Positions of the items in the call.
    """

    def __init__(self, many: ItemsRequest, places: list[int]) -> None:
        self._dropped = False
        super().__init__(many.peer, many.sent, many.method, many.received_ns)
        self.many: ItemsRequest = many
        self.places = places
        self.items = len(places)
        self.payload_bytes = 0  # counts as long as any item of the call is unanswered
        self.decoded = True
        self.error_by: dict[int, errors.AtomrError] = {}
        """Errors of the items without a result, by place."""
        self.failed: dict[int, ErrorInfo] = {}
        """The same as they are sent."""
        self.answers: list[tuple[list[int], values.Encoded]] = []
        """The items' results, ready to be sent; nil for items without one."""

    @property
    def dropped(self) -> bool:
        """Whether the slice was answered before it started, alone or with its call."""
        return self._dropped or self.many.dropped

    @dropped.setter
    def dropped(self, dropped: bool) -> None:
        self._dropped = dropped

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The arguments of each item."""
        rows = self.many.rows
        return rows if len(rows) == self.items else [rows[place] for place in self.places]

    def split(self, items: int) -> tuple[ItemsSlice, ItemsSlice]:
        """Return two slices in place of this one, the first with so many items."""
        return ItemsSlice(self.many, self.places[:items]), ItemsSlice(self.many, self.places[items:])

    def take_all(self, results: Any, moved: Callable[[Any], Any]) -> None:
        """Take the result, or the error, of each item.

        Args:
            results: The method's results: a sequence, or an array with a row for each item.
            moved: Moves the memory in a result to the call's session.
        """
        if not isinstance(results, list | tuple):  # an array
            self._encode(self.places, results)
            return
        taken: list[Any] = []
        for place, result in zip(self.places, results, strict=True):
            taken.append(None)
            if is_a(result, BaseException):
                self._fail_item(place, result)
                continue
            try:
                taken[-1] = moved(result)
            except BaseException as raised:  # noqa: BLE001 - a result may have code of its own, or there is no room
                self._fail_item(place, raised)
        self._encode(self.places, taken)

    def _fail_item(self, place: int, raised: BaseException) -> None:
        self.error_by[place] = explain(self, raised)

    def _encode(self, places: list[int], results: Any) -> None:
        """Encode results, in as many answers as they need."""
        try:
            self.answers.append((places, encode(results, self.peer, around=1)))
        except BaseException as raised:  # noqa: BLE001 - of one of them; or they are too much for one answer
            half = len(places) // 2
            if half:
                self._encode(places[:half], results[:half])
                self._encode(places[half:], results[half:])
            else:
                if type(raised) is errors.InvalidRequest:
                    self.error_by[places[0]] = unsendable(self, results[0], raised)
                else:
                    self._fail_item(places[0], raised)
                self.answers.append((places, values.encode([None])))


def results_of(returned: object) -> Any:
    """Return a batched method's return value as results, None if it is not a sequence.

    An array, NumPy's or a tensor, has one result in each row. A one-dimensional array counts as a list of numbers.
    """
    if isinstance(returned, list | tuple):
        return returned
    if foreign.is_tensor(returned):
        if not foreign.on_host(returned):
            return list(returned) if len(returned.shape) else None  # type: ignore[call-overload, attr-defined]
        returned = foreign.to_array(returned)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(returned, numpy.ndarray) or not returned.ndim:
        return None
    return returned if returned.ndim > 1 else list(returned)
