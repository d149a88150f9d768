"""Writes answers of `POST /v1/responses`: an object with the output's items, or events that build it. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomr_mp.serve.http import events
from atomr_mp.serve.openai import usage
from atomr_mp.serve.openai.parts import AnswerPart, TextAnswer, ToolCall
from atomr_mp.serve.values.results import encode_json

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of an incomplete response by those of a chat's end."""

ECHOED: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Fields of a request that its answer repeats, with their values if it has none."""

FIXED: Final[dict[str, Any]] = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "top_logprobs": 0,
    "truncation": "disabled",
}


class ResponseWriter:
    """Writes one response.

    Args:
        body: The request.
    """

    keeps = True

    def __init__(self, body: Mapping[str, Any]) -> None:
        echoed = {name: usual if (given := body.get(name)) is None else given for name, usual in ECHOED.items()}
        echoed["text"] = {**ECHOED["text"], **echoed["text"]}
        self._head: Final = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body["model"],
            **echoed,
            **FIXED,
        }
        self._message_id: Final = f"msg_{secrets.token_hex(24)}"
        self._calls: Final[dict[int, str]] = {}
        """Ids of the items of calls, by the calls' places."""
        self._order: Final[list[int]] = []
        """The places of the calls among the output's items, and -1 for the message, in the order of their begin."""
        self._count = 0

    # --- a whole response ------------------------------------------------------------------------------------------

    def whole(self, answers: Sequence[TextAnswer]) -> dict[str, Any]:
        """Return an answer's body."""
        (answer,) = answers
        if answer.text or not answer.calls:
            self._order.append(-1)
        self._order.extend(range(len(answer.calls)))
        return self._ended(answer)

    def _ended(self, answer: TextAnswer) -> dict[str, Any]:
        reason = INCOMPLETE.get(answer.finish)
        status = "incomplete" if reason else "completed"
        return self._response(
            status,
            incomplete_details={"reason": reason} if reason else None,
            output=[self._item(answer, each, status) for each in self._order],
            usage=usage.as_response(answer.usage),
            **({} if reason else {"completed_at": int(time.time())}),
        )

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        unknown: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, "status": status, **unknown, **more}

    def _item(self, answer: TextAnswer, place: int, status: str) -> dict[str, Any]:
        if place < 0:
            return self._message(status, [_output_text(answer.text)])
        return self._call(answer.calls[place], status, answer.calls[place].arguments)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _call(self, call: ToolCall, status: str, arguments: str) -> dict[str, Any]:
        return {
            "id": self._calls.setdefault(call.index, f"fc_{secrets.token_hex(24)}"),
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments,
        }

    # --- a stream of events ----------------------------------------------------------------------------------------

    def part(self, part: AnswerPart) -> bytes:
        """Return the events for what is new, behind those of the beginning."""
        found = self._begin()
        if part.text:
            found += self._begin_message()
            found += self._event("output_text.delta", **self._of_text(), delta=part.text, logprobs=[])
        for call, arguments, begins in part.calls:
            if begins:
                self._order.append(call.index)
                place = len(self._order) - 1
                item = self._call(call, "in_progress", "")
                found += self._event("output_item.added", output_index=place, item=item)
            if arguments:
                found += self._event("function_call_arguments.delta", **self._of_call(call), delta=arguments)
        return found

    def end(self, answer: TextAnswer) -> bytes:
        """Return the events that end the items and the response."""
        found = self._begin()
        if not self._order:
            found += self._begin_message()
        last = self._ended(answer)
        for at, place in enumerate(self._order):
            if place < 0:
                text = answer.text
                found += self._event("output_text.done", **self._of_text(), text=text, logprobs=[])
                found += self._event("content_part.done", **self._of_text(), part=_output_text(text))
            else:
                call = answer.calls[place]
                done = {**self._of_call(call), "name": call.name, "arguments": call.arguments}
                found += self._event("function_call_arguments.done", **done)
            found += self._event("output_item.done", output_index=at, item=last["output"][at])
        return found + self._event(last["status"], response=last)

    def failed(self, answer: TextAnswer, error: dict[str, Any]) -> bytes:
        """Return the event that ends a response with an error."""
        code = "rate_limit_exceeded" if error["type"] == "rate_limit_error" else "server_error"
        told = {"code": code, "message": error["message"]}
        output = [self._item(answer, each, "incomplete") for each in self._order]
        return self._begin() + self._event("failed", response=self._response("failed", error=told, output=output))

    def _begin(self) -> bytes:
        if self._count:
            return b""
        response = self._response("in_progress")
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def _begin_message(self) -> bytes:
        if -1 in self._order:
            return b""
        self._order.append(-1)
        place = len(self._order) - 1
        added = self._event("output_item.added", output_index=place, item=self._message("in_progress", []))
        return added + self._event("content_part.added", **self._of_text(), part=_output_text(""))

    def _of_text(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": self._order.index(-1), "content_index": 0}

    def _of_call(self, call: ToolCall) -> dict[str, Any]:
        return {"item_id": self._calls[call.index], "output_index": self._order.index(call.index)}

    def _event(self, name: str, /, **more: Any) -> bytes:
        kind = f"response.{name}"
        data = encode_json({"type": kind, "sequence_number": self._count, **more})
        self._count += 1
        return events.event(data, kind)


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
