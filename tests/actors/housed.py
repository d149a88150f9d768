"""An actor whose weights are resident; what it asks for is in the ledger's file "weights", as JSON."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import LEDGER, arrive, note


def wanted() -> dict[str, Any]:
    """Return the tests' orders for the next process."""
    path = LEDGER / "weights"
    return {
        "version": "1",
        "rows": 64,
        "times": 1.0,
        "checksum": False,
        **(json.loads(path.read_text()) if path.exists() else {}),
    }


class Housed(Actor):
    """Runs on the loop."""

    _arrays: Mapping[str, Any]

    def setup(self, context: Context) -> None:
        """Fill the weights, or find them; note which, and what was refused."""
        self._context = context
        self._kept: Any = None
        try:
            self._arrays = self._resident()
        except errors.AtomrError as error:
            note(f"{context.device}-{context.generation}:{error.code}", "refused")
            raise
        note(f"{context.device}-{context.generation}", "setups")

    def _resident(self) -> Mapping[str, Any]:
        want = wanted()

        def fill(arrays: Mapping[str, Any]) -> None:
            note(f"{self._context.device}-{self._context.generation}:{want['version']}", "fills")
            if (LEDGER / "filling.go").exists():
                arrive(str(LEDGER / "filling"))
            arrays["matrix"][...] = self._array(np.arange(want["rows"] * 8.0).reshape(-1, 8) * want["times"])
            arrays["bias"][...] = self._array(np.arange(8.0))
            self._kept = arrays["matrix"]

        layout = {"matrix": ((want["rows"], 8), "float64"), "bias": ((8,), np.float32)}
        return self._context.resident("weights", layout, version=want["version"], fill=fill, checksum=want["checksum"])

    def _array(self, array: Any) -> Any:
        """Return an array in the device's memory."""
        if self._context.backend == "host":
            return array
        import cupy

        return cupy.asarray(array)

    @method
    def total(self) -> list[Any]:
        """Return pid, and the sums of both arrays."""
        return [os.getpid(), float(self._arrays["matrix"].sum()), float(self._arrays["bias"].sum())]

    @method
    def write(self) -> None:
        """Write the arrays like any others."""
        self._arrays["matrix"][0, 0] = 1.0

    @method
    def write_kept(self) -> None:
        """Write through an array that `fill` was given."""
        self._kept[0, 0] = 1.0

    @method
    def write_by_address(self) -> None:
        """Write by address, where Python cannot refuse."""
        ctypes.memset(self._arrays["matrix"].ctypes.data, 1, 8)

    @method
    def ask_again(self) -> None:
        """Ask for resident memory after set-up."""
        self._resident()

    @method
    def mapped(self) -> list[str]:
        """Return the protection of this process's mappings of resident memory."""
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line.split()[1] for line in maps if "memfd:atomr-mp-resident" in line]


class Lodger(Housed):
    """Has the same weights."""
