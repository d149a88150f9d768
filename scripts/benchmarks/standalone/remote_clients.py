"""Remote clients beside their floor: a bare pyzmq relay with CURVE. Prints tables, and JSON if asked; asserts nothing.

    PYTHONPATH=scripts:. .venv/bin/python -m benchmarks.standalone.remote_clients --rounds 9 --json FILE [--streams]

Nine rounds take about three minutes. `--json` changes the figures of a file that exists, and nothing else.
The floor is a DEALER with CURVE, a ROUTER that relays to a DEALER by ipc, and an echo behind that: three processes, as
a remote client, the relay and a worker are. Contestants take turns; the figures are medians of the rounds.
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
    relay = psutil.Process(status.pid)
    for name, client in (("local", pool), ("remote", far)):
        before = sum(relay.cpu_times()[:2])
        processor = time.process_time()
        for ahead in (16, 256):
            figures[f"{name} part us, {ahead} ahead"] = part_us(client, ahead)
        figures[f"{name} client cpu us a part"] = (time.process_time() - processor) * 1e6 / (2 * PARTS)
        if client is far:
            spent = sum(relay.cpu_times()[:2]) - before
            figures["relay cpu us a part"] = spent * 1e6 / (2 * PARTS)
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


def actors() -> list[str]:
    """Return the actors of the pools that run here."""
    processes = Path(__file__).parents[1] / "processes"
    return [f"{processes}/{actor}" for actor in ("echo_actor.py:Echo", "streaming_actor.py:Stream")]


@contextmanager
def unlistening() -> Iterator[atomr_mp.Pool]:
    """Give a pool that does not listen."""
    with atomr_mp.start(backend="host", gpus=1, actors=actors()) as pool:
        yield pool


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
    settings: dict[str, Any] = {"listen": "tcp://127.0.0.1:0", "keys_dir": str(directory / "keys")}
    with atomr_mp.start(backend="host", gpus=1, actors=actors(), **settings) as pool:
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
    """Return how long it takes from the relay's SIGKILL to the next answer, once another stands by."""
    while (status := pool.status().remote) is None or not status.standby_pid:
        time.sleep(0.1)
    time.sleep(1)  # it makes itself ready
    begun = time.perf_counter()
    os.kill(status.pid, signal.SIGKILL)
    far.call("Echo.again").result()
    return (time.perf_counter() - begun) * 1e3


def bulk_mb_s(far: atomr_mp.Pool, content: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return how fast an array goes to the pool, and how fast it comes back."""
    begun = time.perf_counter()
    ref = far.device().put(content)
    put = LARGE_BYTES / 1e6 / (time.perf_counter() - begun)
    begun = time.perf_counter()
    ref.numpy()
    numpy = LARGE_BYTES / 1e6 / (time.perf_counter() - begun)
    ref.free()
    return put, numpy


def listening(plain: atomr_mp.Pool, pool: atomr_mp.Pool, turns: int = 10) -> tuple[float, float]:
    """Return the median of a local call in a pool that does not listen, and in one that listens, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for times_us, each in zip(found, (plain, pool), strict=True):
            times_us.append(p50_p99(times(lambda each=each: each.call("Echo.again").result(), 200))[0])  # type: ignore[misc]
    return statistics.median(found[0]), statistics.median(found[1])


def one_round(
    plain: atomr_mp.Pool, pool: atomr_mp.Pool, far: atomr_mp.Pool, raw: zmq.Socket[bytes], bulk: zmq.Socket[bytes]
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
    figures["local without listen p50 us"], figures["local empty p50 us"] = listening(plain, pool)
    figures["relay 64 in flight /s"], figures["remote 64 in flight /s"] = relay_rate(raw), pool_rate(far)
    figures["raw CURVE 64 MiB MB/s"] = raw_mb_s(bulk)
    content = np.ones(LARGE_BYTES // 8)
    # The relay is new: it connects, and makes memory for the arguments, which the next arrays use again.
    figures["remote first put MB/s"], figures["remote first numpy MB/s"] = bulk_mb_s(far, content)
    both = [bulk_mb_s(far, content) for _ in range(3)]
    figures["remote put MB/s"] = statistics.median(put for put, _ in both)
    figures["remote numpy MB/s"] = statistics.median(numpy for _, numpy in both)
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
    # The worker frees the arrays' memory, which the dead relay has held, in the background.
    figures["relay killed after arrays, next answer ms"] = killed_ms(pool, far)
    figures["relay killed, next answer ms"] = killed_ms(pool, far)
    return figures


GOALS: Final = (
    ("remote empty p50 us", "relay empty p50 us", "<= 1.15"),
    ("remote empty p99 us", "relay empty p99 us", "<= 1.3"),
    ("remote 64 in flight /s", "relay 64 in flight /s", ">= 2"),
    ("remote put MB/s", "raw CURVE 64 MiB MB/s", ">= 0.8"),
    ("remote numpy MB/s", "raw CURVE 64 MiB MB/s", ">= 0.8"),
    ("beside bulk p50 us", "remote empty p50 us", "<= 1.5"),
    ("beside bulk p99 us", "remote empty p50 us", "<= 10"),
    ("relay killed, next answer ms", "import and bind ms", "<= 1.3"),
    ("local empty p50 us", "local without listen p50 us", "<= 1.02"),
)
"""Figures, their floors, and the first goals for their ratios."""


def ratios(rounds: list[dict[str, float]]) -> dict[str, dict[str, float | str]]:
    """Return the median of each figure's ratio to its floor in the same round, with the least and the most."""
    found: dict[str, dict[str, float | str]] = {}
    for name, floor, goal in GOALS:
        each = sorted(figures[name] / figures[floor] for figures in rounds)
        found[name] = {"of": floor, "median": statistics.median(each), "min": each[0], "max": each[-1], "goal": goal}
    return found


def write(path: Path, found: dict[str, Any], *, streams: bool) -> None:
    """Write the figures into a file, whose other parts stay; those of streams have a part of their own."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    before |= {"streams": found} if streams else found
    path.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--streams", action="store_true", help="measure streams, and nothing else")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with bare() as (raw, bulk), unlistening() as plain, served() as (pool, far):
        rounds = [
            streamed(pool, far, raw) if options.streams else one_round(plain, pool, far, raw, bulk)
            for _ in range(options.rounds)
        ]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    for name, value in medians.items():
        print(f"{name:44} {value:12.1f}")
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "load_average_before": load, "medians": medians}
    if not options.streams:
        found["ratios"] = ratios(rounds)
        print(f"\n{'ratio, in the same round':34} {'median':>8} {'min':>8} {'max':>8}  goal")
        for name, ratio in found["ratios"].items():
            print(f"{name:34} {ratio['median']:8.2f} {ratio['min']:8.2f} {ratio['max']:8.2f}  {ratio['goal']}")
    if options.json is not None:
        write(options.json, {**found, "rounds": rounds}, streams=options.streams)


if __name__ == "__main__":
    main()
