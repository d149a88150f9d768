"""An application with a pool of its own. Says the pids of the supervisor and the workers, then waits to be killed.

Arguments: run directory, actor, how many devices; then gates at which a request waits on each device in turn.
"""

from __future__ import annotations

import sys

import atomr_mp

run_dir, actor, count, *gates = sys.argv[1:]
with atomr_mp.start(actors=[actor], gpus=count, backend="host", run_dir=run_dir) as pool:
    busy = [pool.call("Probe.wait_in_c", gate, device=device) for device, gate in enumerate(gates)]
    print(pool.supervisor_pid, *(device.pid for device in pool.devices), flush=True)
    sys.stdin.readline()
