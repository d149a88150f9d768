"""The memory of a session, which the relay maps in its client's place; and the channel by which ranges are copied."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.interop.sealed import check_sealed, make_sealed
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.process_tags import CLIENT_SLAB
from atomr_mp.protocol.tunnel.ranges import (
    MAX_REFUSAL,
    REQUEST,
    RangeAnswer,
    RangeOp,
    RangeRequest,
    SlabKey,
    unpack_request,
)
from atomr_mp.relay.channel import RelayChannel, Send

MAX_WAITING: Final = 64
"""Most requests of a channel whose answers wait for room in its window."""


class SlabRoom:
    """The bytes of all clients' slabs together.

    Args:
        limit_bytes: The most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: Final = limit_bytes
        self.taken_bytes = 0


class SessionMemory:
    """What a session's descriptors map: slabs of the workers, and those that the relay makes for the client.

    Args:
        limit_bytes: Most bytes of the client's slabs together.
        room: What the slabs of all clients may take.
    """

    def __init__(self, limit_bytes: int, room: SlabRoom) -> None:
        self._room = room
        self.name = CLIENT_SLAB
        """The name of the client's slabs."""
        self._limit_bytes = limit_bytes
        self._maps: Final[dict[SlabKey, mmap.mmap]] = {}
        self._openings: Final[Counter[SlabKey]] = Counter()
        """How often the client has opened each slab of the workers, and not closed it."""
        self._own_bytes = 0

    def make(self, slab: int, nbytes: int) -> int:
        """Make a slab of the client's; return its descriptor, which the caller closes.

        Raises:
            Overloaded: The client's slabs would take more than they may.
            InvalidRequest: It has this slab already.
            OutOfMemory: There is no memory to be had.
        """
        key = SlabKey(slab)
        if key in self._maps:
            raise errors.InvalidRequest(f"slab {slab} is registered already")
        if self._own_bytes + nbytes > self._limit_bytes:
            raise errors.Overloaded(
                f"{nbytes} bytes are needed for an array, and {self._own_bytes} of {self._limit_bytes} (the key's "
                "--max-bytes) are in use: wait for some results first, or send it in parts"
            )
        if self._room.taken_bytes + nbytes > self._room.limit_bytes:
            raise errors.Overloaded(
                f"{nbytes} bytes are needed for an array, and {self._room.taken_bytes} of {self._room.limit_bytes} "
                "(`remote_bytes`, for all remote clients) are in use",
                retry_after_s=1.0,
            )
        descriptor = make_sealed(self.name, nbytes)
        try:
            self._maps[key] = mmap.mmap(descriptor, nbytes)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise errors.OutOfMemory(f"a slab of {nbytes} bytes cannot be mapped: {error}") from error
        self._take_room(nbytes)
        return descriptor

    def restore(self, slab: int, descriptor: int, nbytes: int) -> None:
        """Map a slab of the client's that an earlier relay has made; the descriptor stays the caller's.

        Without memory for it, what the client asks of it is refused.
        """
        with contextlib.suppress(OSError, errors.ProtocolError):
            check_sealed(descriptor, nbytes)
            self._maps[SlabKey(slab)] = mmap.mmap(descriptor, nbytes)
            self._take_room(nbytes)

    def take(self, key: SlabKey, descriptor: int, nbytes: int) -> None:
        """Map a worker's slab, or count a further opening of it; the descriptor stays the caller's.

        Raises:
            ProtocolError: It is no memfd of this size, or not sealed.
            OutOfMemory: It cannot be mapped.
        """
        check_sealed(descriptor, nbytes)
        try:
            if key not in self._maps:
                self._maps[key] = mmap.mmap(descriptor, nbytes)
            self._openings[key] += 1
        except OSError as error:
            raise errors.OutOfMemory(f"a slab of {nbytes} bytes cannot be mapped: {error}") from error

    def range(self, request: RangeRequest) -> memoryview:
        """Return a range of a slab.

        Raises:
            GpuRefReleased: The slab is not mapped.
            GpuRefOutOfExtent: It does not reach so far.
        """
        mapped = self._maps.get(request.key)
        if mapped is None:
            raise errors.GpuRefReleased(f"slab {request.key.slab} is not mapped", device=request.key.device)
        if request.offset + request.nbytes > len(mapped):
            raise errors.GpuRefOutOfExtent(f"{request.nbytes} bytes at {request.offset} of a slab of {len(mapped)}")
        return memoryview(mapped)[request.offset : request.offset + request.nbytes]

    def close(self, key: SlabKey) -> None:
        """Unmap a slab, once it was closed as often as opened; an unknown one is ignored.

        A range of it that is being sent keeps it mapped meanwhile.
        """
        self._openings[key] -= 1
        if self._openings[key] > 0:
            return
        del self._openings[key]
        mapped = self._maps.pop(key, None)
        if mapped is not None and key.generation == 0:
            self._take_room(-len(mapped))

    def close_all(self) -> None:
        """Unmap all."""
        self._maps.clear()
        self._take_room(-self._own_bytes)

    def _take_room(self, nbytes: int) -> None:
        self._own_bytes += nbytes
        self._room.taken_bytes += nbytes


