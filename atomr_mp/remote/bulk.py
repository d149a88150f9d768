"""A remote client's bulk connection: chunks of large calls and answers, on a socket and a thread of their own."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import select
import threading
import time
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

HUGE_BYTES: Final = 4 * 2**20
"""Blobs of this size or more lie in huge pages, if the kernel has some."""

BlobKey = tuple[int, int]
"""A pulled blob's key: the id of a call, and 0 for its answer, or a part's number plus one."""

PULLS: Final = 2
"""Most answers that are pulled at a time; the others wait."""


class BulkSession(Protocol):
    """The session, as its bulk connection sees it. Hold the session's lock, and not the channel's."""

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""

    def upload(self, number: int) -> EncodedBlob | None:
        """Return a call's blob, None if it is not wanted any more."""

    def downloaded(self, key: BlobKey, content: memoryview) -> None:
        """Take in a blob that has come."""

    def broken(self, error: errors.AtomrError) -> None:
        """Take in that the gateway has sent an invalid message."""


class BulkChannel:
    """The connection, and the thread that alone uses its socket.

    Chunks are copied, sent and received without any lock, so that small calls of other threads do not wait behind them.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: The session's keys.
        session: The session.
        lock: The session's.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None, session: BulkSession, lock: threading.RLock) -> None:
        self._wire = RemoteWire(endpoint, keys)
        self._session = session
        self._session_lock = lock
        self._lock = threading.Lock()
        """Guards the state that both the session and the channel's thread change. Take it after the session's lock,
        never before."""
        self._pulls: dict[BlobKey, Pull] = {}
        self._connected = False
        self._greeted = False
        """Whether the gateway knows this connection."""
        self._hello_due = False
        self._closed = False
        self._wake: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: Final = threading.Thread(target=self._run, name="atomr-mp remote bulk", daemon=True)
        self._thread.start()

    # --- for the session, with its lock held -----------------------------------------------------------------------

    def pull(self, key: BlobKey, nbytes: int) -> None:
        """Pull a blob, unless it is being pulled."""
        with self._lock:
            if key in self._pulls:
                return
            self._pulls[key] = Pull(_room(nbytes))
            self._look()

    def forget(self, key: BlobKey) -> None:
        """Stop pulling a blob."""
        with self._lock:
            self._pulls.pop(key, None)

    def resumed(self, *, same_gateway: bool) -> None:
        """Take in that the session is resumed; another gateway does not have the earlier answers."""
        with self._lock:
            if not same_gateway:
                self._pulls.clear()
                self._greeted = False
            self._hello_due = not self._greeted
            self._look()

    def close(self) -> None:
        """Close the connection. Do not hold the session's lock."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not threading.current_thread():
            interrupts.wait(self._thread.join)

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self._closed = True
        self._lock = threading.Lock()
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
        self._hear()  # libzmq's descriptors signal nothing before the first look in vain
        self._work()
        while not self._closed:
            renew_ns = wire.renew_at_ns
            for descriptor, _ in poll.poll(
                None if renew_ns is None else max(0.0, (renew_ns - time.monotonic_ns()) / 1e9)
            ):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif descriptor == wire.monitor_fileno:
                    self._hear()
            wire.renew()
            self._work()
        poll.close()
        with self._lock:
            os.close(self._wake)
        wire.close()

    def _work(self) -> None:
        """Take in all messages; greet and ask for chunks if that is due."""
        while not self._closed:
            message = self._wire.receive()
            if message is not None:
                self._take(message)
            said = self._greet()
            if self._ask() or said:
                continue
            if message is None and not self._wire.readable:
                return

    def _hear(self) -> None:
        """Take in the monitor's events."""
        for sign in self._wire.signs():
            with self._lock:
                self._connected = sign is Sign.HANDSHAKE
                self._greeted = False
                self._hello_due = self._connected

    def _resumed(self) -> tuple[bytes, bytes] | None:
        with self._session_lock:
            return self._session.resumed

    def _greet(self) -> bool:
        """Say hello if that is due and the session is resumed; return whether it was said."""
        if not (self._hello_due and self._connected):
            return False
        resumed = self._resumed()
        if resumed is None:
            return False
        with self._lock:
            self._hello_due = False
        self._say(remote.BulkHello(*resumed))
        return True

    def _ask(self) -> bool:
        """Ask for chunks; return whether any were asked for."""
        if not (self._greeted and self._pulls):
            return False
        resumed = self._resumed()
        if resumed is None:
            return False
        with self._lock:
            pulls = list(itertools.islice(self._pulls.items(), PULLS))
        wants = [(*key, *want) for key, pull in pulls for want in pull.wants()]
        for number, part, offset, nbytes in wants:
            self._say(remote.BulkWant(resumed[0], number, offset, nbytes, part))
        return bool(wants)

    def _take(self, raw: memoryview) -> None:
        try:
            header, frames = unpack(raw)
            message = remote.TO_REMOTE_BULK.decode(header)
            match message:
                case remote.BulkWelcome():
                    with self._lock:
                        self._greeted = True
                        for pull in self._pulls.values():
                            pull.restart()
                case remote.BulkWant():
                    self._serve(message)
                case remote.BulkData(_, number, offset, part):
                    self._take_chunk((number, part), offset, frames)
                case remote.HelloWanted():
                    self._hear()  # the connection may be new
                    with self._lock:
                        self._greeted = False  # the hello is said again once the session is resumed
                case remote.RemoteGoodbye():
                    pass  # the session hears of it too
        except (errors.ProtocolError, ValueError) as error:
            with self._session_lock:
                self._session.broken(errors.ProtocolError(f"the gateway's bulk connection: {error}"))

    def _take_chunk(self, key: BlobKey, offset: int, frames: list[memoryview]) -> None:
        pull = self._pulls.get(key)
        if pull is None or len(frames) != 1:  # nobody wants the blob any more
            return
        pull.take(offset, frames[0])
        if pull.whole:
            with self._lock:
                if self._pulls.pop(key, None) is not pull:
                    return
            with self._session_lock:
                self._session.downloaded(key, pull.buffer)

    def _serve(self, want: remote.BulkWant) -> None:
        with self._session_lock:
            blob = self._session.upload(want.id)
        if blob is not None:
            data = blob.pieces(want.offset, want.nbytes)
            self._say(remote.BulkData(want.epoch, want.id, want.offset), data)

    def _say(self, message: remote.FromRemoteBulk, data: Sequence[Buffer] = ()) -> None:
        header = remote.FROM_REMOTE_BULK.encode(message)
        self._wire.send(chunk_message(header, data) if data else [header])


def _room(nbytes: int) -> memoryview:
    """Return memory for a blob, which the kernel maps as it is written: clearing it first would take as long again."""
    made = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            made.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(made)
