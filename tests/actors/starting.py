"""An actor whose start waits at a gate, and whose methods may change between two starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import arrive


class Starting(Actor):
    """Waits in `setup` at the gate "start" of its ledger, if there is one."""

    def setup(self, _context: Context) -> None:
        """Wait."""
        gate = f"{os.environ['ATOMR_MP_TEST']}/start"
        if Path(f"{gate}.here").exists():
            arrive(gate)

    @method(idempotent=True)
    def echo(self, value: Any, again: Any = None) -> list[Any]:
        """Return the arguments."""
        return [value, again]

    @method(thread=True)
    def count(self, upto: int) -> Iterator[int]:
        """Stream numbers."""
        yield from range(upto)
