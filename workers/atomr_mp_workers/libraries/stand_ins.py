"""Stand-ins for the packages that libraries are made with, so that these can be asked what they provide.

The support matrix says what the code does, not what is installed here, and asking loads neither CUDA nor SciPy. For a
process that does nothing else: what is imported on top of stand-ins cannot do anything.
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
    """Have stand-ins imported from now on, whether the packages are there or not."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds the packages and everything in them."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return what makes a stand-in, for names of the packages."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""


class _StandIn(ModuleType):
    """A module in which everything is, and can be called, indexed and made a number of."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")
