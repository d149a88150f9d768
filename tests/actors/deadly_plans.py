"""An actor in whose worker the preparation of some programs ends the process, as a library that crashes in a plan."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method
from atomr_mp_workers.libraries.program.preparation import Preparation

HOW: Final[dict[tuple[int, ...], Callable[[], object]]] = {
    (13,): lambda: os.kill(os.getpid(), signal.SIGKILL),
    (17,): lambda: ctypes.string_at(0),
}
"""By the shape of a program's first input."""


class DeadlyPlans(Actor):
    """Changes how programs are prepared in this process."""

    def setup(self, _context: Context) -> None:
        """Have each preparation of a deadly program arrive at the gate "preparation", and then end the process."""
        usual, gate = Preparation.prepared, Path(os.environ["ATOMR_MP_TEST"], "preparation")

        def prepared(preparation: Any) -> Any:
            end = HOW.get(preparation._definition.inputs[0].shape)
            if end is not None:
                with gate.with_suffix(".here").open("ab", buffering=0) as here:
                    here.write(b"%d\n" % os.getpid())
                with gate.with_suffix(".go").open("rb", buffering=0) as go:
                    go.read(1)
                end()
            return usual(preparation)

        changed: Any = Preparation
        changed.prepared = prepared

    @method(idempotent=True)
    def nothing(self) -> None:
        """Do nothing."""
