"""A relay's memory channel copies what it is asked for, however the bytes come in packets; any bytes are survived."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.messages.tunnel import CONTROL, ChannelEnded, ChannelKind
from atomr_mp.protocol.tunnel import packets
from atomr_mp.protocol.tunnel.flow import WINDOWS
from atomr_mp.protocol.tunnel.ranges import ANSWER, RangeOp, RangeRequest, SlabKey
from atomr_mp.relay.memory import MemoryChannel, SessionMemory, SlabRoom

SLAB_BYTES = 4096

REQUESTS = st.builds(
    RangeRequest,
    st.sampled_from([RangeOp.READ, RangeOp.WRITE]),
    st.sampled_from([SlabKey(1), SlabKey(1), SlabKey(2), SlabKey(1, 0, 9)]),
    st.integers(0, SLAB_BYTES + 2),
    st.integers(0, SLAB_BYTES),
)


class Ends:
    """A memory channel and the client's end of its packets."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.memory = SessionMemory(2**20, SlabRoom(2**30))
        os.close(self.memory.make(1, SLAB_BYTES))
        self.over = False
        self.channel = MemoryChannel(b"route", self._send, self._ended, self.memory)
        self.received = 0
        self.came = bytearray()
        self.ended: ChannelEnded | None = None

    def _send(self, _route: bytes, packet: bytes) -> bool:
        self.sent.append(bytes(packet))
        return True

    def _ended(self, _channel: MemoryChannel) -> None:
        self.over = True

    def say(self, content: bytes) -> None:
        """Send bytes in one packet, and take in what the relay sends."""
        self.channel.take(packets.pack(content, self.received))
        for sent in self.sent:
            packet = packets.unpack(sent)
            if packet.kind is packets.PacketKind.CONTROL:
                message = CONTROL.decode(packet.payload)
                assert isinstance(message, ChannelEnded)
                self.ended = message
            self.received += len(packet.payload) if packet.kind is packets.PacketKind.DATA else 0
            self.came += packet.payload if packet.kind is packets.PacketKind.DATA else b""
        self.sent.clear()


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, max_size=8), st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.data())
def test_ranges_are_copied_however_their_bytes_are_cut(
    requests: list[RangeRequest], cuts: list[int], data: st.DataObject
) -> None:
    """Answers come in order; what cannot be copied is refused, and what it brings is passed over."""
    ends, model = Ends(), bytearray(SLAB_BYTES)
    expected: list[bytes | None] = []
    stream = b""
    for request in requests:
        fits = request.key == SlabKey(1) and request.offset + request.nbytes <= SLAB_BYTES
        brought = data.draw(st.binary(min_size=request.brings, max_size=request.brings))
        stream += request.pack() + brought
        end = request.offset + request.nbytes
        if not fits:
            expected.append(None)
        elif request.op is RangeOp.WRITE:
            model[request.offset : end] = brought
            expected.append(b"")
        else:
            expected.append(b"read")
    at = 0
    while at < len(stream):
        for cut in cuts:
            if at < len(stream):
                ends.say(stream[at : at + cut])
                at += cut
    assert not ends.over
    found = ends.memory.range(RangeRequest(RangeOp.READ, SlabKey(1), 0, SLAB_BYTES))
    assert bytes(found) == bytes(model)
    for request, answer in zip(requests, expected, strict=True):
        refused, nbytes = ANSWER.unpack(ends.came[: ANSWER.size])
        del ends.came[: ANSWER.size]
        assert bool(refused) is (answer is None)
        assert refused or nbytes == (request.nbytes if request.op is RangeOp.READ else 0)
        del ends.came[:nbytes]
    assert not ends.came


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200) | REQUESTS.map(RangeRequest.pack), max_size=12))
def test_any_bytes_end_the_channel_at_most(contents: list[bytes]) -> None:
    """Neither the relay's loop nor its memory is the worse for it."""
    ends = Ends()
    for content in contents:
        ends.say(content)
        assert ends.over is (ends.ended is not None)
        assert ends.channel.kept_bytes <= WINDOWS[ChannelKind.MEMORY]
