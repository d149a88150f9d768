"""Streams that are read in an event loop let their workers go on."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from atomr_mp.client.lanes.event_loop import EventLoopLane
from atomr_mp.client.lanes.services import LaneServices
from atomr_mp.client.reply import StreamReply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.flow import flight
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import data, devices


class Sent:
    """A connection that keeps the credit in its messages."""

    def __init__(self) -> None:
        self.credits: list[list[tuple[int, int]]] = []
        """For each message the streams and their parts."""

    def send(self, header: bytes, _frames: list[Any]) -> None:
        """Keep a message."""
        message = data.FROM_CLIENT.decode(header)
        assert isinstance(message, data.Credit)
        self.credits.append([(grant.id, grant.parts) for grant in message.grants])


def test_streams_that_are_read_in_one_turn_go_on_by_one_message() -> None:
    """There is one message for each worker, with the latest credit; a stream that has ended meanwhile needs none.

    A thread that reads what has come does not wait for the loop.
    """

    async def read() -> list[Sent]:
        session = os.eventfd(0)
        loop, ready = asyncio.get_running_loop(), devices.DeviceState.READY
        told: Any = Mock(
            login=SimpleNamespace(window=flight.Window(100, 2**30)),
            descriptor=session,
            devices=[devices.DeviceInfo(n, f"host:{n}", ready, 1, "", True, 1, 0, "") for n in range(2)],
        )
        lane = EventLoopLane(LaneServices(told, Mock(), Mock(), Mock(), 10, Mock(), Mock()), 0, loop, Mock())
        connections = [Sent(), Sent()]
        for link, connection in zip(lane._links, connections, strict=True):
            link.connection, link.generation = cast("Any", connection), 1
        far_ns = time.monotonic_ns() + 10**12
        streams = [StreamReply(lane, number, "A.count", far_ns, b"") for number in range(4)]
        for stream in streams:
            stream.state, stream.generation, stream.device = ReplyState.STREAMING, 1, stream.id // 3
            stream.credit, stream.until_ns, stream.between_ns = ReaderCredit(4, 1000), far_ns, 10**9
        for stream in streams * 2:
            for _ in range(3):
                stream.credit.read(1)
            lane.go_on(stream)
        streams[1].state = ReplyState.OVER
        assert not any(connection.credits for connection in connections)
        await asyncio.sleep(0)  # the loop's turn ends
        await asyncio.to_thread(lane.go_on, streams[0])
        loop.remove_reader(session)
        os.close(session)
        return connections

    assert [sent.credits for sent in asyncio.run(read())] == [[[(0, 10), (2, 10)], [(0, 10)]], [[(3, 10)]]]
