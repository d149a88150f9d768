"""The pool's methods as an OpenAPI document. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from atomr_mp import __version__
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.values.json_schemas import COMPONENTS, MethodSchemas
from atomr_mp.serve.values.multipart import FORM
from atomr_mp.serve.values.results import NPY, OCTETS
from atomr_mp.serve.values.schemas import ArgumentPlan, decoded, plan_of
from atomr_mp.serve.values.slots import FieldSlot

ERROR_NAME: Final = "Error"

ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "facts", "maybe_executed", "request_id"],
            "properties": {
                "code": {"type": "string", "description": "What is wrong, for programs"},
                "message": {"type": "string", "description": "What is wrong and what to do"},
                "type": {"type": "string", "description": "The code again"},
                "facts": {"type": "object"},
                "maybe_executed": {
                    "type": "boolean",
                    "description": "False only if it is certain that nothing of the request ran",
                },
                "request_id": {"type": "string"},
            },
        }
    },
}


EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "One event: a part; or the last one, `end` or `error`",
    "required": ["data"],
    "properties": {
        "data": {"type": "string", "contentMediaType": "application/json"},
        "event": {"type": "string"},
    },
}
"""An event of a stream, as OpenAPI 3.2 describes each of them."""


BINARY: Final[dict[str, Any]] = {"type": "string", "format": "binary"}


def document(
    title: str, methods: Mapping[str, MethodInfo], more: Mapping[str, Any] | None = None, *, token: bool
) -> bytes:
    """Return the document, JSON.

    Args:
        title: The pool's name.
        methods: Methods by "Actor.method".
        more: Further paths.
        token: Whether calls need a token.
    """
    schemas: dict[str, Any] = {ERROR_NAME: ERROR}
    paths = {f"/call/{name}": {"post": _operation(name, info, schemas)} for name, info in sorted(methods.items())}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": {**paths, **(more or {})},
        "components": {"schemas": schemas},
    }
    if token:
        whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"token": []}]
    return msgspec.json.encode(whole)


def _operation(name: str, info: MethodInfo, components: dict[str, Any]) -> dict[str, Any]:
    schema = decoded(info)
    prefix = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    schemas = MethodSchemas(prefix, schema.get("$defs", {}), components)
    untyped = {"type": "object", "properties": {parameter: {} for parameter in info.parameters}}
    arguments = schema.get("arguments", untyped)
    result = schemas.result(schema.get("result", {}))
    content: dict[str, Any] = {"application/json": {"schema": schemas.body(arguments)}}
    plan = plan_of(name, info)
    if plan.array:
        content[NPY.decode()] = {"schema": BINARY}
    if plan.raw and set(arguments.get("required", ())) <= {plan.raw}:
        content[OCTETS.decode()] = {"schema": BINARY}
    if any(slot.takes_files for slot in plan.slots.values()):
        content[FORM.decode()] = _form(content["application/json"]["schema"], plan)
    answers: dict[str, Any] = {"application/json": {"schema": result}}
    if info.streams:
        answers = {"text/event-stream": {"schema": EVENT}, "application/jsonl": {"schema": {"type": "string"}}}
    else:
        shown = repr(result)
        if not result or "ndarray" in shown:
            answers[NPY.decode()] = {"schema": BINARY}
        if not result or "base64" in shown:
            answers[OCTETS.decode()] = {"schema": BINARY}
    error = {"application/json": {"schema": {"$ref": COMPONENTS + ERROR_NAME}}}
    return {
        "operationId": name,
        "summary": info.doc or name,
        "tags": [name.partition(".")[0]],
        "requestBody": {"required": bool(arguments.get("required")), "content": content},
        "responses": {
            "200": {"description": "The parts" if info.streams else "The result", "content": answers},
            "default": {"description": "An error", "content": error},
        },
    }


def _form(body: Mapping[str, Any], plan: ArgumentPlan) -> dict[str, Any]:
    """Return the description of a form: files, and fields with the schemas of a call's body by name."""
    by_name = body["anyOf"][0]
    properties, encoding = dict[str, Any](), dict[str, Any]()
    for name, schema in by_name["properties"].items():
        slot = plan.slots.get(name, FieldSlot())
        if slot.takes_files:
            properties[name] = {"type": "array", "items": BINARY, "minItems": 1} if slot.many else BINARY
        else:
            properties[name] = schema
            encoding[name] = {"contentType": "text/plain" if slot.takes_text else "application/json"}
    form = {key: by_name[key] for key in ("required", "additionalProperties") if key in by_name}
    return {"schema": {"type": "object", "properties": properties} | form, "encoding": encoding}
