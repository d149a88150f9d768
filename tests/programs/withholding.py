"""A supervisor whose kills reach no worker while the file `stuck` is in the ledger, as if they hung in the kernel.

While the file `unseen` is there, it does not see that a worker has stopped either.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.supervisor.__main__ import main

LEDGER = Path(os.environ["ATOMR_MP_TEST"])
STUCK, UNSEEN = LEDGER / "stuck", LEDGER / "unseen"

frozen, kill = WorkerProcess.frozen, WorkerProcess.kill


def kill_unless_stuck(worker: WorkerProcess) -> None:
    """Send the signal, or keep it."""
    if not STUCK.exists():
        kill(worker)


def frozen_and_seen(worker: WorkerProcess) -> bool:
    """Say whether all threads of a worker have stopped, or keep it."""
    return not UNSEEN.exists() and frozen(worker)


WorkerProcess.frozen = frozen_and_seen  # type: ignore[assignment, method-assign]
WorkerProcess.kill = kill_unless_stuck  # type: ignore[assignment, method-assign]

sys.exit(main())
