"""The models: each is an actor that has a method with one of OpenAI's forms, and has the actor's name."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.openai.refusals import missing
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import decode

STARTED: Final = int(time.time())
"""When this process was started; it stands for the time at which its models were made."""

Handler = Callable[[Exchange], Awaitable[None]]


def models(pool: Pool) -> dict[str, dict[str, str]]:
    """Return each model's methods by form.

    Raises:
        PoolUnreachable: The pool starts, and its models are not known yet.
    """
    if not (pool.methods or any(device.admitted for device in pool.devices)):
        raise errors.PoolUnreachable("the pool is starting, and its models are not known yet")
    found: dict[str, dict[str, str]] = {}
    for method in pool.methods:
        form = _form(pool.method_info(method).schema)
        if form:
            found.setdefault(method.partition(".")[0], {})[form] = method
    return found


@functools.lru_cache(maxsize=1024)
def _form(schema: str) -> str:
    """Return the form that a method declares in its schema; empty if none. Every request asks for those of all."""
    form = decode(schema).get("openai")
    return form if isinstance(form, str) else ""


def method_of(pool: Pool, model: object, form: str) -> str:
    """Return the method that answers a form for a model, as "Actor.method".

    Raises:
        Problem: 400, no model is named; 404, there is no such model, or it has no such form.
    """
    if model is None:
        raise missing("model", "model is missing; /v1/models has the models")
    found = models(pool)
    if isinstance(model, str) and model not in found and pool.is_starting(model):
        raise errors.PoolUnreachable(f"no device that has the model {model[:100]} has been ready yet")
    known = [name for name, forms in found.items() if form in forms]
    if not isinstance(model, str) or model not in found:
        asked = str(model)[:100]
        hint = did_you_mean(asked, known)
        shown = ", ".join(known) or "none"
        raise _not_found(f"there is no model {asked!r}{hint}; there are: {shown}")
    if form not in found[model]:
        raise _not_found(f"the model {model} has no {form}; it has: {', '.join(found[model])}")
    return found[model][form]


def answer_models(source: PoolSource) -> Handler:
    """Return the handler of `GET /v1/models`."""

    async def handler(exchange: Exchange) -> None:
        shown = [_shown(name) for name in sorted(models(source.pool))]
        await exchange.answer(200, encode_json({"object": "list", "data": shown}))

    return handler


def answer_model(source: PoolSource) -> Handler:
    """Return the handler of `GET /v1/models/NAME`."""

    async def handler(exchange: Exchange) -> None:
        name = exchange.values[0]
        found = models(source.pool)
        if name not in found and source.pool.is_starting(name):
            raise errors.PoolUnreachable(f"no device that has the model {name[:100]} has been ready yet")
        if name not in found:
            raise _not_found(f"there is no model {name[:100]!r}{did_you_mean(name[:100], found)}")
        await exchange.answer(200, encode_json(_shown(name)))

    return handler


def _not_found(why: str) -> Problem:
    return Problem(404, "model_not_found", why, facts={"param": "model"})


def _shown(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "atomr-mp"}
