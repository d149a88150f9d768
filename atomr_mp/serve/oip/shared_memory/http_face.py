"""The paths of shared memory over HTTP."""

from __future__ import annotations

import msgspec

from atomr_mp import errors
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.http.routes import Handler, Route
from atomr_mp.serve.oip import http_body
from atomr_mp.serve.oip.shared_memory.transfers import SharedMemory


def routes(shared: SharedMemory) -> dict[str, Route]:
    """Return the paths with their handlers."""

    async def status(exchange: Exchange) -> None:
        await exchange.answer(200, msgspec.json.encode(shared.status(_name(exchange))))

    async def status_of_gpus(exchange: Exchange) -> None:
        await exchange.answer(200, msgspec.json.encode(shared.status_of_gpus(_name(exchange))))

    async def register(exchange: Exchange) -> None:
        limits = exchange.limits
        given = http_body.read(await exchange.body(limits.json_bytes), limits.json_containers)
        if not isinstance(given, dict):
            raise errors.InvalidRequest("the body is a JSON object with `key`, `offset` and `byte_size`")
        await shared.register(_name(exchange), given.get("key"), given.get("offset", 0), given.get("byte_size"))
        await exchange.answer(200, b"")

    async def unregister(exchange: Exchange) -> None:
        await exchange.body(exchange.limits.json_bytes)
        await shared.unregister(_name(exchange))
        await exchange.answer(200, b"")

    async def unregister_of_gpus(exchange: Exchange) -> None:
        await exchange.body(exchange.limits.json_bytes)
        await exchange.answer(200, b"")

    handlers: dict[tuple[str, str], Handler] = {
        ("system", "status"): status,
        ("system", "region/{}/status"): status,
        ("system", "region/{}/register"): register,
        ("system", "region/{}/unregister"): unregister,
        ("system", "unregister"): unregister,
        ("cuda", "status"): status_of_gpus,
        ("cuda", "region/{}/status"): status_of_gpus,
        ("cuda", "region/{}/unregister"): unregister_of_gpus,
        ("cuda", "unregister"): unregister_of_gpus,
    }
    return {
        f"/v2/{kind}sharedmemory/{path}": Route("oip", "GET" if path.endswith("status") else "POST", handler)
        for (kind, path), handler in handlers.items()
    }


def _name(exchange: Exchange) -> str:
    """Return the region's name in the path; empty for all."""
    return exchange.values[0] if exchange.values else ""
