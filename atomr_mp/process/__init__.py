"""Processes of the operating system, and their files. An edge: it translates.

The supervisor uses it from its one main thread. `spawn` starts, kills and reaps a worker, and `adopt` ends
what a worker's own children become after it; `prctl` and `cgroup` are the kernel interfaces behind "no child
outlives its parent"; `identity` tells a process from a later one with the same pid; `rundir` is the pool's
directory, in a `safedir`; `logs` and `events` are the files in it. Nothing here imports ZeroMQ, NumPy or
CUDA.
"""
