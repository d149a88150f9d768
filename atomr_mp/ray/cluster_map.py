"""A map over the nodes of a cluster: a window of calls, whose results come out in the items' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from atomr_mp import errors
from atomr_mp.mapping.schedule import Failure
from atomr_mp.ray.cluster_reply import ClusterReply

Sent = tuple[int, ClusterReply | errors.RequestError]
"""An item's index, and its reply, or the reason why it could not be sent."""


def run_map(
    call: Callable[[Any], ClusterReply], items: Iterable[Any], in_flight: int, *, return_failures: bool
) -> Iterator[Any]:
    """Call for each item, and yield the results in their order.

    Args:
        call: Makes a call.
        items: The items.
        in_flight: How many calls are unanswered at a time; fewer while a window is full.
        return_failures: Whether a failure comes out like a result.

    Raises:
        AtomrError: An item ended with this error.
    """
    sent: deque[Sent] = deque()
    try:
        for index, item in enumerate(items):
            while len(sent) >= in_flight:
                yield _next_result(sent, return_failures=return_failures)
            while isinstance(reply := _call(call, item), errors.Overloaded) and sent:
                yield _next_result(sent, return_failures=return_failures)
            sent.append((index, reply))
        while sent:
            yield _next_result(sent, return_failures=return_failures)
    finally:
        for _, reply in sent:
            if isinstance(reply, ClusterReply):
                reply.cancel()


def _call(call: Callable[[Any], ClusterReply], item: Any) -> ClusterReply | errors.RequestError:
    try:
        return call(item)
    except errors.RequestError as error:
        return error


def _next_result(sent: deque[Sent], *, return_failures: bool) -> Any:
    index, reply = sent.popleft()
    if isinstance(reply, ClusterReply) and reply.go_on():
        # Its node was lost, and later items of that node too: all of them run again side by side.
        for _, other in sent:
            if isinstance(other, ClusterReply):
                other.go_on()
    try:
        if isinstance(reply, errors.RequestError):
            raise errors.unraised(reply)
        return reply.result()
    except errors.RequestError as error:
        if not return_failures:
            raise
        return Failure(index, error, int(isinstance(reply, ClusterReply)))
