"""`POST /v1/chat/completions`: messages to a method, and its text back, whole or as it is made. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomr_mp.serve.http import events
from atomr_mp.serve.openai.fields import SAMPLING, TIERS, TOOLS, Fields, flag, includes_usage
from atomr_mp.serve.openai.parts import AnswerPart, TextAnswer
from atomr_mp.serve.openai.refusals import missing, wrong_type
from atomr_mp.serve.openai.text_calls import DONE, Asked, TextForm
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import ArgumentPlan

LENGTHS: Final = {
    "max_completion_tokens": ("max_completion_tokens", "max_tokens"),
    "max_tokens": ("max_tokens", "max_completion_tokens"),
}

FIELDS: Final = Fields(
    used=frozenset({"model", "messages", "stream", "stream_options"}),
    fixed={
        "n": (1,),
        "store": (False,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "modalities": (["text"],),
        "audio": (),
        "moderation": (),
        "service_tier": TIERS,
        "prompt_cache_options": ({},),
        "prompt_cache_retention": (),
    },
    optional={
        **SAMPLING,
        **TOOLS,
        "max_completion_tokens": (),
        "functions": ([],),
        "function_call": ("auto", "none"),
        "response_format": ({"type": "text"},),
        "reasoning_effort": (),
        "verbosity": ("medium",),
        "prediction": (),
        "web_search_options": (),
    },
    aliases=LENGTHS,
)


EMPTY: Final = b'"content":""'
"""An empty text in a chunk; no text of a client's has this, since its quotes are escaped."""


def read(body: Mapping[str, Any], plan: ArgumentPlan) -> Asked:
    """Read a request.

    Raises:
        Problem: 400; a field is wrong, or not supported.
    """
    messages = checked(body.get("messages"))
    first, *others = plan.info.parameters
    in_parts = flag(body, "stream")
    told = includes_usage(body, streams=in_parts)
    kwargs = {first: messages, **FIELDS.given(without_idle_choice(body), others, plan.method)}
    return Asked([kwargs], ChatWriter(body["model"], tells_usage=told), in_parts)


FORM: Final = TextForm("chat", read)


def checked(messages: object) -> list[dict[str, Any]]:
    """Return the messages, which are a method's to read.

    Raises:
        Problem: 400; they are no list of objects.
    """
    if messages is None:
        raise missing("messages", "messages is missing: a list of objects, with role and content")
    if not isinstance(messages, list) or not messages:
        raise wrong_type("messages", "messages is a list of objects, with role and content")
    for at, each in enumerate(messages):
        if not isinstance(each, dict):
            raise wrong_type(f"messages[{at}]", f"messages[{at}] is no object with role and content")
    return messages


def without_idle_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request without the choice to use no tools if it has none, which asks for nothing."""
    if body.get("tool_choice") == "none" and not body.get("tools"):
        return {name: value for name, value in body.items() if name != "tool_choice"}
    return body


class ChatWriter:
    """Writes one answer.

    Args:
        model: The model's name in the request.
        tells_usage: Whether the last chunk of a stream has the usage.
    """

    keeps = False

    def __init__(self, model: str, *, tells_usage: bool) -> None:
        self._head: Final = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._tells_usage: Final = tells_usage
        self._begun = False
        self._around: tuple[bytes, bytes] | None = None
        """What is before and behind the text of a chunk, once it is known."""

    def whole(self, answers: Sequence[TextAnswer]) -> dict[str, Any]:
        """Return an answer's body."""
        (answer,) = answers
        text = answer.text
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not answer.calls else None,
            "refusal": None,
        }
        if answer.calls:
            message["tool_calls"] = [call.whole() for call in answer.calls]
        choice = {"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": answer.usage}

    def part(self, part: AnswerPart) -> bytes:
        """Return a chunk with what is new; nothing if nothing is."""
        text, calls = part
        if not calls:
            return self._text(text) if text else b""
        delta: dict[str, Any] = {"content": text} if text else {}
        delta["tool_calls"] = [
            {"index": call.index, "function": {"arguments": arguments}}
            if not begins
            else {"index": call.index, **call.whole(), "function": {"name": call.name, "arguments": arguments}}
            for call, arguments, begins in calls
        ]
        return self._chunk(delta)

    def _text(self, text: str) -> bytes:
        """Return a chunk with text. All but the first differ in it alone, and are written once."""
        if not self._begun:
            return self._chunk({"content": text})
        if self._around is None:
            before, _, after = self._chunk({"content": ""}).partition(EMPTY)
            self._around = before + EMPTY[:-2], after
        before, after = self._around
        return before + encode_json(text) + after

    def end(self, answer: TextAnswer) -> bytes:
        """Return the chunk with the reason of the end, the usage if it is asked for, and the end itself."""
        last = self._chunk({}, answer.finish)
        if self._tells_usage:
            last += self._event({"choices": [], "usage": answer.usage})
        return last + DONE

    def failed(self, _answer: TextAnswer, error: dict[str, Any]) -> bytes:
        """Return the event that clients raise as an error."""
        return events.event(encode_json({"error": error}))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        """Return a chunk; the first one names the speaker."""
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._event({"choices": [choice], **({"usage": None} if self._tells_usage else {})})

    def _event(self, more: dict[str, Any]) -> bytes:
        return events.event(encode_json({**self._head, "object": "chat.completion.chunk", **more}))
