"""A client in a process of its own: sends a request that waits at a gate and others behind it, then waits to be killed.

Arguments: run directory, device, method that waits, its gate, method to queue, how often.
"""

from __future__ import annotations

import sys
import time

import atomr_mp

run_dir, device, hold, gate, queued, count = sys.argv[1:]
with atomr_mp.connect(run_dir=run_dir, name="to be killed") as pool:
    pool._client.wait_until(lambda: pool._client.devices[int(device)].admitted, 30)
    first = pool.call(hold, gate, device=int(device))
    others = [pool.call(queued, f"killed-{n}", device=int(device)) for n in range(int(count))]
    try:
        others[-1].result(0.05)  # whoever waits also sends what waits to be sent
    except TimeoutError:
        print("sent", flush=True)
    time.sleep(600)  # until it is killed, which is what it is for
