"""Who can be measured. A contestant's module is imported only in the processes of its own rounds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final, cast

from benchmarks.contestant import Contestant

BASE: Final = "base"
"""What all others are compared with."""

CONTESTANTS: Final[dict[str, str]] = {
    BASE: "benchmarks.base:Base",
    "runtime": "benchmarks.runtime:Runtime",
}
"""Names, and where their classes are."""


def load(name: str, directory: Path) -> Contestant:
    """Return the contestant of this name."""
    module, _, cls = CONTESTANTS[name].partition(":")
    return cast("Contestant", getattr(importlib.import_module(module), cls)(directory))
