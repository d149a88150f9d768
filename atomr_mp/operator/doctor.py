"""Looks at a pool from outside, as often as it takes to tell what lasts from what changes. A shell."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.operator.dial import turned_away
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.census import look
from atomr_mp.process.files.rundir import SESSION_SOCKET, RunDirectory
from atomr_mp.process.gpus.hardware import nvidia_hardware
from atomr_mp.protocol.messages.operators import Inventory
from atomr_mp.supervision.audit.findings import LASTS_S, Finding, Inspection, Supervision
from atomr_mp.supervision.audit.ledger import compare

AGAIN_S: Final = 0.2
"""Between two looks: no event tells of what another process lets go."""

LONGEST_S: Final = 10.0
"""How long a pool is looked at in which there is always something new that is unaccounted for."""


def examine(run_dir: Path, lasts_s: float = LASTS_S) -> tuple[Supervision, list[Finding]]:
    """Compare what there is of a pool with what its supervisor believes. Blocks, as a rule for some 50 ms.

    Args:
        run_dir: Its run directory.
        lasts_s: How long something has to be unaccounted for until it is told; so long it takes then.

    Raises:
        ConfigurationError: The run directory is not safe, or not ours.
    """
    watch = Inspection(lasts_s)
    gpus = bool(nvidia_hardware())
    begun_s = time.monotonic()
    while True:
        supervision, findings = _once(run_dir.absolute(), gpus=gpus)
        now_s = time.monotonic()
        if supervision is Supervision.SILENT:  # the supervisor has had a long time to answer
            return supervision, findings
        if watch.look(now_s, findings) or now_s - begun_s > LONGEST_S + lasts_s:
            return supervision, watch.findings
        time.sleep(AGAIN_S)


def _once(run_dir: Path, *, gpus: bool) -> tuple[Supervision, list[Finding]]:
    believed, supervision = _ask(run_dir)
    observed = look(run_dir, gpus=gpus)
    if supervision is Supervision.ANSWERS:
        workers = [name for name, found in observed.sockets.items() if found.listeners and name != SESSION_SOCKET]
        observed = observed._replace(turned_away=turned_away(run_dir, workers))
    if supervision is Supervision.ENDED and observed.supervisor:
        supervision = Supervision.KILLED
    return supervision, compare(observed, supervision, believed)


def _ask(run_dir: Path) -> tuple[Inventory | None, Supervision]:
    """Return the supervisor's inventory, and its own state."""
    try:
        directory = RunDirectory.open(run_dir)
    except errors.PoolUnreachable:
        return None, Supervision.ENDED
    try:
        with OperatorSession(run_dir / SESSION_SOCKET) as observer:
            return observer.inventory(), Supervision.ANSWERS
    except (TimeoutError, errors.AtomrError):
        # It may have ended just now; or it is so young that it does not listen yet.
        return None, Supervision.SILENT if directory.supervisor.alive() else Supervision.ENDED
