"""HTTP over a pool: `atomr-mp serve`, or an ASGI application to mount in one's own.

Needs the extra `serve`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atomr_mp.pool import Pool
from atomr_mp.serve.application import Application
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.http.limits import DEFAULT_LIMITS, Limits
from atomr_mp.serve.source import GivenPool

__all__ = ["Application", "Limits", "app"]


def app(
    pool: Pool,
    *,
    tokens: Iterable[str] = (),
    allowed_hosts: Collection[str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    debug: bool = False,
) -> Application:
    """Return an ASGI application that answers for a pool, to be mounted in FastAPI or Starlette.

    The pool stays the caller's: join it in the application's lifespan, in each front-end process, and close it there.
    Who may ask is the surrounding application's to say, unless tokens or hosts are given here.

    Args:
        pool: Is called in the event loop that the application runs in.
        tokens: One of these is needed for all but health; none are needed if there are none.
        allowed_hosts: Names that a request's `Host` may have, with or without a port; None for any.
        limits: What a client may ask.
        debug: Errors tell the actor's traceback.

    Raises:
        ConfigurationError: A token is too short.
    """
    return Application(GivenPool(pool), Access(Tokens(tokens), allowed_hosts), limits=limits, debug=debug)
