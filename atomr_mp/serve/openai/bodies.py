"""Reads bodies of OpenAI's requests."""

from __future__ import annotations

from typing import Any

from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values.bodies import from_json


async def read(exchange: Exchange) -> dict[str, Any]:
    """Return a request's body.

    Raises:
        Problem: 400, 413 or 415.
    """
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Problem(415, "unsupported_media_type", "send the header `Content-Type: application/json`")
    body = from_json(await exchange.body(exchange.limits.json_bytes), exchange.limits.json_containers)
    if not isinstance(body, dict):
        raise Problem(400, "bad_request", "the body is a JSON object")
    return body
