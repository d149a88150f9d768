"""Models for OpenAI's clients: they say and do what the last message tells them, as a script in JSON."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from atomr_mp_workers import Actor, method
from tests.actors import probe


def play(text: str) -> Generator[Any, None, Any]:
    """Yield a script's parts; at some wait, fail, or go on for ever. Return its result."""
    script = json.loads(text)
    try:
        yield from script.get("parts", ())
        if "gate" in script:
            probe.arrive(script["gate"])
        if "fail" in script:
            raise ValueError(script["fail"])
        while script.get("forever"):
            yield "and so on "
    finally:
        if "tag" in script:
            probe.note(f"closed-{script['tag']}")
    return script.get("result")


class Scripted(Actor):
    """Streams."""

    @method(thread=True, idempotent=True, openai="chat")
    def chat(
        self,
        messages: list[dict[str, Any]],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Any = None,
        response_format: dict[str, Any] | None = None,
    ) -> Generator[Any, None, Any]:
        """Play the last message's script; "what" has it tell what it was given."""
        text = messages[-1]["content"]
        if text == "what":
            given = {"messages": messages, "temperature": temperature, "max_tokens": max_tokens, "tools": tools}
            yield json.dumps(given | {"tool_choice": tool_choice, "response_format": response_format})
            return None
        return (yield from play(text))

    @method(thread=True, idempotent=True, openai="completions")
    def complete(self, prompt: str) -> Generator[Any, None, Any]:
        """Play the prompt."""
        return (yield from play(prompt))


class Plain(Actor):
    """Answers as a whole, and has no parameters but the first."""

    @method(idempotent=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]]) -> Any:
        """Return the script's result."""
        return json.loads(messages[-1]["content"])["result"]

    @method(idempotent=True, openai="completions")
    def complete(self, prompt: str | list[int]) -> dict[str, Any]:
        """Say the prompt again."""
        return {"content": f"{prompt}!", "usage": {"prompt_tokens": len(prompt), "completion_tokens": 1}}

    @method(idempotent=True, openai="embeddings")
    def embed(self, text: str | list[int]) -> dict[str, Any]:
        """Return a vector of three numbers, and count."""
        return {"embedding": [len(text), 0.5, -1], "usage": {"prompt_tokens": len(text)}}


class Sized(Actor):
    """Has vectors of any size, and does not count."""

    @method(idempotent=True, openai="embeddings")
    def embed(self, text: str, dimensions: int = 4) -> list[float]:
        """Return a vector of so many numbers."""
        return [float(len(text))] * dimensions


class Steady(Actor):
    """Streams text alone."""

    @method(thread=True, idempotent=True, openai="chat")
    def chat(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Say each word of the last message."""
        yield from messages[-1]["content"].split()
