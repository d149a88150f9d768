"""Programs, plans and generators under kills: no caller waits for ever, nothing is left, and what follows is right."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.libraries import DECLARED
from tests.support import BACKEND, DEADLINE_S, Ledger, settled, wait_generation, wait_until

N: Final = 48
FLYING: Final = 60
LARGE: Final = 300
"""Rows of matrices with which a run takes long enough to be killed in its middle."""


def iteration(device: atomr_mp.Device, steps: int, n: int = N) -> Any:
    """Return a program without refs, for a matrix of n rows."""
    with device.program() as p:
        x = p.input("x", (n, n), "float64")
        last = p.rng.generator(seed=3).uniform(size=(n, n), dtype="float64")
        for _ in range(steps):
            last = p.elementwise.add(p.blas.gemm(x, last), x)
        p.returns(last)
    return p


def in_flight(pool: atomr_mp.Pool) -> list[Any]:
    """Have runs of a program under way, which is known to the worker."""
    device = pool.device(0)
    p = iteration(device, 40)
    p.run(x=np.eye(N)).result()
    return [p.run(x=np.eye(N)) for _ in range(FLYING)]


def in_preparation(pool: atomr_mp.Pool) -> list[Any]:
    """Have the first run of a long program parked while it is prepared, and others, of other kinds too, behind it."""
    device = pool.device(0)
    p = iteration(device, 500)
    ref = device.put(np.ones((N, N)))
    before = pool.status().devices[0].started
    replies = [p.run(x=ref), p.run(x=np.eye(N)), device.blas.scal(ref[0], alpha=2.0)]
    assert settled(lambda: pool.status().devices[0].started > before)
    return [*replies, device.fft.fft2(device.put(np.ones((N, N), "complex128")))]


def drawing(pool: atomr_mp.Pool) -> list[Any]:
    """Have a generator's requests, and tables of laws, under way."""
    generator = pool.device(0).rng.generator(seed=8)
    return [generator.poisson(lam=float(10 + n), size=20_000) for n in range(FLYING)]


@pytest.mark.parametrize("begin", [in_flight, in_preparation, drawing])
def test_a_killed_worker_leaves_no_caller_waiting(ledger: Ledger, begin: Callable[[atomr_mp.Pool], list[Any]]) -> None:
    """Each request has its result or a typed error; the next incarnation computes the same as this one did."""
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        p = iteration(device, 5)
        expected = p.run(x=np.eye(N) / 2).result().numpy()
        seeded = device.rng.generator(seed=21)
        numbers = [seeded.normal(size=100).result().numpy() for _ in range(2)]
        replies = begin(pool)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        for reply in replies:
            error = reply.exception(DEADLINE_S)
            assert error is None or isinstance(error, errors.WorkerLost | errors.GpuRefStale), repr(error)
        wait_generation(pool, 2)
        np.testing.assert_array_equal(p.run(x=np.eye(N) / 2).result().numpy(), expected)
        np.testing.assert_array_equal(p.run(x=np.eye(N) / 2).result().numpy(), expected)
        again = device.rng.generator(seed=21, offset=100)
        np.testing.assert_array_equal(again.normal(size=100).result().numpy(), numbers[1])


def test_a_run_that_waits_for_a_worker_tells_it_the_program(ledger: Ledger) -> None:
    """It was meant for the killed worker by digest; the next one does not know it."""
    with ledger.start(max_restarts=1000, backoff_initial_s=0.5) as pool:
        p = iteration(pool.device(0), 5)
        expected = p.run(x=np.eye(N)).result().numpy()
        p.run(x=np.eye(N)).result()
        for generation in (2, 3):
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_until(pool, lambda: not pool._client.devices[0].admitted)
            replies = [p.run(x=np.eye(N)) for _ in range(8)]
            for reply in replies:
                np.testing.assert_array_equal(reply.result().numpy(), expected)
            assert {reply.generation for reply in replies} == {generation}


FIRST: Final[dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]]] = {
    "blas": (lambda device, a: device.blas.gemm(a, a), lambda a: a @ a),
    "blas_lt": (lambda device, a: device.blas_lt.matmul(a, a), lambda a: a @ a),
    "dnn": (lambda device, a: device.dnn.relu(a), lambda a: np.maximum(a, 0.0)),
    "elementwise": (lambda device, a: device.elementwise.multiply(a, a), lambda a: a * a),
    "fft": (lambda device, a: device.fft.rfft2(a), np.fft.rfft2),
    "rng": (lambda device, a: device.rng.uniform(a, low=2.0, high=2.0), lambda a: np.full_like(a, 2.0)),
    "solver": (lambda device, a: device.solver.det(a), np.linalg.det),
    "sparse": (lambda device, a: device.sparse.dense_to_sparse(a), lambda a: a),
    "tensor": (lambda device, a: device.tensor.einsum("ij,jk->ki", a, a), lambda a: (a @ a).T),
}
"""The first request for each library, and what it gives."""


