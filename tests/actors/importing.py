"""An actor that holds up the imports of libraries, or has them fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from atomr_mp_workers import Actor, Context, method
from tests.actors import probe


class Obstacle(MetaPathFinder, Loader):
    """Stands in the way of one module.

    Args:
        name: The module.
        gate: Where its import waits; empty if it fails.
    """

    def __init__(self, name: str, gate: str) -> None:
        self._name = name
        self._gate = gate
        self._loader: Loader | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module, with this in the place of its loader."""
        if name != self._name:
            return None
        if not self._gate:
            sys.meta_path.remove(self)
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Wait at the gate; only the lock of this module is held meanwhile. Then go on."""
        sys.meta_path.remove(self)
        probe.arrive(self._gate)
        assert self._loader is not None
        self._loader.exec_module(module)


class Importing(Actor):
    """Runs on the loop."""

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._backend = context.backend

    @method
    def obstruct(self, library: str, gate: str) -> None:
        """Have the next import of a library wait at a gate, or fail if none is given."""
        sys.meta_path.insert(0, Obstacle(f"atomr_mp_workers.libraries.{library}.{self._backend}", gate))

    @method
    def empty(self) -> None:
        """Do nothing."""
