"""A channel's bytes come in order and once, wherever it is cut; and neither end keeps more than a window."""

from __future__ import annotations

from collections import deque

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.protocol.tunnel import flow, packets
from atomr_mp.protocol.tunnel.flow import IncomingFlow, OutgoingFlow

WINDOW = 40


class Way(RuleBasedStateMachine):
    """A sender and a receiver, and packets between them, as bytes that a cut may end anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing, self.incoming = OutgoingFlow(WINDOW), IncomingFlow(WINDOW)
        self.written = 0
        """Bytes of the stream that were sent for the first time; the byte at a place is the place, modulo 256."""
        self.wire: deque[bytes] = deque()
        self.acknowledgements: deque[int] = deque()
        self.arrived = bytearray()
        self.passed_on = 0
        self.cut = False

    @precondition(lambda self: not self.cut and self.outgoing.room > 0)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """The sender sends some bytes, if the window has room."""
        count = data.draw(st.integers(1, self.outgoing.room))
        payload = bytes(place % 256 for place in range(self.written, self.written + count))
        self.written += count
        self.outgoing.add(payload)
        self.wire.append(packets.pack(payload, 0))

    @precondition(lambda self: not self.cut and self.wire)
    @rule()
    def receive(self) -> None:
        """A packet comes."""
        packet = packets.unpack(self.wire.popleft())
        self.incoming.receive(len(packet.payload))
        self.arrived += packet.payload

    @precondition(lambda self: self.passed_on < len(self.arrived))
    @rule(data=st.data())
    def pass_on(self, data: st.DataObject) -> None:
        """The receiver passes some bytes on, and acknowledges them where due, or with a packet of its own."""
        count = data.draw(st.integers(1, len(self.arrived) - self.passed_on))
        self.passed_on += count
        self.incoming.pass_on(count)
        if not self.cut and (self.incoming.owes or data.draw(st.booleans())):
            self.acknowledgements.append(self.incoming.tell())

    @precondition(lambda self: not self.cut and self.acknowledgements)
    @rule()
    def acknowledge(self) -> None:
        """An acknowledgement comes back."""
        self.outgoing.acknowledge(self.acknowledgements.popleft())

    @precondition(lambda self: not self.cut)
    @rule(data=st.data())
    def cut_at_a_byte(self, data: st.DataObject) -> None:
        """The connection is cut at any byte: what had come whole before counts, all else is lost."""
        under_way = sum(map(len, self.wire))
        at = data.draw(st.integers(0, under_way))
        while self.wire and at >= len(self.wire[0]):
            at -= len(self.wire[0])
            self.receive()
        self.wire.clear()
        self.acknowledgements.clear()
        self.cut = True

    @precondition(lambda self: self.cut)
    @rule()
    def resume(self) -> None:
        """The receiver says how far it has come, and gets the rest again."""
        self.cut = False
        self.outgoing.acknowledge(self.incoming.tell())
        self.wire.extend(packets.pack(payload, 0) for payload in self.outgoing.after(self.incoming.received))

    @invariant()
    def in_order_and_once(self) -> None:
        """What has come is the stream's beginning."""
        assert self.arrived == bytes(place % 256 for place in range(len(self.arrived)))

    @invariant()
    def bounded(self) -> None:
        """No more is kept, or waits, than the window, and a packet that is acknowledged in part."""
        assert sum(map(len, self.outgoing._kept)) < 2 * WINDOW
        assert len(self.arrived) - self.passed_on <= WINDOW
        assert self.outgoing.sent - self.outgoing.acknowledged <= WINDOW

    def teardown(self) -> None:
        """All of it arrives in the end: what is acknowledged where due never leaves a sender without room."""
        if self.cut:
            self.resume()
        for _ in range(4):
            while self.wire:
                self.receive()
            self.incoming.pass_on(len(self.arrived) - self.passed_on)
            self.passed_on = len(self.arrived)
            while self.acknowledgements:
                self.acknowledge()
            if self.incoming.owes:
                self.acknowledgements.append(self.incoming.tell())
        assert len(self.arrived) == self.written
        assert self.outgoing.room > 0


TestWay = Way.TestCase
TestWay.settings = hypothesis.settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_sender_that_does_not_keep_to_the_window_is_refused() -> None:
    """A receiver never keeps more than it has allowed."""
    incoming = IncomingFlow(WINDOW)
    incoming.receive(WINDOW)
    with pytest.raises(errors.ProtocolError):
        incoming.receive(1)


@pytest.mark.parametrize("received", [3, 11])
def test_an_acknowledgement_of_what_cannot_be_is_refused(received: int) -> None:
    """A receiver can have neither more than was sent, nor less than before."""
    outgoing = OutgoingFlow(WINDOW)
    outgoing.add(bytes(10))
    outgoing.acknowledge(5)
    with pytest.raises(errors.ProtocolError):
        outgoing.acknowledge(received)
    with pytest.raises(errors.ProtocolError):
        outgoing.after(received)


def test_what_can_be_asked_for_again_is_not_kept() -> None:
    """A memory channel's ranges are repeated as a whole, so none is kept."""
    outgoing = OutgoingFlow(WINDOW, keeps=False)
    outgoing.add(bytes(WINDOW))
    assert outgoing.room == 0
    assert outgoing.after(0) == []


def test_each_window_has_room_for_a_packet() -> None:
    """Acknowledgements that are due after a quarter of a window never leave a sender waiting for ever."""
    assert min(flow.WINDOWS.values()) >= packets.MAX_PAYLOAD
