"""For Ray Serve: a deployment whose replicas call a cluster's pools, and outlive their workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import OUT_OF_USE
from atomr_mp.ray.cluster import Cluster
from atomr_mp.ray.outcomes import Outcome, outcome

HEALTH_S: Final = 2.0
"""How long `check_health` waits for a pool."""


class Replica:
    """A class for `serve.deployment`: each request is a call of the cluster's pools. It uses no GPU of its own.

    A replica survives a worker's death: requests that may be sent again are, and the others end with their own error.
    Errors leave as outcomes, which `atomr_mp.ray.value_of` turns into a value or the error, with all of its facts.
    Subclass it for a class with HTTP.

    Args:
        cluster: The cluster; `bind` carries it.
        deadline_s: Deadline of calls that name none; None for their methods' own. Serve's own timeout does not end a
            call, so take the shorter one.
    """

    def __init__(self, cluster: Cluster, deadline_s: float | None = None) -> None:
        self._cluster: Final = cluster
        self._deadline_s: Final = deadline_s

    async def __call__(
        self,
        method: str,
        *args: Any,
        deadline_s: float | None = None,
        priority: int = 0,
        kwargs: dict[str, Any] | None = None,
    ) -> Outcome:
        """Call a method, and return its outcome; see `Cluster.call`.

        Args:
            method: "Actor.method".
            *args: Its arguments.
            deadline_s: The request's deadline.
            priority: Its priority.
            kwargs: Arguments by name.
        """
        return await outcome(self._call(method, args, deadline_s, priority, kwargs))

    async def stream(
        self, method: str, *args: Any, deadline_s: float | None = None, kwargs: dict[str, Any] | None = None
    ) -> AsyncIterator[Outcome]:
        """Call a method that streams, and yield the outcome of each part; the last one may be an error.

        Call it with `handle.options(stream=True)`. Its generator is closed when the caller stops reading.

        Args:
            method: "Actor.method", a generator.
            *args: Its arguments.
            deadline_s: Deadline of the whole stream.
            kwargs: Arguments by name.
        """
        until_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            await asyncio.to_thread(self._cluster.pool)  # `stream` would block the loop while no node is reached
            async with self._cluster.stream(method, *args, kwargs=kwargs, deadline_s=until_s) as parts:
                async for part in parts:
                    yield {"value": part}
        except errors.AtomrError as error:
            yield {"error": errors.to_wire(error)}

    async def check_health(self) -> None:
        """Raise while no pool of the cluster can be called; Serve replaces the replica then, and tells its proxies.

        Devices that are coming back are no reason, even all at once: calls wait for them.

        Raises:
            PoolUnreachable: No pool is reached, or all devices of all pools are stopped, quarantined or tripped.
        """
        await asyncio.to_thread(self._cluster.pool, None, HEALTH_S)
        devices = [device for pool in self._cluster.pools for device in pool.devices]
        if all(device.state in OUT_OF_USE for device in devices):
            states = ", ".join(sorted({device.state.value for device in devices}))
            raise errors.PoolUnreachable(f"all {len(devices)} devices that are reached are out of use: {states}")

    async def _call(
        self, method: str, args: tuple[Any, ...], deadline_s: float | None, priority: int, kwargs: dict[str, Any] | None
    ) -> Any:
        until_s = self._deadline_s if deadline_s is None else deadline_s
        return await self._cluster.call(method, *args, deadline_s=until_s, priority=priority, kwargs=kwargs)
