"""Accepts connections for an application, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from typing import Final

from atomr_mp.serve.front_end.connection import Asgi, HttpConnection, Settings
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import REFUSED, Counters

BACKLOG: Final = 2048

AFTER_CANCEL_S: Final = 2.0
"""How long requests may take to end once the server has waited long enough."""

OUT_OF_DESCRIPTORS_S: Final = 0.2
"""How long to wait before the next connection is accepted where no descriptor was left for one."""

_LOG: Final = logging.getLogger("atomr_mp.serve")


class HttpServer:
    """Serves HTTP/1.1 on a socket.

    Args:
        application: The ASGI application.
        limits: Limits of clients.
        counters: Counters of connections.
        unread: Bounds what clients do not read.
        tls: The context of TLS; None for plain HTTP.
        own_user_only: Whether the socket is a unix socket, for this user and root only.
    """

    def __init__(
        self,
        application: Asgi,
        limits: Limits,
        counters: Counters,
        unread: UnreadAnswers,
        *,
        tls: ssl.SSLContext | None = None,
        own_user_only: bool = False,
    ) -> None:
        self._connections: Final[set[HttpConnection]] = set()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._handshakes: Final[set[asyncio.Task[None]]] = set()
        self._tls: Final = tls
        self._limits: Final = limits
        self._counters: Final = counters
        scheme = "http" if tls is None else "https"
        self._settings: Final = Settings(
            application, limits, counters, self._connections, self._tasks, unread, own_user_only, scheme
        )
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections from now on; the socket is owned from here on."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        if self._tls is None:
            self._server = await loop.create_server(self._connection, sock=listening, backlog=BACKLOG)
        else:
            self._accepting = loop.create_task(self._accept(listening, self._tls))

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._settings)

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections one at a time, so that those in the middle of a handshake are counted."""
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    _LOG.warning("no connection can be accepted now: %s", error)
                    await asyncio.sleep(OUT_OF_DESCRIPTORS_S)  # nothing tells that a descriptor is free again
                    continue
                if len(self._handshakes) + len(self._connections) >= self._limits.connections:
                    self._counters.own[REFUSED] += 1
                    accepted.close()
                    continue
                task = loop.create_task(self._shake_hands(accepted, tls))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, accepted, ssl=tls, ssl_handshake_timeout=self._limits.header_s
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError; the socket is closed
            self._counters.own[REFUSED] += 1

    async def end(self, within_s: float) -> None:
        """Accept nothing more, and end all connections.

        Args:
            within_s: How long requests may take to be answered; then their tasks are cancelled.
        """
        if self._server is not None:
            self._server.close()
        for task in (*self._handshakes, *([] if self._accepting is None else [self._accepting])):
            task.cancel()
        for connection in list(self._connections):
            connection.end_in_order()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self._tasks and (left_s := until_s - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=AFTER_CANCEL_S)
        await self._closed(max(until_s - loop.time(), AFTER_CANCEL_S))

    async def _closed(self, within_s: float) -> None:
        """Let clients read their last answers; then close what is left."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        for connection in list(self._connections):
            connection.leaving.add(functools.partial(self._look_whether_gone, gone))
        self._look_whether_gone(gone)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(loop.time() + within_s):
                await gone.wait()
        for connection in list(self._connections):
            connection.abort()

    def _look_whether_gone(self, gone: asyncio.Event) -> None:
        if not self._connections:
            gone.set()
