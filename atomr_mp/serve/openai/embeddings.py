"""`POST /v1/embeddings`: a call for each input, so that inputs of all clients run in batches together."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.serve.calls import PoolCalls, options
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.openai import bodies
from atomr_mp.serve.openai.declared import UNKNOWN_USAGE, method_of
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values.results import encode_json

FORM: Final = "embeddings"

MOST_INPUTS: Final = 2048
"""Most inputs of a request, the same as OpenAI's limit."""

USED: Final = frozenset({"model", "input", "encoding_format", "user"})


class Embeddings:
    """Answers embeddings.

    Args:
        source: The source of the pool.
        calls: Makes calls.
    """

    def __init__(self, source: PoolSource, calls: PoolCalls) -> None:
        self._source: Final = source
        self._calls: Final = calls

    async def answer(self, exchange: Exchange) -> None:
        """Answer a request."""
        body = await bodies.read(exchange)
        pool = self._source.pool
        plan = self._calls.plan(pool, method_of(pool, body.get("model"), FORM))
        exchange.called = plan.method
        encoding = body.get("encoding_format") or "float"
        if encoding not in {"float", "base64"}:
            raise errors.InvalidRequest("encoding_format is float or base64")
        first, *others = plan.info.parameters
        more = bodies.parameters(body, USED, others, plan.method)
        deadline_s, priority = options(exchange)
        replies = []
        try:
            for each in inputs_of(body.get("input")):
                _, kwargs = plan.arguments({first: each, **more})
                replies.append(pool.call(plan.method, kwargs=kwargs, deadline_s=deadline_s, priority=priority))
        except errors.AtomrError:
            for reply in replies:
                reply.cancel()
            raise
        model = body["model"]
        del body
        vectors = await self._calls.outcomes(exchange, replies)
        data = [
            {"object": "embedding", "index": index, "embedding": shown(vector, encoding)}
            for index, vector in enumerate(vectors)
        ]
        usage = {name: count for name, count in UNKNOWN_USAGE.items() if name != "completion_tokens"}
        whole = {"object": "list", "data": data, "model": model, "usage": usage}
        await exchange.answer(200, encode_json(whole))


def inputs_of(given: object) -> Sequence[Any]:
    """Return the inputs: texts, or tokens as lists of numbers.

    Raises:
        InvalidRequest: There are none, or too many.
    """
    inputs = given if isinstance(given, list) and not all(isinstance(each, int) for each in given) else [given]
    if not inputs or given in ("", [], None) or len(inputs) > MOST_INPUTS:
        raise errors.InvalidRequest(f"input is a text, or a list of 1 to {MOST_INPUTS} texts")
    return inputs


def shown(vector: object, encoding: str) -> object:
    """Return a vector in a client's encoding: numbers, or float32 in base64.

    Raises:
        Unsupported: The method has returned no vector.
    """
    import numpy as np

    try:
        array = np.asarray(vector, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise errors.Unsupported("the method has returned no vector of numbers", maybe_executed=True) from error
    if array.ndim != 1:
        raise errors.Unsupported(f"the method has returned no vector but {array.ndim} dimensions", maybe_executed=True)
    return base64.b64encode(array.astype("<f4").tobytes()).decode() if encoding == "base64" else array.tolist()
