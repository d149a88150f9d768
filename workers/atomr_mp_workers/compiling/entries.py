"""The form of an entry of the disk cache. Pure.

An entry begins with a mark, its own key, the length and the SHA-256 of the key and the rest; the rest is the code in
msgpack. So an entry that is cut off, damaged, or under another's name is found out.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec

from atomr_mp.protocol.decoders import decoder
from atomr_mp_workers.compiling.jobs import CompiledCode

MARK: Final = b"atomrCC1"
_HEAD: Final = struct.Struct("<8s32sQ32s")

MAX_ENTRY_BYTES: Final = 2**27
"""More than any code with its names takes."""


def encode(key: str, code: CompiledCode) -> bytes:
    """Return the entry of a code."""
    rest = _encode(code)
    return _HEAD.pack(MARK, bytes.fromhex(key), len(rest), _checksum(bytes.fromhex(key), rest)) + rest


def decode(key: str, entry: bytes) -> CompiledCode | None:
    """Return the code of an entry, None if it is not an intact entry of this key."""
    if len(entry) < _HEAD.size:
        return None
    mark, told, length, checksum = _HEAD.unpack_from(entry)
    rest = memoryview(entry)[_HEAD.size :]
    if (mark, told, length) != (MARK, bytes.fromhex(key), len(rest)) or checksum != _checksum(told, rest):
        return None
    try:
        code: CompiledCode = decoder(CompiledCode).decode(rest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return code


def _checksum(key: bytes, rest: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key)
    digest.update(rest)
    return digest.digest()


_encode: Final = msgspec.msgpack.Encoder().encode
