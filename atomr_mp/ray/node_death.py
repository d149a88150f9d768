"""Decides when a node that is called by its gateway counts as dead. An edge."""

from __future__ import annotations

import socket
import time
from typing import Final

from atomr_mp import errors
from atomr_mp.remote.link_life import RemoteLinkState
from atomr_mp.remote.session import RemoteSession

PROBE_S: Final = 0.5
"""How long connecting to the endpoint of a cut connection may take. A silent gateway counts as cut after 1.5 s, so the
death of a machine is known within 2 s."""

GATEWAY_S: Final = 10.0
"""How long a pool that still listens may take to have a gateway that answers: a gateway that hangs is replaced after 5
s."""

OPEN_S: Final = 3600.0
"""Time between looks at a session that is open; its changes wake the thread at once."""


def wait_lost(session: RemoteSession, node: int, gateway_s: float = GATEWAY_S) -> errors.PoolLost:
    """Wait until a remote session has ended or its node counts as dead; return the error for its calls.

    A cut alone is not a death: while a pool lives, its supervisor listens, even if the gateway has just ended.

    Args:
        session: The session.
        node: The node's index, for the error.
        gateway_s: How long a pool that listens may take to answer.
    """
    try:
        while True:
            session.wait_until(lambda: session.state is not RemoteLinkState.OPEN, OPEN_S)
            until = time.monotonic() + gateway_s
            while session.state is not RemoteLinkState.OPEN:
                session.check_lost()
                if not listens(session.endpoint) or time.monotonic() > until:
                    return _lose(session, node)
                session.wait_until(lambda: session.state is RemoteLinkState.OPEN, PROBE_S)
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


def _lose(session: RemoteSession, node: int) -> errors.PoolLost:
    lost = errors.PoolLost(f"node {node} does not answer at {session.endpoint} any more, and its pool counts as lost")
    with session.lock:
        session.lose(lost)
    session.call_back()
    return lost
