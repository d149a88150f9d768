"""Listens for gRPC in a front end's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Final

import grpc

from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.oip.grpc.service import GrpcService

_LOG: Final = logging.getLogger("atomr_mp.serve")

BOUNDED: Final = (1, 84)
"""The first version of gRPC that stops to decompress a request where it grows beyond the limit."""

AFTER_CUT_S: Final = 2.0
"""How long calls may take to end once the server has waited long enough."""

LOOP: Final = "_server_main_loop"
"""The name that gRPC's own loop has."""

PING_EVERY_S: Final = 60
"""How often a connection with calls is asked whether its client is alive; `PING_ANSWER_S` later it is closed."""

PING_ANSWER_S: Final = 20

PINGED_EVERY_S: Final = 10
"""How often a client may ask whether the server is alive; one that asks more often loses its connection."""


class GrpcServer:
    """Serves gRPC at addresses.

    Args:
        service: Answers calls.
        limits: Limits of clients.
    """

    def __init__(self, service: GrpcService, limits: Limits) -> None:
        self._service: Final = service
        self._limits: Final = limits
        self._server: Any = None
        self._loops: set[asyncio.Task[Any]] = set()
        """gRPC's own loop, which takes the calls; empty if this version has none that can be found."""
        self._keeper: asyncio.Task[None] | None = None
        """Starts the server again if it ends by itself."""

    async def start(self, address: str, uds: str, tls: tuple[Path, Path] | None) -> None:
        """Accept calls from now on.

        Args:
            address: An IP address and a port; empty for none. Other processes of this user may share it.
            uds: The path of a unix socket, for this user only; empty for none.
            tls: The certificate chain and its private key, for the address; None for plain connections.

        Raises:
            RuntimeError: One of them cannot be listened at.
        """
        await self._open(address, uds, tls)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(address, uds, tls))

    async def _open(self, address: str, uds: str, tls: tuple[Path, Path] | None) -> None:
        server = self._server = grpc.aio.server(
            handlers=(self._service,), options=_options(self._limits), maximum_concurrent_rpcs=self._limits.connections
        )
        if address and tls is not None:
            certificate, key = tls
            credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
            server.add_secure_port(address, credentials)
        elif address:
            server.add_insecure_port(address)
        if uds:
            before = os.umask(0o177)
            try:
                server.add_insecure_port(f"unix:{uds}")
            finally:
                os.umask(before)
        others = asyncio.all_tasks()
        await server.start()
        self._loops = {
            each for each in asyncio.all_tasks() - others if getattr(each.get_coro(), "__name__", "") == LOOP
        }

    async def _keep(self, address: str, uds: str, tls: tuple[Path, Path] | None) -> None:
        """Start the server again whenever it has ended by itself: gRPC's own loop ends at a path that is no UTF-8."""
        while self._loops:
            ended, _ = await asyncio.wait(self._loops)
            for each in ended:
                each.exception()  # is told here
            _LOG.error("gRPC's server has ended by a fault of its own; it starts again, and its calls have ended")
            with contextlib.suppress(TimeoutError):  # else its clients would wait at connections that nobody serves
                await asyncio.wait_for(self._server.stop(None), AFTER_CUT_S)
            await self._open(address, uds, tls)

    async def end(self, within_s: float) -> None:
        """Take no further call, and end those that run.

        Args:
            within_s: How long they may take to be answered; then they are cancelled.
        """
        if self._keeper is not None:
            self._keeper.cancel()
        stopping = asyncio.ensure_future(self._server.stop(within_s + AFTER_CUT_S))
        await asyncio.wait({stopping}, timeout=within_s)
        if not stopping.done():
            self._service.cut()
        await stopping


def _options(limits: Limits) -> list[tuple[str, int]]:
    version = tuple(int(each) for each in grpc.__version__.split(".")[:2])
    no_compression = [] if version >= BOUNDED else [("grpc.compression_enabled_algorithms_bitset", 1)]
    return [
        *no_compression,
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", limits.raw_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.connections),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_connection_idle_ms", int(limits.idle_s * 1000)),
        ("grpc.server_handshake_timeout_ms", int(limits.header_s * 1000)),
        ("grpc.keepalive_time_ms", PING_EVERY_S * 1000),
        ("grpc.keepalive_timeout_ms", PING_ANSWER_S * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", PINGED_EVERY_S * 1000),
    ]
