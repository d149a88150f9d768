"""Decides when a node that is called by its relay counts as dead. An edge."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from atomr_mp import errors

PROBE_S: Final = 0.5
"""How long connecting to the endpoint of a cut connection may take. A silent relay counts as cut after 1.5 s, so the
death of a machine is known within 2 s."""

RELAY_S: Final = 10.0
"""How long a pool that still listens may take to have a relay that answers: one that hangs is replaced after 5 s."""

LOOK_S: Final = 0.25
"""Time between looks at whether the connection is cut: nothing else ends that wait."""


class RemoteNode(Protocol):
    """A client of the node's pool, as far as its life is concerned."""

    @property
    def endpoint(self) -> str:
        """Where its relay listens."""

    @property
    def connected(self) -> bool:
        """Whether its connection is not cut, as far as is known."""

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition, as `Client.wait_until`.

        Raises:
            PoolLost: The session has ended.
        """

    def lose(self, lost: errors.PoolLost) -> None:
        """End the session."""


def wait_lost(client: RemoteNode, node: int, relay_s: float = RELAY_S) -> errors.PoolLost:
    """Wait until a remote session has ended or its node counts as dead; return the error for its calls.

    A cut alone is not a death: while a pool lives, its supervisor listens, even if the relay has just ended.

    Args:
        client: The client.
        node: The node's index, for the error.
        relay_s: How long a pool that listens may take to answer.
    """
    try:
        while True:
            while client.connected:
                client.wait_until(lambda: not client.connected, LOOK_S)
            until = time.monotonic() + relay_s
            while not client.wait_until(lambda: client.connected, LOOK_S):
                if not listens(client.endpoint) or time.monotonic() > until:
                    lost = errors.PoolLost(
                        f"node {node} does not answer at {client.endpoint} any more, and its pool counts as lost"
                    )
                    client.lose(lost)
                    return lost
    except errors.PoolLost as lost:
        return lost


def listens(endpoint: str) -> bool:
    """Return whether a process listens at an endpoint, "tcp://HOST:PORT"; blocks for `PROBE_S` at most."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except OSError:
        return False
    return True
