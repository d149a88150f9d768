"""Tries a random key on the relay's own socket before any client can connect, since libzmq fails open."""

from __future__ import annotations

import time
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from atomr_mp import errors
from atomr_mp.remote.curve import set_heartbeats, set_keys
from atomr_mp.remote.keys import ClientKeys, new_pair

PROBE_S: Final = 10.0
"""How long the relay may take to refuse a key."""


def check_refuses(endpoint: str, server_public: str) -> None:
    """Check that a key that was not admitted is refused. Blocks; run it in a thread while the loop answers.

    Args:
        endpoint: Where the relay's socket listens for this check only.
        server_public: Its key.

    Raises:
        NotAuthorized: The key was admitted, or not refused in time: the relay must not listen.
    """
    pair = new_pair()
    with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            set_heartbeats(socket)
            set_keys(socket, ClientKeys(name="probe", public=pair.public, secret=pair.secret, server=server_public))
            socket.connect(endpoint)
            until = time.monotonic() + PROBE_S
            while monitor.poll(int(max(0.0, until - time.monotonic()) * 1000)):
                event = recv_monitor_message(monitor)["event"]
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    return
                raise errors.NotAuthorized("libzmq has admitted a random key: the relay does not listen")
            raise errors.NotAuthorized(f"a random key was not refused within {PROBE_S:g} s: the relay does not listen")
        finally:
            socket.disable_monitor()
            monitor.close(0)
