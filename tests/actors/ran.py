"""An actor whose requests fail after they have begun, with each class of error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atomr_mp import errors
from atomr_mp_workers import Actor, method
from tests.actors import probe


def fail(how: str) -> None:
    """Wait at the gate of this path; or raise the error of this code, which says that nothing ran."""
    if how.startswith("/"):
        probe.arrive(how)
        return
    if how == "fine":
        return
    raise errors.from_wire(how, "on purpose", {"maybe_executed": False})


class Ran(Actor):
    """Fails on demand."""

    @method(thread=True)
    def call(self, how: str) -> str:
        """Fail in a call."""
        fail(how)
        return "fine"

    @method(thread=True)
    def parts(self, how: str) -> Iterator[str]:
        """Fail before the first part."""
        fail(how)
        yield "fine"

    @method(thread=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Fail before the first word."""
        fail(messages[-1]["content"])
        yield "fine"

    @method(thread=True, openai="completions")
    def complete(self, prompt: str) -> Iterator[str]:
        """Fail before the first word."""
        fail(prompt)
        yield "fine"

    @method(thread=True, openai="embeddings")
    def embed(self, text: str) -> list[float]:
        """Fail one of several inputs."""
        fail(text)
        return [1.0]
