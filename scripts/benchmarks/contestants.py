"""The contestants. Each one's module is imported only in the processes of its own rounds."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Final, NamedTuple, cast

from benchmarks.contestant import Contestant

BASE: Final = "base"
"""The contestant that all others are compared with."""


class Entry(NamedTuple):
    """The place of a contestant."""

    place: str
    """Module and class."""
    needed: str = ""
    """The package that has to be installed beside the project's own; empty if none."""


CONTESTANTS: Final[dict[str, Entry]] = {
    BASE: Entry("benchmarks.base:Base"),
    "runtime": Entry("benchmarks.runtime:Runtime"),
    "ray": Entry("benchmarks.peers.ray_actors:RayActors", "ray"),
    "ray-serve": Entry("benchmarks.peers.ray_serve:RayServe", "ray"),
    "xoscar": Entry("benchmarks.peers.xoscar_pool:XoscarPool", "xoscar"),
    "loky": Entry("benchmarks.peers.loky_executor:LokyExecutor", "loky"),
    "torch-mp": Entry("benchmarks.peers.torch_queues:TorchQueues", "torch"),
    "litserve": Entry("benchmarks.peers.litserve_server:LitserveServer", "litserve"),
}


def load(name: str, directory: Path) -> Contestant:
    """Return the contestant of this name."""
    module, _, cls = CONTESTANTS[name].place.partition(":")
    return cast("Contestant", getattr(importlib.import_module(module), cls)(directory))


def missing(name: str) -> str:
    """Return the missing package of a contestant; empty if none is missing."""
    needed = CONTESTANTS[name].needed
    return needed if needed and importlib.util.find_spec(needed) is None else ""
