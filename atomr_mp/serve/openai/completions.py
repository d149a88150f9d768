"""`POST /v1/completions`: a prompt to a method, and its text back, whole or as it is made. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomr_mp.serve.http import events
from atomr_mp.serve.openai import usage
from atomr_mp.serve.openai.fields import SAMPLING, Fields, flag, includes_usage
from atomr_mp.serve.openai.inputs import inputs_of
from atomr_mp.serve.openai.parts import AnswerPart, TextAnswer
from atomr_mp.serve.openai.refusals import refusal
from atomr_mp.serve.openai.text_calls import DONE, Asked, TextForm
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import ArgumentPlan

FIELDS: Final = Fields(
    used=frozenset({"model", "prompt", "stream", "stream_options"}),
    fixed={"n": (1,), "best_of": (1,), "echo": (False,), "logprobs": ()},
    optional={**SAMPLING, "suffix": ()},
)


def read(body: Mapping[str, Any], plan: ArgumentPlan) -> Asked:
    """Read a request.

    Raises:
        Problem: 400; a field is wrong, or not supported.
    """
    prompts = inputs_of("prompt", body.get("prompt"))
    first, *others = plan.info.parameters
    in_parts = flag(body, "stream")
    if len(prompts) > 1 and (in_parts or plan.info.streams):
        streams = "a stream" if in_parts else f"an answer by {plan.method}, which streams,"
        raise refusal("prompt", "unsupported_value", f"{streams} is for one prompt; send a request for each")
    told = includes_usage(body, streams=in_parts)
    more = FIELDS.given(body, others, plan.method)
    writer = CompletionWriter(body["model"], tells_usage=told)
    return Asked([{first: each, **more} for each in prompts], writer, in_parts)


FORM: Final = TextForm("completions", read)


class CompletionWriter:
    """Writes one answer.

    Args:
        model: The model's name in the request.
        tells_usage: Whether the last chunk of a stream has the usage.
    """

    keeps = False

    def __init__(self, model: str, *, tells_usage: bool) -> None:
        self._head: Final = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._tells_usage: Final = tells_usage

    def whole(self, answers: Sequence[TextAnswer]) -> dict[str, Any]:
        """Return the body of an answer, with a choice for each prompt."""
        choices = [_choice(answer.text, _finish(answer), at) for at, answer in enumerate(answers)]
        return {**self._head, "choices": choices, "usage": usage.total(answer.usage for answer in answers)}

    def part(self, part: AnswerPart) -> bytes:
        """Return a chunk with the new text; nothing if there is none."""
        return self._event([_choice(part.text, None)], None) if part.text else b""

    def end(self, answer: TextAnswer) -> bytes:
        """Return the chunk with the reason of the end, the usage if it is asked for, and the end itself."""
        last = self._event([_choice("", _finish(answer))], None)
        if self._tells_usage:
            last += self._event([], answer.usage)
        return last + DONE

    def failed(self, _answer: TextAnswer, error: dict[str, Any]) -> bytes:
        """Return the event that clients raise as an error."""
        return events.event(encode_json({"error": error}))

    def _event(self, choices: list[dict[str, Any]], counts: dict[str, Any] | None) -> bytes:
        told = {"usage": counts} if self._tells_usage else {}
        return events.event(encode_json({**self._head, "choices": choices, **told}))


def _choice(text: str, finish: str | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _finish(answer: TextAnswer) -> str:
    """Return the reason of the end; this form knows no tools."""
    return "stop" if answer.finish == "tool_calls" else answer.finish
