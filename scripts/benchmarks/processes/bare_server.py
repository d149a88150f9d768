"""The HTTP server without a pool, a program: the same connections, the same JSON, and a constant answer.

Argument: the port. A call of a served pool takes as long as this and a call of the pool, plus the server's own cost.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import msgspec
import uvloop

from atomr_mp.serve.front_end.server import HttpServer
from atomr_mp.serve.http import events
from atomr_mp.serve.http.exchange import DIRECT, Receive, Scope, Send
from atomr_mp.serve.http.limits import DEFAULT_LIMITS
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import Counters
from benchmarks.contestant import STREAM_PARTS

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"4")]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Read JSON, and answer JSON, in as few steps as the connection allows; or stream numbers."""
    assert scope["type"] == "http"
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": events.HEADERS})
        for number in range(STREAM_PARTS):
            part = events.event(msgspec.json.encode(number))
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": events.event(b"{}", "end")})
        return
    direct = scope["extensions"][DIRECT]
    sent = direct.body()
    msgspec.json.decode((await receive())["body"] if sent is None else sent)
    body = msgspec.json.encode(None)
    if direct.answer(200, HEADERS, body):
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": body})


async def serve() -> None:
    """Serve until the process is killed."""
    server = HttpServer(application, DEFAULT_LIMITS, Counters(), UnreadAnswers(DEFAULT_LIMITS))
    await server.start(socket.create_server(("127.0.0.1", int(sys.argv[1]))))
    await asyncio.Event().wait()


def main() -> None:
    """Serve until it is killed."""
    uvloop.run(serve())


if __name__ == "__main__":
    main()
