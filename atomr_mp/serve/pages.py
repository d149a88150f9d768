"""The pages, each one file with its style and its script in it.

They hold no data: their scripts ask for it with a token.

A page's security policy names its own script and style by their hashes, and admits nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_mp.serve.http.exchange import Exchange
    from atomr_mp.serve.problems import Header

HTML: Final = (b"content-type", b"text/html; charset=utf-8")

_INLINE: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)  # backtracks: only over pages of ours


def answer(name: str) -> Callable[[Exchange], Awaitable[None]]:
    """Return the handler of a page."""

    async def handler(exchange: Exchange) -> None:
        body, policy = page(name)
        await exchange.answer(200, body, HTML, policy, *HEADERS)

    return handler


@functools.cache
def page(name: str) -> tuple[bytes, Header]:
    """Return a page and its policy."""
    body = resources.files("atomr_mp.serve").joinpath("static", name).read_bytes()
    hashes: dict[bytes, list[bytes]] = {b"script": [], b"style": []}
    for kind, content in _INLINE.findall(body):
        hashes[kind].append(b"'sha256-" + base64.b64encode(hashlib.sha256(content).digest()) + b"'")
    policy = b"; ".join(
        [
            b"default-src 'none'",
            *(b"%s-src %s" % (kind, b" ".join(found)) for kind, found in hashes.items() if found),
            b"connect-src 'self'",
            b"img-src data:",
            b"base-uri 'none'",
            b"form-action 'none'",
            b"frame-ancestors 'none'",
        ]
    )
    return body, (b"content-security-policy", policy)


HEADERS: Final[tuple[Header, ...]] = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
