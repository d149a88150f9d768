"""Takes a large result, closes its client, and forks: both processes have the result mapped.

Argument: the run directory. Writes the child's pid; and "dropped" once the child, which lives on, has let go of the
result. For a line, writes "intact" if the result is as it was; for another one, "collected" once it has let go, too.
"""

import os
import signal
import sys

import atomr_mp

VALUE = 20_000

with atomr_mp.connect(run_dir=sys.argv[1]) as client:
    result = client.call("Keeper.large", VALUE).result()
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    del result
    os.write(writes, b"x")
    while True:
        signal.pause()
print(child, flush=True)
os.read(reads, 1)
print("dropped", flush=True)
sys.stdin.readline()
print("intact" if result.sum() == VALUE * (VALUE - 1) // 2 else "changed", flush=True)
sys.stdin.readline()
del result
print("collected", flush=True)
sys.stdin.readline()
