"""The front end as a bare ASGI application: it routes paths to handlers, and turns every error into an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from atomr_mp import errors
from atomr_mp.process.gpus.driver import Driver
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve import metrics, openapi, pages, trace
from atomr_mp.serve.accounts import Accounts
from atomr_mp.serve.calls import HttpCalls
from atomr_mp.serve.figures import PoolFigures
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.http import events
from atomr_mp.serve.http.access import Access
from atomr_mp.serve.http.events import OpenHttpStreams, StreamWait
from atomr_mp.serve.http.exchange import JSON, TEXT, Budget, Exchange, Receive, Scope, Send
from atomr_mp.serve.http.limits import DEFAULT_LIMITS, Limits
from atomr_mp.serve.http.routes import Route, RouteGroup, Routes
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.oip import triton_metrics
from atomr_mp.serve.oip.http_face import HttpFace
from atomr_mp.serve.oip.inference import Inference
from atomr_mp.serve.oip.models import ModelTable
from atomr_mp.serve.oip.sequences.table import SequenceTable
from atomr_mp.serve.oip.sequences.turns import SequenceTurns
from atomr_mp.serve.oip.settings import ModelSetting
from atomr_mp.serve.oip.shared_memory.files import SharedFiles
from atomr_mp.serve.oip.shared_memory.table import RegionTable
from atomr_mp.serve.oip.shared_memory.transfers import SharedMemory
from atomr_mp.serve.oip.statistics import ModelStatistics
from atomr_mp.serve.oip.unfit_log import UnfitLog
from atomr_mp.serve.openai import chat, completions, declared, description, refusals, responses
from atomr_mp.serve.openai.embeddings import Embeddings
from atomr_mp.serve.openai.text_calls import TextCalls
from atomr_mp.serve.pool_calls import PoolCalls
from atomr_mp.serve.problems import CLOSE, ClientLeft, Header, Problem, headers_of, retry_after
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.streams import StreamCalls
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.observer import Observer
from atomr_mp.serve.watch.shared_sample import SharedSample
from atomr_mp.tracing.forwarding import forwarding

_LOG: Final = logging.getLogger("atomr_mp.serve")

LEFT: Final = 499
"""Status, in the log and the metrics, of an answer to a client that has left."""


class FrontEndMemory(NamedTuple):
    """Memory that the front ends of a server share."""

    counters: Counters
    """Counters of answers."""
    sample: SharedSample
    """The latest sample of the pool."""
    sequences: SequenceTable
    """Open sequences of the Open Inference Protocol."""
    regions: RegionTable | None = None
    """Clients' regions of shared memory; closed with the application. None if they may have none."""


