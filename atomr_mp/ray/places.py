"""The places that Ray reserves for the pools of a cluster, and what is missing while it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import ray

from atomr_mp import errors
from atomr_mp.ray.nodes import SAY_S

_LOG: Final = logging.getLogger("atomr_mp")


class Places(NamedTuple):
    """Places for pools, each on a node of its own."""

    nodes: int
    cpus: float
    """CPUs of each."""
    gpus: int
    """GPUs of each."""

    def missing(self, known: Iterable[Mapping[str, Any]]) -> str:
        """Return in words why there is no room.

        Args:
            known: The nodes, as `ray.nodes` describes them.
        """
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        fit = sum(
            all(each["Resources"].get(name, 0) >= least for name, least in needed.items())
            for each in known
            if each["Alive"]
        )
        why = "" if fit < self.nodes else ", and others use what they have"
        return f"of {self.nodes} nodes with {self.cpus:g} CPUs and {self.gpus} GPUs each, Ray has {fit}{why}"


def wait_reserved(group: Any, places: Places, timeout_s: float, say_s: float = SAY_S) -> None:
    """Wait until Ray has reserved a placement group; the log says what is missing if that takes long.

    Args:
        group: The placement group.
        places: What it reserves.
        timeout_s: How long to wait.
        say_s: How long to wait before the log says it.

    Raises:
        PoolUnreachable: Ray has no room in time.
    """
    if group.wait(min(say_s, timeout_s)):
        return
    if timeout_s > say_s:
        _LOG.warning("waiting at most %.0f s for nodes: %s", timeout_s - say_s, places.missing(ray.nodes()))
        if group.wait(timeout_s - say_s):
            return
    raise errors.PoolUnreachable(f"{places.missing(ray.nodes())}, after {timeout_s:g} s")
