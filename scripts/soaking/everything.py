"""Uses everything once, so that processes have loaded all modules and started all threads, and can be compared.

As a program, with a pool's run directory and "refs" or "values" as arguments, it uses a pool whose workers end only as
it plans.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Final

import numpy as np

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure

ATTEMPTS: Final = 20
"""How often a worker may be lost meanwhile: some killed or planned ones have not come back yet."""

BY_SOCKET: Final = 20_000
"""Elements of an array that is too large to be copied into a message and too small for shared memory."""

BY_SHARED_MEMORY: Final = 90_000

PARTS: Final = 200
"""Of a stream: more than callers ask for, since faults may have condemned one of theirs."""


def use_all(pool: atomr_mp.Pool, *, refs: bool, planned: bool = False, cuts: bool = False) -> None:
    """Use every device in every way; with `refs`, with memory of its own too.

    With `planned`, workers end only as the pool plans it: then only refs may be lost. With `cuts`, unused connections
    may have ended.
    """
    ends: tuple[type[errors.AtomrError], ...] = (errors.GpuRefStale,)
    if not planned:
        ends += (errors.WorkerLost, errors.ContextPoisoned)
    if cuts:
        ends += (errors.ConnectionLost,)
    for number in range(len(pool.devices)):
        for attempt in range(ATTEMPTS):
            try:
                _use(pool, number, refs=refs)
                break
            except ends:
                if attempt == ATTEMPTS - 1:
                    raise
    for number, answer in enumerate(pool.map("Echo.number", range(10), return_failures=True)):
        if isinstance(answer, Failure):  # of one that faults have met again and again, which ended its workers
            if planned or not isinstance(answer.error, errors.PoisonRequest):
                raise answer.error
        else:
            assert answer == number


def _use(pool: atomr_mp.Pool, number: int, *, refs: bool) -> None:
    methods = ["Echo.on_loop", "Echo.on_thread"]
    if refs:
        _use_refs(pool.device(number))  # what it lets go is given back with the calls that follow
        methods += ["Maker.keep_on_loop", "Maker.keep_on_thread"]
    for method in methods:
        for count in (10, BY_SOCKET, BY_SHARED_MEMORY):
            pool.call(method, np.ones(count), device=number).result()
    asyncio.run(_await(pool, number))
    called = threading.Event()
    pool.call("Echo.on_loop", 1, device=number).add_done_callback(lambda _: called.set())
    called.wait()


def _use_refs(device: atomr_mp.Device) -> None:
    ref = device.put(np.ones((300, 300)))
    device.blas.gemm(ref, ref, device.zeros((300, 300), "float64")).result()
    ref.view()


async def _await(pool: atomr_mp.Pool, number: int) -> None:
    methods = "Echo.on_loop", "Awaited.give_back", "Echo.on_loop"
    await asyncio.gather(*(pool.call(method, np.ones(BY_SOCKET), device=number) for method in methods))
    for method in ("Teller.numbers", "Awaited.numbers"):
        assert [part async for part in pool.stream(method, PARTS, device=number)] == list(range(PARTS))


if __name__ == "__main__":
    with atomr_mp.connect(run_dir=sys.argv[1], name="soak") as connected:
        use_all(connected, refs=sys.argv[2] == "refs", planned=True)
