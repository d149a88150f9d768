"""Texts and bytes that are too large for a body: they travel as an array of their lengths and one of their bytes. Pure.

Untyped decoding may take many times a body's size, so bodies are small. Bytes take no more than they are, so a long
`bytes` or `str`, and a list of these alone, may be larger, also inside dicts, lists and tuples.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

PACKED: Final = 4
"""msgpack extension type of such a value. Its content is the msgpack array [kind, lengths, bytes]: the kind is one of
`KINDS`, the lengths are an array of uint64, and the bytes one of uint8."""

PACKED_MARK: Final = b"\xc1"
"""Begins a body with such values, which is decoded in two steps; no msgpack begins so."""

PACK_BYTES: Final = 2**16
"""Values from this size on are packed, where the body would be too large."""

MAX_PACKED_BYTES: Final = 2**26
"""Most bytes of one such value: a worker's loop copies them."""

MAX_PACKED_ELEMENTS: Final = 2**18
"""Most elements of one such list: each takes far more memory than its bytes."""

MOST_DEPTH: Final = 16
"""How many containers around such a value are looked into."""

KINDS: Final[Mapping[str, type]] = {"bytes": bytes, "str": str, "list[bytes]": bytes, "list[str]": str}


class PackedTexts:
    """A value on its way into its packed form.

    Args:
        kind: One of `KINDS`.
        elements: Its elements; one for a value that is no list.
    """

    __slots__ = ("elements", "kind")

    def __init__(self, kind: str, elements: Sequence[str | bytes | bytearray]) -> None:
        self.kind: Final = kind
        self.elements: Final = elements

    def parts(self) -> tuple[str, Any, Any]:
        """Return the content of the extension.

        Raises:
            ValueError: A text is no UTF-8.
        """
        import numpy as np

        encoded = [str.encode(each) if isinstance(each, str) else memoryview(each).cast("B") for each in self.elements]
        lengths = np.fromiter(map(len, encoded), np.uint64, len(encoded))
        return self.kind, lengths, np.frombuffer(b"".join(encoded), np.uint8)


def packed(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return a value with `PackedTexts` in the place of large texts and bytes, or the same object if it has none.

    Args:
        value: A tuple of arguments, a mapping of them by name, or a result.
        depth: How many containers, one in the other, are looked into.
    """
    kind = type(value)
    if isinstance(value, _TEXTS):
        name = "str" if isinstance(value, str) else "bytes"
        return PackedTexts(name, [value]) if _is_large([value]) else value
    if kind is list and value and len(value) <= MAX_PACKED_ELEMENTS:
        element = type(value[0])
        if (element is bytes or element is str) and {element} == set(map(type, value)) and _is_large(value):
            return PackedTexts(f"list[{element.__name__}]", value)
    if kind not in _CONTAINERS or not depth:
        return value
    before = list(value.values()) if kind is dict else value
    after = [packed(each, depth - 1) for each in before]
    if all(map(operator.is_, before, after)):
        return value
    return dict(zip(value, after, strict=True)) if kind is dict else kind(after)


def unpacked(content: Any) -> Any:
    """Return the value of an extension's content.

    Raises:
        ValueError: The content is not a packed value.
    """
    kind, lengths, whole = content
    import numpy as np

    if kind not in KINDS:
        raise ValueError(f"a packed value of an unknown kind {kind[:20]!r}")
    arrays = (lengths, np.uint64), (whole, np.uint8)
    if any(type(each) is not np.ndarray or each.dtype != dtype or each.ndim != 1 for each, dtype in arrays):
        raise ValueError("a packed value without its lengths and its bytes")
    is_list = kind.startswith("list")
    if len(lengths) > MAX_PACKED_ELEMENTS or (not is_list and len(lengths) != 1):
        raise ValueError(
            f"a packed {kind} of {len(lengths)} elements; the limit is {MAX_PACKED_ELEMENTS if is_list else 1}"
        )
    if len(whole) > MAX_PACKED_BYTES:
        raise ValueError(f"a packed {kind} of {len(whole)} bytes; the limit is {MAX_PACKED_BYTES}")
    counts = lengths.tolist()
    if sum(counts) != len(whole):
        raise ValueError(f"packed values of {sum(counts)} bytes in {len(whole)}")
    data, found, at = whole.tobytes(), [], 0
    for count in counts:
        found.append(data[at : at + count])
        at += count
    elements: list[Any] = [each.decode() for each in found] if KINDS[kind] is str else found
    return elements if is_list else elements[0]


_TEXTS: Final = (str, bytes, bytearray)
_CONTAINERS: Final = frozenset({dict, list, tuple})


def _is_large(values: Sequence[Any]) -> bool:
    """Return whether texts, or bytes, are large enough to be packed, and no larger than may be."""
    count = sum(map(len, values))
    if not PACK_BYTES <= count <= MAX_PACKED_BYTES:
        return False
    most = sum(len(each) * (1 if not isinstance(each, str) or each.isascii() else 4) for each in values)
    return most <= MAX_PACKED_BYTES or _encoded_bytes(values) <= MAX_PACKED_BYTES


def _encoded_bytes(values: Sequence[Any]) -> int:
    return sum(len(str.encode(each, errors="surrogatepass")) if isinstance(each, str) else len(each) for each in values)
