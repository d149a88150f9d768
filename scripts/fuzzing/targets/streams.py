"""Bytes of connections, cut anywhere: ZMTP's two ends, the session's frames, and what is packed into a message."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.messages.session import Framing, frame
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.framing import pack, unpack
from fuzzing.target import Target, damage


class Connection(Target):
    """Bytes that come in pieces, whose sizes follow from the bytes."""

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return changed bytes: most of the structure is in single ones."""
        for _ in range(rng.choice((1, 1, 2))):
            data = damage(rng, data)
        return data


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield the bytes in pieces."""
    rng, at = random.Random(zlib.crc32(data)), 0
    while at < len(data):
        size = rng.choice((1, 2, 9, 64, 4096))
        yield data[at : at + size]
        at += size


class Packed(Connection):
    """A header with payload frames."""

    name = "packed"

    def make(self, rng: random.Random) -> bytes:
        """Return one with some frames."""
        frames = [rng.randbytes(rng.choice((0, 1, 63, 64, 65, 9000))) for _ in range(rng.randint(0, 4))]
        return b"".join(pack(rng.randbytes(rng.choice((1, 8, 64, 200))), frames))

    def check(self, data: bytes) -> None:
        """Unpack it."""
        with contextlib.suppress(errors.ProtocolError):
            header, frames = unpack(memoryview(data))
            if len(header) + sum(map(len, frames)) > len(data):
                raise AssertionError("frames have more bytes than came")


class SessionStream(Connection):
    """A session's stream of frames."""

    name = "session-stream"

    def make(self, rng: random.Random) -> bytes:
        """Return some frames."""
        return b"".join(frame(msgspec.msgpack.encode(["x", bytes(rng.choice((0, 9, 300)))])) for _ in range(3))

    def check(self, data: bytes) -> None:
        """Cut it into messages."""
        framing, size = Framing(), 0
        with contextlib.suppress(errors.ProtocolError):
            for piece in pieces(data):
                size += sum(map(len, framing.feed(piece)))
        if size > len(data):
            raise AssertionError("messages have more bytes than came")


class RouterStream(Connection):
    """What a worker reads of a client's connection."""

    name = "router-stream"

    def make(self, rng: random.Random) -> bytes:
        """Return a login and some messages."""
        dealer, router = _dealer(), _router()
        said = [dealer.opening, dealer.feed(router.opening)]
        while not dealer.ready:
            said.append(dealer.feed(router.feed(said[-2] + said[-1] if len(said) == 2 else said[-1])))
        return b"".join((*said, *(stream.frame(bytes(rng.choice((0, 1, 255, 256, 9000)))) for _ in range(3))))

    def check(self, data: bytes) -> None:
        """Feed a ROUTER."""
        feed(_router(), data)


class DealerStream(Connection):
    """What a client reads of a worker's connection."""

    name = "dealer-stream"

    def make(self, rng: random.Random) -> bytes:
        """Return the other end of a login, and some messages."""
        dealer, router = _dealer(), _router()
        said, heard = [router.opening], dealer.opening + dealer.feed(router.opening)
        while heard:
            said.append(router.feed(heard))
            heard = dealer.feed(said[-1]) if said[-1] else b""
        return b"".join((*said, *(stream.frame(bytes(rng.choice((0, 1, 255, 256, 9000)))) for _ in range(3))))

    def check(self, data: bytes) -> None:
        """Feed a DEALER."""
        feed(_dealer(), data)


def feed(end: stream.ZmtpStream, data: bytes) -> None:
    """Feed an end as a connection does, and take its messages."""
    with contextlib.suppress(errors.ProtocolError):
        for piece in pieces(data):
            left = piece
            while left:
                if end.room is None:
                    end.feed(left)
                    left = b""
                else:
                    count = min(len(left), len(end.room))
                    end.room[:count] = left[:count]
                    end.filled(count)
                    left = left[count:]
            end.messages.clear()


def _dealer() -> stream.Dealer:
    return stream.Dealer(b"s" + bytes(16) + b"\0", b"user", b"secret")


def _router() -> stream.Router:
    return stream.Router(lambda user, secret: (user, secret) == (b"user", b"secret"), lambda *_: True)
