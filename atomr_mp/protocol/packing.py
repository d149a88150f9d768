"""Texts and bytes that are too large for a body: they travel as an array of their lengths and one of their bytes. Pure.

Untyped decoding may take many times a body's size, so bodies are small. Bytes take no more than they are, so a long
`bytes` or `str`, and a list of these alone, may be larger.
"""

from __future__ import annotations

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

KINDS: Final[Mapping[str, type]] = {"bytes": bytes, "str": str, "list[bytes]": bytes, "list[str]": str}


class PackedTexts:
    """A value on its way into its packed form.

    Args:
        kind: One of `KINDS`.
        elements: Its elements; one for a value that is no list.
    """

    __slots__ = ("elements", "kind")

    def __init__(self, kind: str, elements: Sequence[str] | Sequence[bytes]) -> None:
        self.kind: Final = kind
        self.elements: Final = elements

    def parts(self) -> tuple[str, Any, Any]:
        """Return the content of the extension.

        Raises:
            ValueError: A text is no UTF-8.
        """
        import numpy as np

        encoded = [each.encode() if isinstance(each, str) else each for each in self.elements]
        lengths = np.fromiter(map(len, encoded), np.uint64, len(encoded))
        return self.kind, lengths, np.frombuffer(b"".join(encoded), np.uint8)


def packed(value: Any) -> Any:
    """Return arguments or a result with `PackedTexts` in the place of large texts and bytes, or the same object.

    Args:
        value: A tuple of arguments, a mapping of them by name, or a result.
    """
    if isinstance(value, tuple | dict):
        each_value = value if isinstance(value, tuple) else value.values()
        if _LARGE.isdisjoint(map(type, each_value)):
            return value
        found = list(map(_of_one, each_value))
        if PackedTexts not in map(type, found):
            return value
        return tuple(found) if isinstance(value, tuple) else dict(zip(value, found, strict=True))
    return _of_one(value)


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


_LARGE: Final = frozenset({bytes, str, list})
"""Types that may be packed."""


def _of_one(value: Any) -> Any:
    kind = type(value)
    if kind is bytes or kind is str:
        return PackedTexts(kind.__name__, [value]) if PACK_BYTES <= len(value) <= MAX_PACKED_BYTES else value
    if kind is not list or not value or len(value) > MAX_PACKED_ELEMENTS:
        return value
    element = type(value[0])
    if (element is not bytes and element is not str) or {element} != set(map(type, value)):
        return value
    is_large = PACK_BYTES <= sum(map(len, value)) <= MAX_PACKED_BYTES
    return PackedTexts(f"list[{element.__name__}]", value) if is_large else value
