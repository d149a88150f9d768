"""Remote clients beside their floor: a bare pyzmq relay with CURVE. Prints a table, and JSON if asked; asserts nothing.

    PYTHONPATH=scripts:. .venv/bin/python -m benchmarks.standalone.remote_clients --rounds 9 --json FILE [--streams]

The floor is a DEALER with CURVE, a ROUTER that relays to a DEALER by ipc, and an echo behind that: three processes, as
a remote client, the gateway and a worker are. Contestants take turns; the figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import zmq

import atomr_mp
from atomr_mp.remote import keys

CALLS: Final = 400
FLYING: Final = 64
LARGE_BYTES: Final = 64 * 2**20
CHUNK_BYTES: Final = 256 * 1024
CREDIT: Final = 8
PARTS: Final = 20_000


def echo(ipc: str) -> None:
    """Echo what a relay sends."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(ipc)
    while True:
        socket.send_multipart(socket.recv_multipart())


def relay(ipc: str, port: Any, secret: bytes) -> None:
    """Pass messages between remote clients and the echo."""
    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    front.setsockopt(zmq.CURVE_SERVER, 1)
    front.setsockopt(zmq.CURVE_SECRETKEY, secret)
    port.send(front.bind_to_random_port("tcp://127.0.0.1"))
    back.bind(ipc)
    poller = zmq.Poller()
    poller.register(front, zmq.POLLIN)
    poller.register(back, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            source, target = (front, back) if socket is front else (back, front)
            target.send_multipart(source.recv_multipart())


def sink(port: Any, secret: bytes) -> None:
    """Take chunks by CURVE, and acknowledge each."""
    front = zmq.Context().socket(zmq.ROUTER)
    front.setsockopt(zmq.CURVE_SERVER, 1)
    front.setsockopt(zmq.CURVE_SECRETKEY, secret)
    port.send(front.bind_to_random_port("tcp://127.0.0.1"))
    room = bytearray(CHUNK_BYTES)
    while True:
        peer, chunk = front.recv_multipart()
        room[:] = chunk
        front.send_multipart([peer, b"k"])


def dealer(port: int, server: bytes) -> zmq.Socket[bytes]:
    """Connect a bare client."""
    socket = zmq.Context().socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def times(call: Callable[[], object], count: int = CALLS) -> list[float]:
    """Return how long each of some calls takes, in microseconds."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        found.append((time.perf_counter() - begun) * 1e6)
    return found


def p50_p99(found: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    found = sorted(found)
    return found[len(found) // 2], found[int(len(found) * 0.99)]


def raw_mb_s(socket: zmq.Socket[bytes]) -> float:
    """Send 64 MiB in chunks with credit; return the speed."""
    chunk, begun, flying = bytes(CHUNK_BYTES), time.perf_counter(), 0
    for _ in range(LARGE_BYTES // CHUNK_BYTES):
        if flying == CREDIT:
            socket.recv()
            flying -= 1
        socket.send(chunk)
        flying += 1
    while flying:
        socket.recv()
        flying -= 1
    return LARGE_BYTES / 1e6 / (time.perf_counter() - begun)


def relay_rate(socket: zmq.Socket[bytes], rounds: int = 20) -> float:
    """Return calls a second with 64 in flight."""
    begun = time.perf_counter()
    for _ in range(rounds):
        for _ in range(FLYING):
            socket.send(b"x")
        for _ in range(FLYING):
            socket.recv()
    return rounds * FLYING / (time.perf_counter() - begun)


def pool_rate(pool: atomr_mp.Pool, rounds: int = 20) -> float:
    """Return calls a second with 64 in flight."""
    begun = time.perf_counter()
    for _ in range(rounds):
        replies = [pool.call("Echo.again") for _ in range(FLYING)]
        for reply in replies:
            reply.result()
    return rounds * FLYING / (time.perf_counter() - begun)


def part_us(pool: atomr_mp.Pool, ahead: int) -> float:
    """Return how long a part of a quick stream takes, in microseconds."""
    begun = time.perf_counter()
    for _ in pool.stream("Stream.count", PARTS, ahead=ahead):
        pass
    return (time.perf_counter() - begun) * 1e6 / PARTS


def first_part_us(pool: atomr_mp.Pool) -> float:
    """Open a stream and wait for its only part and its end."""
    begun = time.perf_counter()
    list(pool.stream("Stream.count", 1))
    return (time.perf_counter() - begun) * 1e6


def streamed(pool: atomr_mp.Pool, far: atomr_mp.Pool, raw: zmq.Socket[bytes]) -> dict[str, float]:
    """Measure streams once, local ones first; the relay's round trip is the floor of a short one."""
    figures: dict[str, float] = {}

    def relayed() -> None:
        raw.send(b"x")
        raw.recv()

    figures["relay empty p50 us"], _ = p50_p99(times(relayed))
    status = pool.status().remote
    assert status is not None
    gateway = psutil.Process(status.pid)
    for name, client in (("local", pool), ("remote", far)):
        before = sum(gateway.cpu_times()[:2])
        processor = time.process_time()
        for ahead in (16, 256):
            figures[f"{name} part us, {ahead} ahead"] = part_us(client, ahead)
        figures[f"{name} client cpu us a part"] = (time.process_time() - processor) * 1e6 / (2 * PARTS)
        if client is far:
            spent = sum(gateway.cpu_times()[:2]) - before
            figures["gateway cpu us a part"] = spent * 1e6 / (2 * PARTS)
        shorts = [first_part_us(client) for _ in range(200)]
        figures[f"{name} stream of one part p50 us"], _ = p50_p99(shorts)
    return figures


@contextmanager
def bare() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Give a client of a relay, and one of a sink."""
    public, secret = zmq.curve_keypair()
    ipc = f"ipc://{tempfile.mkdtemp()}/relay"
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    processes = [
        spawn.Process(target=relay, args=(ipc, theirs, secret), daemon=True),
        spawn.Process(target=echo, args=(ipc,), daemon=True),
    ]
    for process in processes:
        process.start()
    port = ours.recv()
    processes.append(spawn.Process(target=sink, args=(theirs, secret), daemon=True))
    processes[-1].start()
    try:
        yield dealer(port, public), dealer(ours.recv(), public)
    finally:
        for process in processes:
            process.kill()


@contextmanager
def served() -> Iterator[tuple[atomr_mp.Pool, atomr_mp.Pool]]:
    """Give a pool, and a remote client of it."""
    directory = Path(tempfile.mkdtemp(prefix="ar-", dir="/tmp"))
    server, pair = keys.new_pair(), keys.new_pair()
    keys.write_new(directory / "keys" / keys.SERVER_FILE, keys.ServerKeys(public=server.public, secret=server.secret))
    client = keys.ClientKeys(name="bench", public=pair.public, secret=pair.secret, server=server.public)
    keys.write_new(directory / "bench.key", client)
    admitted = keys.AdmittedKey(name="bench", public=[pair.public], max_bytes=2**30)
    keys.change_admitted(directory / "keys", lambda before: before.admitting(admitted))
    processes = Path(__file__).parents[1] / "processes"
    actors = [f"{processes}/{actor}" for actor in ("echo_actor.py:Echo", "streaming_actor.py:Stream")]
    settings: dict[str, Any] = {"listen": "tcp://127.0.0.1:0", "keys_dir": str(directory / "keys")}
    with atomr_mp.start(backend="host", gpus=1, actors=actors, **settings) as pool:
        while not ((status := pool.status().remote) and status.listening):
            time.sleep(0.01)  # no event tells of it
        with atomr_mp.connect(status.address, keys=directory / "bench.key") as far:
            far.wait_ready()
            yield pool, far


def import_and_bind_ms() -> float:
    """Return how long a process takes to start, import pyzmq and bind."""
    code = "import zmq; zmq.Context().socket(zmq.ROUTER).bind_to_random_port('tcp://127.0.0.1'); print(1, flush=True)"
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return (time.perf_counter() - begun) * 1e3


def killed_ms(pool: atomr_mp.Pool, far: atomr_mp.Pool) -> float:
    """Return how long it takes from the gateway's SIGKILL to the next answer, once another stands by."""
    while (status := pool.status().remote) is None or not status.standby_pid:
        time.sleep(0.1)
    time.sleep(1)  # it makes itself ready
    begun = time.perf_counter()
    os.kill(status.pid, signal.SIGKILL)
    far.call("Echo.again").result()
    return (time.perf_counter() - begun) * 1e3


def one_round(
    pool: atomr_mp.Pool, far: atomr_mp.Pool, raw: zmq.Socket[bytes], bulk: zmq.Socket[bytes]
) -> dict[str, float]:
    """Measure everything once, the floor first."""
    figures: dict[str, float] = {}

    def relayed() -> None:
        raw.send(b"x")
        raw.recv()

    figures["relay empty p50 us"], figures["relay empty p99 us"] = p50_p99(times(relayed))
    figures["remote empty p50 us"], figures["remote empty p99 us"] = p50_p99(
        times(lambda: far.call("Echo.again").result())
    )
    figures["local empty p50 us"], _ = p50_p99(times(lambda: pool.call("Echo.again").result()))
    figures["relay 64 in flight /s"], figures["remote 64 in flight /s"] = relay_rate(raw), pool_rate(far)
    figures["raw CURVE 64 MiB MB/s"] = raw_mb_s(bulk)
    content = np.ones(LARGE_BYTES // 8)
    begun = time.perf_counter()
    ref = far.device().put(content)
    figures["remote put MB/s"] = LARGE_BYTES / 1e6 / (time.perf_counter() - begun)
    begun = time.perf_counter()
    ref.numpy()
    figures["remote numpy MB/s"] = LARGE_BYTES / 1e6 / (time.perf_counter() - begun)
    ref.free()
    over = threading.Event()

    def put() -> None:
        while not over.is_set():
            far.device().put(content).free()

    putting = threading.Thread(target=put)
    putting.start()
    beside = times(lambda: far.call("Echo.again").result())
    over.set()
    putting.join()
    figures["beside bulk p50 us"], figures["beside bulk p99 us"] = p50_p99(beside)
    figures["import and bind ms"] = import_and_bind_ms()
    figures["gateway killed, next answer ms"] = killed_ms(pool, far)
    return figures


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--streams", action="store_true", help="measure streams, and nothing else")
    options = parser.parse_args()
    with bare() as (raw, bulk), served() as (pool, far):
        rounds = [
            streamed(pool, far, raw) if options.streams else one_round(pool, far, raw, bulk)
            for _ in range(options.rounds)
        ]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    for name, value in medians.items():
        print(f"{name:34} {value:12.1f}")
    if options.json is not None:
        found = {"medians": medians, "rounds": rounds, "load_average": os.getloadavg()[0]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
