"""msgpack as trees that can be changed, also to what no encoder writes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgpack

TEXTS: Final = (
    *("", "`$[9]", "`$.nobody", "$[0]", "`$", "%s{0}", "\0", "\ud800", "a" * 201, "é" * 70_000, "../x", "nan", "-1"),
    *("float32", "object", "U8", "Probe.echo", "memory.empty", "None", "2020-02-30", "1e999", "\u202e", "[" * 99),
)
INTEGERS: Final = tuple(
    sign * (2**bits + by) for bits in (0, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64) for by in (-1, 0, 1) for sign in (1, -1)
)
NUMBERS: Final = (0.0, -0.0, 0.5, -1.0, 1e308, 5e-324, math.inf, -math.inf, math.nan)
SCALARS: Final = (None, True, False, b"", b"\0", bytes(16), bytes(22), b"\xff" * 300, *NUMBERS)
LIES: Final = tuple(
    bytes.fromhex(each)
    for each in (
        *(
            "c1",
            "ddffffffff",
            "dfffffffff",
            "c6ffffffff",
            "dbffffffff",
            "c9ffffffff01",
            "dd0000ffff",
            "dc0001",
            "d9ff61",
        ),
        *("c90000000001", "d40100", "d5020000", "c70003", "a1ff", "d8ff" + "00" * 16, "c70cff" + "ff" * 12),
    )
)
"""Announcements of more than comes, unused codes, empty extensions, text that is not UTF-8, and times."""

DEPTHS: Final = (2, 63, 64, 65, 66, 500, 2000, 100_000)


class Raw(NamedTuple):
    """Bytes as they are written."""

    data: bytes


class Pairs(NamedTuple):
    """A map, whose keys may come twice."""

    items: list[list[Any]]


class Nested(NamedTuple):
    """Bytes, or an extension, with msgpack inside."""

    code: int | None
    """The extension's type; None for bytes."""
    content: list[Any]
    """The one value."""


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return a message with something changed in its structure; one that is no msgpack as it is."""
    try:
        tree = [parsed(data)]
        places = list(_places(tree))
    except (ValueError, msgpack.UnpackException, RecursionError):
        return data
    holder, at = rng.choice(places)
    if rng.random() < 0.2:
        other, there = rng.choice(places)
        if rng.random() < 0.5:
            holder[at], other[there] = other[there], holder[at]
        else:
            holder[at] = other[there]
    else:
        holder[at] = rng.choice(_CHANGES)(rng, holder[at])
    try:
        return packed(tree[0])
    except RecursionError:  # a value was put into itself
        return data


def parsed(data: bytes) -> Any:
    """Return msgpack as a tree."""
    return msgpack.unpackb(
        data,
        strict_map_key=False,
        unicode_errors="surrogateescape",
        object_pairs_hook=lambda pairs: Pairs([list(pair) for pair in pairs]),
        list_hook=lambda items: [_opened(None, each) if type(each) is bytes else each for each in items],
        ext_hook=_opened,
    )


def _opened(code: int | None, content: bytes) -> Any:
    """Return bytes as they are, or as a tree if they are a list or a map."""
    if content[:1] and (0x80 <= content[0] <= 0x9F or content[0] in {0xDC, 0xDD, 0xDE, 0xDF}):
        try:
            return Nested(code, [parsed(content)])
        except (ValueError, msgpack.UnpackException, RecursionError):
            pass
    return content if code is None else msgpack.ExtType(code, content)


def packed(node: Any) -> bytes:  # noqa: PLR0911 - one for each kind of node
    """Return a tree as msgpack."""
    match node:
        case Raw(data):
            return data
        case Pairs(items):
            return _head(len(items), 0x80, 0xDE) + b"".join(packed(each) for pair in items for each in pair)
        case Nested(None, [content]):
            return bytes(msgpack.packb(packed(content)))
        case Nested(int(code), [content]):
            data = packed(content)
            return b"\xc9" + len(data).to_bytes(4, "big") + bytes((code % 256,)) + data
        case list():
            return _head(len(node), 0x90, 0xDC) + b"".join(map(packed, node))
        case int() if not -(2**63) <= node < 2**64:
            return b"\xd3" + struct.pack(">q", -(2**63)) if node < 0 else b"\xcf" + b"\xff" * 8
        case _:
            return bytes(msgpack.packb(node, unicode_errors="surrogatepass"))


def _head(count: int, short: int, long: int) -> bytes:
    return bytes((short | count,)) if count < 16 else bytes((long + 1,)) + count.to_bytes(4, "big")


def _places(holder: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Yield all places of a tree: the list that holds a node, and where."""
    for at, node in enumerate(holder):
        yield holder, at
        match node:
            case Pairs(items):
                for pair in items:
                    yield from _places(pair)
            case Nested(_, content):
                yield from _places(content)
            case list():
                yield from _places(node)


def _other_scalar(rng: random.Random, _node: Any) -> Any:
    return rng.choice(rng.choice((TEXTS, INTEGERS, SCALARS)))


def _lie(rng: random.Random, _node: Any) -> Any:
    return Raw(rng.choice(LIES))


def _deeper(rng: random.Random, node: Any) -> Any:
    depth = rng.choice(DEPTHS)
    opening = rng.choice((b"\x91", b"\x81\xa1k", b"\xdc\x00\x01"))
    try:
        return Raw(opening * depth + packed(node))
    except RecursionError:
        return node


def _resized(rng: random.Random, node: Any) -> Any:
    """Return a list, map, text or bytes of another length; of any other value, several."""
    items: Any = node.items if isinstance(node, Pairs) else node
    if type(items) not in {list, str, bytes}:
        return [node] * rng.choice((0, 1, 2, 17, 300))
    if not items:
        return items
    at = rng.randrange(len(items))
    changed: Any = rng.choice(
        (items[:at], items[:at] + items[at + 1 :], items + items[at:], items * rng.choice((2, 9, 40)), items[:0])
    )
    return Pairs(changed) if isinstance(node, Pairs) else changed


def _near(rng: random.Random, node: Any) -> Any:  # noqa: PLR0911 - as above
    """Return almost the same."""
    match node:
        case bool() | None:
            return not node
        case int():
            return node + rng.choice((-1, 1, 7, -node - 1, 2**32, node))
        case float():
            return rng.choice((-node, node * 1e300, math.nextafter(node, 0.0)))
        case str():
            return rng.choice(
                (node + "\0", node.upper(), node[:-1], f"{node}.", f" {node}", node.encode(errors="ignore"))
            )
        case bytes():
            return rng.choice((node[:-1], node + b"\0", node[::-1], node.decode("latin-1")))
        case Nested(code, content):
            return Nested(rng.choice((None, 0, 1, 2, 3, 5, -1, code)), content)
        case Pairs(items):
            return [each for pair in items for each in pair]
        case list():
            return Pairs([[at, each] for at, each in enumerate(node)])
        case _:
            return None


_CHANGES: Final[tuple[Callable[[random.Random, Any], Any], ...]] = (
    *(_other_scalar, _other_scalar, _near, _near, _resized, _resized),
    *(_deeper, _lie),
)