class MemoryChannel(RelayChannel):
    """Copies ranges of a session's memory.

    Args:
        route: Its connection.
        send: Sends a packet.
        ended: Called with this when it has ended.
        memory: The session's memory.
    """

    def __init__(self, route: bytes, send: Send, ended: Callable[[Any], object], memory: SessionMemory) -> None:
        super().__init__(ChannelKind.MEMORY, route, send, ended)
        self._memory = memory
        self._head = b""
        """The beginning of a request's head."""
        self._writing: memoryview | None = None
        """The rest of the range that is being written."""
        self._skips = 0
        """Bytes that a refused request still brings."""
        self._answer = b""
        """The answer to the request whose bytes are coming."""
        self._answers: Final[deque[memoryview]] = deque()
        """What waits to be sent."""

    def _receive(self, payload: memoryview) -> None:
        self._passed_on(len(payload))
        while payload:
            if self._writing is not None:
                count = min(len(payload), len(self._writing))
                self._writing[:count] = payload[:count]  # no word: nobody reads it before the answer
                self._writing = self._writing[count:]
                if not self._writing:
                    self._writing = None
                    self._answers.append(memoryview(self._answer))
            elif self._skips:
                count = min(len(payload), self._skips)
                self._skips -= count
                if not self._skips:
                    self._answers.append(memoryview(self._answer))
            else:
                count = min(len(payload), REQUEST.size - len(self._head))
                self._head += payload[:count]
                if len(self._head) == REQUEST.size:
                    head, self._head = self._head, b""
                    self._begin(unpack_request(head))
            payload = payload[count:]
        self._has_room()

    def _begin(self, request: RangeRequest) -> None:
        if len(self._answers) > 2 * MAX_WAITING:
            raise errors.ProtocolError(f"more than {MAX_WAITING} requests for memory are unanswered")
        if request.op is RangeOp.CLOSE:
            self._memory.close(request.key)
            self._answers.append(memoryview(RangeAnswer(refused=False, nbytes=0).pack()))
            return
        try:
            found = self._memory.range(request)
        except errors.AtomrError as error:
            refusal = msgspec.msgpack.encode(ErrorInfo.of(error, MAX_REFUSAL // 8))
            self._answer = RangeAnswer(refused=True, nbytes=len(refusal)).pack() + refusal
            self._skips = request.brings
            if not self._skips:
                self._answers.append(memoryview(self._answer))
            return
        if request.op is RangeOp.WRITE:
            self._answer = RangeAnswer(refused=False, nbytes=0).pack()
            self._writing = found
            if not found:
                self._writing = None
                self._answers.append(memoryview(self._answer))
        else:
            self._answers.extend((memoryview(RangeAnswer(refused=False, nbytes=request.nbytes).pack()), found))

    def _has_room(self) -> None:
        while self._answers and not self.over and (room := self._outgoing.room) > 0:
            piece = self._answers.popleft()
            if len(piece) > room:
                self._answers.appendleft(piece[room:])
                piece = piece[:room]
            if piece:
                self._say(piece)

    def _close(self) -> None:
        self._answers.clear()
        self._writing = None
