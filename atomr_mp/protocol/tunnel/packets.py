"""Packets of a channel: a head with the payload's length and what was received of the other direction; the payload.

The place of a packet's payload in its stream is the sum of the payloads before it. Only data counts, so control packets
may come at any time.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.messages.tunnel import CONTROL, Control
from atomr_mp.protocol.values import Buffer

HEAD: Final = struct.Struct(">BIQ")
"""Kind, bytes of the payload, and bytes of the other direction that the sender has taken in."""

MAX_PAYLOAD: Final = 256 * 1024
"""Most bytes of a packet's payload."""

MAX_PACKET: Final = HEAD.size + MAX_PAYLOAD

MAX_FRAME: Final = MAX_PACKET + 64
"""A packet with what CURVE adds to it."""


class PacketKind(IntEnum):
    """The kind of a packet."""

    DATA = 0
    """Bytes of the stream; without any, an acknowledgement."""
    CONTROL = 1
    """A message of `messages.tunnel`."""


class Packet(NamedTuple):
    """A packet that has come."""

    kind: PacketKind
    acknowledged: int
    payload: memoryview


def pack(payload: Buffer, acknowledged: int) -> bytes:
    """Return a packet with bytes of the stream."""
    return b"".join((HEAD.pack(PacketKind.DATA, len(payload), acknowledged), payload))


def pack_into(room: bytearray, payload: Buffer, acknowledged: int) -> memoryview:
    """Write a packet into memory that is used again, which holds `MAX_PACKET` bytes; return it."""
    end = HEAD.size + len(payload)
    HEAD.pack_into(room, 0, PacketKind.DATA, len(payload), acknowledged)
    room[HEAD.size : end] = payload
    return memoryview(room)[:end]


def pack_control(message: Control, acknowledged: int) -> bytes:
    """Return a packet with a message about the channel."""
    payload = CONTROL.encode(message)
    return HEAD.pack(PacketKind.CONTROL, len(payload), acknowledged) + payload


def unpack(packet: Buffer) -> Packet:
    """Return the parts of a packet.

    Raises:
        ProtocolError: The bytes are not a packet.
    """
    view = memoryview(packet)
    if not HEAD.size <= len(view) <= MAX_PACKET:
        raise errors.ProtocolError(f"a packet of {len(view)} bytes; it may have {HEAD.size} to {MAX_PACKET}")
    kind, nbytes, acknowledged = HEAD.unpack_from(view)
    if kind not in _KINDS or nbytes != len(view) - HEAD.size or acknowledged > MAX_U64:
        raise errors.ProtocolError(f"a packet of {len(view)} bytes whose head says kind {kind} and {nbytes} bytes")
    return Packet(_KINDS[kind], acknowledged, view[HEAD.size :])


_KINDS: Final = dict(enumerate(PacketKind))
