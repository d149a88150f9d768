"""What a lane sends is by the workers' clock."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.tunnel.clock import PoolClock

DEADLINE_NS = 10**15
UNTIL_NS = 2 * 10**15


class Recording:
    """A connection that keeps what is sent."""

    broken = False

    def __init__(self) -> None:
        self.sent: list[data.FromClient] = []

    def send(self, header: bytes, _frames: list[bytes]) -> None:
        """Keep a message."""
        self.sent.append(data.FROM_CLIENT.decode(header))


@pytest.mark.parametrize("ahead_ns", [0, 7 * 86400 * 10**9, -(10**14)])
def test_deadlines_are_told_by_the_clock_of_the_workers(ahead_ns: int) -> None:
    """A worker on another machine keeps them by its own clock, which is ahead of the client's, or behind it."""
    connection, releases = Recording(), SimpleNamespace(pending=deque(), ending=deque(), serial=0)
    link = SimpleNamespace(connection=connection, releases=releases, generation=1, token=bytes(22))
    clock = PoolClock()
    clock.ahead_ns = ahead_ns
    sender = Sender([], lambda _: None, lambda _: None, lambda _link, _replies: None, clock)
    lane = cast("Any", None)
    sender.send(cast("Any", link), [Reply(lane, 1, "Probe.echo", DEADLINE_NS, b"\x90")])
    stream = StreamReply(lane, 2, "Probe.tell", DEADLINE_NS, b"\x90")
    stream.credit, stream.until_ns, stream.between_ns = ReaderCredit(1, 100), UNTIL_NS, 5
    sender.open_stream(cast("Any", link), stream)
    calls, streams = connection.sent
    assert isinstance(calls, data.Calls)
    assert isinstance(streams, data.Streams)
    assert calls.calls[0].deadline_ns == DEADLINE_NS + ahead_ns
    (opened,) = streams.calls
    assert (opened.deadline_ns, opened.until_ns) == (DEADLINE_NS + ahead_ns, UNTIL_NS + ahead_ns)
    assert opened.between_ns == 5


def test_what_was_held_leaves_in_its_order() -> None:
    """A suspect, which goes by itself, overtakes nothing, and nothing overtakes it."""
    connection, releases = Recording(), SimpleNamespace(pending=deque(), ending=deque(), serial=0)
    link = SimpleNamespace(
        connection=connection, releases=releases, generation=1, token=bytes(22), sending=True, in_order=False
    )
    link.gated, link.outbox = set(), []
    sender = Sender([], lambda _: None, lambda _: None, lambda _link, _replies: None, PoolClock())
    replies = [Reply(cast("Any", None), number, "Probe.echo", DEADLINE_NS, b"\x90") for number in range(6)]
    for reply in replies[1::2]:
        reply.alone = cast("Any", "suspected")
    link.held = deque(replies[:5])
    link.outbox.append(replies[5])
    sender.send_held(cast("Any", link))
    assert [[call.id for call in each.calls] for each in connection.sent if isinstance(each, data.Calls)] == [
        [0],
        [1],
        [2],
        [3],
        [4],
        [5],
    ]
    assert [isinstance(each, data.Alone) for each in connection.sent] == [False, True, False, True, False, True]
