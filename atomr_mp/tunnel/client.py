"""A remote client: an ordinary one, with the tunnel's connections."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.client.client import MAX_WAITING, Client
from atomr_mp.client.handshake import HELLO_TIMEOUT_S
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.protocol.tunnel.endpoints import parse
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.transport.data import Login
from atomr_mp.tunnel.channel import GRACE_S, ChannelCalls, ClientChannel, opening
from atomr_mp.tunnel.dialler import Dialler
from atomr_mp.tunnel.forks import forget_in_child
from atomr_mp.tunnel.keeper import ChannelKeeper
from atomr_mp.tunnel.lane import LaneConnection
from atomr_mp.tunnel.memory_channel import MemoryCopier
from atomr_mp.tunnel.session import CONNECT_S, CarriedSession
from atomr_mp.tunnel.uploads import ArgumentUploads

if TYPE_CHECKING:
    from atomr_mp.client.memory.memory import ClientMemory


class Tunnel:
    """The channels of one client.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.

    Raises:
        ConfigurationError: libzmq is unfit, or takes no such endpoint.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None) -> None:
        self._dialler: Final = Dialler(endpoint, keys)
        self._keeper: Final = ChannelKeeper()
        self.uploads: Final = ArgumentUploads()
        """Arguments that are being copied."""
        self._session = b""
        """The name of the session's channel."""
        self._grace_s = GRACE_S
        """How long the relay keeps channels without a connection."""

    def session(self, kind: ChannelKind = ChannelKind.SESSION, connect_s: float = CONNECT_S) -> CarriedSession:
        """Connect a session, for calls or for an operator. Blocks.

        Args:
            kind: Which of them.
            connect_s: How long the relay may take to answer.

        Raises:
            AtomrError: There is none to be had; see `CarriedSession`.
        """
        name = os.urandom(16)
        dial = functools.partial(self._dialler.dial, watched=True)
        calls = ChannelCalls(dial, self._keeper.wake)
        clock = PoolClock()

        def opens() -> ClientChannel:
            return ClientChannel(opening(kind, name, name), calls, clock=clock)

        connection = CarriedSession(opens, self._dialler.endpoint, clock, connect_s)
        try:
            self._keeper.add(connection)
        except BaseException:
            connection.close()
            raise
        if kind is ChannelKind.SESSION:
            self._session, self._grace_s = name, connection.grace_s
        return connection

    def lane(self, endpoint: str, login: Login, number: int, pending: Callable[[Any], object]) -> LaneConnection:
        """Connect a lane to an incarnation.

        Raises:
            OSError: No descriptor is left.
        """
        device, generation = parse(endpoint)
        opens = opening(ChannelKind.LANE, os.urandom(16), self._session, device, generation)
        channel = ClientChannel(opens, ChannelCalls(self._dialler.dial, self._keeper.wake), self._grace_s)
        try:
            self._keeper.add(channel)
            return LaneConnection(channel, self.uploads, login, number, pending)
        except BaseException:
            channel.close()
            raise

    def memory(self) -> ClientChannel:
        """Open a channel for memory, which ends with its connection.

        Raises:
            OSError: No descriptor is left.
        """
        dial = functools.partial(self._dialler.dial, large=True)
        return ClientChannel(opening(ChannelKind.MEMORY, os.urandom(16), self._session), ChannelCalls(dial))

    def close(self) -> None:
        """Refuse to make further channels. Open ones stay open."""
        self._keeper.join()
        self._dialler.close()


class CarriedClient(Client):
    """One session with a pool on another machine. Thread-safe; not to be used in a forked child.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.
        name: This client's name in logs and `status`.
        max_replays: How often a lost request is sent again; None for the pool's setting.
        max_waiting: How many calls may wait for room in each event loop, and in all threads together.

    Raises:
        PoolUnreachable: No relay answers, or it has another key.
        NotAuthorized: It does not admit our key.
        AtomrError: Why it refuses the session.
    """

    def __init__(
        self,
        endpoint: str,
        keys: ClientKeys | None,
        name: str | None = None,
        max_replays: int | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.endpoint: Final = endpoint
        self._tunnel: Final = Tunnel(endpoint, keys)
        try:
            connection = self._carried = self._tunnel.session()
            super().__init__(connection, name, max_replays, max_waiting=max_waiting, connect=self._tunnel.lane)
        except BaseException:
            self._tunnel.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether its connection is not cut, as far as is known."""
        return self._carried.connected

    def lose(self, lost: errors.PoolLost) -> None:
        """Take the pool for lost, and end all that is unanswered; whoever waits for it hears of it."""
        self._carried.lose(lost)
        self._session.read()

    def operator(self, timeout_s: float = HELLO_TIMEOUT_S) -> OperatorSession:
        """Return a session for questions and orders; the key has to allow orders.

        Args:
            timeout_s: How long the relay, and then the supervisor, may take to answer.
        """
        until_s = time.monotonic() + timeout_s
        connection = self._tunnel.session(ChannelKind.OPERATOR, min(timeout_s, CONNECT_S))
        return OperatorSession(connection, max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """End the session; unanswered requests end with `PoolLost`. May be called twice."""
        closes = not (self._closed or self.forked)
        super().close()
        if closes:
            self._tunnel.close()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child, libzmq's sockets first: nothing may use them there."""
        forget_in_child()
        super().forget_in_child()

    def _make_memory(self) -> ClientMemory:
        from atomr_mp.tunnel.memory import CarriedMemory  # late: it takes NumPy

        copier = MemoryCopier(self._tunnel.memory, self._check, self._carried.returns)
        return CarriedMemory(copier, self._tunnel.uploads, **self._memory_options())

    def _check(self, *, reads: bool) -> None:
        """Raise the error of a session that has ended; read in the session first, if that is wanted."""
        if reads:
            self._session.read()
        if self.lost is not None:
            raise self.lost.again(maybe_executed=False)
