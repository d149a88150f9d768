"""Closes streams that have lost their last reference."""

from __future__ import annotations

from typing import Protocol

from atomr_mp.client.hand_over import HandOver
from atomr_mp.client.reply import StreamReply


class ClosingLane(Protocol):
    """The lane that has sent a stream's request, as its closer uses it."""

    def close_stream(self, stream: StreamReply, /) -> None:
        """Release a stream. Any thread."""


class StreamCloser(HandOver[tuple[ClosingLane, StreamReply]]):
    """A client's thread for such streams, which are found by whichever thread collects garbage."""

    def __init__(self) -> None:
        super().__init__("atomr-mp streams", _close)


def _close(found: tuple[ClosingLane, StreamReply]) -> None:
    lane, stream = found
    lane.close_stream(stream)
