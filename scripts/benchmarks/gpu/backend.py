"""Measures the runtime on a GPU, beside the same work done directly in one process.

    python -m scripts.benchmarks.gpu.backend > gpu.json

Needs a GPU and the extra of its CUDA version. Times are medians in microseconds unless a name says otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.memory import ClientMemory

ACTORS: Final = Path(__file__).resolve().parents[3] / "tests" / "actors"
FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
GIB: Final = 2**30

FIRST_RESULT: Final = """
import cupy
from nvmath.bindings import cublas
cupy.arange(10, dtype="float32").sum().get()
"""
"""The least work of a process until its first result."""


ECHO: Final = """
import sys
import zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
while True:
    socket.send_multipart(socket.recv_multipart())
"""
"""The least work of a call: a message there and back."""


PROTOTYPE: Final = """
import sys
import cupy, msgpack, numpy, zmq
from nvmath.bindings import cublas
socket = zmq.Context().socket(zmq.ROUTER)
handle, stream = cublas.create(), cupy.cuda.Stream.null
one, zero = numpy.array(1, "float32"), numpy.array(0, "float32")
arrays = {number: cupy.full((64, 64), 0.5, "float32") for number in range(3)}
socket.bind(sys.argv[1])
while True:
    sender, packed = socket.recv_multipart()
    request = msgpack.unpackb(packed)
    a, b, c = (arrays[ref["buffer"]] if ref["generation"] == 1 else None for ref in request["arguments"])
    pointers = a.data.ptr, 64, b.data.ptr, 64
    cublas.sgemm(handle, 0, 0, 64, 64, 64, one.ctypes.data, *pointers, zero.ctypes.data, c.data.ptr, 64)
    stream.synchronize()
    socket.send_multipart([sender, msgpack.packb({"id": request["id"], "ok": True})])
"""
"""The least work of a product by request, in one loop that waits for the GPU: a prototype of the runtime."""


def timed(work: Callable[[], object], count: int, warm: int = 20) -> list[float]:
    """Return how long each of many runs takes, in seconds."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times


def summary(times: list[float], unit: float = 1e6) -> dict[str, float]:
    """Return median and 99th percentile."""
    ordered = sorted(times)
    return {
        "p50": round(statistics.median(ordered) * unit, 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * unit, 1),
    }


@contextlib.contextmanager
def peer(program: str) -> Iterator[Any]:
    """Run a program that answers at a socket, and give a socket that is connected to it."""
    import zmq

    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/peer"
        process = subprocess.Popen([sys.executable, "-c", program, address])
        try:
            with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
                socket.connect(address)
                yield socket
        finally:
            process.kill()
            process.wait()


def echo(_pool: atomr_mp.Pool) -> dict[str, Any]:
    """A message to another process and back, by ZeroMQ alone."""
    with peer(ECHO) as socket:

        def there_and_back() -> None:
            socket.send(b"x" * 100)
            socket.recv()

        return {"echo_us": summary(timed(there_and_back, 3000))}


def prototype(pool: atomr_mp.Pool) -> dict[str, Any]:
    """Small products by the prototype and by the runtime, in turns."""
    device = pool.device()
    a, b, c = (device.full((64, 64), 0.5) for _ in range(3))
    request = {"id": 1, "arguments": [{"buffer": number, "generation": 1} for number in range(3)]}
    with peer(PROTOTYPE) as socket:

        def there_and_back() -> None:
            socket.send(msgpack.packb(request))
            assert msgpack.unpackb(socket.recv())["ok"]

        ours, theirs = [], []
        for _ in range(5):
            theirs += timed(there_and_back, 1000)
            ours += timed(lambda: device.blas.gemm(a, b, c).result(), 1000)
    ratio = round(statistics.median(ours) / statistics.median(theirs), 2)
    return {"gemm_64_beside_prototype": {"runtime_us": summary(ours), "prototype_us": summary(theirs), "ratio": ratio}}


