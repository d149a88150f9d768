"""ASGI middleware for tests of `atomr-mp serve --middleware`."""

from __future__ import annotations

import asyncio
import os
from typing import Any


def marking(app: Any) -> Any:
    """Add a header with the process, and fail where a request asks for that."""

    async def marked(scope: Any, receive: Any, send: Any) -> None:
        async def with_mark(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-mark", b"%d" % os.getpid())]
            await send(message)

        how = dict(scope["headers"]).get(b"x-how")
        assert how != b"raise", "raised on purpose"
        if how == b"cancel":
            raise asyncio.CancelledError
        if how == b"exit":
            raise SystemExit(3)
        if how != b"silence":
            await app(scope, receive, with_mark)
        assert how != b"raise-late", "raised late on purpose"

    return marked


def refusing(app: Any) -> Any:
    """Refuse what has no header of its own."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"x-how") != b"refuse":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 402, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return guarded


def returning_nothing(_app: Any) -> None:
    """Return no application."""


NOT_CALLABLE = 1
