"""The input of `POST /v1/responses` as the messages of a chat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from atomr_mp.serve.openai.refusals import missing, refusal, shown, wrong_type

TEXTS: Final = frozenset({"input_text", "output_text", "text"})

ROLES: Final = ("user", "assistant", "system", "developer")


def messages_of(given: object, instructions: object) -> list[dict[str, Any]]:
    """Return the messages of a chat: the instructions as the system's, then the input.

    Args:
        given: A text, or a list of messages, calls of functions and their outputs.
        instructions: A text, or None.

    Raises:
        Problem: 400; it is something else, or has more than text.
    """
    if given is None:
        raise missing("input", "input is missing: a text, or a list of messages")
    if instructions is not None and not isinstance(instructions, str):
        raise wrong_type("instructions", f"instructions is a text, not {shown(instructions)}")
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions is not None else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise wrong_type("input", "input is a text, or a list of messages")
    for at, item in enumerate(given):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            raise wrong_type(where, f"{where} is no object")
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            output = _text(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": _named(item, "call_id", where), "content": output})
        else:
            why = f"{where} is {shown(kind)}; it may be a message, a function_call or a function_call_output"
            raise refusal(f"{where}.type", "unsupported_value", why)
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ROLES:
        why = f"{where}.role is {shown(role)}; it is one of {', '.join(ROLES)}"
        raise refusal(f"{where}.role", "invalid_value", why)
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Add a call to the assistant's message before it, which has the calls of one turn; or make one."""
    function = {"name": _named(item, "name", where), "arguments": _named(item, "arguments", where)}
    call = {"id": _named(item, "call_id", where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _named(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{name}", f"{where}.{name} is a text, not {shown(value)}")
    return value


def _text(content: object, where: str) -> str:
    """Return the text of a message: its parts joined, as clients join those of an answer.

    Raises:
        Problem: 400; a part is no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, f"{where} is a text, or a list of parts")
    texts = []
    for at, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in TEXTS:
            kind = part.get("type") if isinstance(part, dict) else part
            why = f"{where}[{at}] is {shown(kind)}; only parts of text are supported, input_text and output_text"
            raise refusal(f"{where}[{at}].type", "unsupported_value", why)
        texts.append(_named(part, "text", f"{where}[{at}]"))
    return "".join(texts)
