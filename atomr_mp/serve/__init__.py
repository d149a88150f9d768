"""HTTP over a pool: `atomr-mp serve`, or an ASGI application to mount in another one.

Needs the extra `serve`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from atomr_mp.pool import Pool
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.serve.application import Application
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.http.cors import Cors
from atomr_mp.serve.http.limits import DEFAULT_LIMITS, Limits
from atomr_mp.serve.oip.model_config.files import read
from atomr_mp.serve.server_log import tell
from atomr_mp.serve.source import GivenPool

__all__ = ["Application", "Limits", "app"]


@checked_names
def app(
    pool: Pool,
    *,
    tokens: Iterable[str] = (),
    allowed_hosts: Collection[str] | None = None,
    cors_origins: Collection[str] = (),
    models: Iterable[str | os.PathLike[str]] = (),
    limits: Limits = DEFAULT_LIMITS,
    debug: bool = False,
    log_errors: LogErrors = "full",
) -> Application:
    """Return an ASGI application that answers for a pool, to be mounted in FastAPI or Starlette.

    The pool stays the caller's: join it in the application's lifespan, in each front-end process, and close it there.
    The surrounding application decides who may ask, unless tokens or hosts are given here.

    Args:
        pool: The pool; it is called in the application's event loop.
        tokens: Every request but health needs one of these. If there are none, no request needs a token.
        allowed_hosts: Names that a request's `Host` may have, with or without a port; None for any.
        cors_origins: Origins of web pages that may ask, such as "https://app.example"; see `--cors-origin`. None where
            the surrounding application sees to that.
        models: Files that describe models of the Open Inference Protocol, as `--models`; read here.
        limits: Limits of a client's requests.
        debug: Whether errors show the actor's traceback.
        log_errors: What the logger `atomr_mp.serve` is told of exceptions that methods raise: "full", the traceback,
            once a minute for each place; "type", the type and the place; "off", nothing.

    Raises:
        ConfigurationError: A token is too short, an origin is none, or a description of models cannot be used.
    """
    valid = Tokens(tokens)
    access = Access(valid, allowed_hosts, Cors(cors_origins, has_tokens=bool(valid)))
    described = read([Path(each) for each in models])
    for warning in described.warnings:
        tell(logging.WARNING, "models", warning)
    return Application(
        GivenPool(pool), access, models=described.models, limits=limits, debug=debug, log_errors=log_errors
    )
