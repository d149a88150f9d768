"""An actor that keeps one exception for each of its methods, and changes it for each request."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Live, Steps, method

KINDS: Final[dict[str, type[BaseException]]] = {
    "ordinary": ValueError,
    "of the package": errors.InvalidRequest,
    "of memory": MemoryError,
    "torch's": RuntimeError,
    "with notes": KeyError,
}

_kept: defaultdict[str, dict[str, Any]] = defaultdict(dict)


def reused(where: str, kind: str, number: int) -> Any:
    """Return the one exception of a place, with a request's own text."""
    text = f"CUDA error: number {number}." if kind == "torch's" else f"number {number}."
    kept = _kept[where]
    if kind not in kept:
        kept[kind] = KINDS[kind](text)
    error = kept[kind]
    error.args = (text,)
    if isinstance(error, errors.AtomrError):
        error.message = text
    if kind == "with notes":
        error.__notes__ = [text]
    return error


class Refused(msgspec.Struct):
    """An argument that refuses to be decoded."""

    kind: str
    number: int

    def __post_init__(self) -> None:
        raise reused("decoded", self.kind, self.number)


def _key(kind: str, number: int) -> int:
    raise reused("keyed", kind, number)


class Reusing(Actor):
    """Raises the same exceptions again and again, in every place where a method may."""

    @method
    def loop(self, kind: str, number: int) -> None:
        """Raise on the worker's loop."""
        raise reused("loop", kind, number)

    @method(idempotent=True)
    def busy(self) -> None:
        """Keep the worker's loop, while threads and tasks go on."""
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass

    @method(thread=True)
    def thread(self, kind: str, number: int) -> None:
        """Raise on a thread."""
        raise reused("thread", kind, number)

    @method
    async def awaits(self, kind: str, number: int) -> None:
        """Raise in a coroutine."""
        raise reused("awaits", kind, number)

    @method
    def decoded(self, argument: Refused) -> None:
        """Never run: its argument raises."""

    @method(thread=True, batch=Batch(max_items=1, max_wait_s=0))
    def raised(self, kinds: list[str], numbers: list[int]) -> list[Any]:
        """Raise in a batch of one."""
        raise reused("raised", kinds[0], numbers[0])

    @method(thread=True, batch=Batch(max_items=1, max_wait_s=0))
    def batch(self, kinds: list[str], numbers: list[int]) -> list[Any]:
        """Return an exception in the place of a result."""
        return [reused("batch", kinds[0], numbers[0])]

    @method(thread=True, batch=Batch(max_items=1, max_wait_s=0))
    def items(self, pairs: list[tuple[str, int]]) -> list[Any]:
        """The same for an item of a call with many."""
        return [reused("items", *pairs[0])]

    @method(batch=Batch(max_items=4, max_wait_s=0, key=_key))
    def keyed(self, kinds: list[str], numbers: list[int]) -> list[Any]:
        """Never run: the key raises."""
        return [*kinds, *numbers]

    @method(thread=True)
    def stream(self, kind: str, number: int) -> Iterator[int]:
        """Raise after a part."""
        yield 1
        raise reused("stream", kind, number)

    @method
    async def async_stream(self, kind: str, number: int) -> AsyncIterator[int]:
        """Raise after a part, in an asynchronous generator."""
        yield 1
        raise reused("async_stream", kind, number)

    @method(thread=True, batch=Steps(max_items=8))
    def steps(self, live: Live[tuple[str, int], int]) -> None:
        """Fail each stream after a part."""
        for stream in list(live):
            kind, number = stream.arguments
            stream.send(1)
            stream.fail(reused("steps", kind, number))
