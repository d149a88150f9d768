"""Compiles a source that never ends, says the compiler's pid, and waits to be killed."""

from __future__ import annotations

import time
from pathlib import Path

from atomr_mp_workers.compiling import toolkits
from atomr_mp_workers.compiling.compiler import Compiler
from atomr_mp_workers.compiling.jobs import CompileJob
from atomr_mp_workers.compiling.limits import CompileLimits

ENDLESS = "template<int N,int M> struct A{static const int v=A<N-1,2*M>::v+A<N-1,2*M+1>::v;};\
template<int M> struct A<0,M>{static const int v=1;}; __global__ void k(int* x) { x[0]=A<26,0>::v; }"

if __name__ == "__main__":
    compiler = Compiler(toolkits.find(), None, CompileLimits(cpu_s=60, idle=False), confined=True)
    future = compiler.submit(CompileJob(ENDLESS, "sm_90"), time.monotonic() + 60)
    children = Path(f"/proc/self/task/{compiler._threads[1].native_id}/children")
    others = Path(f"/proc/self/task/{compiler._threads[2].native_id}/children")
    while not (pids := (children.read_text(encoding="ascii") + others.read_text(encoding="ascii")).split()):
        time.sleep(0.01)  # the kernel tells no event of it
    print(*pids, flush=True)
    future.result()
