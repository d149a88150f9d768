"""Makes msgspec's decoders, one at a time in a process.

msgspec (0.22) learns a class once, for all its decoders, and runs Python code meanwhile. A thread that needs the class
at that moment takes what is half learned, and the process dies by SIGSEGV. So every type that has classes in it is
learned here, under one lock, before anything else uses it; a guard in `scripts/guards` refuses other ways.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

_learning: Final = threading.RLock()
# A child has all classes whole, and finds the lock free.
os.register_at_fork(before=_learning.acquire, after_in_parent=_learning.release, after_in_child=_learning.release)

_known: Final[set[Any]] = set()


@overload
def decoder(
    type_: type[T],
    *,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> msgspec.msgpack.Decoder[T]: ...


@overload
def decoder(
    type_: Any,
    *,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> msgspec.msgpack.Decoder[Any]: ...


def decoder(
    type_: Any,
    *,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of msgpack for a type; hooks are msgspec's."""
    with _learning:
        return msgspec.msgpack.Decoder(type_, ext_hook=ext_hook, dec_hook=dec_hook)


def json_decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder of JSON for a type."""
    with _learning:
        return msgspec.json.Decoder(type_)


def known(type_: T) -> T:
    """Return a type that msgspec has learned, for `msgspec.convert` and for a `decode` that takes a type; hashable."""
    if type_ not in _known:
        with _learning:
            msgspec.msgpack.Decoder(type_)
            _known.add(type_)
    return type_
