"""Decodes the first messages of several channels in several threads at the same moment, in one child after the other.

Argument: how many children. Prints the statuses of those that did not end well.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from atomr_mp import errors
from atomr_mp.libraries.base import check_fields
from atomr_mp.protocol import token
from atomr_mp.protocol.codec import Codec, ErrorInfo
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.messages import control, data, session

ENDED = session.IncarnationEnded(0, 1, False, ErrorInfo.of(errors.WorkerLost("killed")), [1], 0, [1], [])
REPLIES = data.Replies(bytes(token.TOKEN_BYTES), [data.CallReply(1, 0, b"\xc0")], [], 0, 1)
FIRST: list[tuple[Any, bytes]] = [
    (session.FROM_SUPERVISOR, session.FROM_SUPERVISOR.encode(session.IncarnationStopped(ENDED))),
    (session.FROM_CLIENT, session.FROM_CLIENT.encode(session.Bye(mapped=False))),
    (data.FROM_WORKER, data.FROM_WORKER.encode(REPLIES)),
    (control.FROM_WORKER, control.FROM_WORKER.encode(control.SessionClosed(3))),
]
"""The first message of each channel."""
THREADS = 4
"""Threads that have each."""


def learn() -> None:
    """Decode them all."""
    together = threading.Barrier(len(FIRST) * THREADS)

    def first(codec: Codec[object], message: bytes) -> None:
        together.wait()
        codec.decode(message)
        check_fields(memory.Empty([1], "float32"))

    threads = [threading.Thread(target=first, args=each) for each in FIRST for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


sys.setswitchinterval(1e-6)
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        learn()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(status)
