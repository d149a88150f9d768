"""The part of `programs` that needs a GPU: the same work directly, in this process, with the bindings themselves."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import cupy
import numpy as np
from nvmath.bindings import cublas, cufft

import atomr_mp
from benchmarks.standalone.chained import STEPS, N, in_turns, ratio, recorded_chain, summary
from benchmarks.standalone.in_flight import kept_in_flight

LARGE: Final = 2**26
"""Elements of the large transform."""

FLYING: Final = 10
TRANSFORMS: Final = 50


def chain(pool: atomr_mp.Pool, rounds: int) -> dict[str, Any]:
    """Fifty dependent products: as a program, enqueued directly, and as a graph that is replayed directly."""
    device = pool.device()
    a, x, c = device.put(np.eye(N, dtype="float32")), device.full((N, N), 0.5), device.zeros((N, N))
    p = recorded_chain(device, a, x, out=device.zeros((N, N)))
    stream = cupy.cuda.Stream(non_blocking=True)
    handle, one, zero = cublas.create(), np.array(1, "float32"), np.array(0, "float32")
    workspace = cupy.cuda.alloc(2**25)
    cublas.set_stream(handle, stream.ptr)
    cublas.set_workspace(handle, workspace.ptr, 2**25)
    matrix = cupy.eye(N, dtype="float32")
    here = [cupy.full((N, N), 0.5, "float32") for _ in range(STEPS + 1)]
    cupy.cuda.Device().synchronize()

    def enqueue() -> None:
        for source, target in itertools.pairwise(here):
            pointers = source.data.ptr, N, matrix.data.ptr, N
            cublas.sgemm(handle, 0, 0, N, N, N, one.ctypes.data, *pointers, zero.ctypes.data, target.data.ptr, N)

    def directly() -> None:
        enqueue()
        stream.synchronize()

    def product() -> None:
        pointers = here[0].data.ptr, N, matrix.data.ptr, N
        cublas.sgemm(handle, 0, 0, N, N, N, one.ctypes.data, *pointers, zero.ctypes.data, here[1].data.ptr, N)
        stream.synchronize()

    directly()
    with stream:
        stream.begin_capture()
        enqueue()
        graph = stream.end_capture()

    def replayed() -> None:
        graph.launch(stream)
        stream.synchronize()

    times = in_turns(
        {
            "program": lambda: p.run().result(),
            "request": lambda: device.blas.gemm(a, x, c).result(),
            "product_directly": product,
            "enqueued_directly": directly,
            "graph_directly": replayed,
        },
        rounds,
    )
    medians = {name: statistics.median(each) for name, each in times.items()}
    first, second = _new_programs(device, a, x)
    return {
        "chain_of_50_gemm_64_us": summary(times),
        "first_run_of_a_new_program_us": round(first * 1e6, 1),
        "second_run_us": round(second * 1e6, 1),
        "second_run_goal_us": round((medians["request"] + 1.3 * medians["enqueued_directly"]) * 1e6, 1),
        "program_beside_goal_of_enqueued": round(
            medians["program"] / (medians["request"] + 1.3 * medians["enqueued_directly"]), 3
        ),
        "program_beside_goal_of_replayed": round(
            medians["program"] / (medians["request"] + 1.15 * medians["graph_directly"]), 3
        ),
        "gemm_64_by_request_beside_direct": ratio(times, "request", "product_directly"),
    }


def _new_programs(device: Any, a: Any, x: Any) -> tuple[float, float]:
    """Return how long the first and the second run of a program take, which is prepared and recorded then."""
    taken: list[list[float]] = [[], []]
    for number in range(10):
        p = recorded_chain(device, a, x, STEPS + 1 + number)
        for times in taken:
            began = time.perf_counter()
            p.run().result()
            times.append(time.perf_counter() - began)
    return statistics.median(taken[0]), statistics.median(taken[1])


def requests(pool: atomr_mp.Pool, rounds: int) -> dict[str, Any]:
    """Requests of the libraries on small resident buffers, each beside the same function in this process.

    What a request adds is compared with what gemm adds to its own direct call: at most 1.1 times as much.
    """
    device = pool.device()
    random = np.random.default_rng(3)
    values = random.uniform(1, 2, (N, N)).astype("float32")
    refs = [device.put(values) for _ in range(3)]
    halves = device.put((values[: N // 2] + 1j).astype("complex64")), device.zeros((N // 2, N), "complex64")
    identity = device.put(np.eye(N, dtype="float32"))  # which is its own factor: potrf works in place, again and again
    a, b, c = refs
    by_request: dict[str, Callable[[Any], Any]] = {
        "blas.gemm": lambda of: of.blas.gemm(a, b, c),
        "blas.axpy": lambda of: of.blas.axpy(a[0], c[0]),
        "blas.dot": lambda of: of.blas.dot(a[0], b[0]),
        "elementwise.add": lambda of: of.elementwise.add(a, b, c),
        "fft.fft": lambda of: of.fft.fft(*halves),
        "rng.uniform": lambda of: of.rng.uniform(c),
        "rng.normal": lambda of: of.rng.normal(c),
        "solver.potrf": lambda of: of.solver.potrf(identity),
    }
    from tests.actor_libraries import libraries_on
    from tests.gpu.on_device import device as here

    stream = here().make_stream("actor", inline_bytes=0)
    direct = libraries_on(here(), "cuda", stream)
    a_, b_, c_ = (cupy.asarray(each.numpy()) for each in refs)
    halves_ = tuple(cupy.asarray(each.numpy()) for each in halves)
    identity_ = cupy.asarray(identity.numpy())
    directly: dict[str, Callable[[], Any]] = {
        "blas.gemm": lambda: direct.blas.gemm(a_, b_, c_),
        "blas.axpy": lambda: direct.blas.axpy(a_[0], c_[0]),
        "blas.dot": lambda: direct.blas.dot(a_[0], b_[0]),
        "elementwise.add": lambda: direct.elementwise.add(a_, b_, c_),
        "fft.fft": lambda: direct.fft.fft(*halves_),
        "rng.uniform": lambda: direct.rng.uniform(c_),
        "rng.normal": lambda: direct.rng.normal(c_),
        "solver.potrf": lambda: direct.solver.potrf(identity_),
    }
    cupy.cuda.Device().synchronize()

    def completed(call: Callable[[], Any]) -> None:
        with stream.stream:
            call()
        stream.stream.synchronize()

    found: dict[str, Any] = {}
    added: dict[str, float] = {}
    for name, call in by_request.items():
        try:
            times = in_turns(
                {
                    "request": lambda call=call: call(device).result(),  # type: ignore[misc]
                    "directly": functools.partial(completed, directly[name]),
                },
                rounds,
            )
        except Exception as error:  # noqa: BLE001 - the others are worth having
            found[name] = f"{type(error).__name__}: {error}"
            continue
        added[name] = statistics.median(times["request"]) - statistics.median(times["directly"])
        found[name] = summary(times) | {"added_us": round(added[name] * 1e6, 1)}
        if "blas.gemm" in added:
            found[name]["added_beside_gemm"] = round(added[name] / added["blas.gemm"], 3)
    return {"small_requests": found, "goal_added_beside_gemm": 1.1}


def transforms(pool: atomr_mp.Pool, rounds: int) -> dict[str, Any]:
    """Fifty large transforms with ten in flight, in programs of ten, and directly with one wait."""
    device = pool.device()
    x, out = device.full((LARGE,), 0.5, "complex64"), device.zeros((LARGE,), "complex64")
    x_, out_ = cupy.full(LARGE, 0.5, "complex64"), cupy.zeros(LARGE, "complex64")
    stream = cupy.cuda.Stream(non_blocking=True)
    plan = cufft.create()
    cufft.make_plan1d(plan, LARGE, cufft.Type.C2C, 1)
    cufft.set_stream(plan, stream.ptr)
    with device.program() as p:
        for _ in range(FLYING):
            p.fft.fft(x, out)

    def directly() -> None:
        for _ in range(TRANSFORMS):
            cufft.exec_c2c(plan, x_.data.ptr, out_.data.ptr, -1)
        stream.synchronize()

    ways: dict[str, Callable[[], object]] = {
        "ten_requests_in_flight": lambda: kept_in_flight(lambda: device.fft.fft(x, out), TRANSFORMS, FLYING),
        "two_programs_in_flight": lambda: kept_in_flight(p.run, TRANSFORMS // FLYING, 2),
        "directly": directly,
    }
    times = in_turns(ways, rounds, block=1)
    return {
        "fifty_ffts_of_2_26_us": summary(times),
        "rate_beside_direct": {name: ratio(times, "directly", name) for name in ways},
        "goal_rate": 0.98,
    }
