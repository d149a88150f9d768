"""Listens for gRPC in a front end's own event loop."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import grpc

from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.oip.grpc.service import GrpcService

BOUNDED: Final = (1, 84)
"""The first version of gRPC that stops to decompress a request where it grows beyond the limit."""

AFTER_CUT_S: Final = 2.0
"""How long calls may take to end once the server has waited long enough."""

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
        self._server: Final = grpc.aio.server(
            handlers=(service,), options=_options(limits), maximum_concurrent_rpcs=limits.connections
        )

    async def start(self, address: str, uds: str, tls: tuple[Path, Path] | None) -> None:
        """Accept calls from now on.

        Args:
            address: An IP address and a port; empty for none. Other processes of this user may share it.
            uds: The path of a unix socket, for this user only; empty for none.
            tls: The certificate chain and its private key, for the address; None for plain connections.

        Raises:
            RuntimeError: One of them cannot be listened at.
        """
        if address and tls is not None:
            certificate, key = tls
            credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
            self._server.add_secure_port(address, credentials)
        elif address:
            self._server.add_insecure_port(address)
        if uds:
            before = os.umask(0o177)
            try:
                self._server.add_insecure_port(f"unix:{uds}")
            finally:
                os.umask(before)
        await self._server.start()

    async def end(self, within_s: float) -> None:
        """Take no further call, and end those that run.

        Args:
            within_s: How long they may take to be answered; then they are cancelled.
        """
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
