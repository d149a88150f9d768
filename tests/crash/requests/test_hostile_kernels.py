"""Hostile sources and hostile launches through a pool: no worker is lost by a source, and a launch is a suspect."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self

import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from tests.actors.kerneled import NAMES, SOURCE
from tests.cases.hostile_sources import FIFO, SOURCES
from tests.support import ACTORS, DEADLINE_S, PROMISE_S, Ledger, settled, wait_generation

KERNELED: Final = f"{ACTORS}/kerneled.py:Kerneled"
CROWDED: Final = f"{ACTORS}/crowded.py:Crowded"

AT_A_TIME: Final = 6
"""How many sources are compiled at a time."""

SHORT_S: Final = 2.0
"""How long a source that never ends, or takes long, may take here."""

LONG_S: Final = 8.0
"""How long all other sources may take, whose compilers run on idle processors only."""

LATE_S: Final = 3.0
"""How much later its error may come on a busy machine."""

OUTCOMES: Final = {
    "include_passwd": errors.CompilationFailed,
    "include_devzero": errors.CompilationFailed,
    "include_itself": errors.CompilationFailed,
    "missing_header": errors.CompilationFailed,
    "error_storm": errors.CompilationFailed,
    "syntax": errors.CompilationFailed,
    "template_recursion": errors.CompilationFailed,
    "huge_shared": errors.CompilationFailed,
    "bad_assembly": errors.CompilationFailed,
    "include_fifo": errors.CompilationFailed,
    "macro_bomb": errors.DeadlineExceeded,
    "template_exponential": errors.DeadlineExceeded,
    "huge_unroll": errors.DeadlineExceeded,
    "long_chain": errors.DeadlineExceeded,
    "nul_inside": errors.InvalidRequest,
    "not_utf8": errors.InvalidRequest,
    "good": None,
    "huge_array": None,
}
"""What becomes of a source. One that is missing is compiled or not: with the compiler's stack not all crash."""


REFUSALS: Final = errors.CompilationFailed | errors.DeadlineExceeded | errors.InvalidRequest


class Calling:
    """Calls of another client that go on meanwhile."""

    def __init__(self, pool: atomr_mp.Pool) -> None:
        self._pool: Final = atomr_mp.connect(run_dir=pool.run_dir)
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run)
        self.done = 0
        self.failed: BaseException | None = None
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._ended.set()
        self._thread.join()
        self._pool.close()

    def goes_on(self, before: int) -> bool:
        """Whether it has done more calls than before."""
        return self.done > before

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                began_s = time.monotonic()
                self._pool.call("Kerneled.empty").result(DEADLINE_S)
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.done += 1
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failed = error


