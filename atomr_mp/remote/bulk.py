"""A remote client's bulk connection: chunks of large calls and answers, on a socket and a thread of their own."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.remote.blobs import EncodedBlob, Pull, chunk_message
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.wire import RemoteWire, Sign

PULLS: Final = 2
"""Most answers that are pulled at a time; the others wait."""


class BulkSession(Protocol):
    """The session, as its bulk connection sees it; to be asked with its lock held."""

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""

    def upload(self, number: int) -> EncodedBlob | None:
        """Return what a call's blob is, None if it is not wanted any more."""

    def downloaded(self, number: int, content: memoryview) -> None:
        """An answer's blob is there."""

    def broken(self, error: errors.AtomrError) -> None:
        """The gateway has sent what is no message."""


class BulkChannel:
    """The connection and its thread.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: As for the session.
        session: The session.
        lock: The session's.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None, session: BulkSession, lock: threading.RLock) -> None:
        self._wire = RemoteWire(endpoint, keys)
        self._session = session
        self._lock = lock
        self._pulls: dict[int, Pull] = {}
        self._connected = False
        self._greeted = False
        """The gateway knows this connection."""
        self._hello_due = False
        self._closed = False
        self._wake: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: Final = threading.Thread(target=self._run, name="atomr-mp remote bulk", daemon=True)
        self._thread.start()

    # --- for the session, with its lock held -----------------------------------------------------------------------

    def pull(self, number: int, nbytes: int) -> None:
        """Pull an answer's blob, if that is not being done."""
        if number not in self._pulls:
            self._pulls[number] = Pull(memoryview(bytearray(nbytes)))
            self._look()

    def forget(self, number: int) -> None:
        """Pull an answer's blob no more."""
        self._pulls.pop(number, None)

    def resumed(self, *, same_gateway: bool) -> None:
        """Take in that the session is resumed; answers of another gateway are not to be had."""
        if not same_gateway:
            self._pulls.clear()
            self._greeted = False
        self._hello_due = not self._greeted
        self._look()

    def close(self) -> None:
        """Close it. Not with the lock held."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not threading.current_thread():
            interrupts.wait(self._thread.join)

    def forget_in_child(self) -> None:
        """Let go, in a forked child."""
        self._closed = True
        self._wire.forget_in_child()

    # --- its thread ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        wire = self._wire
        poll = select.epoll()
        for descriptor in (wire.fileno, wire.monitor_fileno, self._wake):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            with self._lock:
                if self._closed:
                    break
            self._work()
            poll.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        poll.close()
        os.close(self._wake)
        wire.close()

    def _work(self) -> None:
        """Take in all that has come; the lock is given up after each message, for others wait for it."""
        while True:
            with self._lock:
                if self._closed:
                    return
                for sign in self._wire.signs():
                    self._signed(sign)
                message = self._wire.receive()
                if message is not None:
                    self._take(message)
                if self._hello_due and self._connected:
                    self._greet()
                if self._greeted:
                    self._ask()
                if message is None and not self._wire.readable:
                    return

    def _signed(self, sign: Sign) -> None:
        self._connected = sign is Sign.HANDSHAKE
        self._greeted = False
        self._hello_due = self._connected

    def _greet(self) -> None:
        resumed = self._session.resumed
        if resumed is not None:
            self._hello_due = False
            self._say(remote.BulkHello(*resumed))

    def _ask(self) -> None:
        resumed = self._session.resumed
        if resumed is None:
            return
        for number, pull in list(self._pulls.items())[:PULLS]:
            for offset, nbytes in pull.wants():
                self._say(remote.BulkWant(resumed[0], number, offset, nbytes))

    def _take(self, raw: memoryview) -> None:
        try:
            header, frames = unpack(raw)
            message = remote.TO_REMOTE_BULK.decode(header)
            match message:
                case remote.BulkWelcome():
                    self._greeted = True
                    for pull in self._pulls.values():
                        pull.restart()
                case remote.BulkWant():
                    self._serve(message)
                case remote.BulkData(_, number, offset):
                    self._take_chunk(number, offset, frames)
                case remote.HelloWanted():
                    self._greeted = False  # it is said once the session is resumed
                case remote.RemoteGoodbye():
                    pass  # the session hears of it too
        except (errors.ProtocolError, ValueError) as error:
            self._session.broken(errors.ProtocolError(f"the gateway's bulk connection: {error}"))

    def _take_chunk(self, number: int, offset: int, frames: list[memoryview]) -> None:
        pull = self._pulls.get(number)
        if pull is None or len(frames) != 1:  # it is wanted no more
            return
        pull.take(offset, frames[0])
        if pull.whole:
            del self._pulls[number]
            self._session.downloaded(number, pull.buffer)

    def _serve(self, want: remote.BulkWant) -> None:
        blob = self._session.upload(want.id)
        if blob is not None:
            data = blob.pieces(want.offset, want.nbytes)
            self._say(remote.BulkData(want.epoch, want.id, want.offset), data)

    def _say(self, message: remote.FromRemoteBulk, data: Sequence[Buffer] = ()) -> None:
        header = remote.FROM_REMOTE_BULK.encode(message)
        self._wire.send(chunk_message(header, data) if data else [header])
