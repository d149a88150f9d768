"""A supervisor whose kills reach no worker while the file `stuck` is in the ledger, as if they hung in the kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from atomr_mp.process.spawn import WorkerProcess
from atomr_mp.supervisor.__main__ import main

STUCK = Path(os.environ["ATOMR_MP_TEST"]) / "stuck"

kill = WorkerProcess.kill


def kill_unless_stuck(worker: WorkerProcess) -> None:
    """Send the signal, or keep it."""
    if not STUCK.exists():
        kill(worker)


WorkerProcess.kill = kill_unless_stuck  # type: ignore[assignment, method-assign]

sys.exit(main())