class Application:
    """Answers HTTP for a pool. One for each event loop.

    Args:
        source: The source of the pool.
        access: Decides who may ask.
        models: Models of the Open Inference Protocol that are described, by name.
        limits: Limits of a client's requests.
        memory: The front ends' shared memory; its own by default.
        debug: Whether errors show the actor's traceback.
        access_log: Whether to log a line for each answer.
        log_errors: What the log shows of exceptions that methods raise: "full", "type" or "off".
        forwards_traces: Whether calls take a request's `traceparent` along; the process makes no spans itself.
    """

    def __init__(
        self,
        source: PoolSource,
        access: Access,
        *,
        models: Mapping[str, ModelSetting] = MappingProxyType({}),
        limits: Limits = DEFAULT_LIMITS,
        memory: FrontEndMemory | None = None,
        debug: bool = False,
        access_log: bool = False,
        log_errors: LogErrors = "full",
        forwards_traces: bool = False,
    ) -> None:
        self._forwards_traces: Final = forwards_traces
        self._source: Final = source
        self.access: Final = access
        self._cors: Final = access.cors
        self._has_cors: Final = bool(access.cors)
        self.limits: Final = limits
        self._debug: Final = debug
        self._begun = False
        memory = memory or FrontEndMemory(Counters(), SharedSample(), SequenceTable(limits.sequences))
        self.counters: Final = memory.counters
        self.accounts: Final = Accounts(self.counters, access_log=access_log, log_errors=log_errors)
        self.budget: Final = Budget(limits.buffered_bytes)
        self.unread: Final = UnreadAnswers(limits)
        self._figures: Final = PoolFigures(source)
        self._driver: Final = Driver()
        self.health: Final = PoolHealth(source, self._figures)
        self.streams: Final = OpenHttpStreams(limits.streams)
        self._observer: Final = Observer(source, self.counters, memory.sample)
        stream_calls = StreamCalls(self.streams, self.health, self.counters, debug=debug)
        calls = PoolCalls(source, self.health)
        text_calls = TextCalls(source, calls, stream_calls, debug=debug)
        self._preflight: Final = Route("preflight", "OPTIONS", self._may_ask, needs_token=False)
        plain = {
            "/call/{}": Route("call", "POST", HttpCalls(source, calls, stream_calls.answer).answer),
            "/health/live": Route("health", "GET", self._live, needs_token=False),
            "/health/ready": Route("health", "GET", self._ready, needs_token=False),
            "/metrics": Route("metrics", "GET", self._metrics),
            "/openapi.json": Route("page", "GET", self._openapi),
            "/trace": Route("watch", "GET", trace.answer(source, self.streams)),
            "/watch/events": Route("watch", "GET", self._watch),
            "/watch/history": Route("watch", "GET", self._history),
            "/": Route("page", "GET", pages.answer("watch.html"), needs_token=False),
            "/docs": Route("page", "GET", pages.answer("docs.html"), needs_token=False),
        }
        openai = {
            "/v1/models": Route("openai", "GET", declared.answer_models(source)),
            "/v1/models/{}": Route("openai", "GET", declared.answer_model(source)),
            "/v1/embeddings": Route("openai", "POST", Embeddings(source, calls).answer),
            "/v1/chat/completions": Route("openai", "POST", text_calls.answers(chat.FORM)),
            "/v1/completions": Route("openai", "POST", text_calls.answers(completions.FORM)),
            "/v1/responses": Route("openai", "POST", text_calls.answers(responses.FORM)),
        }
        table = ModelTable(models)
        if self.counters.slot == 0:  # one of several front ends tells
            UnfitLog(source, table)
        statistics = ModelStatistics(self.counters.methods)
        shared = None
        if memory.regions is not None:
            shared = SharedMemory(memory.regions, SharedFiles(), self.budget, limits.raw_bytes)
        self.inference: Final = Inference(
            source,
            calls,
            self.health,
            table,
            statistics,
            SequenceTurns(source, memory.sequences),
            self.streams,
            self.counters,
            limits.deadline_s,
            shared,
        )
        self._routes: Final = Routes(
            [
                HttpFace(self.inference).group(),
                RouteGroup(openai, refusals.PATH, refusals.status_of, refusals.body_of),
                RouteGroup(plain),
            ]
        )

    def drain(self) -> None:
        """Report from now on that the server is not ready: it is about to end."""
        self.health.draining = True

    def close(self) -> None:
        """Log what is only counted or gathered yet."""
        self.accounts.close()
        if self.inference.shared_memory is not None:
            self.inference.shared_memory.close()

    def end_streams(self) -> None:
        """End open streams: the server does not wait for them."""
        self.streams.end()

    def look_at_tokens(self) -> None:
        """Take up changes of the file of tokens: streams of tokens that have become invalid end."""
        if self.access.look_again():
            self.streams.end_revoked(self.access.admits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection's scope; see the ASGI specification."""
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        exchange = self._taken(scope, receive, send)
        counters, name = self.counters, "other"
        counters.own[metrics.IN_FLIGHT] += 1
        try:
            exchange.check_headers()
            self.access.check_origin(exchange.headers)
            route = self._route(exchange)
            name = route.name
            self._admit(exchange, route)
            if self._forwards_traces and (parent := exchange.headers.get(b"traceparent")) is not None:
                with forwarding(parent):
                    await route.handler(exchange)
            else:
                await route.handler(exchange)
        except ClientLeft as left:
            exchange.status, exchange.code = LEFT, "client_left"
            if left.answer is not None:
                exchange.status, exchange.code = left.answer.status, left.answer.code
        except (Problem, errors.AtomrError) as error:
            await self._refuse(exchange, error)
        except asyncio.CancelledError:  # the server has waited long enough
            self.accounts.gave_up(exchange)
            ended = errors.Cancelled("the server ends, and the answer was not there", maybe_executed=True)
            await self._refuse(exchange, ended, CLOSE)
        except Exception:  # noqa: BLE001 - the top of a request: it is answered, and the server goes on
            _LOG.exception(
                "request %s (%s %s) met an internal error", exchange.id, exchange.method, exchange.path[:200]
            )
            why = "internal error of the server; its log has this request's id"
            await self._refuse(exchange, Problem(500, "internal_error", why, maybe_executed=exchange.sent))
        finally:
            exchange.close()
            self.accounts.ended(exchange, name)
            counters.own[metrics.IN_FLIGHT] -= 1

    def begin(self) -> None:
        """Begin to look at the pool, unless that is done: in the event loop, at the first request at the latest."""
        if not self._begun:
            self._begun = True
            self._source.begin()
            self._observer.begin()

    def _taken(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        """Return the exchange of a request that has come."""
        self.begin()
        exchange = Exchange(scope, receive, send, self.limits, self.budget, self.unread)
        if self._has_cors:
            exchange.cors = self._cors.headers(exchange.headers.get(b"origin"))
        return exchange

    def _admit(self, exchange: Exchange, route: Route) -> None:
        """Refuse a request without a token, or a call for which there is no room.

        Raises:
            Problem: 401 or 429.
        """
        if route.needs_token:
            exchange.token = self.access.check_token(exchange.headers)
        if route.method == "POST":
            exchange.check_room()

    def _route(self, exchange: Exchange) -> Route:
        """Return the route of a path.

        Raises:
            Problem: 404 or 405.
        """
        if exchange.method == "OPTIONS" and self._cors.preflight(exchange.headers) is not None:
            return self._preflight
        path = exchange.path or "/"
        found = self._routes.find(path)
        if found is None:
            hint = did_you_mean(path, self._routes.paths)
            raise Problem(404, "not_found", f"there is nothing at {path[:200]}{hint}; /docs shows what there is")
        route, exchange.values = found
        if route.method not in {"", "GET" if exchange.method == "HEAD" else exchange.method}:
            allowed = "GET, HEAD" if route.method == "GET" else route.method
            raise Problem(
                405,
                "method_not_allowed",
                f"{path[:200]} is asked by {allowed}",
                headers=((b"allow", allowed.encode()),),
            )
        return route

    async def _refuse(self, exchange: Exchange, error: errors.AtomrError | Problem, *more: Header) -> None:
        """Answer with an error; if an answer has begun, the connection ends without its end."""
        exchange.failed(error)
        if exchange.status:
            raise RuntimeError("an error came after its answer had begun") from error
        sent, group = exchange.sent, self._routes.group_of(exchange.path)
        status = group.status_of(error, sent=sent)
        headers = [*headers_of(error, status, sent=sent), *more]
        told = group.body_of(error, exchange.id, debug=self._debug, sent=sent)
        await exchange.answer(status, told, JSON, *headers)

    # --- small routes ----------------------------------------------------------------------------------------------

    async def _live(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"live":true}')

    async def _may_ask(self, exchange: Exchange) -> None:
        """Tell a browser which requests a page of another origin may send."""
        more = self._cors.preflight(exchange.headers) or ()
        exchange.cors = tuple(header for header in exchange.cors if header[0] != b"vary")  # there is a longer one
        await exchange.answer(200, b"", TEXT, *more)

    async def _ready(self, exchange: Exchange) -> None:
        asked = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("method", [""])
        verdict = await self.health.verdict(asked[0])
        body = encode_json({"ready": verdict.ready, "reason": verdict.reason})
        if verdict.ready:
            await exchange.answer(200, body)
        else:
            exchange.code = verdict.code
            await exchange.answer(503, body, JSON, retry_after(0))

    async def _metrics(self, exchange: Exchange) -> None:
        accept, status = exchange.headers.get(b"accept", b"").decode("latin-1"), await self._figures.present()
        told = metrics.PoolTold(status, self._figures.latest, self._driver)
        of_models = triton_metrics.families(self.inference.statistics, self.inference.names(), told)
        kind, body = await asyncio.to_thread(metrics.exposition, self.counters, told, accept, of_models)
        await exchange.answer(200, body, (b"content-type", kind.encode()))

    async def _openapi(self, exchange: Exchange) -> None:
        pool = self._source.pool
        methods = {name: pool.method_info(name) for name in pool.methods}
        more = description.paths(methods)
        await exchange.answer(200, openapi.document(pool.name, methods, more, token=self.access.needs_token))

    async def _history(self, exchange: Exchange) -> None:
        """Answer with the figures of the last 15 minutes."""
        await exchange.answer(200, encode_json(self._observer.history().shown()))

    async def _watch(self, exchange: Exchange) -> None:
        """Send the state of the pool repeatedly."""
        if exchange.method == "HEAD":
            await exchange.begin(200, *events.HEADERS)
            await exchange.end()
            return
        waiting = StreamWait(exchange, self.streams)
        with waiting.open(), self._observer.viewer():
            self.counters.own[metrics.STREAMS] += 1
            try:
                await exchange.begin(200, *events.HEADERS)
                number = 0
                while (found := await waiting.until(self._observer.next(number))) is not None:
                    number, shown = found
                    await exchange.send(events.event(shown))
                await exchange.end(events.event(b"{}", "end"))
            finally:
                self.counters.own[metrics.STREAMS] -= 1


async def _other(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a scope other than HTTP: the lifespan of a server, or a WebSocket, which is refused."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
