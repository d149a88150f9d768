"""An actor whose processes tell when they are set up, wait for it if a test wants that, and end in more ways."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Any

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method
from tests.actors.probe import LEDGER, arrive, note


class Standing(Actor):
    """Runs on the loop."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Report, then wait at the gate "slow" if there is one, after the first generation also at "later"."""
        self._context = context
        note(f"{context.device}-{context.generation}", "setups")
        if (LEDGER / "slow.go").exists():
            arrive(str(LEDGER / "slow"))
        if context.generation > 1 and (LEDGER / "later.go").exists():
            arrive(str(LEDGER / "later"))

    def teardown(self) -> None:
        """Leave a note."""
        note(f"{self._context.device}-{self._context.generation}", "teardowns")

    @method
    def where(self) -> list[int]:
        """Return pid and generation."""
        return [os.getpid(), self._context.generation]

    @method(thread=True, idempotent=True)
    def where_at_last(self, gate: str) -> int:
        """Wait at the gate, except in a later generation, and return the generation."""
        if self._context.generation == 1:
            arrive(gate)
        return self._context.generation

    @method
    def poison(self) -> None:
        """Report that the context is lost."""
        raise errors.ContextPoisoned("on purpose", status=700)

    @method
    def note(self, tag: str) -> str:
        """Record that this ran, and where."""
        note(f"{tag}@{self._context.generation}")
        return tag

    @method
    def process(self) -> dict[str, Any]:
        """Return facts of the process itself, however it was made."""
        import numpy as np

        print(f"generation {self._context.generation} speaks", flush=True)
        np.zeros((500, 500)) @ np.zeros((500, 500))  # starts the threads of NumPy's BLAS, if it may have any
        return {
            "parent": os.getppid(),
            "group": os.getpgid(0),
            "command": Path("/proc/self/cmdline").read_bytes().decode(),
            "random": [random.random(), float(np.random.random())],  # noqa: NPY002 - the one that is shared
            "environment": sorted(os.environ),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "open": sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()),
        }
