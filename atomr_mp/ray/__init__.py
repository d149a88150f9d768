"""Pools on several machines, by Ray: Ray places an actor on each node, and that owns the node's pool.

Calls never pass through Ray: a client on a pool's node uses its unix socket, any other one its relay. `cluster` is
what applications hold, over a `member` for each node and a `cluster_reply` for each call; `node` runs in Ray's actors,
with `boards` for what a killed supervisor cannot tell, and `sweeper` for what a killed actor leaves; `caller` is for
Ray Data, `replica` for Ray Serve; `outcomes` are errors as values. Only this room imports Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install

if TYPE_CHECKING:
    from atomr_mp.ray.caller import Caller
    from atomr_mp.ray.cluster import Cluster
    from atomr_mp.ray.outcomes import value_of
    from atomr_mp.ray.replica import Replica

__all__ = ["Caller", "Cluster", "Replica", "value_of"]

_MODULES = {"Caller": "caller", "Cluster": "cluster", "Replica": "replica", "value_of": "outcomes"}


def __getattr__(name: str) -> Any:
    # What decides here needs no Ray, and is tested without it.
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'atomr_mp.ray' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"atomr_mp.ray.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise errors.ConfigurationError(f"Ray is not installed; {how_to_install('ray')}") from error
