"""The base's worker, a program: answers calls on a ROUTER until it is killed.

Arguments: the endpoint to bind, the generation, modules to import. It writes a line to its output once
it can be called.
"""

from __future__ import annotations

import importlib
import sys

import msgpack
import zmq

endpoint, generation = sys.argv[1], int(sys.argv[2])
for name in sys.argv[3:]:
    importlib.import_module(name)


def answer(their_generation: int, sequence: int, operation: int, payload: object) -> tuple[int, int, object]:
    """Return the answer to a call: its payload if it is an echo. A refusal is recognised by its generation."""
    if their_generation != generation:
        return generation, sequence, None
    return generation, sequence, payload if operation else None


def main() -> None:
    """Serve."""
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    socket.bind(endpoint)
    print("ready", flush=True)
    while True:
        identity, message = socket.recv_multipart()
        socket.send_multipart([identity, msgpack.packb(answer(*msgpack.unpackb(message)))])


main()
