"""An actor in whose worker some elementwise requests end the process, as a library that crashes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.elementwise.host import HostElementwise

HOW: Final[dict[tuple[int, ...], Callable[[], object]]] = {
    (13,): lambda: os.kill(os.getpid(), signal.SIGKILL),
    (17,): lambda: ctypes.string_at(0),
}
"""How the process ends, by the shape of the arrays that are added."""

DEADLY: Final = 13.0
"""Content that ends the process when it is multiplied."""


class DeadlyPlans(Actor):
    """Changes the library in this process: sums have plans that take long to make."""

    def setup(self, _context: Context) -> None:
        """Have each preparation of a deadly sum arrive at the gate "preparation", and then end the process."""
        gate = Path(os.environ["ATOMR_MP_TEST"], "preparation")
        changed: Any = HostElementwise
        usual, multiply = changed.add, changed.multiply

        def prepare_add(_library: Any, request: Any) -> None:
            end = HOW.get(request.x.shape)
            if end is not None:
                with gate.with_suffix(".here").open("ab", buffering=0) as here:
                    here.write(b"%d\n" % os.getpid())
                with gate.with_suffix(".go").open("rb", buffering=0) as go:
                    go.read(1)
                end()

        def multiplied(library: Any, request: Any) -> None:
            if array(request.x)[0] == DEADLY:
                os.kill(os.getpid(), signal.SIGKILL)
            multiply(library, request)

        changed.slow, changed.prepare_add = frozenset({"add"}), prepare_add
        changed.add, changed.multiply = lambda library, request, _plan: usual(library, request), multiplied

    @method(idempotent=True)
    def nothing(self) -> None:
        """Do nothing."""
