"""Any bytes are a packet, a request or an answer, or a typed refusal; and what was packed is unpacked."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.messages.tunnel import (
    CONTROL,
    ChannelEnded,
    ChannelKind,
    ChannelOpened,
    ChannelResumed,
    Control,
    OpenChannel,
    Ping,
    Pong,
    ResumeChannel,
)
from atomr_mp.protocol.tunnel import packets, ranges
from atomr_mp.protocol.tunnel.ranges import RangeAnswer, RangeOp, RangeRequest, SlabKey

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, MAX_U64)


@given(st.binary(max_size=1000), U64)
def test_a_packet_is_unpacked_as_it_was_packed(payload: bytes, acknowledged: int) -> None:
    """Nothing is lost on the way."""
    packet = packets.unpack(packets.pack(payload, acknowledged))
    assert packet == packets.Packet(packets.PacketKind.DATA, acknowledged, memoryview(payload))


@pytest.mark.parametrize(
    "message",
    [
        OpenChannel(2, bytes(16), ChannelKind.LANE, bytes(range(16)), 3, 4),
        ChannelOpened(5, 2.5, 6),
        ResumeChannel(2, bytes(16), bytes(range(16)), 7),
        ChannelResumed(8, 9),
        ChannelEnded(unknown=True),
        Ping(10),
        Pong(11, 12),
    ],
)
def test_a_control_packet_is_unpacked_as_it_was_packed(message: Control) -> None:
    """Nothing is lost on the way."""
    packet = packets.unpack(packets.pack_control(message, 7))
    assert packet.kind is packets.PacketKind.CONTROL
    assert packet.acknowledged == 7
    assert CONTROL.decode(packet.payload) == message


@given(st.binary(max_size=40) | st.binary().map(lambda rest: packets.pack(rest, 0)[:-1]))
@example(packets.pack(b"abc", 0) + b"d")
@example(packets.HEAD.pack(0, 0, 2**64 - 1))
@example(packets.HEAD.pack(2, 0, 0))
@example(bytes(packets.MAX_PACKET + 1))
def test_any_bytes_are_a_packet_or_refused(content: bytes) -> None:
    """What comes from outside is never believed."""
    try:
        packet = packets.unpack(content)
    except errors.ProtocolError:
        return
    assert packets.HEAD.pack(packet.kind, len(packet.payload), packet.acknowledged) + packet.payload == content


@given(
    st.sampled_from(RangeOp),
    st.builds(SlabKey, U32, st.integers(0, 2**16 - 1), U32),
    U64,
    st.integers(0, ranges.MAX_RANGE),
)
def test_a_request_for_memory_is_unpacked_as_it_was_packed(op: RangeOp, key: SlabKey, offset: int, nbytes: int) -> None:
    """Nothing is lost on the way."""
    request = RangeRequest(op, key, offset, nbytes)
    assert ranges.unpack_request(request.pack()) == request


@given(st.binary(min_size=ranges.REQUEST.size, max_size=ranges.REQUEST.size))
def test_any_bytes_are_a_request_for_memory_or_refused(head: bytes) -> None:
    """No request asks for more than its bound."""
    try:
        request = ranges.unpack_request(head)
    except errors.ProtocolError:
        return
    assert request.nbytes <= ranges.MAX_RANGE
    assert request.pack() == head


@given(st.binary(min_size=ranges.ANSWER.size, max_size=ranges.ANSWER.size), st.integers(0, ranges.MAX_RANGE))
@example(RangeAnswer(refused=False, nbytes=5).pack(), 5)
@example(RangeAnswer(refused=True, nbytes=ranges.MAX_REFUSAL + 1).pack(), 2**20)
def test_an_answer_is_of_what_was_asked_or_refused(head: bytes, wanted: int) -> None:
    """An answer never brings more than was asked for."""
    try:
        answer = ranges.unpack_answer(head, wanted)
    except errors.ProtocolError:
        return
    assert answer.nbytes == wanted or (answer.refused and answer.nbytes <= ranges.MAX_REFUSAL)
