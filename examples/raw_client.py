"""Calls a pool with nothing but sockets, ZeroMQ and msgpack: a pattern for clients in other languages.

    python examples/raw_client.py RUNDIR Digits.predict '[[0, 0, 5, 13, ...]]'

It needs pyzmq, which the package itself does not. `docs/protocol.md` describes every message. A list of numbers, nested
or not, is sent as an array.
"""

from __future__ import annotations

import argparse
import array
import itertools
import json
import math
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, Self

import msgpack
import zmq

ARRAY: Final = 1
"""msgpack extension type of an array."""
PACKED: Final = 0xC1
"""First byte of a message that has payload frames."""
NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
ELEMENTS: Final = dict(zip(NAMES, "?bhiqBHIQefd", strict=True))
"""Element types, by their letters in Python's `struct`; complex ones are left out here."""


def main() -> int:
    """Make one call and print its result."""
    parser = argparse.ArgumentParser(description="call a method of a running pool", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path, help="the pool's run directory")
    parser.add_argument("method", help="Actor.method")
    parser.add_argument("arguments", type=json.loads, help="JSON: a list by position, or a map by name")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=30.0, metavar="SECONDS")
    options = parser.parse_args()
    with Session(options.run_dir / "session.sock", options.deadline) as session:
        device = session.wait_admitted(options.device)
        error, result = call(session, device, options.method, options.arguments, options.deadline)
    if error is not None:
        code, message, _facts = error
        sys.exit(f"{code}: {message}")
    print(json.dumps(result))
    return 0


class Session:
    """The connection to the supervisor. Closing it ends the session, and all that it has asked for."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")
        self._send(["hello", 2, f"raw_client[{os.getpid()}]"])
        welcome = self.receive()
        if welcome[0] == "goodbye":
            sys.exit(f"the pool refuses this client: {welcome[1][1]}")
        _tag, _version, _pool, self.epoch, _pid, self.name, self.secret, _window, self.devices, *_ = welcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stream.close()
        self._socket.close()

    def receive(self) -> list[Any]:
        """Return the next message: its tag, then its fields."""
        (length,) = struct.unpack(">I", self._read(4))
        message: list[Any] = msgpack.unpackb(self._read(length))
        return message

    def wait_admitted(self, index: int) -> list[Any]:
        """Return a device once its worker knows this session; calls that come before are refused."""
        if index >= len(self.devices):
            sys.exit(f"the pool has {len(self.devices)} devices")
        device: list[Any] = self.devices[index]
        while not device[5]:
            if device[2] == "stopped":
                sys.exit(f"device {index} is stopped: {device[8]}")
            message = self.receive()
            if message[0] == "goodbye":
                sys.exit(f"the pool ends this session: {message[1][1]}")
            if message[0] == "device" and message[1][0] == index:
                device = message[1]
        return device

    def _send(self, message: list[Any]) -> None:
        data = msgpack.packb(message)
        self._socket.sendall(struct.pack(">I", len(data)) + data)

    def _read(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            sys.exit("the pool is gone")
        return data


def call(session: Session, device: list[Any], method: str, arguments: Any, deadline_s: float) -> tuple[Any, Any]:
    """Make one call; return (error, result); one is None."""
    token = struct.pack(">16sHI", session.epoch, device[0], device[3])
    deadline_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(deadline_s * 1e9)
    if isinstance(arguments, dict):
        body = msgpack.packb({name: to_wire(value) for name, value in arguments.items()})
    else:
        body = msgpack.packb([to_wire(value) for value in arguments])
    one_call = [1, method, deadline_ns, 0, body]  # id, method, deadline, payload frames, arguments

    context = zmq.Context()
    worker = context.socket(zmq.DEALER)
    worker.setsockopt(zmq.LINGER, 0)
    worker.setsockopt(zmq.HANDSHAKE_IVL, 0)
    worker.setsockopt(zmq.ROUTING_ID, b"s" + session.name + b"\x00")  # lane 0
    worker.setsockopt(zmq.PLAIN_USERNAME, session.name.hex().encode())
    worker.setsockopt(zmq.PLAIN_PASSWORD, session.secret.hex().encode())
    worker.connect(device[4])
    try:
        worker.send(msgpack.packb([1, token, [one_call]]))
        if not worker.poll(int(deadline_s * 1000)):
            sys.exit("no answer within the deadline")
        header, frames = unpack(worker.recv())
    finally:
        worker.close()
        context.term()
    _tag, _token, replies, *_ = msgpack.unpackb(header)  # newer versions may add fields at the end
    _id, _frames, body, error, *_ = replies[0]
    return error, None if error is not None else from_wire(body, frames)


def unpack(message: bytes) -> tuple[bytes, list[bytes]]:
    """Return the header and the payload frames of a message."""
    if message[0] != PACKED:
        return message, []
    (count,) = struct.unpack_from("<xxH", message)
    header_bytes, *lengths = struct.unpack_from(f"<{1 + count}I", message, 4)
    at = 4 + 4 * (1 + count)
    header = message[at : at + header_bytes]
    at += header_bytes
    frames = []
    for length in lengths:
        at += -at % 8
        frames.append(message[at : at + length])
        at += length
    return header, frames


def to_wire(value: Any) -> Any:
    """Return a value as it is packed: a list of numbers becomes an array, anything else stays."""
    shape = shape_of(value)
    if not shape:
        return value
    flat = value
    for _ in shape[1:]:
        flat = list(itertools.chain.from_iterable(flat))
    floating = any(isinstance(number, float) for number in flat)
    elements = array.array("d" if floating else "q", flat)
    if sys.byteorder == "big":
        elements.byteswap()
    content = ["float64" if floating else "int64", shape, elements.tobytes()]
    return msgpack.ExtType(ARRAY, msgpack.packb(content))


def shape_of(value: Any) -> list[int]:
    """Return the shape of a list of numbers, nested evenly; empty if the value is none."""
    if not isinstance(value, list) or not value:
        return []
    if all(type(item) in {int, float} for item in value):
        return [len(value)]
    inner = [shape_of(item) for item in value]
    return [len(value), *inner[0]] if inner[0] and all(shape == inner[0] for shape in inner) else []


def from_wire(body: bytes, frames: list[bytes]) -> Any:
    """Return the value in a body; arrays become lists."""

    def extension(code: int, data: bytes) -> Any:
        if code != ARRAY:
            sys.exit(f"unknown extension type {code}")
        kind, shape, content = msgpack.unpackb(data)
        raw = frames[content] if isinstance(content, int) else content
        return nested(list(struct.unpack(f"<{math.prod(shape)}{ELEMENTS[kind]}", raw)), shape)

    return msgpack.unpackb(body, ext_hook=extension, strict_map_key=False)


def nested(flat: list[Any], shape: list[int]) -> Any:
    """Return the elements, in C order, as lists within lists."""
    for length in reversed(shape[1:]):
        flat = [flat[at : at + length] for at in range(0, len(flat), length or 1)]
    return flat if shape else flat[0]


if __name__ == "__main__":
    sys.exit(main())
