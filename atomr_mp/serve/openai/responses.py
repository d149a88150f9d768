"""`POST /v1/responses` in its form of text: requests become those of a chat, whose method answers. Pure.

Nothing is stored: a client sends the whole conversation with each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from atomr_mp.serve.openai.chat import without_idle_choice
from atomr_mp.serve.openai.conversation import messages_of
from atomr_mp.serve.openai.fields import SAMPLING, TIERS, TOOLS, Fields, flag, includes_usage
from atomr_mp.serve.openai.refusals import refusal, shown, wrong_type
from atomr_mp.serve.openai.response_writer import ResponseWriter
from atomr_mp.serve.openai.text_calls import Asked, TextForm
from atomr_mp.serve.values.schemas import ArgumentPlan

FIELDS: Final = Fields(
    used=frozenset({"model", "input", "instructions", "stream", "stream_options", "text", "reasoning"}),
    fixed={
        "store": (False,),
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "background_options": (),
        "include": ([], ["reasoning.encrypted_content"]),
        "prompt": (),
        "truncation": ("disabled",),
        "context_management": ([],),
        "max_tool_calls": (),
        "top_logprobs": (0,),
        "moderation": (),
        "service_tier": TIERS,
        "prompt_cache_options": ({},),
        "prompt_cache_retention": (),
    },
    optional={
        **{name: accepted for name, accepted in SAMPLING.items() if name in {"temperature", "top_p"}},
        **TOOLS,
        "max_output_tokens": (),
        "text.format": ({"type": "text"},),
        "text.verbosity": ("medium",),
        "reasoning.effort": (),
        "reasoning.summary": (),
    },
    aliases={
        "max_output_tokens": ("max_output_tokens", "max_completion_tokens", "max_tokens"),
        "text.format": ("response_format",),
        "text.verbosity": ("verbosity",),
        "reasoning.effort": ("reasoning_effort",),
    },
)


def read(body: Mapping[str, Any], plan: ArgumentPlan) -> Asked:
    """Read a request.

    Raises:
        Problem: 400; a field is wrong, or not supported.
    """
    if body.get("previous_response_id") is not None:
        why = "nothing is stored, so previous_response_id names nothing; send the whole conversation as input"
        raise refusal("previous_response_id", "unsupported_parameter", why)
    first, *others = plan.info.parameters
    in_parts = flag(body, "stream")
    includes_usage(body, streams=in_parts)
    messages = messages_of(body.get("input"), body.get("instructions"))
    fields = dict(without_idle_choice(body)) | _inside(body, "text") | _inside(body, "reasoning")
    for name, convert in _AS_CHAT.items():
        if fields.get(name) is not None:
            fields[name] = convert(fields[name])
    kwargs = {first: messages, **FIELDS.given(fields, others, plan.method)}
    return Asked([kwargs], ResponseWriter(body), in_parts)


FORM: Final = TextForm("chat", read)


def _inside(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of an object in the request by their full names."""
    given = body.get(name)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise wrong_type(name, f"{name} is an object, not {shown(given)}")
    return {f"{name}.{each}": value for each, value in given.items()}


def _tools(given: object) -> list[dict[str, Any]]:
    """Return tools as a chat has them.

    Raises:
        Problem: 400; one is no function, and this server has no tools of its own.
    """
    if not isinstance(given, list):
        raise wrong_type("tools", "tools is a list of objects")
    found = []
    for at, tool in enumerate(given):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, dict) else tool
            why = f"tools[{at}] is {shown(kind)}; only tools of the type 'function' are supported"
            raise refusal(f"tools[{at}].type", "unsupported_value", why)
        if not isinstance(tool.get("name"), str) or not isinstance(tool.get("parameters"), dict | None):
            raise wrong_type(f"tools[{at}]", f"tools[{at}] needs a name, a text, and may have parameters, an object")
        found.append({"type": "function", "function": _others(tool)})
    return found


def _tool_choice(given: object) -> object:
    if isinstance(given, dict) and given.get("type") == "function":
        return {"type": "function", "function": _others(given)}
    return given


def _format(given: object) -> object:
    if isinstance(given, dict) and given.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": _others(given)}
    return given


def _others(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "type"}


_AS_CHAT: Final = {"tools": _tools, "tool_choice": _tool_choice, "text.format": _format}
"""Fields that a chat has in another form."""
