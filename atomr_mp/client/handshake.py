"""The beginning of every session with a supervisor, a client's or an observer's."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process.scheduling import silence
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.own_time import Patience
from atomr_mp.transport.session import SessionEnd, receive_within

HELLO_TIMEOUT_S: Final = 30.0
"""How long a supervisor may take to answer a hello, its own start included."""


def greet(
    connection: SessionEnd,
    name: str,
    *,
    observer: bool,
    weight: float = 1.0,
    origin: session.RemoteOrigin | None = None,
    probe: bool = False,
    timeout_s: float = HELLO_TIMEOUT_S,
) -> session.Welcome:
    """Say hello and return the answer.

    Args:
        connection: Just connected.
        name: This client's name.
        observer: Whether the session is for questions and orders only, never for calls.
        weight: The share of a busy device's time that it asks for, beside other sessions.
        origin: The client on another machine that it serves, if any.
        probe: It is an operator's, for a few calls.
        timeout_s: How long the supervisor may take to answer.

    Raises:
        PoolLost: The supervisor is gone, or does not answer.
        AtomrError: Why the supervisor refuses the session.
    """
    hello = session.Hello(
        VERSION,
        name[:200],
        observer,
        shared_memory=not observer,
        weight=float(weight),
        origin=origin,
        slab_offers=not observer,
        probe=probe,
    )
    try:
        connection.send(hello)
    except errors.PoolLost as lost:
        if (refused := connection.goodbye()) is not None:  # sent before it had read anything
            raise refused.error() from lost
        raise
    try:
        answer = receive_within(connection, Patience(timeout_s, time.monotonic))
    except TimeoutError as error:
        raise errors.PoolLost(silence(connection.supervisor_pid, timeout_s)) from error
    match answer:
        case session.Welcome():
            session.check_version(answer.version)
            return answer
        case session.Goodbye(refused):
            raise refused.error()
        case _:
            raise errors.ProtocolError(f"the supervisor answered the hello with {type(answer).__name__}")


def default_name() -> str:
    """Return a client's default name: its program and pid."""
    return f"{Path(sys.argv[0] or 'python').name}[{os.getpid()}]"
