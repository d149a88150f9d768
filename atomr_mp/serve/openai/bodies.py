"""Reads bodies of OpenAI's requests, and refuses parameters that no method here has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from atomr_mp import errors
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.http.problems import Problem
from atomr_mp.serve.values.bodies import from_json


async def read(exchange: Exchange) -> dict[str, Any]:
    """Return a request's body.

    Raises:
        Problem: 400, 413 or 415.
        InvalidRequest: The body is not an object.
    """
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Problem(415, "unsupported_media_type", "send the header `Content-Type: application/json`")
    body = from_json(await exchange.body(exchange.limits.json_bytes), exchange.limits.json_containers)
    if not isinstance(body, dict):
        raise errors.InvalidRequest("the body is a JSON object")
    return body


def parameters(body: dict[str, Any], used: Collection[str], known: Collection[str], method: str) -> dict[str, Any]:
    """Return the fields of a request that the form itself does not use, for the method's parameters of the same names.

    Args:
        body: The request.
        used: Fields that the form uses, or that change nothing.
        known: The method's parameters.
        method: "Actor.method", for the error.

    Raises:
        Unsupported: The method has no parameter for a field that changes something.
    """
    asked = {name: value for name, value in body.items() if name not in used and value is not None}
    for name, value in asked.items():
        if name not in known and not _changes_nothing(name, value):
            shown = ", ".join(sorted(known)) or "none"
            raise errors.Unsupported(f"{method} has no parameter for {name}; it has: {shown}")
    return {name: value for name, value in asked.items() if name in known}


def _changes_nothing(name: str, value: object) -> bool:
    """Return whether a field asks only for the default, as clients do that send every field."""
    return (
        (name, value)
        in {
            ("n", 1),
            ("store", False),
            ("logprobs", False),
            ("presence_penalty", 0),
            ("frequency_penalty", 0),
        }
        if isinstance(value, int | float)
        else (name, value)
        in [
            ("tools", []),
            ("response_format", {"type": "text"}),
            ("modalities", ["text"]),
        ]
    )
