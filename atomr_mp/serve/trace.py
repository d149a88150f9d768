"""`GET /trace`: a trace of the pool, as `atomr-mp trace` writes it, for whoever has a token."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final, cast
from urllib.parse import parse_qsl

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.operator.trace.tracer import PoolTracer
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.protocol import amounts
from atomr_mp.protocol.timeline import LONGEST_S
from atomr_mp.serve.http.events import OpenHttpStreams, StreamWait
from atomr_mp.serve.http.exchange import JSON, Exchange
from atomr_mp.serve.problems import Problem, retry_after
from atomr_mp.serve.source import PoolSource

DEFAULT_S: Final = 5.0

PART_BYTES: Final = 2**18
"""Bytes of the file that are sent at a time."""

FILE: Final = (b"content-disposition", b'attachment; filename="trace.json"')


def answer(source: PoolSource, streams: OpenHttpStreams) -> Callable[[Exchange], Awaitable[None]]:
    """Return the handler of the route.

    Args:
        source: The source of the pool.
        streams: The open streams, among which a trace counts.
    """

    async def answered(exchange: Exchange) -> None:
        wanted_s = _seconds(exchange)
        if exchange.method == "HEAD":
            await exchange.answer(200, b"")
            return
        run_dir, stop = source.pool.run_dir, threading.Event()
        waiting = StreamWait(exchange, streams)
        with waiting.open(), tempfile.TemporaryFile(buffering=0) as opened:
            file = cast("BinaryIO", opened)
            tracing = asyncio.ensure_future(asyncio.to_thread(_trace, run_dir, wanted_s, file, stop))
            try:  # if the server ends, its client gets what there is
                ended = await waiting.until(asyncio.shield(tracing), comment=b"")
            finally:
                stop.set()
                await asyncio.wait([tracing])
            tracing.result()
            if ended is None and not streams.ending.is_set():  # the token is not valid any more
                raise Problem(503, "ending", "the server is about to end", headers=(retry_after(0),))
            file.seek(0)
            await exchange.begin(200, JSON, FILE)
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                await exchange.send(part)
            await exchange.end()

    return answered


def _trace(run_dir: Path, wanted_s: float, file: BinaryIO, stop: threading.Event) -> bool:
    """Trace the pool into a file; blocks."""
    try:
        with OperatorSession(run_dir / SESSION_SOCKET) as observer:
            PoolTracer(observer, wanted_s, stop.is_set).run(file)
    except TimeoutError as error:
        raise errors.PoolLost("the pool's supervisor does not answer") from error
    return True


def _seconds(exchange: Exchange) -> float:
    """Return how long a request wants to trace.

    Raises:
        InvalidRequest: It is no time, or too long; or there are other arguments.
    """
    given = parse_qsl(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    names = [name for name, _ in given]
    for name in names:
        if name != "seconds":
            raise errors.InvalidRequest(f"a trace has no argument {name[:40]!r}; it has seconds")
    if len(names) > 1:
        raise errors.InvalidRequest("seconds is there twice")
    asked = given[0][1] if given else f"{DEFAULT_S:g}"
    try:
        wanted_s = float(asked)
    except ValueError:
        raise errors.InvalidRequest(f"seconds is {asked[:40]!r}; it is a number, at most {LONGEST_S:g}") from None
    return amounts.duration("seconds", wanted_s, most=LONGEST_S)
