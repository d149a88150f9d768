"""The HTTP server without a pool, a program: the same connections, the same JSON, and a constant answer.

Argument: the port. A call of a served pool takes as long as this and a call of the pool, plus the server's own cost.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import uvicorn

from atomr_mp.serve.http import events
from atomr_mp.serve.http.exchange import DIRECT
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.server.connection import HttpConnection
from benchmarks.contestant import STREAM_PARTS

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"4")]


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
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


def main() -> None:
    """Serve until it is killed."""
    protocol = type("Counted", (HttpConnection,), {"counters": Counters()})
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        server_header=False,
        log_config=None,
        access_log=False,
    )


if __name__ == "__main__":
    main()
