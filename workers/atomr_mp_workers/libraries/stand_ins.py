"""Stand-ins for the packages that libraries need, so that libraries can be asked for their requests.

The support matrix shows what the code supports, not which packages are installed, and asking loads neither CUDA nor
SciPy. Use it only in a process of its own: modules imported on top of stand-ins do not work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final
from unittest.mock import MagicMock

PACKAGES: Final = frozenset(
    {"cuda", "cudnn", "cupy", "cupy_backends", "cupyx", "nccl", "nvmath", "opt_einsum", "scipy", "torch"}
)


def install() -> None:
    """Have stand-ins imported from now on, even if the packages are installed."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds the packages and everything in them."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a stand-in, for names of the packages."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the stand-in is complete."""


class _StandIn(ModuleType):
    """A module in which every name exists, and can be called, indexed and converted to a number."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")