def gemm(pool: atomr_mp.Pool) -> dict[str, Any]:
    """Small and large products on resident buffers, by request and directly."""
    import cupy
    from nvmath.bindings import cublas

    device = pool.device()
    found: dict[str, Any] = {}
    handle = cublas.create()
    for n, count in ((64, 3000), (1024, 500), (8192, 10)):
        rng = np.random.default_rng(n)
        a, b = (device.put(rng.standard_normal((n, n)).astype("float32")) for _ in range(2))
        c = device.zeros((n, n))
        by_request = timed(lambda a=a, b=b, c=c: device.blas.gemm(a, b, c).result(), count)  # type: ignore[misc]
        # The same numbers: how fast a GPU may run depends on the power that they take.
        x, y = cupy.asarray(a.numpy()), cupy.asarray(b.numpy())
        z = cupy.zeros((n, n), "float32")
        one, zero = np.array(1, "float32"), np.array(0, "float32")

        def directly(n: int = n, x: Any = x, y: Any = y, z: Any = z, one: Any = one, zero: Any = zero) -> None:
            pointers = x.data.ptr, n, y.data.ptr, n
            cublas.sgemm(handle, 0, 0, n, n, n, one.ctypes.data, *pointers, zero.ctypes.data, z.data.ptr, n)
            cupy.cuda.Stream.null.synchronize()

        direct = timed(directly, count)
        found[f"gemm_{n}"] = {
            "by_request_us": summary(by_request),
            "direct_us": summary(direct),
            "ratio": round(statistics.median(by_request) / statistics.median(direct), 4),
        }
    device = pool.device()
    x, y, z = (device.full((8192, 8192), 0.5) for _ in range(3))
    for name, flying in (("gemm_8192_ten_in_flight_us", 10), ("gemm_8192_one_in_flight_us", 1)):

        def products(flying: int = flying) -> None:
            for reply in [device.blas.gemm(x, y, z) for _ in range(flying)]:
                reply.result()

        found[name] = round(statistics.median(timed(products, 5, warm=2)) / flying * 1e6, 1)
    a, b, c = (cupy.full((8192, 8192), 0.5, "float32") for _ in range(3))
    one, zero, stream = np.array(1, "float32"), np.array(0, "float32"), cupy.cuda.Stream.null

    def ten_directly() -> None:
        for _ in range(10):
            pointers = a.data.ptr, 8192, b.data.ptr, 8192
            cublas.sgemm(handle, 0, 0, 8192, 8192, 8192, one.ctypes.data, *pointers, zero.ctypes.data, c.data.ptr, 8192)
        stream.synchronize()

    found["gemm_8192_ten_directly_us"] = round(statistics.median(timed(ten_directly, 5, warm=2)) / 10 * 1e6, 1)
    found["empty_call_us"] = summary(timed(lambda: pool.call("Faulty.nothing").result(), 3000))
    return found


def pipelined(pool: atomr_mp.Pool) -> dict[str, Any]:
    """Small products with 64 in flight."""
    device = pool.device()
    a, b, c = (device.zeros((64, 64)) for _ in range(3))
    for _ in range(2):
        began, count = time.perf_counter(), 4000
        flying = [device.blas.gemm(a, b, c) for _ in range(64)]
        for at in range(count):
            flying[at % 64].result()
            flying[at % 64] = device.blas.gemm(a, b, c)
        for reply in flying:
            reply.result()
    return {"gemm_64_in_flight_per_s": round((count + 64) / (time.perf_counter() - began))}


def programs(pool: atomr_mp.Pool) -> dict[str, Any]:
    """A chain of 16 small products: as requests, as one program, and directly."""
    import cupy
    from nvmath.bindings import cublas

    device, steps = pool.device(), 16
    a, first = device.full((64, 64), 1 / 64), device.full((64, 64), 0.5)
    targets = [device.zeros((64, 64)) for _ in range(steps)]

    def requests() -> None:
        last = first
        for target in targets:
            reply = device.blas.gemm(a, last, target)
            last = target
        reply.result()

    with device.program() as p:
        last: Any = first
        for _ in targets:
            last = p.blas.gemm(a, last)
        p.returns(last)
    handle, one, zero = cublas.create(), np.array(1, "float32"), np.array(0, "float32")
    x, chain = cupy.full((64, 64), 1 / 64, "float32"), [cupy.full((64, 64), 0.5, "float32") for _ in range(steps + 1)]

    def directly() -> None:
        for source, target in itertools.pairwise(chain):
            pointers = source.data.ptr, 64, x.data.ptr, 64
            cublas.sgemm(handle, 0, 0, 64, 64, 64, one.ctypes.data, *pointers, zero.ctypes.data, target.data.ptr, 64)
        cupy.cuda.Stream.null.synchronize()

    ways = {"requests": requests, "program": lambda: p.run().result(), "directly": directly}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            found[name] += timed(way, 300)
    return {"chain_of_16_gemm_64_us": {name: summary(times) for name, times in found.items()}}


