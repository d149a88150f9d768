"""An actor for tests of HTTP."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, method
from tests.actors import probe


class Point(msgspec.Struct):
    """A struct with values that have no JSON form."""

    name: str
    content: bytes
    weights: np.ndarray


class Served(Actor):
    """Answers, waits and dies."""

    @method(idempotent=True)
    def length(self, word: str, extra: int = 0) -> int:
        """Return the length of a word, and of more."""
        return len(word) + extra

    @method(idempotent=True)
    def echo(self, value: Any = None) -> Any:
        """Return the argument."""
        return value

    @method
    def double(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return twice the array."""
        return array * 2

    @method
    def describe(self, point: Point, more: list[bytes]) -> list[Any]:
        """Return a description of the arguments."""
        return [point.name, len(point.content), str(point.weights.dtype), *map(len, more)]

    @method
    def make(self, kind: str) -> Any:
        """Return a result without a JSON form, or a special one."""
        return {
            "bytes": b"\x00\xff",
            "complex": np.array([1 + 2j]),
            "nan": [float("nan"), 1.0],
            "array": np.arange(3, dtype="int16"),
        }[kind]

    @method
    def fail(self) -> None:
        """Raise."""
        raise ValueError("on purpose")

    @method(thread=True)
    def wait_at(self, gate: str) -> int:
        """Report that it runs, and wait."""
        probe.arrive(gate)
        return os.getpid()

    @method(thread=True, queue=2)
    def narrow(self, gate: str) -> int:
        """Wait, with little room for others."""
        probe.arrive(gate)
        return os.getpid()

    @method
    def note(self, tag: str) -> str:
        """Leave a note that it ran."""
        probe.note(tag)
        return tag

    @method(idempotent=True)
    def where(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method
    def die(self) -> None:
        """End the worker."""
        os.kill(os.getpid(), signal.SIGKILL)

    @method(batch=Batch(max_items=64, max_wait_s=0.02), idempotent=True, openai="embeddings")
    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Return for each text its length and how many texts were embedded together."""
        return np.array([[len(text), len(texts)] for text in texts], dtype=np.float32)

    @method(idempotent=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]], temperature: float = 1.0, max_tokens: int = 100) -> str:
        """Say the last message again."""
        return f"{messages[-1]['content']} ({len(messages)}, {temperature}, {max_tokens})"

    @method(thread=True, idempotent=True)
    def count(self, upto: int, gate: str = "", at: int = -1, how: str = "") -> Generator[int, None, str]:
        """Yield numbers; at one of them wait at a gate, and raise or die."""
        try:
            for number in range(upto):
                if number == at:
                    if gate:
                        probe.arrive(gate)
                    if how:
                        probe.die(how)
                yield number
        finally:
            probe.note(f"closed-{upto}")
        return "counted"

    @method(thread=True, idempotent=True)
    def fill(self, nbytes: int) -> Iterator[str]:
        """Yield large parts for ever."""
        while True:
            yield "x" * nbytes

    @method(idempotent=True)
    def markup(self) -> str:
        """Say <img src=x onerror=alert(1)> and more."""
        return "<b>bold</b>"

    @method(thread=True, hang_timeout_s=0.5)
    def hang(self) -> None:
        """Never return."""
        while True:
            signal.pause()

    @method(batch=Batch(max_items=8), idempotent=True)
    def lengths(self, words: list[str]) -> list[int]:
        """Return the length of each."""
        return [len(word) for word in words]


class Talker(Actor):
    """Repeats its input, word by word."""

    @method(thread=True, idempotent=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]], max_tokens: int = 100) -> Generator[str, None, str]:
        """Say the last message again."""
        words = messages[-1]["content"].split(" ")
        for number, word in enumerate(words[:max_tokens]):
            if word == "fail":
                raise ValueError("on purpose")
            yield word if not number else f" {word}"
        return "stop" if len(words) <= max_tokens else "length"
