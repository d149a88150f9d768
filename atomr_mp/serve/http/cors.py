"""Cross-origin resource sharing: which web pages of other origins may ask, and read what they are answered. Pure.

See the Fetch standard, "CORS protocol". No cookie admits anybody here, so credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from atomr_mp import errors
from atomr_mp.serve.problems import Header

ANY: Final = "*"

ANY_WITH_TOKEN: Final = "any-with-token"  # noqa: S105 - the word of an option
"""The word for any origin where tokens are asked for: whoever writes it knows that pages get them."""

METHODS: Final = b"GET, HEAD, POST"

USUAL_HEADERS: Final = b"authorization, content-type"
"""The headers that are allowed where a browser does not say which ones it is about to send."""

EXPOSED: Final[Header] = (b"access-control-expose-headers", b"x-request-id, retry-after, x-should-retry")

MAX_AGE_S: Final = 600
"""How long a browser may remember an answer; Chromium remembers two hours at most."""

MOST_HEADERS_BYTES: Final = 2048
"""Bytes of the names of headers that a browser asks for."""

_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$&^_`|~.+, \t-]+")

_VARY: Final[Header] = (b"vary", b"Origin")
_VARY_PREFLIGHT: Final[Header] = (
    b"vary",
    b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
)


class Cors:
    """Decides which origins may ask. Makes the headers of their answers.

    Args:
        origins: Origins as browsers write them, such as "https://app.example", or "*" for any; none for no CORS.
        has_tokens: Whether requests need a token; then any origin is admitted by `ANY_WITH_TOKEN` only.

    Raises:
        ConfigurationError: One of them is no origin, or any is named where tokens are asked for.
    """

    def __init__(self, origins: Collection[str], *, has_tokens: bool = False) -> None:
        self._any = False
        for origin in origins:
            if origin == ANY_WITH_TOKEN or (origin == ANY and not has_tokens):
                self._any = True
            elif origin == ANY:
                raise errors.ConfigurationError(
                    "'*' lets every web page ask that has a token: name the origins, or say "
                    f"{ANY_WITH_TOKEN!r} if that is meant"
                )
            elif not _ORIGIN.fullmatch(origin.lower()):
                raise errors.ConfigurationError(
                    f"{origin!r} is no origin; one is like https://app.example or http://localhost:3000, without a path"
                )
        self._origins: Final = frozenset(origin.lower().encode() for origin in origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def admits(self, origin: bytes) -> bool:
        """Return whether a web page of an origin may ask; `null` has none, and is admitted with any only."""
        return self._any or origin.lower() in self._origins

    def headers(self, origin: bytes | None) -> tuple[Header, ...]:
        """Return the headers of every answer, also of errors.

        Args:
            origin: The request's `Origin`.
        """
        if self._any:
            return (b"access-control-allow-origin", b"*"), EXPOSED
        if origin is None or not self.admits(origin):
            return (_VARY,) if self._origins else ()
        return (b"access-control-allow-origin", origin), EXPOSED, _VARY

    def preflight(self, headers: dict[bytes, bytes]) -> tuple[Header, ...] | None:
        """Return the headers of the answer to a browser that asks before it sends a request; None if it does not ask.

        The headers come beside those of every answer. Whatever names of headers it asks for are allowed, since no
        header does harm without a token.

        Args:
            headers: The request's, an OPTIONS.
        """
        origin = headers.get(b"origin")
        if origin is None or b"access-control-request-method" not in headers or not self.admits(origin):
            return None
        asked = headers.get(b"access-control-request-headers", USUAL_HEADERS)
        fits = len(asked) <= MOST_HEADERS_BYTES and _NAMES.fullmatch(asked)
        return (
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", asked if fits else USUAL_HEADERS),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
            _VARY_PREFLIGHT,
        )


NO_CORS: Final = Cors(())
