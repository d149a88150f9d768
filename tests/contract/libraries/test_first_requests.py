"""Imports of libraries, held up in the workers of a pool while requests come."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.libraries import LIBRARIES
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp_workers.libraries.lazy_library import module_of
from tests.support import ACTORS, DEADLINE_S, Ledger, wait_generation, wait_state

IMPORTING: Final = f"{ACTORS}/importing.py:Importing"


def _program(device: atomr_mp.Device) -> Any:
    x = device.put(np.ones(4, np.float32))
    with device.program() as p:
        p.returns(p.elementwise.add(x, x))
    return p.run().result(DEADLINE_S)


def _on_square(call: Callable[[atomr_mp.Device, Any], Any]) -> Callable[[atomr_mp.Device], Any]:
    """Return a function that has a request done on a small matrix."""
    return lambda device: call(device, device.put(np.eye(16, dtype=np.float32))).result(DEADLINE_S)


FIRST: Final[dict[str, Callable[[atomr_mp.Device], Any]]] = {
    "memory": lambda device: device.zeros(3).numpy(),
    "blas": _on_square(lambda device, a: device.blas.gemm(a, a)),
    "blas_lt": _on_square(lambda device, a: device.blas_lt.matmul(a, a)),
    "fft": _on_square(lambda device, a: device.fft.rfft(a)),
    "elementwise": _on_square(lambda device, a: device.elementwise.add(a, a)),
    "rng": lambda device: device.rng.normal(size=3).result(DEADLINE_S),
    "solver": _on_square(lambda device, a: device.solver.solve(a, a)),
    "sparse": lambda device: device.sparse.csr(tuple(map(device.put, ([1.0], [0], [0, 1]))), (1, 1)),
    "tensor": _on_square(lambda device, a: device.tensor.einsum("ij,jk->ik", a, a)),
    "dnn": _on_square(lambda device, a: device.dnn.softmax(a)),
    "program": _program,
    "kernels": lambda device: device.kernels.compile('extern "C" __global__ void k() {}').result(DEADLINE_S),
}
"""A request of each library; that of memory comes first, since the others need it."""


def first(pool: atomr_mp.Pool, library: str) -> Future[Any]:
    """Send the first request of a library, on a thread of its own."""
    found: Future[Any] = Future()

    def ask() -> None:
        try:
            found.set_result(FIRST[library](pool.device(0)))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return found


def test_nobody_else_waits_while_a_library_is_imported(ledger: Ledger, backend: str) -> None:
    """A call is answered while the import of any library is held up, and then so is the library's first request."""
    assert set(FIRST) == set(LIBRARIES)
    with (
        ledger.start(IMPORTING, backend=backend) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        ledger.gate("import") as gate,
    ):
        for library in FIRST:
            if importlib.util.find_spec(module_of(library, backend)) is None:
                continue  # the backend does not have it
            pool.call("Importing.obstruct", library, gate.path).result(DEADLINE_S)
            answer = first(pool, library)
            gate.wait()
            other.call("Importing.empty").result(DEADLINE_S)
            assert not answer.done()
            gate.open()
            answer.result(DEADLINE_S)


def test_a_failed_import_is_an_error_of_its_requests_alone(ledger: Ledger, backend: str) -> None:
    """It says what to install; the next request has the import tried again."""
    with ledger.start(IMPORTING, backend=backend) as pool:
        pool.call("Importing.obstruct", "rng", "").result(DEADLINE_S)
        with pytest.raises(errors.Unsupported, match="rng needs a package that is not installed") as told:
            first(pool, "rng").result(DEADLINE_S)
        assert not told.value.maybe_executed
        first(pool, "rng").result(DEADLINE_S)
        assert pool.status().devices[0].generation == 1


def test_a_client_may_leave_during_an_import(ledger: Ledger, backend: str) -> None:
    """The library is there for others."""
    with ledger.start(IMPORTING, backend=backend) as pool, ledger.gate("import") as gate:
        pool.device(0).zeros(3)
        pool.call("Importing.obstruct", "rng", gate.path).result(DEADLINE_S)
        with atomr_mp.connect(run_dir=pool.run_dir) as leaving:
            unread = first(leaving, "rng")
            gate.wait()
        assert unread.exception(DEADLINE_S) is not None
        answer = first(pool, "rng")
        pool.call("Importing.empty").result(DEADLINE_S)
        gate.open()
        answer.result(DEADLINE_S)


def test_a_worker_may_be_killed_during_an_import(ledger: Ledger, backend: str) -> None:
    """The request ends as any other that has begun; the next worker imports anew."""
    with (
        ledger.start(IMPORTING, backend=backend, max_restarts=100, backoff_initial_s=0.0) as pool,
        ledger.gate("import") as gate,
    ):
        pool.device(0).zeros(3)
        pool.call("Importing.obstruct", "rng", gate.path).result(DEADLINE_S)
        answer = first(pool, "rng")
        (pid,) = gate.wait()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost):
            answer.result(DEADLINE_S)
        wait_generation(pool, 2)
        first(pool, "rng").result(DEADLINE_S)


def test_a_reload_waits_for_requests_that_wait_for_an_import(ledger: Ledger, backend: str) -> None:
    """They are answered by the worker that has begun them."""
    with ledger.start(IMPORTING, backend=backend) as pool, ledger.gate("import") as gate:
        pool.device(0).zeros(3)
        pool.call("Importing.obstruct", "rng", gate.path).result(DEADLINE_S)
        answer = first(pool, "rng")
        gate.wait()
        reloading = threading.Thread(target=pool.reload)
        reloading.start()
        wait_state(pool, DeviceState.DRAINING)
        gate.open()
        answer.result(DEADLINE_S)
        reloading.join(DEADLINE_S)
        assert not reloading.is_alive()
        first(pool, "rng").result(DEADLINE_S)
