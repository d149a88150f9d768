"""An application that forks while it holds a pool; the child gets orders what to try, and outlives its parent.

Arguments: run directory, actor, a gate, and one at which the child waits after it has tried everything. Says the
pids of supervisor, workers and child; then what the child got; then, when told a line, that the pool still answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import atomr_mp
from atomr_mp import errors


def outcome(attempt: Callable[[], object]) -> str:
    """Return how an attempt ends."""
    try:
        attempt()
    except errors.AtomrError as error:
        sent = getattr(error, "maybe_executed", True)
        return type(error).__name__ if sent else f"{type(error).__name__}, unsent"
    return "nothing"


run_dir, actor, gate, end = sys.argv[1:]
with atomr_mp.start(actors=[actor], gpus=1, backend="host", run_dir=run_dir) as pool:
    pending = pool.call("Probe.hold_on_thread", gate)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        found = [
            outcome(lambda: pool.call("Probe.where")),
            outcome(lambda: pending.result(5)),
            outcome(pending.cancel),
            outcome(pool.close),
        ]
        os.write(theirs, "; ".join(found).encode())
        with Path(f"{end}.go").open("rb", buffering=0) as go:
            go.read(1)
        os._exit(0)
    print(pool.supervisor_pid, *(device.pid for device in pool.devices), child, flush=True)
    print(os.read(ours, 1000).decode(), flush=True)
    sys.stdin.readline()
    with Path(f"{gate}.go").open("wb", buffering=0) as go:
        go.write(b".")
    print(pending.result(), pool.call("Probe.echo", "well").result(), flush=True)
    sys.stdin.readline()
