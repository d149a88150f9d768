"""A client in a process of its own that runs programs, draws numbers and transforms without end, until it is killed.

Arguments: run directory. Says "ready" when everything was done once, and "flying" when more is under way.
"""

from __future__ import annotations

import sys

import numpy as np

import atomr_mp

N = 64
FLYING = 40

run_dir = sys.argv[1]
with atomr_mp.connect(run_dir=run_dir, name="to be killed") as pool:
    pool.wait_ready()
    device = pool.device(0)
    weights, state = device.put(np.eye(N) / 2), device.zeros((N, N), "float64")
    generator = device.rng.generator(seed=5)
    with device.program() as p:
        x = p.input("x", (N, N), "float64")
        scratch = p.blas.gemm(x, weights)
        p.elementwise.add(state, scratch, state)
        p.returns(p.blas.gemm(scratch, weights), p.fft.rfft(scratch))
    value = np.ones((N, N))
    p.run(x=value).result()
    said = False
    while True:
        replies = []
        for _ in range(FLYING):
            drawn = generator.normal(size=(N, N), dtype="float64")
            replies += [p.run(x=value), device.fft.rfft(weights), drawn]
        if not said:
            print("ready", flush=True)
            said = True
        results = [reply.result() for reply in replies]
        del results
