"""Has a peer flood the relay's router, which does not read, and be killed; outlives that by two heartbeats."""

from __future__ import annotations

import os
import signal
import sys
import time

import zmq

from atomr_mp.relay.router import RelayRouter
from atomr_mp.remote.curve import HEARTBEAT_MS
from atomr_mp.supervisor.loop import Loop

PACKETS = 20_000


def flood(endpoint: str) -> None:
    """Send more than is read, and end by a signal."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.connect(endpoint)
        for _ in range(PACKETS):
            dealer.send(bytes(1000))
        time.sleep(0.3)  # nothing tells when libzmq's thread has sent
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Do so, and say it."""
    router = RelayRouter(Loop(), lambda _: [], None, lambda *_: True, lambda *_: None)
    endpoint = f"ipc://{sys.argv[1]}"
    router.bind(endpoint)
    pid = os.fork()
    if pid == 0:
        flood(endpoint)
    os.waitpid(pid, 0)
    time.sleep(2 * HEARTBEAT_MS / 1000)  # a heartbeat would fall due: the duration is what is tested
    print("it lives", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
