"""Parts of a remote stream: in order and once, whatever is lost at cuts; and kept no longer than needed."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.protocol.flow.stream_credit import ReaderCredit, SenderCredit
from atomr_mp.remote.kept_parts import KeptParts

AHEAD = 4


class Way(RuleBasedStateMachine):
    """A worker, a gateway that passes its parts on, and a reader, with a connection that is cut at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = ReaderCredit(AHEAD, 10**9)
        self.worker = SenderCredit(self.reader.parts, self.reader.nbytes)
        self.kept: KeptParts[int] = KeptParts()
        self.down: deque[int] = deque()
        self.up: deque[tuple[int, int, int]] = deque()
        self.connected = True
        self.delivered: list[int] = []
        self.unread: deque[int] = deque()

    @precondition(lambda self: self.worker)
    @rule()
    def make(self) -> None:
        """The worker sends a part, which the gateway keeps."""
        self.kept.add(self.worker.send(10), 10, 10)

    @precondition(lambda self: self.connected and self.kept.unsent() is not None)
    @rule()
    def send(self) -> None:
        """The gateway sends the next one."""
        part = self.kept.unsent()
        assert part is not None
        self.down.append(part)
        self.kept.sent += 1

    @precondition(lambda self: self.down)
    @rule()
    def receive(self) -> None:
        """The reader takes it, unless it has it already."""
        part = self.down.popleft()
        if part >= self.reader.received:
            self.reader.receive(part, 10)
            self.delivered.append(part)
            self.unread.append(part)

    @precondition(lambda self: self.unread)
    @rule()
    def read(self) -> None:
        """Read one; say how far it may go, and what has come."""
        self.unread.popleft()
        if self.reader.read(10):
            self.say()

    @precondition(lambda self: self.connected)
    @rule()
    def say(self) -> None:
        """Acknowledge; repeating it does no harm."""
        if self.connected:
            self.up.append((self.reader.parts, self.reader.nbytes, self.reader.received))

    @precondition(lambda self: self.up)
    @rule()
    def hear(self) -> None:
        """The gateway takes that in, and passes it on."""
        parts, nbytes, received = self.up.popleft()
        self.kept.acknowledge(received)
        self.worker.grant(parts, nbytes)

    @precondition(lambda self: self.connected)
    @rule(arrive=st.integers(0, 3))
    def cut(self, arrive: int) -> None:
        """Cut the connection: what is on the way arrives in part."""
        for _ in range(min(arrive, len(self.up))):
            self.hear()
        for _ in range(min(arrive, len(self.down))):
            self.receive()
        self.up.clear()
        self.down.clear()
        self.connected = False

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        """Come back, and say how far it has come."""
        self.connected = True
        self.kept.resume(self.reader.received)
        self.worker.grant(self.reader.parts, self.reader.nbytes)

    @invariant()
    def in_order_and_once(self) -> None:
        """No gap, and nothing twice."""
        assert self.delivered == list(range(len(self.delivered)))

    @invariant()
    def bounded(self) -> None:
        """The gateway keeps no more than was granted, and what it counts is what it keeps."""
        assert self.kept.made - self.kept.acknowledged <= AHEAD * 2
        assert self.kept.nbytes == 10 * (self.kept.made - self.kept.acknowledged)
        assert self.kept.acknowledged <= self.reader.received <= self.kept.made

    def teardown(self) -> None:
        """On a connection that holds, all parts arrive."""
        if not self.connected:
            self.connect()
        while self.kept.unsent() is not None:
            self.send()
        while self.down:
            self.receive()
        assert len(self.delivered) == self.kept.made


TestWay = Way.TestCase


def test_what_cannot_be_is_refused() -> None:
    """More than was sent, or made; fewer than were acknowledged, which are gone."""
    kept: KeptParts[str] = KeptParts(5, 50)
    for part in "abc":
        kept.add(part, 7, 10)
    assert (kept.made, kept.sent, kept.unsent()) == (8, 5, "a")
    with pytest.raises(ValueError, match="were sent"):
        kept.acknowledge(6)
    kept.sent = 7
    assert kept.acknowledge(6) == 7
    assert kept.acknowledge(5) == 0  # it was said before
    assert (kept.find(5), kept.find(6), kept.find(8)) == (None, "b", None)
    assert (kept.acknowledged_bytes, kept.nbytes) == (60, 14)
    for received in (5, 9):
        with pytest.raises(ValueError, match="have come"):
            kept.resume(received)
    assert kept.resume(8) == 14
