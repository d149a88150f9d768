"""Calls a pool with nothing but sockets, ZeroMQ and msgpack: a pattern for clients in other languages.

    python examples/raw_client.py RUNDIR Digits.predict '[[0, 0, 5, 13, ...]]'
    python examples/raw_client.py RUNDIR --stream Story.tell '[3]'

A stream prints its parts as they come, a line each, and then its result. It needs pyzmq, which calls on one machine do
not need otherwise. `docs/protocol.md` describes every message. A list of numbers, nested or not, is sent as an array.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgpack
import zmq

AHEAD_BYTES: Final = 2**24
"""Bytes of parts that may be unread."""
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
    """Make one call and print its result, or open one stream and print its parts."""
    parser = argparse.ArgumentParser(description="call a method of a running pool", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path, help="the pool's run directory")
    parser.add_argument("method", help="Actor.method")
    parser.add_argument("arguments", type=json.loads, help="JSON: a list by position, or a map by name")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--stream", action="store_true", help="the method streams")
    parser.add_argument("--ahead", type=int, default=16, metavar="PARTS", help="parts that may be unread")
    parser.add_argument("--most", type=int, default=None, metavar="PARTS", help="cancel the stream after so many")
    options = parser.parse_args()
    with Session(options.run_dir / "session.sock", options.deadline) as session:
        device = session.wait_admitted(options.device)
        with Worker(session, device, options.deadline) as worker:
            if options.stream:
                parts = Stream(worker, options.method, options.arguments, options.ahead)
                for part in itertools.islice(parts, options.most):
                    print(json.dumps(part), flush=True)
                if not parts.ended:
                    parts.cancel()
                error, result = parts.error, parts.result
            else:
                error, result = call(worker, options.method, options.arguments)
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


class Worker:
    """The connection to one incarnation of a device's worker."""

    def __init__(self, session: Session, device: list[Any], deadline_s: float) -> None:
        self.token = struct.pack(">16sHI", session.epoch, device[0], device[3])
        self.deadline_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(deadline_s * 1e9)
        self._context = zmq.Context()
        self._socket = worker = self._context.socket(zmq.DEALER)
        worker.setsockopt(zmq.LINGER, 1000)
        worker.setsockopt(zmq.HANDSHAKE_IVL, 0)
        worker.setsockopt(zmq.ROUTING_ID, b"s" + session.name + b"\x00")  # lane 0
        worker.setsockopt(zmq.PLAIN_USERNAME, session.name.hex().encode())
        worker.setsockopt(zmq.PLAIN_PASSWORD, session.secret.hex().encode())
        worker.connect(device[4])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        self._context.term()

    def send(self, tag: int, *fields: Any) -> None:
        """Send a message: its tag, the incarnation's token, and its fields."""
        self._socket.send(msgpack.packb([tag, self.token, *fields]))

    def receive(self) -> tuple[list[Any], list[bytes]]:
        """Return the next message and its payload frames."""
        left_ms = (self.deadline_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) // 1_000_000
        if not self._socket.poll(max(0, left_ms)):
            sys.exit("no answer within the deadline")
        header, frames = unpack(self._socket.recv())
        message: list[Any] = msgpack.unpackb(header)  # newer versions may add fields at the end
        return message, frames


def call(worker: Worker, method: str, arguments: Any) -> tuple[Any, Any]:
    """Make one call; return (error, result); one is None."""
    worker.send(1, [[1, method, worker.deadline_ns, 0, packed(arguments)]])  # id, method, deadline, frames, arguments
    (_tag, _token, replies, *_), frames = worker.receive()
    _id, _frames, body, error, *_ = replies[0]
    return error, None if error is not None else from_wire(body, frames)


class Stream:
    """A stream: iterate over its parts; then it has a `result`, or an `error`."""

    def __init__(self, worker: Worker, method: str, arguments: Any, ahead: int) -> None:
        self.error: Any = None
        self.result: Any = None
        self.ended = False
        self._worker = worker
        self._ahead = ahead
        self._granted = ahead
        until_ns, between_ns = worker.deadline_ns, 60_000_000_000
        credit = [ahead, AHEAD_BYTES, between_ns, until_ns]
        worker.send(6, [[1, method, until_ns, 0, packed(arguments), *credit]])

    def __iter__(self) -> Iterator[Any]:
        count = nbytes = 0
        while True:
            (tag, _token, items, *_), frames = self._worker.receive()
            if tag == 1:  # replies: the end
                _id, _frames, body, self.error, *_ = items[0]
                self.result = None if self.error is not None else from_wire(body, frames)
                self.ended = True
                return
            for _id, number, frame_count, body, part_bytes, *_ in items:
                if number != count:
                    sys.exit(f"part {number} has come where part {count} would")
                yield from_wire(body, frames[:frame_count])
                del frames[:frame_count]
                count, nbytes = count + 1, nbytes + part_bytes
                if 2 * (self._granted - count) <= self._ahead:  # half at a time: each grant is a message
                    self._granted = count + self._ahead
                    self._worker.send(7, [[1, self._granted, nbytes + AHEAD_BYTES]])

    def cancel(self) -> None:
        """End it, and wait for that; parts that come before are dropped."""
        self._worker.send(2, [1])
        for _ in iter(self._drop, True):
            pass

    def _drop(self) -> bool:
        (tag, *_), _frames = self._worker.receive()
        self.ended = tag == 1
        return self.ended


def packed(arguments: Any) -> bytes:
    """Return arguments as they are sent: a map by name, or a list by position."""
    if isinstance(arguments, dict):
        return bytes(msgpack.packb({name: to_wire(value) for name, value in arguments.items()}))
    return bytes(msgpack.packb([to_wire(value) for value in arguments]))


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
