"""The paths of OpenAI's form, for the OpenAPI document. Pure.

A path is there if a method answers in its form. The document has what is the same for all: which fields a model takes
is that of its method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.values.schemas import decoded

TEXT: Final = {"type": "string"}
COUNT: Final = {"type": "integer", "minimum": 0}
OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
EXAMPLE: Final = {"examples": [[{"role": "user", "content": "Hello"}]]}

SEVERAL: Final[dict[str, Any]] = {
    "description": "A text, or tokens as numbers; or a list of them",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer", "array"]}}],
}

ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type", "param"],
            "properties": {
                "code": {"type": "string", "description": "What is wrong, for programs"},
                "message": {"type": "string", "description": "What is wrong and what to do"},
                "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                "param": {"type": ["string", "null"], "description": "The field that is wrong"},
                "facts": {"type": "object"},
                "maybe_executed": {"type": "boolean"},
                "request_id": {"type": "string"},
            },
        }
    },
}

MODEL: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT},
}

MODELS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}},
}


class FormPath(NamedTuple):
    """A path that is asked by POST."""

    form: str
    """The form that its methods declare."""
    summary: str
    what: str
    """The field that is answered."""
    given: Mapping[str, Any]
    """The schemas of further fields."""
    object: str
    """The value of `object` in the answer."""
    items: str
    """The field of the answer that has what was made."""
    streams: bool


PATHS: Final = {
    "/v1/embeddings": FormPath(
        "embeddings",
        "Vectors of texts",
        "input",
        {"input": SEVERAL, "encoding_format": {"enum": ["float", "base64"]}, "dimensions": {"type": "integer"}},
        "list",
        "data",
        streams=False,
    ),
    "/v1/chat/completions": FormPath(
        "chat",
        "The answer to a chat",
        "messages",
        {"messages": OBJECTS | {"minItems": 1} | EXAMPLE, "tools": OBJECTS},
        "chat.completion",
        "choices",
        streams=True,
    ),
    "/v1/completions": FormPath(
        "completions", "What follows a text", "prompt", {"prompt": SEVERAL}, "text_completion", "choices", streams=True
    ),
    "/v1/responses": FormPath(
        "chat",
        "The answer to a conversation, which is not stored",
        "input",
        {"input": {"anyOf": [TEXT, OBJECTS | {"minItems": 1}]}, "instructions": TEXT, "tools": OBJECTS},
        "response",
        "output",
        streams=True,
    ),
}


def paths(methods: Mapping[str, MethodInfo]) -> dict[str, Any]:
    """Return the paths of a pool's methods that declare a form.

    Args:
        methods: Methods by "Actor.method".
    """
    by_form: dict[str, list[str]] = {}
    for name, info in sorted(methods.items()):
        if form := decoded(info).get("openai"):
            by_form.setdefault(form, []).append(name.partition(".")[0])
    if not by_form:
        return {}
    found = {
        path: {"post": _post(path, each, by_form[each.form])} for path, each in PATHS.items() if each.form in by_form
    }
    listed = {"operationId": "v1.models", "summary": "The models", "tags": ["/v1"], "responses": _answers(MODELS)}
    return {"/v1/models": {"get": listed}, **found}


def _post(path: str, described: FormPath, models: list[str]) -> dict[str, Any]:
    properties = {"model": {"enum": models}, **described.given}
    if described.streams:
        properties["stream"] = {"type": "boolean"}
    body = {"type": "object", "required": ["model", described.what], "properties": properties}
    answer = {
        "type": "object",
        "required": ["object", "model", described.items, "usage"],
        "properties": {"object": {"const": described.object}, "model": TEXT, described.items: OBJECTS},
    }
    return {
        "operationId": path.strip("/").replace("/", "."),
        "summary": described.summary,
        "tags": ["/v1"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _answers(answer, streams=described.streams),
    }


def _answers(schema: Mapping[str, Any], *, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streams:
        content["text/event-stream"] = {"schema": TEXT}
    error = {"application/json": {"schema": ERROR}}
    return {
        "200": {"description": "The answer", "content": content},
        "default": {"description": "An error", "content": error},
    }
