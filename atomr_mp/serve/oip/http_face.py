"""The protocol over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.words import shown
from atomr_mp.serve.calls import seconds
from atomr_mp.serve.http import events
from atomr_mp.serve.http.exchange import JSON, Exchange
from atomr_mp.serve.http.routes import Handler, Route, RouteGroup
from atomr_mp.serve.oip import coding, generate, http_body, refusals
from atomr_mp.serve.oip.config import config_of
from atomr_mp.serve.oip.inference import Inference, answer_of
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.not_offered import PATHS, problem_of
from atomr_mp.serve.oip.requests import InferAnswer, InferRequest, given_headers
from atomr_mp.serve.oip.shared_memory import http_face as shared_memory
from atomr_mp.serve.oip.statistics import Phases
from atomr_mp.serve.problems import Header, Problem, retry_after
from atomr_mp.serve.streams import HttpStream

JSON_LENGTH: Final = b"inference-header-content-length"

OCTETS: Final[Header] = (b"content-type", b"application/octet-stream")

THREAD_BYTES: Final = 256 * 2**10
"""Bodies beyond are compressed and decompressed on a thread: the others' requests would wait."""

_encode: Final = msgspec.json.Encoder().encode


class HttpFace:
    """Answers the protocol's paths.

    Args:
        inference: Makes calls.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference: Final = inference

    def group(self) -> RouteGroup:
        """Return the paths."""
        routes: dict[str, Route] = {
            "/v2": self._get(self._server),
            "/v2/": self._get(self._server),
            "/v2/health/live": self._get(self._live, needs_token=False),
            "/v2/health/ready": self._get(self._ready, needs_token=False),
            "/v2/models/stats": self._get(self._all_statistics),
            "/v2/repository/index": Route("oip", "POST", self._index),
            **{path: Route("oip", "", _refuse(name)) for path, name in PATHS.items()},
            **({} if self._inference.shared_memory is None else shared_memory.routes(self._inference.shared_memory)),
        }
        for path in ("/v2/models/{}", "/v2/models/{}/versions/{}"):
            routes |= {
                path: self._get(self._metadata),
                f"{path}/ready": self._get(self._ready),
                f"{path}/config": self._get(self._config),
                f"{path}/stats": self._get(self._statistics),
                f"{path}/infer": Route("oip", "POST", self._infer),
                f"{path}/generate": Route("oip", "POST", self._generate),
                f"{path}/generate_stream": Route("oip", "POST", self._generate_stream),
            }
        return RouteGroup(routes, refusals.PATH, refusals.status_of, refusals.body_of)

    @staticmethod
    def _get(handler: Any, *, needs_token: bool = True) -> Route:
        return Route("oip", "GET", handler, needs_token)

    async def _server(self, exchange: Exchange) -> None:
        await exchange.answer(200, _encode(self._inference.metadata()))

    async def _live(self, exchange: Exchange) -> None:
        await exchange.answer(200, _encode({"live": True}))  # Triton's body is empty; KServe's client reads one

    async def _ready(self, exchange: Exchange) -> None:
        name, version = _model_of(exchange)
        verdict = await self._inference.verdict(name, version)
        told = {"name": name, "ready": verdict.ready} if name else {"ready": verdict.ready}
        if verdict.ready:
            await exchange.answer(200, _encode(told))
            return
        exchange.code = verdict.code
        await exchange.answer(503, _encode(told | {"error": verdict.reason}), JSON, retry_after(0))

    async def _metadata(self, exchange: Exchange) -> None:
        await exchange.answer(200, _encode(self._inference.model(*_model_of(exchange)).metadata()))

    async def _config(self, exchange: Exchange) -> None:
        await exchange.answer(200, _encode(config_of(self._inference.model(*_model_of(exchange)))))

    async def _statistics(self, exchange: Exchange) -> None:
        model = self._inference.model(*_model_of(exchange))
        await exchange.answer(200, _encode({"model_stats": self._inference.statistics.told([model.name])}))

    async def _all_statistics(self, exchange: Exchange) -> None:
        told = self._inference.statistics.told(self._inference.names())
        await exchange.answer(200, _encode({"model_stats": told}))

    async def _index(self, exchange: Exchange) -> None:
        limits = exchange.limits
        body = await exchange.body(limits.json_bytes)
        asked = http_body.read(body, limits.json_containers) if body else {}
        only_ready = asked.get("ready", False) if isinstance(asked, dict) else asked
        if not isinstance(only_ready, bool):
            raise errors.InvalidRequest(f'a request is {{"ready": true}} or {{"ready": false}}, not {shown(asked)}')
        await exchange.answer(200, _encode(await self._inference.index(only_ready=only_ready)))

    async def _infer(self, exchange: Exchange) -> None:
        name, version = _model_of(exchange)
        model = self._inference.model(name, version)  # before the body is read
        deadline_s, headers = seconds(exchange, b"x-deadline-s"), _headers(exchange, model)
        accepted = coding.coding_for(exchange.headers.get(b"accept-encoding", b""))
        request = await self._request(exchange, model, version)
        http_body.check_outputs(model, request)
        answer = await self._inference.infer(exchange, request, deadline_s=deadline_s, headers=headers)
        async with exchange.making(answer.nbytes):
            await _send(exchange, request, answer, accepted)

    async def _request(self, exchange: Exchange, model: Model, version: str) -> InferRequest:
        """Read a request.

        Raises:
            Problem: 400, 413 or 415.
            InvalidRequest: The body is no request.
            ClientLeft: The client left before it was complete.
        """
        limits, given = exchange.limits, exchange.headers
        body = await exchange.body(limits.raw_bytes)
        compressed = given.get(b"content-encoding", b"")
        if compressed:
            packed = body
            body = await _apart(len(packed), lambda: coding.decoded(packed, compressed, limits.raw_bytes))
        json_bytes = _json_length(given.get(JSON_LENGTH), len(body))
        if json_bytes == 0 and JSON_LENGTH in given:
            return http_body.of_raw(model, version, body)
        if json_bytes > limits.json_bytes:
            raise Problem(413, "too_large", f"the JSON has more than {limits.json_bytes} bytes; send binary data")
        return http_body.decode(model.name, version, body, json_bytes, limits.json_containers)

    async def _generate(self, exchange: Exchange) -> None:
        _, request, deadline_s, headers = await self._generation(exchange)
        answer = await self._inference.infer(exchange, request, deadline_s=deadline_s, headers=headers)
        async with exchange.making(answer.nbytes):
            await exchange.answer(200, generate.encode(answer))

    async def _generate_stream(self, exchange: Exchange) -> None:
        model, request, deadline_s, headers = await self._generation(exchange)
        if not model.info.streams:
            answer = await self._inference.infer(exchange, request, deadline_s=deadline_s, headers=headers)
            await exchange.begin(200, *events.HEADERS)
            await exchange.end(events.event(generate.encode(answer)))
            return
        opened = self._inference.open(exchange, model, request, HttpStream, deadline_s=deadline_s, headers=headers)
        async with opened as parts:
            try:
                with self._inference.counted(model, exchange):
                    first = await parts.begin(events.HEADERS, b"")  # not all clients know comments
                    await parts.send(first, lambda part: events.event(generate.encode(answer_of(model, request, part))))
                    await parts.result()
                    await exchange.end()
                took_ns = time.monotonic_ns() - exchange.begun_ns
                self._inference.statistics.answered(model.name, 1, Phases(0, 0, took_ns, 0), 1)
            except (errors.AtomrError, Problem) as error:
                if not exchange.status:
                    raise
                exchange.failed(error)
                await exchange.end(events.event(refusals.end_of(error, exchange.parts)))

    async def _generation(self, exchange: Exchange) -> tuple[Model, InferRequest, float | None, dict[str, str]]:
        """Read a request of the extension `generate`."""
        name, version = _model_of(exchange)
        model = self._inference.model(name, version)
        deadline_s, limits = seconds(exchange, b"x-deadline-s"), exchange.limits
        body = await exchange.body(limits.json_bytes)
        request = generate.request_of(model, version, http_body.read(body, limits.json_containers))
        return model, request, deadline_s, _headers(exchange, model)


def _refuse(name: str) -> Handler:
    """Return a handler that refuses a call."""

    async def refuse(_exchange: Exchange) -> None:
        raise problem_of(name)

    return refuse


async def _send(exchange: Exchange, request: InferRequest, answer: InferAnswer, accepted: bytes) -> None:
    body, json_bytes = http_body.encode(request, answer)
    more: list[Header] = [] if json_bytes is None else [(JSON_LENGTH, b"%d" % json_bytes)]
    if accepted:
        plain = body
        body = await _apart(len(plain), lambda: coding.encoded(plain, accepted))
        more.append((b"content-encoding", accepted))
    await exchange.answer(200, body, JSON if json_bytes is None else OCTETS, *more)


async def _apart(nbytes: int, work: Any) -> Any:
    """Return a function's result; on a thread where there are many bytes."""
    return work() if nbytes <= THREAD_BYTES else await asyncio.to_thread(work)


def _json_length(given: bytes | None, body_bytes: int) -> int:
    """Return how many bytes of a body are JSON.

    Raises:
        Problem: 400; the header is no length, or beyond the body.
    """
    if given is None:
        return body_bytes
    if not given.isdigit() or len(given) > 18 or int(given) > body_bytes:
        raise Problem(
            400,
            "bad_request",
            f"Inference-Header-Content-Length is a number of bytes of the body, which has {body_bytes}",
        )
    return int(given)


def _headers(exchange: Exchange, model: Model) -> dict[str, str]:
    """Return the client's headers by names in small letters; none where the model asks for none."""
    if not model.setting.headers_to:
        return {}
    return given_headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.scope["headers"])


def _model_of(exchange: Exchange) -> tuple[str, str]:
    """Return the model's name and version in a path; the version is empty where it has none."""
    name, version = (*exchange.values, "", "")[:2]
    return name, version
