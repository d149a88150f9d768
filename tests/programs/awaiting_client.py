"""A client with a call and a stream under way on `tests/actors/awaiting.py`, that waits to be killed."""

from __future__ import annotations

import sys

import atomr_mp

pool = atomr_mp.connect(run_dir=sys.argv[1])
pool.wait_ready()
call = pool.call("Awaiter.wait", "call")
stream = pool.stream("Awaiter.endless", "stream", 1)
next(stream)
print("reads", flush=True)
next(stream)