def test_a_kill_during_a_library_s_first_use_costs_what_was_on_it(ledger: Ledger) -> None:
    """Its first request loads a library when the kill comes; the next incarnation loads it again."""
    assert sorted(FIRST) == sorted(DECLARED)
    content = np.random.default_rng(6).uniform(1, 2, (4, 4))
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        for generation, (library, (request, _)) in enumerate(FIRST.items(), 1):
            wait_generation(pool, generation)
            a = device.put(content)
            replies = [request(device, a) for _ in range(3)]
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            for reply in replies:
                error = reply.exception(DEADLINE_S)
                assert error is None or isinstance(error, errors.WorkerLost | errors.GpuRefStale), (library, error)
        wait_generation(pool, len(FIRST) + 1)
        for library, (request, expected) in FIRST.items():
            a = device.put(content)
            result: Any = request(device, a).result()
            found = result.to_scipy().toarray() if library == "sparse" else (a if result is None else result).numpy()
            np.testing.assert_allclose(found, expected(content), 1e-13, err_msg=library)


def test_killed_clients_leave_nothing_of_their_programs(ledger: Ledger) -> None:
    """The first one makes the worker keep plans; after it, memory and plans stay the same."""
    with ledger.start() as pool:
        pool.wait_ready()

        def figures() -> dict[str, int]:
            gc.collect()
            found = pool.device(0).statistics()
            names = ["slabs", "leases", "views", "shared"]
            if BACKEND == "host":  # a GPU's graphs are kept, and captured when a program runs again
                names.append("used_bytes")
            return {name: found[name] for name in names}

        def kill_a_client() -> None:
            with ledger.program("computing", pool.run_dir) as client:
                assert client.hear() == ["ready"]
                client.kill()
            assert settled(lambda: pool.status().sessions == 1)
            assert settled(lambda: pool.status().devices[0].queue_depth == 0)
            with OperatorSession(pool.run_dir / "session.sock") as observer:  # whose memory was given back is no more
                assert settled(lambda: not any(each.state == "ended" for each in observer.inventory().sessions))

        kill_a_client()
        assert settled(lambda: figures()["leases"] == 0)
        baseline, kept = figures(), plans(pool)
        for _ in range(2):
            kill_a_client()
            assert settled(lambda: figures() == baseline), (figures(), baseline)
            assert BACKEND != "host" or plans(pool) == kept


def plans(pool: atomr_mp.Pool) -> int:
    """Return how many plans the worker keeps."""
    return sum(each.kept for each in pool.status().devices[0].plans)


@pytest.mark.skipif(BACKEND != "host", reason="a GPU is done before the kill")
def test_a_run_after_a_kill_in_a_run_does_not_wait_for_its_deadline(ledger: Ledger) -> None:
    """It is the client's only request, so nothing else on its connection brings it on its way.

    It is sent to a worker that does not know its program, which the run before it was to tell.
    """
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0, max_suspicions=1000) as pool:
        p, x = iteration(pool.device(0), 40, LARGE), np.eye(LARGE) / 2
        expected = p.run(x=x).result().numpy()
        running = p.run(x=x)
        assert settled(lambda: pool.status().devices[0].running == 1)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert isinstance(running.exception(DEADLINE_S), errors.WorkerLost)
        following = p.run(x=x, deadline_s=DEADLINE_S)
        np.testing.assert_array_equal(following.result().numpy(), expected)
        assert following.generation == 2


def outcome(reply: Any, expected: Any) -> str:
    """Return "right", "lost" if the worker of a run has ended, or the error or fault."""
    error = reply.exception(2 * DEADLINE_S)
    try:
        right = error is None and np.array_equal(reply.result().numpy(), expected)
    except errors.AtomrError as unread:  # the worker has ended since
        error = unread
    if isinstance(error, errors.WorkerLost | errors.GpuRefStale):
        return "lost"
    return repr(error) if error is not None else "right" if right else "other numbers"


def test_wherever_the_kill_comes_each_run_is_answered_and_none_waits_for_its_deadline(ledger: Ledger) -> None:
    """Runs of several threads: what was running is lost at once, and goes on alone with a worker that does not know it.

    Each thread runs the same two programs again and again. A kill comes whenever some more runs have ended.
    """
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0, max_suspicions=1000) as pool:
        device, over, ended = pool.device(0), threading.Event(), Counter[str]()
        programs = [iteration(device, steps) for steps in (30, 60)]
        inputs = [np.eye(N) / number for number in range(2, 5)]
        expected = [[p.run(x=x).result().numpy() for p in programs] for x in inputs]

        def run(at: int) -> None:
            for turn in itertools.cycle(range(2)):
                if over.is_set():
                    return
                reply = programs[turn].run(x=inputs[at], deadline_s=DEADLINE_S)
                ended[outcome(reply, expected[at][turn])] += 1

        threads = [threading.Thread(target=run, args=(at,)) for at in range(len(inputs))]
        for thread in threads:
            thread.start()
        try:
            for kill in range(1, 5):
                wait_generation(pool, kill)
                enough = ended.total() + kill
                assert settled(lambda least=enough: ended.total() >= least), ended  # type: ignore[misc]
                os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 5)
        finally:
            over.set()
            for thread in threads:
                thread.join(3 * DEADLINE_S)
        assert ended.keys() <= {"right", "lost"}
