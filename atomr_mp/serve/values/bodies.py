"""A request's body as JSON, with bounds on the work that it makes. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.flow.limits import MAX_DEPTH
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values.conversions import OddNumbers


def from_json(body: bytes, most_containers: int, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """Return a body's value.

    Args:
        body: The body.
        most_containers: Most lists and objects in it.
        decode: Returns the value of a text in the form of JSON that is meant.

    Raises:
        Problem: 400, the body is not JSON, or an object has a name twice; 413, it has too many lists and objects.
        InvalidRequest: It is nested too deeply.
    """
    objects = count_of(body, b"{")
    containers = objects + count_of(body, b"[")
    if containers > most_containers:
        outside = _outside_texts(body)
        if (found := outside.count(b"[") + outside.count(b"{")) > most_containers:
            raise Problem(
                413,
                "too_large",
                f"the body has {found} lists and objects, more than {most_containers}; send an array as a .npy file",
                facts={"limit_containers": most_containers},
            )
    try:
        value = decode(body)
    except RecursionError as error:
        raise errors.InvalidRequest(values.TOO_DEEP) from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Problem(400, "bad_request", f"the body is no JSON: {error}") from error
    if containers > MAX_DEPTH:
        values.check_depth(value)
    # One colon for each name of an object that has no objects in it: then no name is lost.
    plain = objects <= 1 and count_of(body, b":") == (len(value) if isinstance(value, dict) else 0)
    if not plain and objects and _outside_texts(body).count(b":") != _names(value):
        raise Problem(400, "bad_request", f"the body has the name {_repeated(body)!r} twice in one object")
    return value


def count_of(body: bytes, byte: bytes) -> int:
    """Return how often a byte is in a body.

    `bytes.count` looks at each byte by itself. `find` takes a fiftieth of its time, but for each byte that it finds.
    """
    if len(body) < SHORT_BYTES:
        return body.count(byte)
    found, at = 0, body.find(byte)
    while at >= 0 and found < FEW:
        found, at = found + 1, body.find(byte, at + 1)
    return found if at < 0 else body.count(byte)


SHORT_BYTES: Final = 1024
FEW: Final = 64
"""In a longer body, a byte that is there more often is counted by `bytes.count`."""


def odd_numbers(body: bytes) -> OddNumbers:
    """Return which odd numbers a body may have; a text may look like one."""
    shape = body.translate(_SHAPE)
    return OddNumbers(b"0." in shape, _LONG in shape)


_SHAPE: Final = bytes(ord("0") if byte in b"0123456789" else ord(".") if byte in b".eE" else 0 for byte in range(256))
"""Turns digits into 0, and what may come behind them in a number that is not whole into a point."""

_LONG: Final = b"0" * 19
"""Digits that a number beyond 64 bits has at least."""


def _outside_texts(body: bytes) -> bytes:
    """Return valid JSON without its texts."""
    return b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _names(value: Any) -> int:
    """Return how many names the objects in a value have."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            count += len(each)
            left += [inner for inner in each.values() if isinstance(inner, list | dict)]
        elif isinstance(each, list):
            left += [inner for inner in each if isinstance(inner, list | dict)]
    return count


def _repeated(body: bytes) -> str:
    """Return the first name that an object has twice."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                found.append(name)
            names.add(name)

    found: list[str] = []
    json.loads(body, object_pairs_hook=look)
    return found[0][:100] if found else ""