def transfers(pool: atomr_mp.Pool) -> dict[str, Any]:
    """Put and numpy(out=) of 1 GiB, beside a pinned copy of the same size in one process."""
    import cupy

    device, nbytes = pool.device(), GIB
    array, out = pool.host_array((nbytes,), "uint8"), pool.host_array((nbytes,), "uint8")
    array[:], out[:] = 7, 0
    put = timed(lambda: device.put(array), 6, warm=2)
    ref = device.put(array)
    back = timed(lambda: ref.numpy(out=out), 6, warm=2)
    assert int(out[::4096].min()) == 7
    plain = np.ones(nbytes, "uint8")
    put_plain = timed(lambda: device.put(plain), 3, warm=1)
    target = np.zeros(nbytes, "uint8")
    back_plain = timed(lambda: ref.numpy(out=target), 3, warm=1)
    there = cupy.empty(nbytes, "uint8")
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), "uint8", nbytes)
    pinned[:] = 1
    up = timed(lambda: (there.set(pinned), cupy.cuda.Stream.null.synchronize()), 6, warm=2)
    down = timed(lambda: there.get(out=pinned), 6, warm=2)

    def rate(times: list[float]) -> float:
        return round(nbytes / statistics.median(times) / 1e9, 2)

    return {
        "put_gb_s": rate(put),
        "numpy_out_gb_s": rate(back),
        "pinned_up_gb_s": rate(up),
        "pinned_down_gb_s": rate(down),
        "put_ratio": round(statistics.median(up) / statistics.median(put), 3),
        "numpy_out_ratio": round(statistics.median(down) / statistics.median(back), 3),
        "put_from_other_memory_gb_s": rate(put_plain),
        "numpy_into_other_memory_gb_s": rate(back_plain),
    }


def opening(pool: atomr_mp.Pool) -> dict[str, Any]:
    """A ref opened in this process: the first of a slab, and others."""
    device, buffers = pool.device(), pool._client.memory  # noqa: SLF001 - what is timed is a part of `view`
    assert isinstance(buffers, ClientMemory)
    large = [device.empty((2**27 + 1,), "uint8") for _ in range(10)]  # each needs a slab of its own
    first = [timed(functools.partial(buffers._mapping, ref.lease, ref.slab), 1, warm=0)[0] for ref in large]  # noqa: SLF001
    ref = device.put(np.ones(1000, "float32"))
    known = timed(
        lambda: buffers._mapping(ref.lease, ref.slab).array(ref.layout, writable=False),  # noqa: SLF001
        2000,
    )
    return {
        "open_first_us": summary(first),
        "open_known_us": summary(known),
        "view_us": summary(timed(ref.view, 1000)),
    }


def recovery(pool: atomr_mp.Pool) -> dict[str, Any]:
    """From a fault to the next good answer, beside the start of a process to its first result."""
    floor = timed(lambda: subprocess.run([sys.executable, "-c", FIRST_RESULT], check=True), 5, warm=1)
    told, again = [], []
    for how in ("illegal", "trap", "check"):
        began = time.perf_counter()
        try:
            pool.call("Faulty.fault", how).result(60)
        except errors.ContextPoisoned:
            told.append(time.perf_counter() - began)
        while True:
            try:
                pool.call("Faulty.total", np.ones(10)).result(60)
                break
            except errors.AtomrError:
                continue
        again.append(time.perf_counter() - began - told[-1])
    return {
        "process_to_first_result_s": round(statistics.median(floor), 3),
        "fault_to_told_s": [round(each, 3) for each in told],
        "told_to_next_answer_s": [round(each, 3) for each in again],
        "ratio": round(statistics.median(again) / statistics.median(floor), 2),
    }


def main() -> None:
    """Measure, and print the figures as JSON."""
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime())}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    report["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    with (
        tempfile.TemporaryDirectory() as folder,
        atomr_mp.start(actors=[FAULTY], gpus=1, backend="cuda", run_dir=Path(folder, "run")) as pool,
    ):
        for part in (echo, prototype, gemm, pipelined, programs, opening, transfers, recovery):
            try:
                report |= part(pool)
            except Exception as error:  # noqa: BLE001 - the other parts are worth having
                report[part.__name__] = f"{type(error).__name__}: {error}"
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
