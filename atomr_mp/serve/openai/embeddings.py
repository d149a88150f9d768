"""`POST /v1/embeddings`: a call for each input, so that inputs of all clients run in batches together."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.openai import bodies, usage
from atomr_mp.serve.openai.declared import method_of
from atomr_mp.serve.openai.fields import Fields
from atomr_mp.serve.openai.inputs import inputs_of
from atomr_mp.serve.openai.refusals import refusal, shown, wrong_type
from atomr_mp.serve.openai.text_calls import call_all
from atomr_mp.serve.pool_calls import PoolCalls
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values.results import about_bytes, encode_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORM: Final = "embeddings"

DIMENSIONS: Final = "dimensions"

FIELDS: Final = Fields(
    used=frozenset({"model", "input", "encoding_format"}),
    fixed={},
    optional={},
)


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
        encoding = "float" if (given := body.get("encoding_format")) is None else given
        if encoding not in ("float", "base64"):  # a client's value may not be hashable
            why = f"encoding_format is {shown(encoding)}; it is 'float' or 'base64'"
            raise refusal("encoding_format", "invalid_value", why)
        inputs = inputs_of("input", body.get("input"))
        first, *others = plan.info.parameters
        expected = None if DIMENSIONS in others else _dimensions(body.pop(DIMENSIONS, None))
        more = FIELDS.given(body, others, plan.method)
        model = body["model"]
        del body
        results = await call_all(self._calls, exchange, plan, [{first: each, **more} for each in inputs])
        vectors, counts = zip(*map(_parts, results), strict=True)
        if expected is not None and any(len(vector) != expected for vector in vectors):
            why = f"the vectors of {model} have {len(vectors[0])} dimensions, and {plan.method} has no other"
            raise refusal(DIMENSIONS, "unsupported_value", why, ran=True)
        total = usage.total(counts)
        told = {name: total[name] for name in ("prompt_tokens", "total_tokens")}
        async with exchange.making(about_bytes(vectors)):
            data = [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
                for index, vector in enumerate(vectors)
            ]
            await exchange.answer(200, encode_json({"object": "list", "data": data, "model": model, "usage": told}))


def _dimensions(given: object) -> int | None:
    """Return the number of dimensions that a client expects of a method that has one number of them."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given > 0):
        return given
    raise wrong_type(DIMENSIONS, f"dimensions is a whole number above 0, not {shown(given)}")


def _parts(result: object) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return the vector and the usage that a method has returned: a vector, or a map with both.

    Raises:
        Unsupported: It has returned no vector.
    """
    import numpy as np

    counts = usage.UNKNOWN
    if isinstance(result, dict):
        if result.keys() - {"embedding", "usage"}:
            wrong = "the method has returned a map with more than embedding and usage"
            raise errors.Unsupported(wrong, maybe_executed=True)
        if (told := result.get("usage")) is not None:
            counts = usage.checked(told)
        result = result.get("embedding")
    try:
        array = np.asarray(result, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise errors.Unsupported("the method has returned no vector of numbers", maybe_executed=True) from error
    if array.ndim != 1:
        raise errors.Unsupported(f"the method has returned no vector but {array.ndim} dimensions", maybe_executed=True)
    return array, counts


def _encoded(vector: NDArray[np.float32], encoding: str) -> object:
    """Return a vector in a client's encoding: numbers, or float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if encoding == "base64" else vector.tolist()
