"""Large arguments of a remote session's calls: the gateway pulls them into memory that the workers can map."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Protocol

import msgspec

from atomr_mp import checks, errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.messages.data import MAX_SENT
from atomr_mp.protocol.refs import ClientArray, PassedRef, WireRef
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.blobs import Pull, opened

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.memory.argument_slabs import Placement


Request = remote.RemoteCall | remote.RemoteStream


class Upload(NamedTuple):
    """A large call whose arguments the gateway pulls."""

    request: Request
    pull: Pull
    deadline_ns: int


class Uploaded(NamedTuple):
    """A large call's arguments in the form that workers take."""

    body: bytes
    payload: Sequence[Buffer]
    copies: list[Placement]
    """Arrays that workers read where they lie."""
    sent: list[bytes]
    """Bodies of the parts after which a stream goes on."""

    @classmethod
    def in_message(cls, request: Request, frames: Sequence[memoryview]) -> Uploaded:
        """Return arguments that have come in a message.

        Raises:
            InvalidRequest: The parts of a stream are invalid.
        """
        if isinstance(request, remote.RemoteStream):
            payload = frames[:-1] if request.sent else frames
            return cls(request.call.body, payload, [], _sent_parts(request, frames[-1] if frames else None))
        return cls(request.body, frames, [], [])


class UploadHost(Protocol):
    """The session, as its uploads see it."""

    def is_wanted(self, number: int) -> bool:
        """Return whether a call has no outcome yet."""

    def pull(self) -> None:
        """Ask for chunks, if there is a bulk connection."""

    def spawn(self, number: int, work: Coroutine[object, object, None]) -> None:
        """Run a call's work that waits for others."""

    def fail(self, number: int, error: errors.AtomrError) -> None:
        """End a call."""

    def uploaded(self, request: Request, arguments: Uploaded, deadline_ns: int) -> None:
        """Make a call whose arguments have come."""


@checks.owned(by_maker=True)
class Uploads:
    """A session's uploads.

    Args:
        host: The session.
        client: Its local client.
        loop: The event loop.
        most_bytes: Most bytes of a call's arguments.
    """

    def __init__(self, host: UploadHost, client: Client, loop: asyncio.AbstractEventLoop, most_bytes: int) -> None:
        self._host = host
        self._client = client
        self._loop = loop
        self._most_bytes = most_bytes
        self.open: Final[dict[int, Upload]] = {}
        """Calls whose arguments are being pulled."""

    def begin(self, request: Request, deadline_ns: int) -> None:
        """Make room for a large call's arguments, and pull them.

        Raises:
            InvalidRequest: They are larger than the room of the whole session.
        """
        call = call_of(request)
        if call.upload > self._most_bytes:
            raise errors.InvalidRequest(
                f"arguments of {call.upload} bytes; this session may have {self._most_bytes} in the gateway"
            )
        self._host.spawn(call.id, self._make_room(request, call, deadline_ns))
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        self._loop.call_later(left_s, self._late, call.id)

    def wants(self) -> list[tuple[int, int, int]]:
        """Return (call, offset, size) of each chunk to ask for now."""
        return [(number, *want) for number, upload in self.open.items() for want in upload.pull.wants()]

    def restart(self) -> None:
        """Ask again for the chunks that have not come, on a new connection."""
        for upload in self.open.values():
            upload.pull.restart()

    def take_chunk(self, number: int, offset: int, data: memoryview) -> None:
        """Take a chunk.

        Raises:
            ProtocolError: It was not asked for.
        """
        upload = self.open.get(number)
        if upload is None:  # its call was settled, or it is late
            return
        try:
            upload.pull.take(offset, data)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        if upload.pull.whole:
            del self.open[number]
            self._host.spawn(number, self._submit(upload))

    def forget(self, number: int) -> None:
        """Drop the upload of a call."""
        self.open.pop(number, None)

    def clear(self) -> None:
        """Drop all uploads."""
        self.open.clear()

    async def _make_room(self, request: Request, call: remote.RemoteCall, deadline_ns: int) -> None:
        try:
            room = await asyncio.to_thread(self._client.memory.host_array, (call.upload,), "uint8")
        except errors.AtomrError as error:
            self._host.fail(call.id, error)
            return
        if self._host.is_wanted(call.id):
            self.open[call.id] = Upload(request, Pull(room.data), deadline_ns)
            self._host.pull()

    def _late(self, number: int) -> None:
        if self.open.pop(number, None) is not None:
            self._host.fail(
                number, errors.DeadlineExceeded("the arguments had not arrived by the deadline; nothing ran")
            )

    async def _submit(self, upload: Upload) -> None:
        request = upload.request
        try:
            arguments = await asyncio.to_thread(self._encode, request, upload.pull.buffer)
            self._host.uploaded(request, arguments, upload.deadline_ns)
        except errors.AtomrError as error:
            self._host.fail(call_of(request).id, error)

    def _encode(self, request: Request, buffer: memoryview) -> Uploaded:
        """Return a large call's arguments in the form that workers take. Runs in a thread."""
        from atomr_mp.client.memory.argument_slabs import Placement

        body, frames = opened(buffer)
        value = values.Decoder[object](writable=False).decode(body, frames, _pass)
        body, payload, placed = values.encode(value, self._client.place)
        sent = _sent_parts(request, frames.last_ordinary)
        return Uploaded(body, payload, [each for each in placed if isinstance(each, Placement)], sent)


def call_of(request: Request) -> remote.RemoteCall:
    """Return a request's call."""
    return request.call if isinstance(request, remote.RemoteStream) else request


def _sent_parts(request: Request, last: memoryview | None) -> list[bytes]:
    """Return the bodies of the parts after which a stream goes on; they are in its last payload frame.

    Raises:
        InvalidRequest: They are invalid.
    """
    if not isinstance(request, remote.RemoteStream) or not request.sent:
        return []
    try:
        return _SENT.decode(b"" if last is None else last)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.InvalidRequest(f"invalid parts of a stream: {error}") from error


def _pass(wire: WireRef | ClientArray) -> PassedRef:
    if not isinstance(wire, WireRef):
        raise errors.InvalidRequest("an array in memory that this client does not have")
    return PassedRef(wire)


_SENT: Final[msgspec.msgpack.Decoder[list[bytes]]] = msgspec.msgpack.Decoder(
    Annotated[list[bytes], msgspec.Meta(max_length=MAX_SENT)]
)