@contextlib.contextmanager
def fifo() -> Iterator[None]:
    """Have the FIFO that a source includes."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(FIFO)
    try:
        yield
    finally:
        Path(FIFO).unlink(missing_ok=True)


def test_no_worker_is_lost_by_a_source(ledger: Ledger) -> None:
    """Several at a time are compiled while another client calls: each outcome is typed and in time, and no more."""
    with (
        ledger.start(KERNELED, CROWDED) as pool,
        fifo(),
        Calling(pool) as calling,
        contextlib.ExitStack() as clients,
        ThreadPoolExecutor(AT_A_TIME) as asking,
    ):
        # A client has one compiler at a time.
        devices: SimpleQueue[atomr_mp.Device] = SimpleQueue()
        for _ in range(AT_A_TIME):
            devices.put(clients.enter_context(atomr_mp.connect(run_dir=pool.run_dir)).device(0))
        device = pool.device(0)
        assert pool.call("Crowded.compile_at_a_time", AT_A_TIME).result(DEADLINE_S)
        pid = pool.call("Kerneled.pid").result(DEADLINE_S)
        device.kernels.compile(SOURCES["good"][1]).result(DEADLINE_S)

        def ask(name: str) -> None:
            seen, source = SOURCES[name]
            takes_long = name.startswith("deep_") or seen.startswith("endless")
            most_s = SHORT_S if takes_long and OUTCOMES.get(name) is not errors.CompilationFailed else LONG_S
            began_s, before = time.monotonic(), calling.done
            own = devices.get()
            try:
                error = own.kernels.compile(source, deadline_s=most_s).exception(DEADLINE_S + LATE_S)
            except errors.InvalidRequest as refused:  # in this process already
                error = refused
            finally:
                devices.put(own)
            assert time.monotonic() - began_s < most_s + LATE_S, name
            if name in OUTCOMES:
                assert (None if error is None else type(error)) is OUTCOMES[name], (name, error)
            else:
                assert error is None or isinstance(error, REFUSALS), name
            log = getattr(error, "log", "")
            assert len(log) < 2**16, name
            assert "root:" not in log + str(error), name
            assert calling.failed is None, name
            assert settled(partial(calling.goes_on, before)), name

        # Those that take long come first, and the others beside them.
        longest_first = sorted(SOURCES, key=lambda name: not SOURCES[name][0].startswith(("compiles,", "endless")))
        assert len(list(asking.map(ask, longest_first))) == len(SOURCES)
        assert pool.call("Kerneled.pid").result(DEADLINE_S) == pid
        assert pool.status().devices[0].generation == 1
        assert settled(lambda: not psutil.Process(pid).children(), PROMISE_S)


def test_a_compiler_ends_with_its_worker(ledger: Ledger) -> None:
    """Nothing of it is left; the call ends with its worker, and the next worker compiles."""
    with ledger.start(KERNELED, max_restarts=100, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        device.kernels.compile(SOURCES["good"][1]).result(DEADLINE_S)
        pid = pool.call("Kerneled.pid").result(DEADLINE_S)
        replies = [device.kernels.compile(SOURCES["macro_bomb"][1] + "//" * n) for n in range(4)]
        assert settled(lambda: len(psutil.Process(pid).children()) == 1)
        children = psutil.Process(pid).children()
        os.kill(pid, 9)
        for reply in replies:
            assert isinstance(reply.exception(DEADLINE_S), errors.WorkerLost)
        assert psutil.wait_procs(children, PROMISE_S)[1] == []
        wait_generation(pool, 2)
        device.kernels.compile(SOURCES["good"][1]).result(DEADLINE_S)


def test_a_deadly_launch_is_refused_and_its_kernel_is_not(ledger: Ledger) -> None:
    """By code, grid, arguments and layouts, in whatever generation; the messages name the kernel."""
    settings: dict[str, Any] = {"max_suspicions": 2, "max_restarts": 100, "backoff_initial_s": 0.01}
    with ledger.start(KERNELED, **settings) as pool:
        device = pool.device(0)

        def launch(far: int, generation: int) -> Any:
            wait_generation(pool, generation)
            module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
            x = device.zeros(8)
            return module["wild"](x, far, grid=1, block=1, inout=x).exception(DEADLINE_S)

        for generation in (1, 2):
            error = launch(10**9, generation)
            assert isinstance(error, errors.WorkerLost | errors.PoisonRequest), error
            assert error.message.startswith("kernel wild: ")
        wait_generation(pool, 3)
        module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
        x = device.zeros(8)
        for _ in range(2):
            with pytest.raises(errors.PoisonRequest, match=r"^kernel wild: kernels\.launch with these") as told:
                module["wild"](x, 10**9, grid=1, block=1, inout=x).result(DEADLINE_S)
            assert not told.value.maybe_executed
        module["wild"](x, 3, grid=1, block=1, inout=x).result(DEADLINE_S)
        assert x.numpy().tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
        assert pool.status().devices[0].generation == 3


def test_programs_with_launches_survive_kills(ledger: Ledger) -> None:
    """A run ends whole or with its worker; recorded anew it runs on."""
    with ledger.start(KERNELED, max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        for generation in range(1, 6):
            wait_generation(pool, generation)
            module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
            y = device.put(np.ones(8, np.float32))
            with device.program() as p:
                x = p.input("x", (8,), "float32")
                out = p.empty((8,), "float32")
                p.kernels.launch(module["add"], x, y, out, 8, grid=1, block=8, out=out)
                for _ in range(20):
                    p.kernels.launch(module["scale<float>"], out, 1.0, 8, grid=1, block=8, inout=out)
                p.returns(out)
            assert p.run(x=np.ones(8, np.float32)).result(DEADLINE_S).numpy().tolist() == [2.0] * 8
            replies = [p.run(x=np.full(8, n, np.float32)) for n in range(200)]
            replies[20 * generation].exception(DEADLINE_S)
            os.kill(pool.devices[0].pid, 9)
            for n, reply in enumerate(replies):
                error = reply.exception(DEADLINE_S)
                assert error is None or isinstance(error, errors.WorkerLost | errors.GpuRefStale), error
                if error is None:
                    with contextlib.suppress(errors.GpuRefStale, errors.WorkerLost):
                        assert reply.result().numpy().tolist() == [n + 1.0] * 8
            wait_generation(pool, generation + 1)
            with pytest.raises(errors.GpuRefStale):
                p.run(x=np.ones(8, np.float32)).result(DEADLINE_S)
