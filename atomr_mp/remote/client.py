"""A remote client of a pool: it takes the place of a local `Client` in a `Pool`."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.callers import Kernel, calling_loop, in_cell, notice_kernel, running_loop
from atomr_mp.client.client import MAX_WAITING, check_max_replays, check_max_waiting
from atomr_mp.client.handshake import default_name
from atomr_mp.client.lanes.base import FORKED
from atomr_mp.client.lanes.homes import Homes, home_for
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.client.stream_closer import StreamCloser
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import operators, session, suspects
from atomr_mp.protocol.messages.devices import DeviceInfo, MethodInfo, Resumes
from atomr_mp.remote.blobs import encode
from atomr_mp.remote.faces import LoopFace, ThreadsFace
from atomr_mp.remote.facts import Facts
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.link_life import RemoteLinkState
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.session import RemoteSession
from atomr_mp.remote.streams import RemoteStreamReply

if TYPE_CHECKING:
    import asyncio

    from atomr_mp.client.programs import ProgramRun

CONNECT_S: Final = 10.0
"""How long a gateway may take to answer."""


class RemoteClient:
    """One session with a pool on another machine. Thread-safe; unusable in a forked child.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.
        name: The client's name in logs and `status`.
        max_replays: As for a local client.
        max_waiting: As for a local client.
        connect_timeout_s: How long the gateway may take to answer.

    Raises:
        PoolUnreachable: No gateway answers, or it has another key.
        NotAuthorized: It does not admit our key.
        ProtocolError: It speaks another version.
        Overloaded: The key has as many sessions as it is allowed.
    """

    def __init__(
        self,
        endpoint: str,
        keys: ClientKeys | None,
        name: str | None = None,
        max_replays: int | None = None,
        max_waiting: int = MAX_WAITING,
        connect_timeout_s: float = CONNECT_S,
    ) -> None:
        notice_kernel()
        waiting, max_replays = check_max_waiting(max_waiting), check_max_replays(max_replays)
        self._session: Final = RemoteSession(endpoint, keys, (name or default_name())[:200], max_replays, waiting)
        self.forked = False
        self._memory: RemoteMemory | None = None
        self._threads: Final = ThreadsFace(self._session)
        self._loops: dict[asyncio.AbstractEventLoop, LoopFace] = {}
        self._questions = itertools.count(1)
        self._closer: Final = StreamCloser()
        self._session.engine.start()
        try:
            self._connect(endpoint, connect_timeout_s)
        except BaseException:
            self._session.close()
            raise
        assert self._session.welcomed is not None
        self.pool: Final[str] = self._session.welcomed.pool
        self.epoch: Final[bytes] = self._session.welcomed.pool_epoch
        self.supervisor_pid: Final[int] = self._session.welcomed.supervisor_pid
        _CLIENTS.add(self)

    def _connect(self, endpoint: str, timeout_s: float) -> None:
        session_ = self._session

        def settled() -> bool:
            return session_.state is RemoteLinkState.OPEN or session_.refusal is not None

        if not session_.wait_until(settled, timeout_s):
            raise errors.PoolUnreachable(
                f"no gateway answers at {endpoint} within {timeout_s:g} s: check that the pool listens there "
                "(`listen`), that no firewall is between, and that the key file has this server's key"
            )
        if session_.refusal is not None:
            raise session_.refusal

    # --- for a pool ------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> list[DeviceInfo]:
        """The devices as the gateway has last described them."""
        return self._session.devices

    @property
    def methods(self) -> dict[str, MethodInfo]:
        """The pool's requests by "Actor.method"."""
        return self._session.methods

    @property
    def homes(self) -> Homes:
        """The devices of those actors that not all have."""
        return self._session.homes

    @property
    def listeners(self) -> list[Callable[[session.DeviceChanged | session.IncarnationEnded], object]]:
        """Called with every lifecycle event; must be short."""
        return self._session.deliveries.listeners

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the session has ended, None if it has not."""
        return self._session.lost

    @property
    def session(self) -> RemoteSession:
        """The session, through all its connections."""
        return self._session

    @property
    def unanswered(self) -> int:
        """Number of requests of this client that are unanswered, or wait here for a connection."""
        return len(self._session.calls.unanswered)

    @property
    def window(self) -> Window:
        """How much may be unanswered."""
        return self._session.backlog.window

    @property
    def memory(self) -> RemoteMemory:
        """The memory that refs share."""
        return self._memory or self._make_memory()

    @interrupts.defer_interrupts
    def _make_memory(self) -> RemoteMemory:
        with self._session.lock:
            if self._session.memory is None:
                self._session.memory = RemoteMemory(self, self.give_back)
            self._memory = self._session.memory
        return self._memory

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has; see `Pool.on_lost`."""
        self._session.deliveries.on_lost(listener)

    def read_session(self) -> None:
        """Do nothing: a thread of the session takes messages in."""

    read_session_if_old = read_session

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition()` holds; False if it does not within `timeout_s`.

        Raises:
            PoolLost: The session has ended.
        """
        return self._session.wait_until(condition, timeout_s)

    def submit(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        deadline_s: float,
        priority: int = 0,
        blocking: bool = False,
        replays: int = 0,
        wait: bool | None = None,
        program: ProgramRun | None = None,
        backlog: bool = False,
    ) -> Reply:
        """Send a request; see `pool.Pool` for the arguments, and `Client.submit`."""
        if self.forked:
            raise errors.PoolLost(FORKED)
        held = interrupts.hold()
        try:
            loop = None if blocking else running_loop()
            if loop is not None and Kernel.is_here and in_cell():
                loop, backlog = None, backlog or wait is None
            face = self._threads if loop is None else self._loops.get(loop) or self._new_loop(loop)
            memory = self._memory or self._make_memory()
            encoded = encode(arguments)
            reply = Reply(face, 0, method, time.monotonic_ns() + int(deadline_s * 1e9), encoded.body)
            reply.priority, reply.replays = priority, replays
            reply.payload = encoded.frames
            wires, reply.kept, device = memory.attach(encoded.refs, device) if encoded.refs else ([], (), device)
            if device is not None:
                home_for(self._session.homes, method, device)
                reply.device, reply.pinned = device, True
            if program is not None:
                reply.kept = (*reply.kept, program)
                if program.tells:
                    reply.callbacks = [program.answered]
            facts = Facts.of(encoded, wires)
            waits = loop is not None if wait is None else wait
            self._session.send_call(reply, facts, wait=waits or backlog)
            if waits and loop is None and reply.state is ReplyState.BACKLOG:
                self._session.wait_for_room(reply)
            return reply
        finally:
            if held:
                interrupts.let_go(held)

    @interrupts.defer_interrupts
    def stream(
        self,
        method: str,
        arguments: object,
        *,
        device: int | None,
        first_s: float,
        between_s: float,
        deadline_s: float,
        priority: int,
        ahead: int,
        ahead_bytes: int,
        resumes: Resumes,
    ) -> ReplyStream:
        """Open a stream; see `pool.Pool.stream` for the arguments, and `Client.stream`."""
        if self.forked:
            raise errors.PoolLost(FORKED)
        loop = calling_loop()
        face = self._threads if loop is None else self._loops.get(loop) or self._new_loop(loop)
        encoded = encode(arguments)
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(deadline_s * 1e9)
        first_ns = min(now_ns + int(first_s * 1e9), until_ns)
        reply = RemoteStreamReply(face, 0, method, first_ns, encoded.body, priority=priority)
        reply.arguments, reply.credit = encoded, ReaderCredit(ahead, ahead_bytes)
        reply.resumes = resumes
        reply.until_ns, reply.between_ns = until_ns, int(between_s * 1e9)
        wires, reply.kept, device = self.memory.attach(encoded.refs, device)
        if device is not None:
            home_for(self._session.homes, method, device)
            reply.device, reply.pinned = device, True
        if wires:
            reply.resumes = Resumes.NEVER
        self._session.open_stream(reply, Facts.of_stream(encoded, wires))
        if loop is not None:
            face.watch(reply)
        self._closer.start()
        return ReplyStream(reply, face, self._closer, self._threads.wait_for_part if loop is None else None)

    def submit_items(self, method: str, _items: Sequence[Sequence[Any]], /, **_options: object) -> NoReturn:
        """Refuse: a remote client's calls have one item each, and travel together by themselves."""
        raise errors.Unsupported(f"{method}: several items in one call, over tcp://")

    def give_back(self) -> None:
        """Send due releases, if possible."""
        if not self.forked:
            self._session.give_back()

    def close(self) -> None:
        """End the session; unanswered requests end with `PoolLost`. May be called twice. Not for a forked child."""
        if not self.forked:
            self._session.close()
            self._closer.close()

    def operator(self) -> RemoteOperator:
        """Return a session for questions and orders."""
        return RemoteOperator(self._session, self._questions)

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        self.forked = True
        self._session.forget_in_child(FORKED)

    @interrupts.defer_interrupts
    def _new_loop(self, loop: asyncio.AbstractEventLoop) -> LoopFace:
        notice_kernel()
        with self._session.lock:
            for old in [old for old in self._loops if old.is_closed()]:
                self._loops.pop(old).leave()
            face = self._loops[loop] = LoopFace(self._session, loop)
        return face


class RemoteOperator:
    """Questions and orders over a remote session; the key has to allow orders.

    Args:
        session: The session.
        ids: Numbers of questions.
    """

    def __init__(self, session: RemoteSession, ids: Iterator[int]) -> None:
        self._session = session
        self._ids = ids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Do nothing: the session is the client's."""

    def status(self, timeout_s: float = 10.0) -> operators.Status:
        """Return a snapshot of the pool."""
        answer: operators.Status = self._session.questions.ask(operators.StatusRequest(next(self._ids)), timeout_s)
        return answer

    def restart(self, device: int, timeout_s: float = 10.0) -> None:
        """Order the replacement of a device's worker; return once the order is taken."""
        self._session.questions.ask(operators.RestartRequest(next(self._ids), device), timeout_s)

    def reload(self, timeout_s: float) -> list[str]:
        """Order the replacement of the workers; see `Pool.reload`."""
        answer: operators.Reloaded = self._session.questions.ask(operators.ReloadRequest(next(self._ids)), timeout_s)
        return answer.pending

    def admit(self, request: suspects.RequestKey, timeout_s: float = 10.0) -> None:
        """Release a quarantined request."""
        self._session.questions.ask(operators.AdmitRequest(next(self._ids), request), timeout_s)


_CLIENTS: Final[weakref.WeakSet[RemoteClient]] = weakref.WeakSet()


def _forget_clients_in_child() -> None:
    for client in _CLIENTS:
        client.forget_in_child()


os.register_at_fork(after_in_child=_forget_clients_in_child)
