"""A client in a process of its own that holds memory in every way there is, then waits to be killed.

Arguments: run directory, the gate at which its last requests wait, how many refs. Says, in hex, what it has shared: one
ref that it keeps a writable view of, one that it has let go of, and one that nobody is going to claim in time.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import atomr_mp

LARGE = 200_000
"""Elements of an array that travels in shared memory."""

run_dir, gate, count = sys.argv[1:]
with atomr_mp.connect(run_dir=run_dir, name="to be killed") as pool:
    pool.wait_ready()
    device = pool.device(0)
    refs = [device.put(np.full(100, float(n))) for n in range(int(count))]
    viewed, let_go = (device.put(np.arange(1000.0) + n) for n in range(2))
    shared = [viewed.share(600), let_go.share(600), refs[0].share(0.5)]
    let_go.free()
    views = [viewed.view(write=True), refs[1].view()]
    lent = pool.call("Keeper.total", refs[2], device=1).result()
    kept = pool.call("Keeper.large", LARGE, device=0).result()
    running = pool.call("Keeper.total_slowly", gate, np.ones(LARGE), device=0)
    queued = [pool.call("Keeper.total_slowly", gate, refs[n], device=0) for n in range(10)]
    elsewhere = pool.call("Keeper.total_slowly", gate, refs[3], device=1)
    try:
        running.result(0.05)  # whoever waits also sends what waits to be sent
    except TimeoutError:
        print(*[each.hex() for each in shared], flush=True)
    time.sleep(600)  # until it is killed, which is what it is for
